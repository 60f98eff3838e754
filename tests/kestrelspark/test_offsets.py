"""Offsets that match no queue are refused, and a server is the same one by any of its addresses."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kestrelspark.live import LiveReader
from kestrelspark.options import BadOption
from kestrelspark.readers import ItemsLost
from kestrelspark.streaming import ItemReader, RangePartition, item_schema
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.spark_stream import put

Ranges = list[tuple[str, str, int, int]]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two servers with items 1 to 50 in `orders`."""
    with ExitStack() as stack:
        daemons = [stack.enter_context(running_daemon(tmp_path / name, admin="127.0.0.1:0")) for name in ("a", "b")]
        for daemon in daemons:
            put(daemon, "orders", 0, 50)
        yield daemons


def ranges(partitions: Any) -> Ranges:
    """Server, queue, first id and end of what tasks read."""
    found = []
    for one in partitions:
        assert isinstance(one, RangePartition)
        found.append((one.what.server, one.what.queue, one.what.first, one.what.end))
    return sorted(found)


def table(fleet: list[Daemon], **options: str) -> Ranges:
    named = {"servers": ",".join(daemon.address for daemon in fleet), "subscribe": "orders"}
    return ranges(
        LiveReader(item_schema(), named | {name.lower(): value for name, value in options.items()}).partitions()
    )


def stream(servers: str, **options: str) -> ItemReader:
    named = {"servers": servers, "reader": "spark"} | {name.lower(): value for name, value in options.items()}
    if "subscribepattern" not in named:
        named["subscribe"] = "orders"
    return ItemReader(item_schema(), named)


def latest(reader: ItemReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


def local(daemon: Daemon) -> str:
    """Another spelling of its address."""
    return daemon.address.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ('{"{a}/orders": 50.9}', "must be"),
        ('{"{a}/orders": true}', "must be"),
        ('{"{a}/orders": "seven"}', "must be"),
        ('{"{a}/orders": 0}', "must be"),
        ('{"{a}/order": 42}', "this query has no queue {a}/order, but {a}/orders, {b}/orders"),
        ('{"{a}": 42}', "this query has no queue {a}, but"),
        ('{"127.0.0.1:1/orders": 42}', "this query has no queue 127.0.0.1:1/orders"),
        ('{"{a}/orders": 52}', "orders of {a} has no item 52 yet: the next one is 51"),
    ],
)
def test_offsets_of_no_queue_or_item_are_refused_by_tables_and_streams(
    fleet: list[Daemon], offsets: str, words: str
) -> None:
    a, b = sorted(daemon.address for daemon in fleet)
    offsets, words = (text.replace("{a}", a).replace("{b}", b) for text in (offsets, words))
    with pytest.raises(BadOption, match=f"startingOffsets.*{words}"):
        table(fleet, startingOffsets=offsets)
    with pytest.raises(BadOption, match=f"startingOffsets.*{words}"):
        stream(f"{a},{b}", startingOffsets=offsets).initialOffset()
    if "52" not in offsets:
        with pytest.raises(BadOption, match=f"endingOffsets.*{words}"):
            table(fleet, endingOffsets=offsets)
    if "no queue" in words:
        for option in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
            with pytest.raises(BadOption, match=f"{option}.*{words}"):
                table(fleet, **{option: offsets})


def test_a_table_that_begins_behind_its_end_is_refused(fleet: list[Daemon]) -> None:
    name = f"{fleet[0].address}/orders"
    with pytest.raises(BadOption, match="begins at item 30, which is after its end, item 20"):
        table(fleet[:1], startingOffsets=f'{{"{name}": 30}}', endingOffsets=f'{{"{name}": 20}}')
    assert table(fleet[:1], startingOffsets=f'{{"{name}": 30}}', endingOffsets=f'{{"{name}": 30}}') == []


def test_offsets_name_a_server_by_any_of_its_addresses(fleet: list[Daemon]) -> None:
    a, b = fleet
    offsets = f'{{"{local(a)}/orders": 42}}'
    assert table(fleet, startingOffsets=offsets) == sorted(
        [(a.address, "orders", 42, 51), (b.address, "orders", 1, 51)]
    )
    start = stream(a.address, startingOffsets=offsets).initialOffset()
    assert start[a.address]["orders"].endswith(":42")


def test_offsets_of_a_server_that_does_not_answer_wait_for_it(fleet: list[Daemon]) -> None:
    a, b = fleet
    b.kill()
    reader = stream(f"{a.address},{b.address}", startingOffsets=f'{{"{b.address}/orders": 42}}')
    start = reader.initialOffset()
    assert start.keys() == {a.address}
    b.start()
    assert latest(reader, start)[b.address]["orders"].endswith(":42")


def test_a_server_with_two_addresses_is_read_once(fleet: list[Daemon]) -> None:
    a, b = fleet
    servers = f"{a.address},{local(a)},{b.address}"
    both = LiveReader(item_schema(), {"servers": servers, "subscribe": "orders"})
    assert ranges(both.partitions()) == sorted([(a.address, "orders", 1, 51), (b.address, "orders", 1, 51)])
    assert stream(servers).initialOffset().keys() == {a.address, b.address}


def test_a_stream_goes_on_where_its_server_has_another_address_now(fleet: list[Daemon]) -> None:
    a = fleet[0]
    reader = stream(local(a))
    start = latest(reader, reader.initialOffset())
    put(a, "orders", 50, 10)
    for servers in (f"{a.address}", f"{a.address},{local(a)}"):
        reader = stream(servers)
        reader.prepareForTriggerAvailableNow()
        end = latest(reader, start)
        known_as = a.address if servers == a.address else local(a)
        assert ranges(reader.partitions(start, end)) == [(known_as, "orders", 51, 61)]
    reader = stream(a.address)
    assert ranges(reader.partitions({local(a): start[local(a)]}, {local(a): end[local(a)]})) == [
        (a.address, "orders", 51, 61)
    ]


def delete(daemon: Daemon, queue: str) -> None:
    with QueueClient(daemon.port) as client:
        client.do(b"delete %s" % queue.encode(), b"DELETED\r\n")


def test_a_queue_of_a_pattern_that_is_deleted_unread_is_a_loss(
    fleet: list[Daemon], capsys: pytest.CaptureFixture[str]
) -> None:
    a = fleet[0]
    reader, tolerant = (
        stream(a.address, subscribePattern="ord.*", failOnDataLoss=value) for value in ("true", "false")
    )
    start = reader.initialOffset()
    delete(a, "orders")
    with pytest.raises(ItemsLost, match=r"orders of .*: the queue was deleted, with its items from 1 on"):
        latest(reader, start)
    assert latest(tolerant, start) == {}
    assert "the queue was deleted" in capsys.readouterr().err


def test_a_queue_of_a_pattern_that_was_read_to_its_end_or_whose_server_is_away_is_no_loss(fleet: list[Daemon]) -> None:
    a, b = fleet
    reader = stream(f"{a.address},{b.address}", subscribePattern="ord.*")
    read = latest(reader, reader.initialOffset())
    assert latest(reader, read) == read
    delete(a, "orders")
    b.kill()
    left = latest(reader, read)
    assert left == {b.address: read[b.address]}
    put(a, "orders", 0, 5)
    begun = latest(reader, left)
    assert begun[a.address]["orders"].endswith(":1")
    assert latest(reader, begun)[a.address]["orders"].endswith(":6")
