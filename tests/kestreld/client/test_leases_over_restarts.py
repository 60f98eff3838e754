"""Leases of a client whose server is killed and started again, whose replies are lost, and whose server stays away."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final
from weakref import ref

import pytest

from kestreld.client import ClusterLease, ClusterQueue, ConnectionLost, KestrelCluster, ServersAway
from kestreld.client import lease_calls as lease_module
from kestreld.client.server import Server
from kestreld.errors import LeaseLost
from tests.support.daemon import Daemon, running_daemon
from tests.support.forwarder import Forwarder
from tests.support.ports import free_port
from tests.support.waiting import until

LONG_S: Final = 3600.0
SHORT_S: Final = 0.3


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of LONG_S are extended every tenth of a second."""
    monkeypatch.setattr(lease_module, "BEATS", 36_000)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path / "daemon") as daemon:
        yield daemon


@pytest.fixture
def cluster(daemon: Daemon) -> Iterator[KestrelCluster]:
    with KestrelCluster([daemon.address]) as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: KestrelCluster) -> ClusterQueue:
    return cluster.queue("work")


@pytest.fixture
def brief(daemon: Daemon) -> Iterator[ClusterQueue]:
    """The same queue, for which an outage ends with the time of a lease."""
    with KestrelCluster([daemon.address], outage_s=0) as cluster:
        yield cluster.queue("work")


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One that no test stops."""
    with running_daemon(tmp_path_factory.mktemp("lasting")) as daemon:
        yield daemon


@pytest.fixture
def forwarder(lasting: Daemon) -> Iterator[Forwarder]:
    forwarder = Forwarder(Random(1))
    yield forwarder
    forwarder.close()


@pytest.fixture
def behind(lasting: Daemon, forwarder: Forwarder, request: pytest.FixtureRequest) -> Iterator[ClusterQueue]:
    """A queue of its own, behind the forwarder, with an item in it."""
    port = free_port()
    forwarder.forward(port, lasting.port)
    with KestrelCluster([f"127.0.0.1:{port}"], outage_s=0) as cluster:
        queue = cluster.queue(request.node.name.translate({ord("/"): "", ord(" "): ""}))
        queue.put(b"job")
        yield queue


def leased(queue: ClusterQueue, seconds: float, *, heartbeat: bool = False) -> ClusterLease:
    lease = queue.lease(seconds, heartbeat=heartbeat)
    assert lease is not None
    return lease


def in_block(lease: ClusterLease, *acts: Callable[[], object]) -> None:
    with lease:
        for act in acts:
            act()


def divide_by_zero() -> None:
    _ = 1 // 0


def interrupt() -> None:
    raise KeyboardInterrupt


def is_kept(lease: int, server: Server) -> bool:
    return any(one.token == lease for kept in server.keeper._calls._kept if (one := kept.lease()) is not None)


# Over a restart


@pytest.mark.usefixtures("quick_beats")
def test_a_heartbeat_goes_on_over_a_kill_with_the_same_token(
    daemon: Daemon, queue: ClusterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put(b"job")
    with caplog.at_level(logging.WARNING, "kestreld.client"), leased(queue, LONG_S, heartbeat=True) as lease:
        daemon.kill()
        until(lambda: "is away" in caplog.text, "a beat that finds no server")
        daemon.start()
        until_ms = lease._calls.until_ms
        until(lambda: lease._calls.until_ms > until_ms, "a beat that finds it again")
        with KestrelCluster([daemon.address]) as other:
            assert other.queue("work").lease(LONG_S) is None
        assert not lease.is_lost
    assert queue.stats()[daemon.address]["open_transactions"] == 0
    assert queue.lease(LONG_S) is None, "it is done"


@pytest.mark.parametrize(
    ("end", "is_done"),
    [
        (ClusterLease.confirm, True),
        (lambda lease: lease.extend(LONG_S) and lease.confirm(), True),
        (ClusterLease.give_back, False),
        (ClusterLease.fail, False),
    ],
)
def test_what_ends_a_lease_is_repeated_until_the_server_is_back(
    daemon: Daemon, queue: ClusterQueue, end: Callable[[ClusterLease], bool], is_done: bool
) -> None:
    queue.put(b"job")
    lease = leased(queue, LONG_S)
    daemon.kill()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end, lease)
        daemon.start()
        assert ended.result(LONG_S)
    assert not lease.is_unsure
    assert not lease.is_lost
    assert queue.get(wait_ms=0) == (None if is_done else b"job")


def read_one(queue: ClusterQueue) -> bytes | None:
    with queue.read(None) as item:
        return item


def lease_one(queue: ClusterQueue) -> bytes | None:
    lease = queue.lease(LONG_S, None)
    assert lease is not None
    return lease.item


@pytest.mark.parametrize(
    "wait",
    [
        lease_one,
        read_one,
        lambda queue: queue.get(None),
        lambda queue: queue.peek(None),
        lambda queue: next(iter(queue)),
    ],
)
def test_who_waits_goes_on_waiting_over_a_kill(
    daemon: Daemon, queue: ClusterQueue, wait: Callable[[ClusterQueue], bytes | None]
) -> None:
    queue.put(b"makes the queue")
    queue.flush()
    with ThreadPoolExecutor(1) as pool, KestrelCluster([daemon.address]) as other:
        found = pool.submit(wait, queue)
        until(lambda: other.queue("work").stats()[daemon.address]["waiters"], "somebody who waits")
        daemon.kill()
        daemon.start()
        until(lambda: other.queue("work").stats()[daemon.address]["waiters"], "somebody who waits again")
        other.queue("work").put(b"job")
        assert found.result(LONG_S) == b"job"


# A server that stays away


def test_a_lease_whose_server_stays_away_is_given_up_when_its_time_is_over(
    daemon: Daemon, brief: ClusterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    brief.put(b"job")
    lease = leased(brief, SHORT_S, heartbeat=True)
    acts = (
        daemon.kill,
        lambda: until(lambda: lease.is_lost, "the end of the lease"),
        lambda: until(lambda: not is_kept(lease.token, lease._calls.server), "the end of its heartbeat"),
    )
    with pytest.raises(LeaseLost, match="was over before the item could be confirmed: no kestreld at") as lost:
        in_block(lease, *acts)
    assert not lost.value.is_unsure
    assert "is over and was not extended" in caplog.text


def test_a_confirm_is_repeated_until_the_time_of_its_lease_is_over(daemon: Daemon, brief: ClusterQueue) -> None:
    brief.put(b"job")
    lease = leased(brief, SHORT_S)
    daemon.kill()
    with pytest.raises(ServersAway):
        lease.confirm()
    assert lease.is_lost
    assert not lease.is_unsure
    daemon.start()
    assert lease.confirm(), "nobody has taken it"
    assert not lease.is_lost


def test_a_block_that_fails_raises_its_own_exception_though_the_server_is_away(
    daemon: Daemon, brief: ClusterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    brief.put(b"job")
    with pytest.raises(ZeroDivisionError):
        in_block(leased(brief, SHORT_S, heartbeat=True), daemon.kill, divide_by_zero)
    assert "comes again when that is over" in caplog.text


def test_ctrl_c_does_not_wait_for_a_server_that_is_away(daemon: Daemon, queue: ClusterQueue) -> None:
    queue.put(b"job")
    with pytest.raises(KeyboardInterrupt):
        in_block(leased(queue, LONG_S, heartbeat=True), daemon.kill, interrupt)


def test_ctrl_c_ends_the_repeating_of_a_confirm(daemon: Daemon, queue: ClusterQueue) -> None:
    queue.put(b"job")
    lease, begun = leased(queue, LONG_S), threading.Event()
    daemon.kill()
    threading.Thread(target=lambda: (begun.wait(), signal.raise_signal(signal.SIGINT))).start()

    def confirm() -> None:
        begun.set()
        lease.confirm()

    with pytest.raises(KeyboardInterrupt):
        confirm()


# Replies that are lost


def test_a_confirm_whose_reply_is_lost_is_done_or_lost(forwarder: Forwarder, behind: ClusterQueue) -> None:
    lease = leased(behind, LONG_S, heartbeat=True)
    with pytest.raises(LeaseLost, match="done, or lost") as lost, lease:
        forwarder.broken_by = b"DELETED"
    assert lost.value.is_unsure
    assert lease.is_unsure
    assert not lease.is_lost
    assert behind.get() is None, "it is done"


def test_a_confirm_that_is_lost_on_its_way_is_repeated(forwarder: Forwarder, behind: ClusterQueue) -> None:
    with leased(behind, LONG_S) as lease:
        forwarder.broken_by = b"delete "
    assert not lease.is_unsure
    assert behind.get() is None


@pytest.mark.parametrize("end", [ClusterLease.give_back, ClusterLease.fail])
def test_an_item_that_is_given_back_with_a_lost_reply_is_given_back(
    forwarder: Forwarder, behind: ClusterQueue, end: Callable[[ClusterLease], bool]
) -> None:
    lease = leased(behind, LONG_S)
    forwarder.broken_by = b"TOUCHED"
    assert end(lease)
    assert not lease.is_unsure
    assert behind.get() == b"job"


def test_a_lost_reply_is_not_repeated_once_the_lease_is_over(forwarder: Forwarder, behind: ClusterQueue) -> None:
    lease = leased(behind, 0.001)
    until(lambda: lease.is_lost, "the end of the lease")
    forwarder.broken_by = b"DELETED"
    with pytest.raises(ConnectionLost):
        lease.confirm()
    assert lease.is_unsure
    assert not lease.confirm()
    assert lease.is_unsure, "it is done, or lost"


# A lease that is lost


@pytest.mark.usefixtures("quick_beats")
def test_a_holder_sees_that_a_beat_found_its_lease_lost(lasting: Daemon) -> None:
    with KestrelCluster([lasting.address]) as cluster:
        queue = cluster.queue("lost")
        queue.put(b"job")
        lease = leased(queue, LONG_S, heartbeat=True)
        with pytest.raises(LeaseLost, match="expired before its block ended") as lost:  # long before its time is over
            in_block(lease, queue.delete, lambda: until(lambda: lease.is_lost, "a beat"))
        assert not lost.value.is_unsure


@pytest.mark.usefixtures("quick_beats")
def test_a_lease_that_nobody_has_any_longer_is_not_kept_alive_by_its_heartbeat(lasting: Daemon) -> None:
    with KestrelCluster([lasting.address]) as cluster:
        queue = cluster.queue("dropped")
        queue.put(b"job")
        lease = leased(queue, LONG_S, heartbeat=True).__enter__()
        token, server, weakly = lease.token, lease._calls.server, ref(lease)
        assert is_kept(token, server)
        del lease
        until(lambda: weakly() is None and not server.keeper._calls._kept, "the end of the lease and of its heartbeat")


def test_an_item_that_was_waited_for_is_extended_at_once(lasting: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it came its lease had begun, by as much as the way took: only an extension tells when it ends."""
    monkeypatch.setattr(lease_module, "BEATS", 10**9)  # any wait is longer than a beat
    with KestrelCluster([lasting.address]) as cluster, ThreadPoolExecutor(1) as pool:
        queue = cluster.queue("awaited")
        found = pool.submit(queue.lease, LONG_S, None, heartbeat=True)
        until(lambda: queue.stats()[lasting.address].get("waiters"), "somebody who waits")
        queue.put(b"job")
        lease = found.result(LONG_S)
        assert lease is not None
        assert lease._calls.is_late
        with lease:
            until(lambda: not lease._calls.is_late, "the first beat")
