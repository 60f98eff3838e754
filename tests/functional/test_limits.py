"""What a queue may hold, for how long, and where its items go when they may not stay."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

pytestmark = pytest.mark.usefixtures("no_queues")

CONFIG = """
listen: {admin: null}
max_open_reads: 3
queues:
  five: {max_items: 5}
  five-latest: {max_items: 5, discard_old_when_full: true}
  ten-bytes: {max_size: 10}
  ten-bytes-latest: {max_size: 10, discard_old_when_full: true}
  short: {max_item_size: 10}
  short-latest: {max_item_size: 10, max_items: 2, discard_old_when_full: true}
  aging: {max_age: 50}
  moving: {max_age: 50, move_expired_to: moved}
  into-narrow: {max_age: 50, move_expired_to: narrow}
  narrow: {max_items: 2}
  into-narrow-latest: {max_age: 50, move_expired_to: narrow-latest}
  narrow-latest: {max_items: 2, discard_old_when_full: true}
  into-short: {max_age: 50, move_expired_to: short}
  chain-1: {max_age: 50, move_expired_to: chain-2}
  chain-2: {max_age: 50, move_expired_to: chain-3}
  into-family: {max_age: 50, move_expired_to: family}
  into-child: {max_age: 50, move_expired_to: family+one}
  fragile: {max_retries: 2, move_failed_to: dead}
  fragile-narrow: {max_retries: 1, move_failed_to: dead-narrow}
  dead-narrow: {max_items: 1}
  behind: {max_memory_size: 10000}
  behind-latest: {max_memory_size: 1000, max_items: 50, discard_old_when_full: true}
  behind-aging: {max_memory_size: 1000, max_age: 50}
  behind-family: {max_memory_size: 1000}
  fleeting: {journal: false}
  fleeting-five: {journal: false, max_items: 5, max_memory_size: 10}
"""


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [(b"%d" % number).ljust(size, b".") for number in range(count)]


def let_pass() -> None:
    """Real time has to go by, more than the `max_age` above: the server's clock is the machine's."""
    time.sleep(0.06)


def put_at_once(client: QueueClient, queue: str, *items: tuple[bytes, int], then: bytes = b"") -> None:
    """SET items, which have an expiry each, and send what follows, in one piece: no time goes by between them."""
    line = b"set %b 0 %d %d\r\n%b\r\n"
    client.send(b"".join([line % (queue.encode(), expiry_s, len(data), data) for data, expiry_s in items]) + then)
    client.expect(b"STORED\r\n" * len(items))


def put_and_drain(client: QueueClient, queue: str, data: bytes) -> list[bytes]:
    """What comes right after an item that is soon too old has been put."""
    put_at_once(client, queue, (data, 0), then=b"get %b\r\n" % queue.encode() * 2)
    return [data for data in (client.read_value(), client.read_value()) if data is not None]


# Full queues


def test_a_full_queue_refuses_items_until_one_leaves(client: QueueClient) -> None:
    client.put("five", *numbered(5))
    assert client.offer("five", b"one too many") == b"NOT_STORED"
    assert client.get("five") == b"0"
    client.put("five", b"fits again")
    assert client.offer("five", b"one too many") == b"NOT_STORED"
    assert client.drain("five") == [b"1", b"2", b"3", b"4", b"fits again"]
    assert client.queue_stats("five")["discarded"] == "0"


def test_a_full_queue_that_discards_keeps_the_latest(client: QueueClient) -> None:
    client.put("five-latest", *numbered(12))
    stats = client.queue_stats("five-latest")
    assert (stats["items"], stats["discarded"], stats["total_items"]) == ("5", "7", "12")
    assert client.drain("five-latest") == numbered(12)[7:]


def test_a_refused_item_is_refused_without_a_word_after_noreply(client: QueueClient, queue: str) -> None:
    client.do(b"flush five", b"END\r\n")
    client.put("five", *numbered(5))
    client.send(b"set five 0 0 1 noreply\r\nx\r\nset short 0 0 11 noreply\r\n01234567890\r\n")
    client.expect_nothing_more()
    assert client.drain("five") == numbered(5)
    assert client.get("short") is None


def test_open_items_take_no_room_and_may_come_back_beyond_the_limit(connect: Connect) -> None:
    worker, other = connect(), connect()
    other.do(b"flush five", b"END\r\n")
    other.put("five", *numbered(5))
    assert worker.get("five/open") == b"0"
    other.put("five", b"5")
    worker.do(b"get five/abort", b"END\r\n")
    assert other.items("five") == 6
    assert other.offer("five", b"x") == b"NOT_STORED"
    assert other.drain("five") == numbered(6)


def test_bytes_are_limited_and_the_last_item_may_overshoot(client: QueueClient) -> None:
    client.put("ten-bytes", b"12345678", b"abcdefgh")
    assert client.offer("ten-bytes", b"") == b"NOT_STORED"
    assert client.queue_stats("ten-bytes")["bytes"] == "16"
    client.get("ten-bytes")
    client.put("ten-bytes", b"fits")
    assert client.offer("ten-bytes", b"x") == b"NOT_STORED"
    assert client.drain("ten-bytes") == [b"abcdefgh", b"fits"]


def test_a_queue_full_of_bytes_discards_as_many_as_it_must(client: QueueClient) -> None:
    client.put("ten-bytes-latest", *[b"x"] * 10)
    client.put("ten-bytes-latest", b"0123456789abcdef")
    assert client.items("ten-bytes-latest") == 10
    client.put("ten-bytes-latest", b"last")
    assert client.drain("ten-bytes-latest") == [b"last"]
    assert client.queue_stats("ten-bytes-latest")["discarded"] == "11"


def test_an_item_that_is_too_large_is_refused_and_its_data_is_no_command(client: QueueClient) -> None:
    client.put("short", b"0123456789")
    for data in (b"01234567890", b"get short\r\nflush_all\r\n", b"x" * 3_000_000):
        assert client.offer("short", data) == b"NOT_STORED"
    client.expect_nothing_more()
    assert client.drain("short") == [b"0123456789"]


def test_an_item_that_is_too_large_pushes_nothing_out(client: QueueClient) -> None:
    client.put("short-latest", b"1", b"2")
    assert client.offer("short-latest", b"01234567890") == b"NOT_STORED"
    assert client.drain("short-latest") == [b"1", b"2"]


def test_expired_items_make_room(client: QueueClient) -> None:
    client.do(b"flush five", b"END\r\n")
    for _ in range(5):
        client.offer("five", b"expired", expiry_s=-1)
    client.put("five", *numbered(5))
    assert client.offer("five", b"x") == b"NOT_STORED"


def test_limits_hold_after_a_restart(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("five", *numbered(5))
            client.put("five-latest", *numbered(5))
            client.put("ten-bytes", b"0123456789")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.offer("five", b"x") == b"NOT_STORED"
            assert client.offer("ten-bytes", b"x") == b"NOT_STORED"
            client.put("five-latest", b"5")
            assert client.drain("five-latest") == numbered(6)[1:]


# Age


def test_items_older_than_max_age_are_gone(client: QueueClient) -> None:
    before = int(client.queue_stats("aging").get("expired_items", 0))
    client.put("aging", b"old")
    client.put("aging", b"old too", expiry_s=3600)
    let_pass()
    assert put_and_drain(client, "aging", b"young") == [b"young"]
    assert int(client.queue_stats("aging")["expired_items"]) == before + 2


def test_a_client_can_ask_for_less_than_max_age(client: QueueClient) -> None:
    before = int(client.queue_stats("aging").get("expired_items", 0))
    client.put("aging", b"over at once", expiry_s=-1)
    assert put_and_drain(client, "aging", b"young") == [b"young"]
    assert int(client.queue_stats("aging")["expired_items"]) == before + 1


def test_a_peek_looks_for_expired_items(client: QueueClient) -> None:
    client.put("aging", b"old")
    let_pass()
    assert client.items("aging") == 1, "looking at figures expires nothing"
    assert client.get("aging/peek") is None
    assert client.items("aging") == 0


def test_age_goes_on_while_the_server_is_down(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("aging", b"old")
            client.put("moving", b"moves")
        daemon.stop()
        let_pass()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.get("aging") is None
            assert client.get("moving") is None
            assert client.get("moved") == b"moves"


# Moving


def test_expired_items_move_to_another_queue_in_order(client: QueueClient) -> None:
    before = int(client.queue_stats("moving").get("expired_items", 0))
    put_at_once(client, "moving", *[(data, 0) for data in numbered(3)], (b"by its client", -1))
    let_pass()
    client.do(b"flush_expired moving", b"4\r\n")
    assert client.drain("moved") == [*numbered(3), b"by its client"]
    assert int(client.queue_stats("moving")["expired_items"]) == before + 4
    assert client.queue_stats("moved")["expired_items"] == "0", "the client's expiry is gone"


def test_a_moved_item_keeps_its_flags(client: QueueClient) -> None:
    client.put("moving", b"marked", flags=42)
    let_pass()
    client.do(b"flush_expired moving", b"1\r\n")
    client.do(b"get moved", b"VALUE moved 42 6\r\nmarked\r\nEND\r\n")


def test_a_get_moves_what_has_expired_before_it_looks(client: QueueClient) -> None:
    client.put("moving", b"old")
    let_pass()
    assert put_and_drain(client, "moving", b"young") == [b"young"]
    assert client.get("moved") == b"old"


def test_a_waiter_at_the_destination_gets_a_moved_item(connect: Connect) -> None:
    waiter, other = connect(), connect()
    waiter.ask_for("moved/t=600000")
    other.until("moved", waiters=1)
    other.put("moving", b"old")
    let_pass()
    assert other.get("moving") is None
    assert waiter.read_value() == b"old"


def test_a_full_destination_takes_no_more_and_the_rest_is_gone(client: QueueClient) -> None:
    client.put("into-narrow", *numbered(5))
    let_pass()
    client.do(b"flush_expired into-narrow", b"5\r\n")
    assert client.drain("narrow") == numbered(2)
    stats = client.queue_stats("into-narrow")
    assert (stats["items"], stats["expired_items"], stats["move_refused"]) == ("0", "5", "3")


def test_a_destination_that_discards_keeps_the_latest(client: QueueClient) -> None:
    client.put("into-narrow-latest", *numbered(5))
    let_pass()
    client.do(b"flush_expired into-narrow-latest", b"5\r\n")
    assert client.drain("narrow-latest") == numbered(5)[3:]
    assert client.queue_stats("narrow-latest")["discarded"] == "3"


def test_a_destination_refuses_what_is_too_large_for_it(client: QueueClient) -> None:
    client.do(b"flush short", b"END\r\n")
    client.put("into-short", b"far too large", b"fits")
    let_pass()
    client.do(b"flush_expired into-short", b"2\r\n")
    assert client.drain("short") == [b"fits"]


def test_items_move_along_a_chain_one_step_at_a_time(client: QueueClient) -> None:
    client.put("chain-1", *numbered(3))
    let_pass()
    client.do(b"flush_all_expired", b"3\r\n")
    assert (client.items("chain-1"), client.items("chain-2")) == (0, 3)
    let_pass()
    client.do(b"flush_all_expired", b"3\r\n")
    assert client.items("chain-2") == 0
    assert client.drain("chain-3") == numbered(3)


def test_items_that_move_to_a_parent_reach_its_children(client: QueueClient) -> None:
    client.get("family+one")
    client.get("family+two")
    client.put("into-family", b"for all")
    client.put("into-child", b"for one")
    let_pass()
    client.do(b"flush_expired into-family", b"1\r\n")
    client.do(b"flush_expired into-child", b"1\r\n")
    assert client.drain("family") == [b"for all"]
    assert client.drain("family+one") == [b"for all", b"for one"]
    assert client.drain("family+two") == [b"for all"]


def test_children_move_their_own_copies(client: QueueClient) -> None:
    client.do(b"flush moved", b"END\r\n")
    client.get("moving+child")
    client.put("moving", b"x")
    let_pass()
    client.do(b"flush_all_expired", b"2\r\n")
    assert client.drain("moved") == [b"x", b"x"]
    client.do(b"delete moving+child", b"DELETED\r\n")


def test_a_moved_item_is_in_one_queue_after_a_crash(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("moving", *numbered(100))
            let_pass()
            client.do(b"flush_expired moving", b"100\r\n")
            client.expect_nothing_more()
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("moved") == numbered(100)
            assert client.get("moving") is None


# The timer


@pytest.fixture(scope="module")
def sweeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the expiration timer on."""
    folder = tmp_path_factory.mktemp("sweeping")
    with running_daemon(folder, "expiration_timer_frequency_seconds=1", config=CONFIG) as running:
        yield running


def test_the_timer_expires_and_moves_items_that_nobody_looks_at(sweeping: Daemon) -> None:
    with QueueClient(sweeping.port) as client, QueueClient(sweeping.port) as waiter:
        waiter.ask_for("narrow/t=600000")
        client.put("moving", *numbered(3))
        client.put("chain-1", b"far")
        client.put("into-narrow", b"for a waiter")
        client.put("plain", b"expired", expiry_s=-1)
        client.put("plain+child", b"expired", expiry_s=-1)
        client.until("moved", items=3)
        assert client.get("chain-3/t=60000") == b"far"
        assert client.items("moving") == client.items("plain") == client.items("plain+child") == 0
        assert waiter.read_value() == b"for a waiter"
        assert client.drain("moved") == numbered(3)


def test_without_the_timer_an_idle_queue_keeps_its_items(sweeping: Daemon, client: QueueClient) -> None:
    """The timer of the other daemon goes off at least once while this one is left alone."""
    client.put("moving", b"idle")
    with QueueClient(sweeping.port) as swept:
        swept.put("aging", b"idle")
        swept.until("aging", items=0)
    assert client.items("moving") == 1
    client.do(b"flush moving", b"END\r\n")


# Items that keep coming back


def test_an_item_that_keeps_coming_back_moves_away(connect: Connect) -> None:
    worker, other = connect(), connect()
    other.put("fragile", b"poison", b"wholesome")
    for _ in range(2):
        assert worker.get("fragile/open") == b"poison"
        worker.do(b"get fragile/abort", b"END\r\n")
    assert worker.get("fragile/open") == b"poison"
    worker.close()
    assert other.get("dead/t=600000") == b"poison"
    assert other.drain("fragile") == [b"wholesome"]


def test_retries_are_counted_over_restarts_and_a_close_ends_the_count(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("fragile", b"poison")
            for _ in range(2):
                assert client.get("fragile/open") == b"poison"
                client.do(b"get fragile/abort", b"END\r\n")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.put("fragile", b"next")
            assert client.get("fragile/open") == b"poison"
            client.do(b"get fragile/abort", b"END\r\n")
            assert client.drain("dead") == [b"poison"]
            assert client.get("fragile/open") == b"next"
            assert client.get("fragile/close/open") is None


def test_an_item_whose_dead_letter_queue_is_full_stays(client: QueueClient) -> None:
    client.put("dead-narrow", b"full")
    client.put("fragile-narrow", b"poison")
    for _ in range(5):
        assert client.get("fragile-narrow/open") == b"poison"
        client.do(b"get fragile-narrow/abort", b"END\r\n")
    assert int(client.queue_stats("fragile-narrow")["move_refused"]) >= 1
    assert client.get("dead-narrow") == b"full"
    assert client.get("fragile-narrow/open") == b"poison"
    client.do(b"get fragile-narrow/abort", b"END\r\n")
    assert client.drain("dead-narrow") == [b"poison"]
    assert client.get("fragile-narrow") is None


# More than fits into memory


def test_what_does_not_fit_into_memory_waits_on_disk_in_order(client: QueueClient) -> None:
    items = numbered(400, size=100)
    client.put("behind", *items)
    stats = client.queue_stats("behind")
    assert (stats["items"], stats["bytes"]) == ("400", "40000")
    assert int(stats["mem_bytes"]) <= 10000
    assert int(stats["mem_items"]) <= 100
    for number, expected in enumerate(items):
        assert client.get("behind") == expected
        assert number % 3 or int(client.queue_stats("behind")["mem_bytes"]) <= 10000
    assert client.get("behind") is None


def test_puts_and_gets_cross_the_border_between_memory_and_disk(client: QueueClient) -> None:
    items = iter(numbered(2000, size=100))
    expected: list[bytes] = []
    for puts, gets in [(150, 20), (0, 90), (100, 139), (5, 3), (300, 303), (110, 10), (110, 200)]:
        some = [next(items) for _ in range(puts)]
        client.put("behind", *some)
        expected += some
        for _ in range(gets):
            if expected:
                assert client.get("behind") == expected.pop(0)
        assert client.items("behind") == len(expected)
    assert client.drain("behind") == expected


def test_an_item_larger_than_the_memory_of_its_queue_goes_through_alone(client: QueueClient) -> None:
    items = [b"small", b"x" * 50_000, b"y" * 50_000, b"small too"]
    client.put("behind", *items)
    assert int(client.queue_stats("behind")["mem_bytes"]) <= 10000
    assert client.drain("behind") == items


def test_items_that_come_back_do_not_overfill_memory(connect: Connect) -> None:
    worker, other = connect(), connect()
    items = numbered(300, size=100)
    other.put("behind", *items[:100])
    assert [worker.get("behind/open") for _ in range(3)] == items[:3]
    other.put("behind", *items[100:])
    for _ in range(3):
        worker.do(b"get behind/abort", b"END\r\n")
    assert int(other.queue_stats("behind")["mem_bytes"]) <= 10000
    assert sorted(other.drain("behind")) == sorted(items)


def test_a_queue_on_disk_discards_its_oldest(client: QueueClient) -> None:
    items = numbered(120, size=100)
    client.put("behind-latest", *items)
    assert int(client.queue_stats("behind-latest")["mem_bytes"]) <= 1000
    assert client.drain("behind-latest") == items[70:]


def test_items_on_disk_expire(client: QueueClient) -> None:
    before = int(client.queue_stats("behind-aging").get("expired_items", 0))
    client.put("behind-aging", *numbered(100, size=100))
    let_pass()
    assert put_and_drain(client, "behind-aging", b"young") == [b"young"]
    assert int(client.queue_stats("behind-aging")["expired_items"]) == before + 100


def test_a_sweep_reaches_items_on_disk(client: QueueClient) -> None:
    client.put("behind-aging", *numbered(100, size=100))
    let_pass()
    client.do(b"flush_expired behind-aging", b"100\r\n")


def test_flush_reaches_items_on_disk(client: QueueClient) -> None:
    client.put("behind", *numbered(500, size=100))
    client.do(b"flush behind", b"END\r\n")
    stats = client.queue_stats("behind")
    assert (stats["items"], stats["bytes"], stats["mem_bytes"]) == ("0", "0", "0")
    client.put("behind", b"after")
    assert client.drain("behind") == [b"after"]


def test_a_child_can_be_on_disk_while_its_parent_is_not(client: QueueClient) -> None:
    client.get("behind-family+slow")
    items = numbered(100, size=100)
    for first in range(0, 100, 10):
        client.put("behind-family", *items[first : first + 10])
        assert client.drain("behind-family") == items[first : first + 10]
    assert int(client.queue_stats("behind-family+slow")["mem_bytes"]) <= 1000
    assert client.drain("behind-family+slow") == items


@pytest.mark.parametrize("sizes", [(6, 50, 100, 1000), (6, 100, 4000, 11_000)], ids=["small", "large"])
def test_order_is_kept_through_anything_at_the_border_of_memory(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Random commands and restarts against a list; what a restart finds is in the order of the puts again."""
    rng = random.Random(2011)
    waiting: list[bytes] = []
    opened: list[bytes] = []
    number = 0
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        client = QueueClient(daemon.port)
        for step in range(1600):
            if step % 300 == 299:
                daemon.kill() if step % 600 == 299 else daemon.stop()
                client.close()
                daemon.start()
                client = QueueClient(daemon.port)
                waiting, opened = sorted(waiting + opened), []
            choice = rng.random()
            if choice < (0.57 if step % 800 < 400 else 0.37):
                data = (b"%06d" % number).ljust(rng.choice(sizes), b".")
                client.put("behind", data)
                waiting.append(data)
                number += 1
            elif choice < 0.75 and not opened:
                assert client.get("behind") == (waiting.pop(0) if waiting else None)
            elif choice < 0.85 and len(opened) < 3:
                taken = client.get("behind/open")
                assert taken == (waiting[0] if waiting else None)
                if taken is not None:
                    opened.append(waiting.pop(0))
            elif choice < 0.95 and opened:
                if rng.random() < 0.5:
                    waiting.insert(0, opened.pop(0))
                    client.do(b"get behind/abort", b"END\r\n")
                else:
                    opened.pop(0)
                    client.do(b"get behind/close", b"END\r\n")
            else:
                assert client.get("behind/peek") == (waiting[0] if waiting else None)
            if step % 25 == 0 and number:
                stats = client.queue_stats("behind")
                assert (int(stats["items"]), int(stats["bytes"])) == (len(waiting), sum(map(len, waiting)))
                # Beyond its limit the window still has one item, and what is open may come back to it.
                assert int(stats["mem_bytes"]) <= (10_000 if max(sizes) <= 1000 else 4 * 11_000)
        assert len(waiting) > 20
        client.close()
        with QueueClient(daemon.port) as last:
            assert sorted(last.drain("behind")) == sorted(waiting + opened)


def test_memory_is_kept_to_within_one_burst_of_commands(client: QueueClient) -> None:
    """Puts and gets that reach the server together, so that what is read back has not been written yet."""
    items = numbered(50, size=100)
    puts = [b"set behind-family 0 0 100\r\n%b\r\n" % data for data in items]
    client.send(b"".join(puts[:40]) + b"get behind-family\r\n" * 12 + b"".join(puts[40:]))
    client.expect(b"STORED\r\n" * 40)
    assert [client.read_value() for _ in range(12)] == items[:12]
    client.expect(b"STORED\r\n" * 10)
    assert client.items("behind-family") == 38
    assert int(client.queue_stats("behind-family")["mem_bytes"]) <= 1000
    assert client.drain("behind-family") == items[12:]


# No journal


def test_a_queue_without_a_journal_leaves_nothing_on_disk_and_ends_with_the_server(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("fleeting", b"lost", b"lost too")
            client.put("fleeting+child", b"lost as well")
            assert client.get("fleeting/open") == b"lost"
            client.do(b"get fleeting/abort", b"END\r\n")
            client.put("kept", b"kept")
            assert [path.name for path in daemon.spool.iterdir() if not path.name.startswith(".")] == ["kept.journal"]
            assert client.queue_stats("fleeting")["logsize"] == "0"
        daemon.restart()
        with QueueClient(daemon.port) as client:
            assert client.get("fleeting") is None
            assert client.get("kept") == b"kept"


def test_a_queue_without_a_journal_is_a_queue_in_all_else(connect: Connect) -> None:
    worker, other = connect(), connect()
    other.get("fleeting+child")
    other.put("fleeting", b"1", b"2")
    other.put("fleeting", b"3", flags=7)
    other.put("fleeting", b"expired", expiry_s=-1)
    assert worker.get("fleeting/open") == b"1"
    worker.do(b"get fleeting/abort", b"END\r\n")
    assert other.drain("fleeting") == [b"1", b"2", b"3"]
    assert other.drain("fleeting+child") == [b"1", b"2", b"3"]
    other.do(b"delete fleeting", b"DELETED\r\n")
    assert other.get("fleeting") is None


def test_a_queue_without_a_journal_keeps_its_limits_but_never_reads_back(client: QueueClient) -> None:
    client.put("fleeting-five", *numbered(5, size=100))
    assert client.offer("fleeting-five", b"x") == b"NOT_STORED"
    assert client.drain("fleeting-five") == numbered(5, size=100)
