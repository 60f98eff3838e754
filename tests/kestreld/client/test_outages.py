"""How long a client goes on while its server is away: longer for what it holds or waits for."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.client import AsyncKestrelCluster, ClusterQueue, KestrelCluster, ServersAway
from kestreld.client.pool_calls import OUTAGE_MS
from tests.support.daemon import Daemon, running_daemon
from tests.support.interrupting import Interrupted, interrupted_at
from tests.support.waiting import PATIENCE_S, until

SHORT_S: Final = 0.3
NOBODY: Final = "127.0.0.1:1"
CLOCK_S: Final = 0.002  # a client counts whole milliseconds


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path / "daemon") as daemon:
        yield daemon


def has_heartbeat(token: int) -> bool:
    return any(str(token) in thread.name for thread in threading.enumerate())


def test_a_confirm_goes_on_beyond_the_time_of_its_lease(daemon: Daemon) -> None:
    """The restarted server lets the lease go on, by its lease_grace."""
    with KestrelCluster([daemon.address]) as cluster, ThreadPoolExecutor(1) as pool:
        queue = cluster.queue("work")
        queue.put(b"job")
        lease = queue.lease(SHORT_S)
        assert lease is not None
        daemon.kill()
        confirmed = pool.submit(lease.confirm)
        until(lambda: lease.is_lost, "the end of the lease by our clock")
        daemon.start()
        assert confirmed.result(PATIENCE_S)
        assert not lease.is_lost
        assert queue.get() is None


def test_a_heartbeat_goes_on_beyond_the_time_of_its_lease(daemon: Daemon) -> None:
    with KestrelCluster([daemon.address]) as cluster:
        queue = cluster.queue("work")
        queue.put(b"job")
        lease = queue.lease(SHORT_S, heartbeat=True)
        assert lease is not None
        with lease:
            daemon.kill()
            until(lambda: lease.is_lost, "the end of the lease by our clock")
            daemon.start()
            until(lambda: not lease.is_lost, "a beat that finds the server again")
            assert queue.lease(SHORT_S) is None
        assert queue.get() is None


def test_a_task_keeps_its_lease_beyond_its_time(daemon: Daemon) -> None:
    async def body() -> None:
        async with AsyncKestrelCluster([daemon.address]) as cluster, asyncio.timeout(PATIENCE_S):
            queue = cluster.queue("work")
            await queue.put(b"job")
            lease = await queue.lease(SHORT_S, heartbeat=True)
            assert lease is not None
            async with lease:
                daemon.kill()
                while not lease.is_lost:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(daemon.start)
                while lease.is_lost:
                    await asyncio.sleep(0.01)
            assert await queue.get() is None

    asyncio.run(body())


def test_a_confirm_is_given_up_at_the_end_of_an_outage(daemon: Daemon) -> None:
    with KestrelCluster([daemon.address], outage_s=2 * SHORT_S) as cluster:
        queue = cluster.queue("work")
        queue.put(b"job")
        lease = queue.lease(0.001)
        assert lease is not None
        daemon.kill()
        started_s = time.monotonic()
        with pytest.raises(ServersAway):
            lease.confirm()
        assert time.monotonic() - started_s >= 2 * SHORT_S - CLOCK_S


@pytest.mark.parametrize(
    "wait",
    [
        lambda queue: queue.get(None),
        lambda queue: queue.peek(None),
        lambda queue: queue.lease(1, None),
        lambda queue: next(iter(queue)),
        lambda queue: queue.put(b"x", once=True),
    ],
    ids=["get", "peek", "lease", "loop", "put once"],
)
def test_what_waits_is_patient_for_the_time_of_an_outage(wait: Callable[[ClusterQueue], Any]) -> None:
    with KestrelCluster([NOBODY], patience_ms=1, outage_s=SHORT_S) as cluster:
        started_s = time.monotonic()
        with pytest.raises(ServersAway):
            wait(cluster.queue("work"))
        assert time.monotonic() - started_s >= SHORT_S - CLOCK_S


@pytest.mark.parametrize(
    "act",
    [
        lambda cluster: cluster.queue("work").put(b"x"),
        lambda cluster: cluster.queue("work").get(),
        lambda cluster: cluster.queue("work").flush(),
        lambda cluster: cluster.stats(),
    ],
    ids=["put", "get", "flush", "stats"],
)
def test_what_holds_nothing_raises_soon(act: Callable[[KestrelCluster], Any]) -> None:
    with KestrelCluster([NOBODY], patience_ms=1, outage_s=10 * PATIENCE_S) as cluster, pytest.raises(ServersAway):
        act(cluster)


def test_a_wait_ends_at_its_own_time_during_an_outage() -> None:
    with KestrelCluster([NOBODY]) as cluster, pytest.raises(ServersAway):
        cluster.queue("work").get(timeout=0.05)


@pytest.mark.parametrize(
    ("options", "outage_ms"),
    [
        ({}, OUTAGE_MS),
        ({"outage_s": 0}, 0),
        ({"outage_s": 1.5}, 1500),
        ({"patience_ms": 0}, 0),
        ({"patience_ms": 90_000}, 90_000),
        ({"patience_ms": 90_000, "outage_s": 10}, 90_000),
        ({"patience_ms": 100, "outage_s": 10}, 10_000),
    ],
)
def test_the_longer_one_of_what_was_chosen_counts(options: dict[str, Any], outage_ms: int) -> None:
    assert KestrelCluster([NOBODY], **options)._calls.outage_ms == outage_ms
    cluster = KestrelCluster([NOBODY])
    cluster.patience_ms = 7
    assert cluster._calls.outage_ms == 7


def is_tried() -> bool:
    return any(thread.name == f"trying {NOBODY}" and thread.is_alive() for thread in threading.enumerate())


def test_a_server_is_tried_again_whatever_interrupts_who_finds_it_away() -> None:
    at, is_interrupted = 1, True
    while is_interrupted:
        with KestrelCluster([NOBODY], patience_ms=0) as cluster:
            (server,) = cluster._calls.servers
            is_interrupted = interrupted_in(cluster, at)
            assert not server.next_try_at_ms or is_tried(), at
        until(lambda: not is_tried(), "the end of the thread that tries it")
        at += 1
    assert at > 100


def interrupted_in(cluster: KestrelCluster, at: int) -> bool:
    """Ask a server that is away, with an exception at the `at`th place. False = there is no such place."""
    try:
        return interrupted_at(at, cluster.queue("work").get) is not None
    except ServersAway:
        return False
    except RuntimeError as problem:
        if isinstance(problem.__context__, Interrupted):  # Python makes that of one in the middle of a lock of its own
            return True
        raise
