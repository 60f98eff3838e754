"""One kestreld for the tests that leave its other queues alone, and queues of their own for each."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """For tests that stop it, or want to know all its queues."""
    with running_daemon(tmp_path / "daemon") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def kestrelctl(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Kestrelctl:
    return Kestrelctl(daemon.address, tmp_path_factory.mktemp("bin"))


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q{next(_numbers)}"
