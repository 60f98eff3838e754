"""A client of several kestrelds: real servers, one of which is killed at times."""

import itertools
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kestreld.client import ClusterQueue, ConnectionLost, KestrelCluster, ServerRefused, ServersAway
from kestreld.client.access import ServerAddress, open_socket
from kestreld.client.items import preference
from kestreld.errors import BadQueueName
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.tampering import tampering_proxy
from tests.support.waiting import until

LONG_MS = 60_000  # no test waits so long
LONG_S = LONG_MS / 1000
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    folder = tmp_path_factory.mktemp("daemons")
    limit = "queues.small.max_items=2"
    with running_daemon(folder / "0", limit) as first, running_daemon(folder / "1", limit) as second:
        yield [first, second]


@pytest.fixture
def cluster(daemons: list[Daemon]) -> Iterator[KestrelCluster]:
    with KestrelCluster([daemon.address for daemon in daemons]) as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: KestrelCluster, request: pytest.FixtureRequest) -> ClusterQueue:
    return cluster.queue(request.node.name)


@contextmanager
def alone(daemon: Daemon, name: str) -> Iterator[ClusterQueue]:
    """The queue on this server only."""
    with KestrelCluster([daemon.address]) as cluster:
        yield cluster.queue(name)


def figures(queue: ClusterQueue, name: str) -> list[int]:
    """Of the servers where it exists."""
    return [int(counters[name]) for counters in queue.stats().values() if counters]


# One thread


def test_items_go_to_all_servers_and_come_from_all(queue: ClusterQueue) -> None:
    items = [b"%d" % number for number in range(40)]
    assert [queue.put(item) for item in items] == [True] * 40
    on_each = figures(queue, "items")
    assert len(on_each) == 2
    assert min(on_each) > 2
    assert queue.peek() in items
    got = [queue.get() for _ in items]
    assert sorted(map(bytes, filter(None, got))) == sorted(items)
    assert queue.get() is None
    assert queue.peek() is None


def test_an_item_expires(queue: ClusterQueue) -> None:
    queue.put(b"stale", expire_s=-1)
    assert queue.get() is None
    queue.put(b"in two weeks", expire_s=14 * 86400)
    assert queue.get() == b"in two weeks"


@pytest.mark.parametrize(("item", "expire_s"), [("text", 0), (None, 0), (b"1", 1e3)], ids=["text", "none", "float"])
def test_what_is_no_item_is_an_error_and_changes_nothing(queue: ClusterQueue, item: Any, expire_s: Any) -> None:
    with pytest.raises(TypeError, match=r"item must be bytes, not|expiry must be an int"):
        queue.put(item, expire_s)
    assert queue.put(bytearray(b"1"))  # type: ignore[arg-type]
    assert (queue.get(), queue.get()) == (b"1", None)


def test_a_queue_is_flushed_and_deleted_everywhere(queue: ClusterQueue) -> None:
    for _ in range(20):
        queue.put(b"x")
    queue.flush()
    assert figures(queue, "items") == [0, 0]
    for _ in range(20):
        queue.put(b"x")
    assert [queue.flush_counted() for _ in range(2)] == [20, 0]
    assert figures(queue, "items") == [0, 0]
    assert queue.delete()
    assert figures(queue, "items") == []
    assert not queue.delete()


def test_the_servers_counters_are_told_apart(cluster: KestrelCluster, daemons: list[Daemon]) -> None:
    stats = cluster.stats()
    assert list(stats) == [daemon.address for daemon in daemons]
    assert all(int(counters["uptime"]) >= 0 for counters in stats.values())


def test_a_full_server_is_left_out_until_all_are(cluster: KestrelCluster) -> None:
    small = cluster.queue("small")
    assert [small.put(b"%d" % number) for number in range(5)] == [True] * 4 + [False]


@pytest.mark.parametrize("name", ["", "a b", "a/open", "a\r\nflush_all"])
def test_a_name_that_would_be_something_else_is_refused(cluster: KestrelCluster, name: str) -> None:
    with pytest.raises(BadQueueName):
        cluster.queue(name)


@pytest.mark.parametrize("server", ["", "host:0", "host:99999", "unix:relative", "a b:1", "http://host"])
def test_an_address_that_is_none_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="each of servers must be HOST:PORT"):
        KestrelCluster([server])


def test_servers_that_speak_as_kestrel_1_are_understood(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, alone(daemon, "work") as queue:
        with alone(daemon, "worker") as other:
            other.put(b"of another queue")
        assert [queue.put(b"1"), queue.put(b"2"), queue.put(b"3")] == [True] * 3
        assert queue.peek() == b"1"
        with queue.read(wait_ms=10) as item:
            assert item == b"1"
        assert queue.get() == b"2"
        assert figures(queue, "items") == [1]
        queue.flush()
        assert queue.delete()
        assert queue.get() is None


# Reliable reads


def test_a_block_that_succeeds_confirms_its_item(queue: ClusterQueue) -> None:
    queue.put(b"1")
    with queue.read() as item:
        assert item == b"1"
        assert sum(figures(queue, "open_transactions")) == 1
        assert queue.get() is None
    assert sum(figures(queue, "open_transactions") + figures(queue, "items")) == 0
    with queue.read() as nothing:
        assert nothing is None


def test_a_block_that_fails_gives_its_item_back(queue: ClusterQueue) -> None:
    queue.put(b"1")
    with pytest.raises(ZeroDivisionError), queue.read() as item:
        print(1 // (item != b"1"))
    assert queue.get() == b"1"


def test_reads_end_on_their_own_connections_whatever_happens_meanwhile(queue: ClusterQueue) -> None:
    for number in range(10):
        queue.put(b"%d" % number)
    with queue.read() as first, queue.read() as second:
        queue.put(b"10")
        assert queue.peek() not in (first, second)
    left = {queue.get() for _ in range(9)}
    assert left == {b"%d" % number for number in range(11)} - {first, second}


def test_a_loop_confirms_an_item_when_it_asks_for_the_next(queue: ClusterQueue) -> None:
    for number in range(3):
        queue.put(b"%d" % number)
    got: list[bytes] = []
    for item in queue:
        got.append(item)
        if len(got) == 3:
            break
    assert queue.get() == got[2]
    assert queue.get() is None


def test_a_loop_takes_from_all_servers_alike(
    daemons: list[Daemon], queue: ClusterQueue, request: pytest.FixtureRequest
) -> None:
    for daemon in daemons:
        with alone(daemon, queue.name) as there:
            for number in range(50):
                there.put(b"%s %d" % (daemon.address.encode(), number))
    got: list[tuple[str, int]] = []
    for item in queue:
        address, number = item.decode().split()
        got.append((address, int(number)))
        if len(got) == 50:
            break
    queue.delete()
    for daemon in daemons:
        numbers = [number for address, number in got if address == daemon.address]
        assert len(numbers) > 5
        assert numbers == list(range(len(numbers)))


# Waiting


def test_whoever_waits_gets_what_comes_to_any_server(daemons: list[Daemon], queue: ClusterQueue) -> None:
    for daemon in daemons:
        with alone(daemon, queue.name) as there:
            putting = threading.Timer(0.05, there.put, [daemon.address.encode()])
            putting.start()
            assert queue.get(LONG_MS) == daemon.address.encode()
            putting.join()


def test_a_wait_ends_with_nothing_at_its_time(queue: ClusterQueue) -> None:
    started_s = time.monotonic()
    assert queue.get(60) is None
    assert time.monotonic() - started_s >= 0.06
    assert sum(figures(queue, "waiters")) == 0


@pytest.mark.parametrize("patience_ms", [0, LONG_MS])
def test_closing_ends_loops_and_waits(daemons: list[Daemon], patience_ms: int) -> None:
    cluster = KestrelCluster([daemon.address for daemon in daemons], patience_ms=patience_ms)
    queue = cluster.queue(f"closing{patience_ms}")
    ends: list[object] = []
    waiting = [
        threading.Thread(target=lambda: ends.append(list(queue))),
        threading.Thread(target=lambda: ends.append(queue.get(LONG_MS))),
    ]
    for thread in waiting:
        thread.start()
    with KestrelCluster([daemon.address for daemon in daemons]) as other:
        until(lambda: sum(figures(other.queue(queue.name), "waiters")) == 2, "both to wait")
    cluster.close()
    for thread in waiting:
        thread.join()
    assert sorted(ends, key=str) == [None, []]
    with pytest.raises(ServersAway, match="the cluster is closed"):
        queue.put(b"x")


# Servers that are away


def test_a_server_that_is_away_is_left_out(daemons: list[Daemon], queue: ClusterQueue) -> None:
    with KestrelCluster([daemons[0].address, NOBODY]) as cluster:
        there = cluster.queue(queue.name)
        assert [there.put(b"x") for _ in range(20)] == [True] * 20
        assert [there.get() for _ in range(21)] == [b"x"] * 20 + [None]
        assert there.get(10) is None
        with pytest.raises(ServersAway, match=f"no kestreld at {NOBODY} \\(connection refused\\)"):
            there.flush()


def test_a_server_that_is_away_is_tried_again_more_and_more_rarely(daemons: list[Daemon], queue: ClusterQueue) -> None:
    class Counting(Random):
        """Chance, which is asked once for each attempt that failed."""

        attempts = 0

        def uniform(self, a: float, b: float) -> float:
            self.attempts += 1
            return a

    chance = Counting()
    started_s = time.monotonic()
    with KestrelCluster([daemons[0].address, NOBODY], chance=chance) as cluster:
        there = cluster.queue(queue.name)
        for _ in range(500):
            there.put(b"x")
        # After 0, 50, 150, 350, 750, 1550, and then each 1000 ms.
        assert 1 <= chance.attempts <= 6 + (time.monotonic() - started_s)


def test_all_servers_away_is_an_error_that_names_each() -> None:
    with KestrelCluster([NOBODY, "127.0.0.1:2"], patience_ms=0) as cluster:
        queue = cluster.queue("work")
        words = "no kestreld at 127.0.0.1:. .connection refused., 127.0.0.1:. .connection refused."
        for operation in (lambda: queue.put(b"x"), queue.get, queue.peek, queue.stats, lambda: next(iter(queue))):
            with pytest.raises(ServersAway, match=words) as caught:
                operation()
            assert set(caught.value.reasons) == {NOBODY, "127.0.0.1:2"}


def test_patience_bridges_a_restart(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, KestrelCluster([daemon.address], patience_ms=LONG_MS) as cluster:
        queue = cluster.queue("work")
        assert queue.put(b"1")
        daemon.kill()
        restarting = threading.Timer(0.1, daemon.start)
        restarting.start()
        try:
            assert queue.put(b"2")
        finally:
            restarting.join()
        assert [queue.get(LONG_MS), queue.get(LONG_MS)] == [b"1", b"2"]


def test_an_item_whose_server_died_before_it_was_confirmed_comes_again(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, KestrelCluster([daemon.address], patience_ms=LONG_MS) as cluster:
        queue = cluster.queue("work")
        queue.put(b"1")
        with pytest.raises(ConnectionLost, match="did not answer"), queue.read():
            daemon.restart()
        assert queue.get() == b"1"


def test_a_connection_on_which_nothing_is_under_way_ends_with_its_peers_machine() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        open_socket(ServerAddress(*listening.getsockname()), LONG_MS / 1000) as connected,
    ):
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probes = [getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")]
        idle_s, interval_s, count = (connected.getsockopt(socket.IPPROTO_TCP, probe) for probe in probes)
        assert idle_s + interval_s * count <= 20
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


def test_a_put_once_is_repeated_where_its_reply_was_lost_and_stored_once(daemons: list[Daemon]) -> None:
    withheld: list[bytes] = []

    def withhold_first(reply: bytes) -> bytes:
        if reply == b"STORED\r\n" and not withheld:
            withheld.append(reply)
            return b""
        return reply

    with tampering_proxy(daemons[0].port, withhold_first) as address:
        servers = [address, daemons[1].address]
        first = next(key for key in map(str, range(100)) if preferred(servers, key) == address)
        with KestrelCluster(servers, timeout_ms=200, patience_ms=LONG_MS) as cluster:
            assert cluster.queue("work").put(b"x", key=first, once=True)
            assert cluster.queue("work").put(b"y", once=True)
    assert withheld
    found = [item for daemon in daemons for item in everything_in(daemon, "work")]
    assert sorted(found) == [b"x", b"y"]


def preferred(servers: list[str], item_key: str) -> str:
    return min(servers, key=lambda address: preference(address, item_key.encode()))


def everything_in(daemon: Daemon, name: str) -> list[bytes]:
    with alone(daemon, name) as queue:
        return list(iter(queue.get, None))


def test_a_put_once_that_stays_unanswered_says_that_it_may_be_stored(daemons: list[Daemon]) -> None:
    def withhold(reply: bytes) -> bytes:
        return b"" if reply == b"STORED\r\n" else reply

    with (
        tampering_proxy(daemons[0].port, withhold) as address,
        KestrelCluster([address], timeout_ms=50, patience_ms=300) as cluster,
        pytest.raises(ConnectionLost, match="it may have executed the command"),
    ):
        cluster.queue("work").put(b"x", once=True)
    assert everything_in(daemons[0], "work") == [b"x"]


def test_a_put_that_is_not_answered_is_an_error_and_not_put_elsewhere(
    daemons: list[Daemon], queue: ClusterQueue
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def answer_nothing() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                connection.recv(100)
                connection.close()

        threading.Thread(target=answer_nothing, daemon=True).start()
        with KestrelCluster([address]) as mute, pytest.raises(ConnectionLost, match="it may have executed the comm"):
            mute.queue(queue.name).put(b"x")
        # A read that is not answered has taken nothing: the next server is asked.
        with alone(daemons[0], queue.name) as there:
            there.put(b"y")
        with KestrelCluster([address, daemons[0].address], chance=Random(0)) as both:
            assert both.queue(queue.name).get(LONG_MS) == b"y"


# Getting in


USERS = f"""
users:
  alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}
  bob: {{password: "{quick_hash("bob")}", rights: {{"b*": [put]}}}}
"""


def test_users_and_their_rights(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=USERS) as daemon:
        with KestrelCluster([daemon.address], user="alice", password="all of it") as cluster:
            assert cluster.queue("work").put(b"x")
        with KestrelCluster([daemon.address], user="bob", password="bob") as cluster:
            assert cluster.queue("b").put(b"x")
            with pytest.raises(ServerRefused, match="not allowed: get on 'work'"):
                cluster.queue("work").get()
        wrong = pytest.raises(ServerRefused, match="bob: authentication failure")
        with KestrelCluster([daemon.address], user="bob", password="wrong") as cluster, wrong:
            cluster.queue("b").put(b"x")
        with KestrelCluster([daemon.address]) as cluster, pytest.raises(ServerRefused, match="unauthenticated"):
            cluster.queue("work").get()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_and_unix_sockets(short_path: Path) -> None:
    authority = Authority(short_path / "ca")
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    with (
        running_daemon(short_path / "a", config=config, listen="tls:127.0.0.1:0") as secured,
        running_daemon(short_path / "b", listen=f"unix:{short_path}/b.sock") as local,
    ):
        secured_address = f"tls:{secured.address.removeprefix('tls:')}"
        with KestrelCluster([secured_address, local.address], ca=str(authority.certificate)) as cluster:
            queue = cluster.queue("work")
            items = [b"%d" % number * 10_000 for number in range(30)]
            assert [queue.put(item) for item in items] == [True] * 30
            assert len([counters for counters in queue.stats().values() if counters]) == 2
            assert sorted(filter(None, [queue.get() for _ in items])) == sorted(items)
        untrusted = pytest.raises(ServersAway, match="certificate verify failed")
        with KestrelCluster([secured_address], patience_ms=0) as cluster, untrusted:
            cluster.queue("work").put(b"x")
    with pytest.raises(FileNotFoundError):
        KestrelCluster([NOBODY], ca="/nowhere")


# Threads, and a kill


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_threads_lose_nothing_and_confirm_nothing_twice_while_servers_are_killed(tmp_path: Path, kills: int) -> None:
    answered: list[bytes] = []
    unknown: list[bytes] = []
    events: list[tuple[str, bytes]] = []  # "came" and then "confirmed"
    enough = threading.Event()
    with (
        running_daemon(tmp_path / "0") as first,
        running_daemon(tmp_path / "1") as second,
        running_daemon(tmp_path / "2") as third,
    ):
        daemons = [first, second, third]
        cluster = KestrelCluster([daemon.address for daemon in daemons], patience_ms=LONG_MS)
        queue = cluster.queue("work")

        def write(writer: int) -> None:
            for number in itertools.count():
                if enough.is_set():
                    return
                item = b"%d %d" % (writer, number)
                try:
                    assert queue.put(item)
                    answered.append(item)
                except ConnectionLost:
                    unknown.append(item)

        def read() -> None:
            while not cluster.is_closed:
                try:
                    with queue.read(LONG_MS) as item:
                        if item is None:
                            return
                        events.append(("came", item))
                    events.append(("confirmed", item))
                except ConnectionLost:
                    pass

        writing = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        reading = [threading.Thread(target=read) for _ in range(3)]
        for thread in writing + reading:
            thread.start()
        for kill in range(kills):
            enough_answers = len(answered) + 100
            until(lambda: len(answered) >= enough_answers, f"{enough_answers} answers")  # noqa: B023
            daemons[kill % 3].kill()
            daemons[kill % 3].start()
        enough.set()
        for thread in writing:
            thread.join()

        def is_drained() -> bool:
            left = figures(queue, "items") + figures(queue, "open_transactions")
            return len(left) == 6 and not sum(left)

        until(is_drained, "the readers to have taken everything")
        cluster.close()
        for thread in reading:
            thread.join()
    came = [item for what, item in events if what == "came"]
    assert set(answered) <= set(came) <= set(answered) | set(unknown)
    done: set[bytes] = set()
    for what, item in events:
        assert item not in done, f"{item!r} {what} after it had been confirmed"
        if what == "confirmed":
            done.add(item)
    assert len(came) - len(set(came)) <= 3 * kills


def test_one_reader_has_each_servers_items_in_order_across_a_kill(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "0") as first, running_daemon(tmp_path / "1") as second:
        for daemon in (first, second):
            with alone(daemon, "work") as there:
                for number in range(60):
                    there.put(b"%s %d" % (daemon.address.encode(), number))
        got: dict[str, list[int]] = {first.address: [], second.address: []}
        with KestrelCluster([first.address, second.address], patience_ms=LONG_MS) as cluster:
            for item in cluster.queue("work"):
                address, number = item.decode().split()
                got[address].append(int(number))
                if len(got[first.address]) == 20:
                    first.restart()  # the item is not confirmed yet
                if all(numbers[-1:] == [59] for numbers in got.values()):
                    break
        assert got[second.address] == list(range(60))
        assert got[first.address] == sorted([*range(60), 19])


def test_nothing_of_a_server_is_loaded() -> None:
    heavy = ("kestreld.server", "kestreld.queues", "kestreld.config", "kestrelctl", "aiohttp", "asyncio", "yaml")
    program = f"import sys, kestreld.client; print([m for m in sys.modules if m.startswith({heavy})])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
