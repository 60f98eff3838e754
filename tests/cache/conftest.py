"""The two servers that are compared: a memcached and a kestreld with a cache, one of each for all tests of a worker."""

from collections.abc import Iterator

import pytest

from tests.support.cache_server import running_memcached
from tests.support.daemon import running_daemon


@pytest.fixture(scope="session")
def memcached_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_memcached(tmp_path_factory.mktemp("memcached")) as memcached:
        yield memcached.port


@pytest.fixture(scope="session")
def cache_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), "listen.cache=127.0.0.1:0") as daemon:
        yield daemon.cache_port
