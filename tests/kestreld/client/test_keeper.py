"""The keeper of leases, against real servers: batches, ends, `alive`, forks, and servers that fall silent."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from kestreld.client import (
    AsyncClusterLease,
    AsyncKestrelCluster,
    ClusterLease,
    ClusterQueue,
    KestrelCluster,
    ServersAway,
    keeper_calls,
)
from kestreld.client import lease_calls as lease_module
from kestreld.client.server import Server
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.forking import in_child
from tests.support.forwarder import Forwarder
from tests.support.interrupting import interrupted_at
from tests.support.ports import free_port
from tests.support.process import environment
from tests.support.waiting import PATIENCE_S, until

LONG_S: Final = 3600.0
SHORT_S: Final = 0.3
ROOT: Final = Path(__file__).parents[3]


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of LONG_S are extended every tenth of a second."""
    monkeypatch.setattr(lease_module, "BEATS", 36_000)


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_calls, "PING_MS", 100)
    monkeypatch.setattr(keeper_calls, "PING_ANSWER_MS", 300)
    monkeypatch.setattr("kestreld.client.server.PING_MS", 100)
    monkeypatch.setattr("kestreld.client.async_servers.PING_MS", 100)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def cluster(daemon: Daemon) -> Iterator[KestrelCluster]:
    with KestrelCluster([daemon.address]) as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: KestrelCluster, request: pytest.FixtureRequest) -> ClusterQueue:
    queue = cluster.queue(request.node.name.partition("[")[0])
    queue.delete()
    return queue


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    forwarder = Forwarder(Random(1))
    yield forwarder
    forwarder.close()


def behind(forwarder: Forwarder, daemon: Daemon) -> str:
    """The address of the daemon behind the forwarder."""
    port = free_port()
    forwarder.forward(port, daemon.port)
    return f"127.0.0.1:{port}"


def leased(queue: ClusterQueue, seconds: float = LONG_S, *, heartbeat: bool = True) -> ClusterLease:
    lease = queue.lease(seconds, heartbeat=heartbeat)
    assert lease is not None
    return lease


def server_of(cluster: KestrelCluster) -> Server:
    (server,) = cluster._pool.calls.servers
    return server


def kept(cluster: KestrelCluster) -> int:
    return len(server_of(cluster).keeper._calls._kept)


def is_running(cluster: KestrelCluster) -> bool:
    return server_of(cluster).keeper._is_running


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def is_extended(lease: ClusterLease) -> Callable[[], bool]:
    """True once it has been extended since now."""
    until_ms = lease._calls.until_ms
    return lambda: lease._calls.until_ms > until_ms


async def until_extended(lease: AsyncClusterLease) -> None:
    until_ms = lease._calls.until_ms
    while lease._calls.until_ms <= until_ms:
        await asyncio.sleep(0.005)


def figure(daemon: Daemon, name: str) -> int:
    with KestrelCluster([daemon.address]) as other:
        return int(other.stats()[daemon.address][name])


def counter(queue: ClusterQueue, name: str) -> int:
    return sum(int(counters[name]) for counters in queue.stats().values() if counters)


# Many leases


@pytest.mark.usefixtures("quick_beats")
def test_one_thread_extends_a_hundred_leases_over_one_connection_in_few_batches(
    daemon: Daemon, cluster: KestrelCluster, queue: ClusterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    send = keeper_calls.KeeperCalls._exchange

    def exchange(self: Any, requests: list[bytes], answer_ms: int) -> Any:
        batches.append(len(requests))
        return send(self, requests, answer_ms)

    monkeypatch.setattr(keeper_calls.KeeperCalls, "_exchange", exchange)
    for number in range(100):
        queue.put(b"%d" % number)
    had_threads, had_connections = threads(), figure(daemon, "curr_connections")
    with ExitStack() as blocks:
        leases = [blocks.enter_context(leased(queue)) for _ in range(100)]
        are_extended = [is_extended(lease) for lease in leases]
        until(lambda: all(is_so() for is_so in are_extended), "a beat of each")
        assert threads() == had_threads + 1
        assert figure(daemon, "curr_connections") == had_connections + 1
    beats = [size for size in batches if size]
    assert sum(beats) >= 100
    assert len(beats) < 20, beats
    assert counter(queue, "items") == counter(queue, "leased") == 0


@pytest.mark.usefixtures("quick_beats")
def test_a_lease_that_is_lost_does_not_disturb_the_others_of_its_batch(cluster: KestrelCluster) -> None:
    work, gone = cluster.queue("work"), cluster.queue("gone")
    for queue in (work, gone):
        queue.delete()
        queue.put(b"x")
    with leased(work) as lease:
        lost = leased(gone).__enter__()
        gone.delete()
        until(lambda: lost.is_lost, "a beat of the lost one")
        until(is_extended(lease), "a beat of the other one")
        assert kept(cluster) == 1


def test_a_short_lease_is_extended_in_time_beside_a_long_one(cluster: KestrelCluster, queue: ClusterQueue) -> None:
    queue.put(b"long")
    queue.put(b"short")
    with leased(queue), ExitStack() as block:
        calls = server_of(cluster).keeper._calls
        until(lambda: 1000 < calls._rests_until_ms - keeper_calls.now_ms() <= keeper_calls.PING_MS, "a keeper at rest")
        short = block.enter_context(leased(queue, SHORT_S))
        ends_at_ms = short._calls.until_ms
        until(is_extended(short), "a beat")
        assert keeper_calls.now_ms() < ends_at_ms


def test_tls_and_logins(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "BEATS", 36_000)
    authority = Authority(short_path / "ca")
    certificate, key = authority.issue_server()
    config = f"""
tls: {{certificate: {certificate}, key: {key}}}
users:
  alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}
"""
    login = {"user": "alice", "password": "all of it", "ca": str(authority.certificate)}
    for listen in ("tls:127.0.0.1:0", f"unix:{short_path}/b.sock"):
        with (
            running_daemon(short_path / "spool", config=config, listen=listen) as daemon,
            KestrelCluster([daemon.address], **login) as cluster,
        ):
            cluster.queue("work").put(b"x" * 100_000)
            with leased(cluster.queue("work")) as lease:
                until(is_extended(lease), "a beat")


def test_a_server_whose_certificate_is_not_trusted_gets_no_beats(short_path: Path) -> None:
    authority, other = Authority(short_path / "ca"), Authority(short_path / "other")
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    with (
        running_daemon(short_path / "spool", config=config, listen="tls:127.0.0.1:0") as daemon,
        KestrelCluster([daemon.address], ca=str(other.certificate)) as cluster,
        pytest.raises(ServersAway, match="certificate verify failed"),
    ):
        server_of(cluster).keeper._connection.connect()


# The thread


def test_the_thread_ends_when_nobody_has_needed_it_for_a_while(
    cluster: KestrelCluster, queue: ClusterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_calls, "IDLE_MS", 50)
    monkeypatch.setattr(keeper_calls, "PING_MS", 20)
    for _ in range(2):
        queue.put(b"x")
        with leased(queue):
            until(lambda: is_running(cluster), "the thread")
        until(lambda: not is_running(cluster), "its end")


def test_the_thread_ends_at_once_when_the_cluster_is_closed_but_leases_outlive_it(daemon: Daemon) -> None:
    cluster = KestrelCluster([daemon.address])
    queue = cluster.queue("closed")
    queue.put(b"x")
    with leased(queue, SHORT_S) as lease:
        cluster.close()
        is_so = is_extended(lease)
        until(is_so, "a beat after the end of the cluster")
    until(lambda: not is_running(cluster), "the end of the thread")


def test_a_cluster_that_is_garbage_leaves_no_thread(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_calls, "IDLE_MS", 50)
    monkeypatch.setattr(keeper_calls, "PING_MS", 20)
    had = threads()
    cluster = KestrelCluster([daemon.address])
    cluster.queue("garbage").put(b"x")
    leased(cluster.queue("garbage"), SHORT_S).__enter__()
    assert threads() > had
    del cluster
    until(lambda: threads() == had, "the end of the thread")


def test_a_short_wait_needs_no_thread(cluster: KestrelCluster, queue: ClusterQueue) -> None:
    had = threads()
    assert queue.get(wait_ms=20) is None
    assert threads() == had


@pytest.mark.usefixtures("quick_beats")
def test_a_child_extends_its_own_leases_and_none_of_its_parent(cluster: KestrelCluster, queue: ClusterQueue) -> None:
    queue.put(b"parent's")
    queue.put(b"child's")

    def child() -> tuple[int, bool]:
        was_kept = kept(cluster)
        with leased(queue) as own:
            until(is_extended(own), "a beat of the child's lease")
            return was_kept, own.item == b"child's" and not is_parents()

    with leased(queue) as lease:
        until(is_extended(lease), "a beat")
        is_parents = is_extended(lease)
        assert in_child(child) == (0, True)
        until(is_extended(lease), "the parent's beat goes on")
    assert counter(queue, "items") == counter(queue, "leased") == 0


# Its end


@pytest.mark.usefixtures("quick_beats")
@pytest.mark.parametrize("is_answered", [True, False])
def test_an_end_waits_for_a_beat_under_way_but_not_long(
    daemon: Daemon, forwarder: Forwarder, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_calls, "STOP_MS", 60_000 if is_answered else 100)
    with KestrelCluster([behind(forwarder, daemon)]) as cluster:
        queue = cluster.queue("ends")
        queue.delete()
        queue.put(b"x")
        lease = leased(queue).__enter__()
        until(is_extended(lease), "a beat")
        forwarder.delay_s = 0.5 if is_answered else 50
        calls = server_of(cluster).keeper._calls
        until(lambda: calls._under_way, "a beat under way")
        started = time.monotonic()
        lease._stop_beating()
        assert time.monotonic() - started < 30
        assert bool(calls._under_way) is not is_answered
        forwarder.delay_s = 0
        if is_answered:
            assert lease.give_back()
            assert queue.get() == b"x"


# Whether the holder is alive


def test_leases_whose_holder_is_not_alive_run_out_and_go_elsewhere(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> bool:
        raise ZeroDivisionError

    for alive, reason in ((lambda: False, "returned False"), (fails, "raised ZeroDivisionError()")):
        with KestrelCluster([daemon.address], alive=alive) as cluster, KestrelCluster([daemon.address]) as other:
            queue = cluster.queue("dead")
            queue.delete()
            queue.put(b"x")
            lease = leased(queue, SHORT_S).__enter__()
            second = other.queue("dead").lease(LONG_S, timeout=PATIENCE_S)
            assert second is not None
            until(lambda: not kept(cluster), "the end of the heartbeat")
            assert lease.is_lost
            assert f"is over and was not extended: alive() {reason}" in caplog.text


def test_a_holder_that_does_not_say_whether_it_is_alive_loses_its_lease(daemon: Daemon) -> None:
    answers = threading.Event()
    with KestrelCluster([daemon.address], alive=lambda: answers.wait(PATIENCE_S)) as cluster:
        queue = cluster.queue("mute")
        queue.delete()
        queue.put(b"x")
        lease = leased(queue, SHORT_S).__enter__()
        with KestrelCluster([daemon.address]) as other:
            second = other.queue("mute").lease(LONG_S, timeout=PATIENCE_S)
        assert second is not None
        assert lease.is_lost
        answers.set()
        assert second.confirm()


def test_a_holder_that_says_it_is_alive_keeps_its_lease(daemon: Daemon) -> None:
    asked = threading.Event()
    with KestrelCluster([daemon.address], alive=lambda: asked.set() or True) as cluster:  # type: ignore[func-returns-value]
        cluster.queue("alive").put(b"x")
        with leased(cluster.queue("alive"), SHORT_S) as lease:
            until(is_extended(lease), "a beat")
        assert asked.is_set()


def test_alive_in_an_event_loop(daemon: Daemon) -> None:
    async def with_cluster() -> None:
        is_alive = True
        async with AsyncKestrelCluster([daemon.address], alive=lambda: is_alive) as cluster:
            queue = cluster.queue("alive-loop")
            await queue.put(b"x")
            lease = await queue.lease(SHORT_S, heartbeat=True)
            assert lease is not None
            await lease.__aenter__()
            await until_extended(lease)
            is_alive = False
            async with AsyncKestrelCluster([daemon.address]) as other:
                assert await other.queue("alive-loop").get(timeout=PATIENCE_S) == b"x"

    asyncio.run(with_cluster())


@pytest.mark.parametrize("kind", [KestrelCluster, AsyncKestrelCluster])
def test_alive_is_a_function(kind: type) -> None:
    with pytest.raises(TypeError, match="alive"):
        kind(["127.0.0.1:1"], alive=True)


# Servers that fall silent


@pytest.mark.usefixtures("quick_pings")
def test_who_waits_on_a_connection_that_has_fallen_silent_goes_on_over_a_new_one(
    daemon: Daemon, forwarder: Forwarder, cluster: KestrelCluster, caplog: pytest.LogCaptureFixture
) -> None:
    waits(daemon, forwarder, cluster, 2)
    assert "is away: no answer within 300 ms" in caplog.text


def waits(
    daemon: Daemon, forwarder: Forwarder, cluster: KestrelCluster, most_s: float, *, patience_ms: int = 5000
) -> None:
    queue = cluster.queue("silent")
    queue.delete()
    found: list[ClusterLease | None] = []
    with KestrelCluster([behind(forwarder, daemon)], patience_ms=patience_ms) as proxied:
        thread = threading.Thread(target=lambda: found.append(proxied.queue("silent").lease(LONG_S, None)))
        thread.start()
        until(lambda: counter(queue, "waiters") == 1, "somebody who waits")
        until(lambda: server_of(proxied).keeper._connection.is_connected, "the keeper")
        forwarder.fall_silent()
        started = time.monotonic()
        until(lambda: counter(queue, "waiters") == 2, "the same over a new connection")
        queue.put(b"for the lost connection, of which the server has not been told")
        queue.put(b"x")
        thread.join(PATIENCE_S)
        assert time.monotonic() - started < most_s
        assert found[0] is not None
        assert found[0].item == b"x"
        assert found[0].confirm()


@pytest.mark.usefixtures("quick_pings")
def test_a_wait_that_was_longer_than_the_patience_goes_on_after_a_silence(
    daemon: Daemon, forwarder: Forwarder, cluster: KestrelCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_calls, "PING_ANSWER_MS", 600)
    waits(daemon, forwarder, cluster, 3, patience_ms=400)


@pytest.mark.usefixtures("quick_pings")
def test_a_task_that_waits_on_a_connection_that_has_fallen_silent_goes_on_over_a_new_one(
    daemon: Daemon, forwarder: Forwarder
) -> None:
    asyncio.run(waits_in_loop(daemon, forwarder, 2))


async def waits_in_loop(daemon: Daemon, forwarder: Forwarder, most_s: float) -> None:
    async with (
        AsyncKestrelCluster([behind(forwarder, daemon)]) as proxied,
        AsyncKestrelCluster([daemon.address]) as cluster,
        asyncio.timeout(PATIENCE_S),
    ):
        queue = cluster.queue("silent-loop")
        await queue.delete()

        async def until_waiters(count: int) -> None:
            while sum(int(one["waiters"]) for one in (await queue.stats()).values() if one) != count:
                await asyncio.sleep(0.005)

        waiting = asyncio.create_task(proxied.queue("silent-loop").lease(LONG_S, None))
        await until_waiters(1)
        (server,) = proxied._calls.servers
        while server.keeper._connection is None:
            await asyncio.sleep(0.005)
        forwarder.fall_silent()
        started = time.monotonic()
        await until_waiters(2)
        await queue.put(b"for the lost connection, of which the server has not been told")
        await queue.put(b"x")
        lease = await waiting
        assert time.monotonic() - started < most_s
        assert lease is not None
        assert lease.item == b"x"
        assert await lease.confirm()


@pytest.mark.usefixtures("quick_pings")
def test_a_heartbeat_goes_on_over_connections_that_have_fallen_silent(daemon: Daemon, forwarder: Forwarder) -> None:
    beats_over_silence(daemon, forwarder, 2)


def beats_over_silence(daemon: Daemon, forwarder: Forwarder, seconds: float) -> None:
    with KestrelCluster([behind(forwarder, daemon)]) as cluster:
        queue = cluster.queue("silent-beats")
        queue.delete()
        queue.put(b"x")
        with leased(queue, seconds) as lease:
            until(is_extended(lease), "a beat")
            forwarder.fall_silent()
            until(is_extended(lease), "a beat over a new connection")
            assert not lease.is_lost
        assert counter(queue, "items") == counter(queue, "leased") == 0


def test_a_heartbeat_of_a_task_goes_on_over_connections_that_have_fallen_silent(
    daemon: Daemon, forwarder: Forwarder, quick_pings: None
) -> None:
    async def with_cluster() -> None:
        async with AsyncKestrelCluster([behind(forwarder, daemon)]) as cluster, asyncio.timeout(PATIENCE_S):
            queue = cluster.queue("silent-beats-loop")
            await queue.delete()
            await queue.put(b"x")
            lease = await queue.lease(2, heartbeat=True)
            assert lease is not None
            async with lease:
                await until_extended(lease)
                forwarder.fall_silent()
                await until_extended(lease)
                assert not lease.is_lost

    asyncio.run(with_cluster())


def test_closing_does_not_wait_for_a_silent_server(
    daemon: Daemon, forwarder: Forwarder, quick_pings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_calls, "PING_ANSWER_MS", 10 * PATIENCE_S * 1000)

    async def with_cluster() -> None:
        async with AsyncKestrelCluster([behind(forwarder, daemon)], timeout_ms=600_000) as cluster:
            waiting = asyncio.create_task(cluster.queue("closing").get(None))
            (server,) = cluster._calls.servers
            while server.keeper._connection is None:
                await asyncio.sleep(0.005)
            forwarder.fall_silent()
            spoke_at_ms = server.keeper._calls._spoke_at_ms
            while keeper_calls.now_ms() < spoke_at_ms + 300:
                await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.wait([waiting])

    asyncio.run(asyncio.wait_for(with_cluster(), PATIENCE_S))


@pytest.mark.long
def test_silence_is_noticed_within_a_few_seconds(daemon: Daemon, forwarder: Forwarder, cluster: KestrelCluster) -> None:
    waits(daemon, forwarder, cluster, 8)
    asyncio.run(waits_in_loop(daemon, forwarder, 8))
    beats_over_silence(daemon, forwarder, 30)


# Interruptions


def interrupt_everywhere(cluster: KestrelCluster, queue: ClusterQueue, step: int) -> int:
    """Have an exception at each place of the way into a block in turn: nothing is kept then, and the item is there
    again. How many places.
    """
    at = 2  # at the first, it is still the caller's
    while True:
        queue.put(b"x")
        lease = leased(queue)
        found = interrupted_at(at, lease.__enter__)
        if found is None:
            lease.__exit__(None, None, None)
            return at
        assert kept(cluster) == 0, found
        assert queue.get() == b"x", found
        at += step


def test_who_is_interrupted_on_the_way_into_a_block_leaves_no_heartbeat(
    cluster: KestrelCluster, queue: ClusterQueue
) -> None:
    assert interrupt_everywhere(cluster, queue, 3) > 10


def test_who_is_interrupted_while_it_leases_holds_nothing(cluster: KestrelCluster, daemon: Daemon) -> None:
    """But where the reply is in nobody's hands, between two functions: the item comes again when its time is over."""
    at, held = 1, 0
    with KestrelCluster([daemon.address]) as other:
        queue = other.queue("interrupted")
        while True:
            queue.delete()
            queue.put(b"x")
            found = interrupted_at(at, lambda: cluster.queue("interrupted").lease(LONG_S))
            if found is None or found[0] is not None:
                break
            held += queue.get() is None
            at += 1
    assert at > 100
    assert held <= 6


@pytest.mark.parametrize("alarms", [100, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_interruptions_anywhere_lose_no_item_and_hold_none(daemon: Daemon, alarms: int) -> None:
    command = [sys.executable, "-m", "tests.support.lease_alarms", daemon.address, str(alarms)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    print(done.stdout)
