"""Items that are long for their connection: time-outs are for silence, and bytes may go and come for longer."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from kestreld.client import AsyncKestrelCluster, KestrelCluster
from tests.support.daemon import Daemon, running_daemon
from tests.support.way import Way

ITEM: Final = b"x" * 4_000_000
TIMEOUT_MS: Final = 1000
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("far")) as daemon:
        yield daemon


@pytest.fixture
def way(daemon: Daemon) -> Iterator[Way]:
    way = Way(daemon.port, bytes_per_s=1_000_000)
    yield way
    way.close()


def test_a_long_item_is_put_and_leased(daemon: Daemon, way: Way) -> None:
    with KestrelCluster([f"127.0.0.1:{way.port}"], timeout_ms=TIMEOUT_MS, patience_ms=1) as cluster:
        queue = cluster.queue("far")
        assert queue.put(ITEM)
        leased = queue.lease(30)
        assert leased is not None
        assert (leased.item, leased.deliveries) == (ITEM, 0)
        leased.confirm()


def test_a_long_item_is_put_and_leased_in_an_event_loop(daemon: Daemon, way: Way) -> None:
    async def both() -> None:
        async with AsyncKestrelCluster([f"127.0.0.1:{way.port}"], timeout_ms=TIMEOUT_MS, patience_ms=1) as cluster:
            queue = cluster.queue("far")
            assert await queue.put(ITEM)
            leased = await queue.lease(30)
            assert leased is not None
            assert (leased.item, leased.deliveries) == (ITEM, 0)
            await leased.confirm()

    asyncio.run(both())
