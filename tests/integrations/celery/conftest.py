"""A server, connections of Kombu to it, and a Redis beside it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.ports import free_port
from tests.support.waiting import until

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


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    """The port of an empty Redis."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    port, log = free_port(), tmp_path / "redis.log"
    with log.open("wb") as output:
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: "eady to accept" in log.read_text() or process.poll() is not None, "Redis")
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.kill()
        process.wait()
