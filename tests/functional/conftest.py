"""What tests over real sockets share: one daemon a module, a queue name a test, and clients as it asks for them."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

Connect = Callable[[], QueueClient]
_numbers = count(1)


@pytest.fixture(scope="module")
def daemon_config() -> str:
    """The YAML of this module's daemon; a module with other wishes has a fixture of this name."""
    return "listen: {admin: null}\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, daemon_config: str) -> Iterator[Daemon]:
    """The daemon of the module. Tests that stop or change theirs start their own."""
    with running_daemon(tmp_path_factory.mktemp("kestreld"), config=daemon_config) as running:
        yield running


@pytest.fixture
def queue() -> str:
    """A queue nobody else uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Connect]:
    """Makes clients of the module's daemon."""
    with ExitStack() as clients:
        yield lambda: clients.enter_context(QueueClient(daemon.port))


def delete_all(client: QueueClient) -> None:
    """The server has no queues."""
    client.send(b"dump_stats\r\nversion\r\n")
    names = re.findall(rb"^queue '(.+)' \{\r$", client.read_until(b"VERSION "), re.MULTILINE)
    client.read_line()
    client.send(b"".join([b"delete %b\r\n" % name for name in names]))
    for _ in names:
        client.read_line()


@pytest.fixture
def no_queues(daemon: Daemon) -> None:
    """The module's daemon has none, whatever was tested before: for tests of names with settings, and of sums."""
    with QueueClient(daemon.port) as client:
        delete_all(client)


@pytest.fixture
def client(connect: Connect) -> QueueClient:
    return connect()
