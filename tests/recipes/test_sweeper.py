"""Sweeper: from a log in a dictionary to a queue of kestreld that keeps it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache import Client

from kestreld.errors import InvalidValue
from kestreld.recipes import CacheRefused, ConnectionLost, LogQueue, MessagesMissed, Servers, Sweeper
from tests.support.cache_server import CacheProcess
from tests.support.daemon import Daemon, running_daemon
from tests.support.forking import Child, before_first_call, kill_itself

WAIT_S = 60


@pytest.fixture
def kestreld(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path / "for-keeps") as daemon:
        yield daemon


def _items(kestreld: Daemon, queue: str) -> list[bytes]:
    client = Client(kestreld.address)
    return list(iter(lambda: client.get(queue), None))


def test_it_moves_messages_in_order_into_a_queue_that_keeps_them(servers: Servers, kestreld: Daemon) -> None:
    log = LogQueue(servers, "chat", compress_from_bytes=100)
    messages = [b"%d" % number for number in range(250)]
    log.put_many(messages[:100])
    log.put_batch(messages[100:])
    with Sweeper(log, kestreld.address) as sweeper:
        assert sweeper.sweep() == 250
        assert sweeper.sweep() == 0
        log.put(b"later")
        assert sweeper.sweep(timeout=WAIT_S) == 1
    kestreld.kill()
    kestreld.start()
    assert _items(kestreld, "chat") == [*messages, b"later"]


def test_another_sweeper_goes_on_where_one_has_stopped(servers: Servers, kestreld: Daemon) -> None:
    log = LogQueue(servers, "chat")
    for message in (b"a", b"b"):
        log.put(message)
        with Sweeper(log, kestreld.address, "kept", delete=False) as sweeper:
            assert sweeper.sweep() == 1
    assert _items(kestreld, "kept") == [b"a", b"b"]
    assert log.reader().get_many() == [b"a", b"b"]  # other readers have it still


@pytest.mark.parametrize("deletes", [True, False])
def test_messages_that_were_moved_are_deleted_from_the_log_or_not(
    servers: Servers, cache: CacheProcess, kestreld: Daemon, deletes: bool
) -> None:
    log = LogQueue(servers, "chat")
    position = log.put(b"a")
    with Sweeper(log, kestreld.address, delete=deletes) as sweeper:
        sweeper.sweep()
    kept = Client(cache.address).get(f"log:chat:{position.epoch:08x}:0")
    assert kept == (None if deletes else b"a")


def test_a_sweeper_killed_before_it_saved_its_position_leaves_nothing_to_be_moved_twice(
    servers: Servers, kestreld: Daemon
) -> None:
    log = LogQueue(servers, "chat")
    log.put_many([b"a", b"b", b"c"])

    def sweep() -> None:
        before_first_call(Sweeper, "_save", kill_itself)
        Sweeper(log, kestreld.address).sweep()

    Child(sweep).killed()
    log.put(b"d")
    with Sweeper(log, kestreld.address) as sweeper:
        assert sweeper.sweep() == 4
    assert _items(kestreld, "chat") == [b"a", b"b", b"c", b"d"]


def test_two_sweepers_of_one_log_move_each_message_once(servers: Servers, kestreld: Daemon) -> None:
    log = LogQueue(servers, "chat")
    messages = [b"%d" % number for number in range(300)]
    log.put_many(messages)

    def sweep() -> int:
        with Sweeper(log, kestreld.address, delete=False) as sweeper:
            return sweeper.sweep()

    for child in [Child(sweep), Child(sweep)]:
        child.result()
    assert sorted(_items(kestreld, "chat")) == sorted(messages)


def test_while_the_queue_is_full_or_away_nothing_is_passed(
    servers: Servers, cache: CacheProcess, tmp_path: Path
) -> None:
    log = LogQueue(servers, "chat")
    log.put_many([b"a", b"b", b"c"])
    with (
        running_daemon(tmp_path, config="queues: {chat: {max_items: 2}}") as daemon,
        Sweeper(log, daemon.address) as sweeper,
    ):
        with pytest.raises(CacheRefused, match="queue chat is full"):
            sweeper.sweep()
        daemon.stop()
        with pytest.raises(ConnectionLost):
            sweeper.sweep()
        daemon.start()
        assert _items(daemon, "chat") == [b"a", b"b"]
        assert sweeper.sweep() == 3
        assert _items(daemon, "chat") == [b"c"]


def test_what_the_log_has_lost_is_told(servers: Servers, cache: CacheProcess, kestreld: Daemon) -> None:
    log = LogQueue(servers, "chat", hole_timeout=0.1)
    lost = log.put_many([b"a", b"b", b"c"])[1]
    Client(cache.address).delete(f"log:chat:{lost.epoch:08x}:1", noreply=False)
    missed: list[MessagesMissed] = []
    with Sweeper(log, kestreld.address, on_missed=missed.append) as sweeper:
        assert sweeper.sweep(timeout=WAIT_S) + sweeper.sweep(timeout=1) == 2
        assert sweeper.missed == 1
    assert [one.count for one in missed] == [1]
    assert _items(kestreld, "chat") == [b"a", b"c"]


def test_names_too_long_for_a_key_together_are_refused(servers: Servers, kestreld: Daemon) -> None:
    with pytest.raises(InvalidValue, match="together with the name of the log"):
        Sweeper(LogQueue(servers, "x" * 150), kestreld.address, "y" * 100)
