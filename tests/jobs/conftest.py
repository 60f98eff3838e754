"""A server of jobs for the tests of a folder, emptied for each, and configured for each as it was at its start."""

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.resp import RespClient, resp_client


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("jobs"), "listen.disque=127.0.0.1:0") as daemon:
        yield daemon


def configuration(client: RespClient) -> dict[bytes, bytes]:
    found = client("CONFIG", "GET", "*")
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.fixture(scope="session")
def at_start(shared_server: Daemon) -> dict[bytes, bytes]:
    with resp_client(shared_server.disque) as client:
        return configuration(client)


@pytest.fixture
def server(shared_server: Daemon, at_start: dict[bytes, bytes]) -> Daemon:
    with resp_client(shared_server.disque) as client:
        assert client("DEBUG", "FLUSHALL") == b"OK"
        for name, value in configuration(client).items():
            if value != at_start[name]:
                assert client("CONFIG", "SET", name, at_start[name]) == b"OK", name
    return shared_server


@pytest.fixture
def client(server: Daemon) -> Iterator[RespClient]:
    with resp_client(server.disque) as client:
        yield client


@pytest.fixture
def other(server: Daemon) -> Iterator[RespClient]:
    with resp_client(server.disque) as client:
        yield client
