"""A server of jobs for the tests of a folder, emptied for each."""

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.resp import RespClient, resp_client


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("jobs"), "listen.disque=127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture
def server(shared_server: Daemon) -> Daemon:
    with resp_client(shared_server.disque) as client:
        assert client("DEBUG", "FLUSHALL") == b"OK"
    return shared_server


@pytest.fixture
def client(server: Daemon) -> Iterator[RespClient]:
    with resp_client(server.disque) as client:
        yield client


@pytest.fixture
def other(server: Daemon) -> Iterator[RespClient]:
    with resp_client(server.disque) as client:
        yield client
