"""One kestreld for all tests of kestrelctl that leave it as it was, and a queue of its own for each."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = ("queues.small.max_items=3", "listen.cache=127.0.0.1:0", "listen.disque=127.0.0.1:0")
    with running_daemon(tmp_path_factory.mktemp("daemon"), *settings, admin="127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def kestrelctl(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Kestrelctl:
    return Kestrelctl(daemon.address, tmp_path_factory.mktemp("bin"), daemon.cache, daemon.disque)


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """For tests that stop, kill or hang it."""
    with running_daemon(tmp_path / "daemon") as daemon:
        yield daemon


@pytest.fixture
def own_kestrelctl(own_daemon: Daemon, tmp_path: Path) -> Kestrelctl:
    return Kestrelctl(own_daemon.address, tmp_path)


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
def small(kestrelctl: Kestrelctl) -> str:
    """A queue that takes three items, and is empty whatever other tests have left there."""
    assert kestrelctl("flush", "small", "--yes", "--missing-ok").code == 0
    return "small"
