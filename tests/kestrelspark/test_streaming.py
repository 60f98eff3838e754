"""Items of real servers as a stream: every item once, whatever is killed or comes and goes."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.finishing import finish
from kestrelspark.ranges import RangeOfIds, RangeOptions, range_batches
from kestrelspark.readers import ItemsLost, Position, RemoteQueue
from kestrelspark.servers import Servers
from kestrelspark.streaming import Rotation, as_json, divided, from_json, shares
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.spark_stream import Stream, numbered, put

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two servers with the reader API."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_daemon(tmp_path / name, admin="127.0.0.1:0")) for name in ("a", "b")]


def head(daemon: Daemon, queue: str, reader: str) -> int | None:
    readers = ask(daemon, f"/queues/{queue}").json["readers"]
    return next((one["head"] for one in readers if one["reader"] == reader), None)


def test_each_run_reads_what_is_new_of_all_servers_and_acknowledges_the_run_before(
    spark: Any, fleet: list[Daemon], tmp_path: Path
) -> None:
    a, b = fleet
    put(a, "orders", 0, 500)
    put(b, "orders", 0, 300)
    stream = Stream(spark, tmp_path, f"{a.address},{b.address}", subscribe="orders")
    stream.run()
    assert stream.values() == numbered("a", 0, 500) + numbered("b", 0, 300)
    put(a, "orders", 500, 50)
    stream.run()
    assert stream.values() == numbered("a", 0, 550) + numbered("b", 0, 300)
    assert head(a, "orders", "spark") == 501
    assert finish(spark, str(stream.checkpoint), "spark") == {
        RemoteQueue(a.address, "orders"): Position(ask(a, "/queues/orders").json["journal_id"], 551),
        RemoteQueue(b.address, "orders"): Position(ask(b, "/queues/orders").json["journal_id"], 301),
    }
    assert (head(a, "orders", "spark"), head(b, "orders", "spark")) == (551, 301)
    with QueueClient(a.port) as client:
        assert client.items("orders") == 550  # nothing has been taken


def test_items_that_others_have_taken_meanwhile_are_read(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a = fleet[0]
    stream = Stream(spark, tmp_path, a.address, subscribe="orders")
    put(a, "orders", 0, 10)
    stream.run()
    put(a, "orders", 10, 90)
    with QueueClient(a.port) as client:
        assert len(client.drain("orders")) == 100
    a.kill()
    a.start()
    stream.run()
    assert stream.values() == numbered("a", 0, 100)


def test_a_pattern_finds_queues_and_rows_say_all_of_an_item(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a = fleet[0]
    put(a, "work", 0, 3)
    put(a, "other", 0, 3)
    stream = Stream(spark, tmp_path, a.address, subscribePattern="w.*")
    stream.run()
    with QueueClient(a.port) as client:
        client.put("waste", b"\xff", flags=7, expiry_s=1000)
    stream.run()
    rows = spark.read.parquet(str(stream.target)).orderBy("queue", "id").collect()
    assert [(row.server, row.queue, row.id) for row in rows] == [
        (a.address, "waste", 1),
        *((a.address, "work", number) for number in (1, 2, 3)),
    ]
    assert (bytes(rows[0].value), rows[0].flags, rows[0].size) == (b"\xff", 7, 1)
    assert (rows[0].expire_time - rows[0].add_time).total_seconds() == pytest.approx(1000, abs=2)
    assert rows[1].expire_time is None
    assert rows[1].journal_id == ask(a, "/queues/work").json["journal_id"]


def test_batches_and_tasks_are_as_large_as_was_said(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a = fleet[0]
    put(a, "orders", 0, 250)
    stream = Stream(spark, tmp_path, a.address, subscribe="orders", maxOffsetsPerTrigger=100, minPartitions=4)
    stream.run()
    assert stream.batches == 3
    assert stream.values() == numbered("a", 0, 250)


def test_servers_come_and_go(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a, b = fleet
    servers = tmp_path / "servers"
    servers.write_text(f"{a.address}  # the first\n")
    stream = Stream(spark, tmp_path, f"@{servers}", subscribe="orders")
    put(a, "orders", 0, 10)
    put(b, "orders", 0, 10)
    stream.run()
    servers.write_text(f"{a.address}\n{b.address}\n")
    a.kill()
    stream.run()
    assert stream.values() == numbered("a", 0, 10) + numbered("b", 0, 10)
    a.start()
    put(a, "orders", 10, 10)
    servers.write_text(f"{a.address}\n")
    stream.run()
    assert stream.values() == numbered("a", 0, 20) + numbered("b", 0, 10)


def test_latest_begins_with_what_comes(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a = fleet[0]
    put(a, "orders", 0, 10)
    stream = Stream(spark, tmp_path, a.address, subscribe="orders", startingOffsets="latest")
    stream.run()
    put(a, "orders", 10, 5)
    stream.run()
    assert stream.values() == numbered("a", 10, 5)


def test_a_queue_that_was_deleted_is_a_loss_unless_losses_are_allowed(
    spark: Any, fleet: list[Daemon], tmp_path: Path
) -> None:
    a = fleet[0]
    put(a, "orders", 0, 10)
    stream = Stream(spark, tmp_path, a.address, subscribe="orders")
    stream.run()
    with QueueClient(a.port) as client:
        client.do(b"delete orders", b"DELETED\r\n")
    put(a, "orders", 100, 5)
    with pytest.raises(Exception, match="no longer exists"):
        stream.run()
    stream.run({"failOnDataLoss": "false"})
    assert stream.values() == numbered("a", 0, 10) + numbered("a", 100, 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "q"}, "requires the option reader"),
        ({"reader": "r"}, "requires one of subscribe, subscribePattern and assign"),
        ({"reader": "r", "subscribePattern": "("}, "subscribePattern"),
        (
            {"reader": "r", "subscribe": "q", "path": "/tmp"},
            "live queues, those of running servers: use the option servers",
        ),
        ({"reader": "r", "subscribe": "q", "maxBytesPerTrigger": "many"}, "maxBytesPerTrigger must be a size"),
        ({"reader": "r", "subscribe": "q", "maxTriggerDelay": "later"}, "maxTriggerDelay must be"),
        ({"reader": "r", "subscribe": "q", "startingTimestamp": "soon"}, "startingTimestamp must be a time such as"),
        (
            {"reader": "r", "subscribe": "q", "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger must not be greater",
        ),
        ({"reader": "r", "subscribe": "q", "startingOffsets": "soon"}, "startingOffsets must be committed"),
    ],
)
def test_options_that_cannot_be_are_refused(spark: Any, tmp_path: Path, options: dict[str, str], words: str) -> None:
    stream = Stream(spark, tmp_path, "127.0.0.1:1")
    stream.options = {"servers": "127.0.0.1:1", **options}
    with pytest.raises(Exception, match=words):
        stream.run()


# Without Spark


def test_a_range_is_read_to_its_end_though_the_server_is_killed(fleet: list[Daemon]) -> None:
    a = fleet[0]
    with QueueClient(a.port) as client:
        client.put("orders", *(bytes([number]) * (5 << 20) for number in range(5)))  # more than one answer has
    what = RangeOfIds(a.address, "orders", ask(a, "/queues/orders").json["journal_id"], 1, 6)
    batches = range_batches(what, RangeOptions(("id",), Servers(a.address), fails_on_loss=True))
    ids = next(batches).column(0).to_pylist()
    a.kill()
    restart = threading.Thread(target=a.start)
    restart.start()
    ids += [item_id for batch in batches for item_id in batch.column(0).to_pylist()]
    restart.join()
    assert ids == [1, 2, 3, 4, 5]


def test_a_range_that_is_not_there_any_more_is_an_error_or_passed_over(fleet: list[Daemon]) -> None:
    a = fleet[0]
    put(a, "orders", 0, 5)
    what = RangeOfIds(a.address, "orders", ask(a, "/queues/orders").json["journal_id"], 4, 9)
    with pytest.raises(ItemsLost, match="items 6 to 8"):
        list(range_batches(what, RangeOptions(("id",), Servers(a.address), fails_on_loss=True)))
    (batch,) = range_batches(what, RangeOptions(("id",), Servers(a.address), fails_on_loss=False))
    assert batch.column(0).to_pylist() == [4, 5]


def test_a_limit_is_shared_in_proportion_and_nobody_is_left_out() -> None:
    one, two, three = (RemoteQueue("s", name) for name in "abc")
    assert shares({one: 5, two: 7}, 0) == {one: 5, two: 7}
    assert shares({one: 5, two: 7}, 12) == {one: 5, two: 7}
    assert shares({one: 1, two: 900, three: 99}, 100) == {one: 1, two: 90, three: 9}
    many = {RemoteQueue("s", f"{number:04}"): 10 for number in range(1000)}
    assert sum(shares(many, 20).values()) == 20
    assert set(shares(many | {one: 1_000_000}, 1001).values()) == {1}


def test_all_of_a_limit_is_used() -> None:
    chance = random.Random(3)
    for _ in range(300):
        ahead = {RemoteQueue("s", str(number)): chance.choice([0, 1, 7, 1000]) for number in range(20)}
        rows_max = chance.randrange(1, 3000)
        found = shares(ahead, rows_max)
        assert sum(found.values()) == min(sum(ahead.values()), rows_max)
        assert all(0 <= found[remote] <= items for remote, items in ahead.items())
        if rows_max >= 20:
            assert all(found[remote] for remote, items in ahead.items() if items)


def test_with_a_limit_below_the_number_of_busy_queues_each_has_its_turn() -> None:
    rotation = Rotation()
    left = {RemoteQueue("s", f"{number:02}"): 20 for number in range(50)}
    turns: Counter[RemoteQueue] = Counter()
    for _ in range(50):
        for remote, items in rotation.shares(left, 10).items():
            turns[remote] += items
            left[remote] -= items
        left |= dict.fromkeys(left, 20)  # more is put all the time
    assert set(turns.values()) == {10}


def test_ranges_are_divided_without_gaps() -> None:
    ranges = [RangeOfIds("s", "a", 1, 10, 110), RangeOfIds("s", "b", 1, 1, 4)]
    assert list(divided(ranges, 0)) == ranges
    parts = list(divided(ranges, 5))
    assert len(parts) >= 5
    ids = [item_id for part in parts if part.queue == "a" for item_id in range(part.first, part.end)]
    assert ids == list(range(10, 110))


def test_offsets_are_one_text_whatever_their_order() -> None:
    one = {RemoteQueue("b:1", "q"): Position(5, 7), RemoteQueue("a:1", "q"): Position(6, 8)}
    assert str(as_json(one)) == str(as_json(dict(reversed(one.items()))))
    assert from_json(as_json(one)) == one
