"""Leases, delays and keys of several servers: real ones."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestreld.client import ClusterQueue, KestrelCluster, ServerRefused
from kestreld.errors import InvalidArgument, LeaseLost, UnexpectedReply
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.peer import Exchange, scripted_peer


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    folder = tmp_path_factory.mktemp("daemons")
    with running_daemon(folder / "0") as first, running_daemon(folder / "1") as second:
        yield [first, second]


@pytest.fixture
def cluster(daemons: list[Daemon]) -> Iterator[KestrelCluster]:
    with KestrelCluster([daemon.address for daemon in daemons]) as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: KestrelCluster, request: pytest.FixtureRequest) -> ClusterQueue:
    return cluster.queue(request.node.name)


def test_a_confirm_goes_to_the_server_that_gave_the_token(daemons: list[Daemon], queue: ClusterQueue) -> None:
    for daemon in daemons:
        with KestrelCluster([daemon.address]) as alone:
            alone.queue(queue.name).put(daemon.address.encode())
    leases = [queue.lease(60), queue.lease(60)]
    assert queue.lease(60) is None
    for lease in leases:
        assert lease is not None
        assert lease.item == lease.server.encode()
    confirmed = []
    thread = threading.Thread(target=lambda: confirmed.extend(lease.confirm() for lease in leases if lease))
    thread.start()
    thread.join()
    assert confirmed == [True, True]
    assert [lease.confirm() for lease in leases if lease] == [False, False]


def test_a_lease_is_extended_given_back_and_failed(queue: ClusterQueue) -> None:
    queue.put(b"job")
    first = queue.lease(60, timeout=30)
    assert first is not None
    assert first.extend(120)
    assert first.give_back(delay=0.05)
    second = queue.lease(60, wait_ms=30_000)
    assert second is not None
    assert second.token != first.token
    assert not first.fail()
    with pytest.raises(InvalidArgument, match="reason"):
        second.fail(reason="two\nlines")
    assert second.fail(reason="no room / 100 % größe")
    assert queue.get() == b"job"


def test_a_block_confirms_fails_or_says_that_its_lease_was_over(queue: ClusterQueue) -> None:
    queue.put(b"job")
    with pytest.raises(ZeroDivisionError), queue.lease(60) as lease:
        _ = 1 // 0
    with queue.lease(60) as lease:
        assert lease.item == b"job"
    assert queue.get() is None
    queue.put(b"late")
    late = queue.lease(60)
    with pytest.raises(LeaseLost), late:
        queue.delete()


def test_a_delayed_item_comes_later_and_the_same_key_goes_to_the_same_server(queue: ClusterQueue) -> None:
    started = time.monotonic()
    assert queue.put(b"later", delay=0.1)
    assert queue.get(wait_ms=30_000) == b"later"
    assert time.monotonic() - started >= 0.1
    for number in range(8):
        for _ in range(3):
            assert queue.put(b"%d" % number, key=f"order-{number}")
    assert sum(int(counters["items"]) for counters in queue.stats().values() if counters) == 8


def test_a_key_is_cancelled_wherever_it_is(queue: ClusterQueue) -> None:
    queue.put(b"x", delay=3600, key="order-17")
    assert queue.cancel("order-17")
    assert not queue.cancel("order-17")


@pytest.mark.parametrize(
    "act",
    [
        lambda queue: queue.lease(0),
        lambda queue: queue.lease(1, heartbeat=1),
        lambda queue: queue.put(b"", key="two words"),
    ],
)
def test_what_cannot_be_sent_is_refused(queue: ClusterQueue, act) -> None:
    with pytest.raises(InvalidArgument):
        act(queue)


def test_a_server_that_knows_no_leases_loses_nothing() -> None:
    with (
        scripted_peer([Exchange(b"touch work/0 0\r\n", b"ERROR\r\n")]) as peer,
        KestrelCluster([peer.address]) as old,
        pytest.raises(ServerRefused, match="leases, delays and keys are not supported"),
    ):
        old.queue("work").lease(1)


@pytest.mark.parametrize("name", ["", "two words", "a/b", "größe", 65 * "x", 7], ids=range(6))
def test_a_name_that_no_holder_can_have_is_refused_before_anything_is_sent(queue: ClusterQueue, name: object) -> None:
    queue.put(b"job")
    with pytest.raises(InvalidArgument, match="by"):
        queue.lease(60, by=name)  # type: ignore[arg-type]
    assert queue.get() == b"job"


def test_a_server_that_takes_names_of_holders_is_told_the_name() -> None:
    script = [
        Exchange(b"touch work/0 0\r\n", b"NOT_FOUND\r\n"),
        Exchange(b"gets work/by=a/deliveries\r\n", b"CLIENT_ERROR by= needs lease=\r\n"),
        Exchange(b"gets work/open/lease=60000/by=worker-7\r\n", b"VALUE work 0 3 17\r\njob\r\nEND\r\n"),
        Exchange(b"gets work/open/lease=60000/by=worker-8\r\n", b"END\r\n"),
    ]
    with scripted_peer(script) as peer, KestrelCluster([peer.address]) as cluster:
        work = cluster.queue("work")
        lease = work.lease(60, by="worker-7")
        assert lease is not None
        assert (lease.token, lease.deliveries) == (17, None), "an older server does not count"
        assert work.lease(60, by="worker-8") is None


def test_a_server_that_counts_deliveries_is_asked_for_them() -> None:
    script = [
        Exchange(b"touch work/0 0\r\n", b"NOT_FOUND\r\n"),
        Exchange(b"gets work/by=a/deliveries\r\n", b"CLIENT_ERROR deliveries needs lease=\r\n"),
        Exchange(b"gets work/open/lease=60000/by=me/deliveries\r\n", b"VALUE work 0 3 17 2\r\njob\r\nEND\r\n"),
        Exchange(b"gets work/open/lease=60000/by=me/deliveries\r\n", b"VALUE work 0 3 18\r\njob\r\nEND\r\n"),
    ]
    with scripted_peer(script) as peer, KestrelCluster([peer.address]) as cluster:
        work = cluster.queue("work")
        lease = work.lease(60, by="me")
        assert lease is not None
        assert (lease.token, lease.deliveries) == (17, 2)
        with pytest.raises(UnexpectedReply):
            work.lease(60, by="me")


def test_a_lease_says_how_often_its_item_was_delivered_before(queue: ClusterQueue) -> None:
    queue.put(b"job")
    for before in range(3):
        lease = queue.lease(60)
        assert lease is not None
        assert lease.deliveries == before
        assert lease.give_back()
    assert queue.get() == b"job"


def test_an_older_server_is_asked_once_and_then_told_no_names() -> None:
    script = [
        Exchange(b"touch work/0 0\r\n", b"NOT_FOUND\r\n"),
        Exchange(b"gets work/by=a/deliveries\r\n", b"CLIENT_ERROR unknown option by=\r\n"),
        Exchange(b"gets work/open/lease=60000\r\n", b"VALUE work 0 3 17\r\njob\r\nEND\r\n"),
        Exchange(b"gets work/open/lease=60000\r\n", b"END\r\n"),
    ]
    with scripted_peer(script) as peer, KestrelCluster([peer.address]) as cluster:
        work = cluster.queue("work")
        assert work.lease(60, by="worker-7") is not None
        assert work.lease(60, by="worker-7") is None


def test_a_real_server_shows_the_name(tmp_path: Path) -> None:
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon, KestrelCluster([daemon.address]) as cluster:
        cluster.queue("work").put(b"job")
        assert cluster.queue("work").lease(60, by="worker-7") is not None
        (found,) = ask(daemon, "/queues/work/items?state=leased").lines
        assert found["holder"] == "worker-7"
