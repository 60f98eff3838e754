"""Where a stream begins, how large its batches are, and how far it is behind its queues."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kestrelspark.bar import in_words
from kestrelspark.lag import LagListener, Lags, lags
from kestrelspark.readers import RemoteQueue
from kestrelspark.streaming import ItemReader, item_schema
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.spark_stream import Stream, numbered, put

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
RECORD_BYTES: Final = 41  # of an item beside its data


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running_daemon(tmp_path / name, admin="127.0.0.1:0")) for name in ("a", "b")]


def add_ms(daemon: Daemon) -> list[int]:
    """When each item was put."""
    return [line["add_ms"] for line in ask(daemon, "/queues/orders/items?format=ndjson&limit=1000").lines]


def put_later(daemon: Daemon, first: int, count: int) -> int:
    """Put items in a later millisecond than those before; returns the first such millisecond."""
    before_ms, number = add_ms(daemon)[-1], first
    while (at_ms := add_ms(daemon)[-1]) == before_ms:
        put(daemon, "orders", number, 1)
        number += 1
    put(daemon, "orders", number, first + count - number)
    return at_ms


def test_how_many_items_each_batch_has_left_is_told_and_in_the_progress(
    spark: Any, fleet: list[Daemon], tmp_path: Path
) -> None:
    a, b = fleet
    put(a, "orders", 0, 250)
    put(b, "orders", 0, 50)
    told: list[Lags] = []
    listener = LagListener(lambda progress, left: told.append(left) if progress.numInputRows else None)
    stream = Stream(spark, tmp_path, f"{a.address},{b.address}", subscribe="orders", maxOffsetsPerTrigger=100)
    spark.streams.addListener(listener)
    try:
        stream.run()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    read = list(accumulate(one.numInputRows for one in stream.progress))
    assert len(read) >= 3
    assert [sum(left.values()) for left in told] == [300 - items for items in read]
    assert [lags(one) for one in stream.progress] == told
    of_a, of_b = RemoteQueue(a.address, "orders"), RemoteQueue(b.address, "orders")
    assert told[0][of_a] > told[0][of_b] > 0
    assert told[-1] == {of_a: 0, of_b: 0}
    assert (
        in_words(100, told[0]) == f"100 items, {sum(told[0].values())} behind ({told[0][of_a]} orders of {a.address})"
    )
    assert in_words(1300, told[-1]) == "1,300 items, 0 behind"


def test_a_stream_begins_at_a_time(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a, b = fleet
    put(a, "orders", 0, 100)
    put(b, "orders", 0, 10)
    at_ms = put_later(a, 100, 50)
    stream = Stream(spark, tmp_path / "all", f"{a.address},{b.address}", subscribe="orders", startingTimestamp=at_ms)
    stream.run()
    found = stream.values()
    assert found - numbered("b", 0, 10) == numbered("a", 100, 50)
    put(b, "orders", 10, 5)
    stream.run({"startingTimestamp": "2999-01-01"})  # a stream that has begun goes on where it was
    assert stream.values() == found + numbered("b", 10, 5)


def test_queues_of_servers_are_assigned_with_a_time_for_each(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a, b = fleet
    for daemon in fleet:
        put(daemon, "orders", 0, 20)
        put(daemon, "other", 0, 5)
    at_ms = put_later(a, 20, 10)
    assign = f'{{"orders": ["{a.address}"], "other": ["{a.address}", "{b.address}"]}}'
    times = f'{{"orders": {{"{a.address}": {at_ms}}}}}'
    stream = Stream(
        spark, tmp_path, f"{a.address},{b.address}", assign=assign, startingOffsetsByTimestamp=times,
        startingOffsets="earliest",
    )  # fmt: skip
    stream.run()
    assert stream.values() == numbered("a", 20, 10) + numbered("a", 0, 5) + numbered("b", 0, 5)


def test_a_batch_has_so_many_bytes_at_most(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a, b = fleet
    put(a, "orders", 0, 250)
    put(b, "orders", 0, 50)
    total = sum(RECORD_BYTES + len(value) for value in numbered("a", 0, 250) + numbered("b", 0, 50))
    options = {"subscribe": "orders", "maxBytesPerTrigger": "4k"}
    stream = Stream(spark, tmp_path, f"{a.address},{b.address}", **options)
    stream.run()
    assert stream.values() == numbered("a", 0, 250) + numbered("b", 0, 50)
    assert all(one.numInputRows * (RECORD_BYTES + 2) <= 4096 for one in stream.progress)
    assert total / 4096 <= stream.batches <= total / 4096 + 2


def test_an_item_larger_than_a_batch_is_a_batch(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    a = fleet[0]
    put(a, "orders", 0, 3)
    stream = Stream(spark, tmp_path, a.address, subscribe="orders", maxBytesPerTrigger=1)
    stream.run()
    assert stream.values() == numbered("a", 0, 3)
    assert stream.batches == 3


# Without Spark


def test_a_batch_waits_for_so_many_items_or_so_long(fleet: list[Daemon]) -> None:
    a = fleet[0]
    options = {"servers": a.address, "reader": "lake", "subscribe": "orders", "minoffsetspertrigger": "10"}
    put(a, "orders", 0, 1)

    def planned(reader: ItemReader, start: dict[str, Any]) -> dict[str, Any]:
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    reader = ItemReader(item_schema(), options)
    first = planned(reader, reader.initialOffset())
    assert items_before(first) == 1  # the first batch of a run does not wait
    put(a, "orders", 1, 9)
    assert planned(reader, first) == first
    assert items_before(reader.latestOffset(first, ReadAllAvailable())) == 10
    assert planned(reader, first) == first
    put(a, "orders", 10, 1)
    second = planned(reader, first)
    assert items_before(second) == 11
    hasty = ItemReader(item_schema(), {**options, "maxtriggerdelay": "200ms"})
    put(a, "orders", 11, 1)
    third = planned(hasty, second)
    put(a, "orders", 12, 1)
    looks = 1
    while (fourth := planned(hasty, third)) == third:
        looks += 1
    assert looks > 1
    assert items_before(fourth) == 13


def items_before(offset: dict[str, Any]) -> int:
    (queues,) = offset.values()
    (position,) = queues.values()
    return int(position.partition(":")[2]) - 1


def test_where_the_queues_end_is_reported_though_no_batch_was_planned(fleet: list[Daemon]) -> None:
    a = fleet[0]
    put(a, "orders", 0, 7)
    options = {"servers": a.address, "reader": "lake", "subscribe": "orders"}
    found = ItemReader(item_schema(), options).reportLatestOffset()
    assert found is not None
    assert items_before(found) == 7


def test_lags_are_of_our_own_sources_only() -> None:
    ours = {"latestOffset": '{"s:1": {"q": "5:10"}}', "endOffset": '{"s:1": {"q": "5:4", "gone": "5:9"}}'}
    new_journal = {"latestOffset": '{"s:2": {"q": "6:3"}}', "endOffset": '{"s:2": {"q": "5:9"}}'}
    other = {"latestOffset": "12", "endOffset": None}
    found = lags({"sources": [ours, new_journal, other]})
    assert found == Counter({RemoteQueue("s:1", "q"): 6, RemoteQueue("s:2", "q"): 2})
