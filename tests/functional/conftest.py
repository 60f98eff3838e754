"""What tests over real sockets share: one daemon a module, a queue name a test, and clients as it asks for them."""

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


@pytest.fixture
def client(connect: Connect) -> QueueClient:
    return connect()
