"""A server, and connections of Kombu to it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running_daemon

pytest.importorskip("kombu", reason="needs Kombu: pip install 'kestreld[celery]'")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server for the tests of a module, each of which has queues of its own."""
    with running_daemon(tmp_path_factory.mktemp("server")) as daemon:
        yield daemon


@pytest.fixture
def connect(server: Daemon) -> Iterator[Callable[..., Any]]:
    """Opens connections of Kombu, with transport options."""
    import kombu

    import kestreld.integrations.celery

    assert kestreld.integrations.celery
    opened = []

    def connection(**options: Any) -> Any:
        opened.append(kombu.Connection(f"kestrel://{server.address}", transport_options=options))
        return opened[-1]

    yield connection
    for one in opened:
        one.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Daemon]:
    """A server for one test, which stops or kills it."""
    with running_daemon(tmp_path) as daemon:
        yield daemon
