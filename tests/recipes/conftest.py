"""Each test of a recipe runs on a real memcached and on kestreld."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestreld.recipes import Servers
from tests.support.cache_server import MEMORY_MIB, CacheProcess, running_cache

KINDS = ["memcached", "kestreld"]


@pytest.fixture(params=KINDS)
def start_cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., CacheProcess]]:
    """Starts another server of one kind at each call."""
    with ExitStack() as stack:
        started = 0

        def start(memory_mib: int = MEMORY_MIB) -> CacheProcess:
            nonlocal started
            started += 1
            return stack.enter_context(running_cache(request.param, tmp_path / f"cache{started}", memory_mib))

        yield start


@pytest.fixture
def cache(start_cache: Callable[..., CacheProcess]) -> CacheProcess:
    return start_cache()


@pytest.fixture
def servers(cache: CacheProcess) -> Iterator[Servers]:
    with Servers(cache.address) as servers:
        yield servers
