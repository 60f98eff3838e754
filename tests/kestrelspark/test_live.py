"""Live queues of real servers as tables: what is there is read, nothing is taken, and no reader is left behind."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.live import LiveReader
from kestrelspark.readers import Family, Fleet, RemoteQueue
from kestrelspark.streaming import RangePartition, item_schema
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Two servers with 100 items of orders each, in several segments, of which the first 10 have been taken."""
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(running_daemon(folder / name, "max_journal_size=1KiB", admin="127.0.0.1:0"))
            for name in ("a", "b")
        ]
        for daemon in daemons:
            ask(daemon, "/queues/orders/readers/keeper?from=earliest", "POST")
            with QueueClient(daemon.port) as client:
                for first in range(0, 100, 10):
                    client.put(
                        "orders", *(f"{daemon.folder.name}{number}".encode() for number in range(first, first + 10))
                    )
                for _ in range(10):
                    client.get("orders")
        yield daemons


def table(spark: Any, fleet: list[Daemon], **options: object) -> Any:
    reading = spark.read.format("kestrel").option("servers", ",".join(daemon.address for daemon in fleet))
    for name, value in {"subscribe": "orders", **options}.items():
        reading = reading.option(name, str(value)) if value is not None else reading
    return reading.load()


def values(rows: Any) -> Counter[str]:
    return Counter(bytes(row.value).decode() for row in rows.select("value").collect())


def numbered(name: str, first: int, end: int) -> Counter[str]:
    return Counter(f"{name}{number}" for number in range(first, end))


def add_ms(daemon: Daemon, item_id: int) -> int:
    (line,) = ask(daemon, f"/queues/orders/items?first={item_id}&limit=1&format=ndjson").lines
    return int(line["add_ms"])


def first_of(daemon: Daemon, at_ms: int) -> int:
    """The number of the first item that was put then or later."""
    lines = ask(daemon, "/queues/orders/items?format=ndjson&limit=1000").lines
    return next(line["id"] - 1 for line in lines if line["add_ms"] >= at_ms)


def first_of_all(daemon: Daemon) -> int:
    return int(ask(daemon, "/queues/orders").json["first_id"])


def test_all_that_is_there_is_read_and_the_servers_do_not_notice(spark: Any, fleet: list[Daemon]) -> None:
    before = [ask(daemon, "/queues/orders").json for daemon in fleet]
    rows = table(spark, fleet, minPartitions=5)
    assert rows.rdd.getNumPartitions() >= 5
    assert values(rows) == numbered("a", 0, 100) + numbered("b", 0, 100)
    assert values(table(spark, fleet, subscribe=None, subscribePattern="ord.*")) == values(rows)
    assert [ask(daemon, "/queues/orders").json for daemon in fleet] == before


def test_a_table_begins_and_ends_at_ids_or_times_of_its_queues(spark: Any, fleet: list[Daemon]) -> None:
    a, b = fleet
    begin, end = f'{{"{a.address}/orders": 21, "{b.address}/orders": -1}}', f'{{"orders": {{"{a.address}": 31}}}}'
    assert values(table(spark, fleet, startingOffsets=begin, endingOffsets=end)) == numbered("a", 20, 30)
    begin_ms, end_ms = add_ms(a, 41), add_ms(a, 61)
    found = values(table(spark, [a], startingTimestamp=begin_ms, endingTimestamp=end_ms))
    assert found == numbered("a", first_of(a, begin_ms), first_of(a, end_ms))
    times = (f'{{"{a.address}/orders": {begin_ms}}}', f'{{"orders": {{"{a.address}": {end_ms}}}}}')
    assign = f'{{"orders": ["{a.address}"]}}'
    options = {"assign": assign, "startingOffsetsByTimestamp": times[0], "endingOffsetsByTimestamp": times[1]}
    assert values(table(spark, fleet, subscribe=None, **options)) == found
    assert not values(table(spark, fleet, startingTimestamp="2999-01-01"))
    strategy = {"startingTimestamp": "2999-01-01", "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(Exception, match="no item was put at 32472144000000"):
        table(spark, fleet, **strategy).count()


def test_items_that_are_gone_fail_a_table_unless_losses_are_allowed(spark: Any, tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "max_journal_size=1KiB", admin="127.0.0.1:0") as daemon,
        QueueClient(daemon.port) as client,
    ):
        for number in range(100):
            client.put("orders", f"c{number}".encode(), b"x" * 200)
            client.get("orders")
        client.put("orders", *(f"c{number}".encode() for number in range(100, 110)))
        while first_of_all(daemon) == 1:
            pass
        begin = f'{{"{daemon.address}/orders": 1}}'
        with pytest.raises(Exception, match=r"items 1 to .* no longer exist"):
            table(spark, [daemon], startingOffsets=begin).count()
        rows = table(spark, [daemon], startingOffsets=begin, failOnDataLoss="false")
        at_most, found, at_least = 211 - first_of_all(daemon), rows.count(), 211 - first_of_all(daemon)
        assert at_least <= found <= at_most  # segments are still being removed
        end = f'{{"{daemon.address}/orders": 500}}'
        with pytest.raises(Exception, match="items 211 to 499 do not exist yet"):
            table(spark, [daemon], endingOffsets=end).count()
        rows = table(spark, [daemon], endingOffsets=end, failOnDataLoss="false")
        assert at_most >= rows.count() >= 211 - first_of_all(daemon)


def test_a_table_that_ends_in_the_future_has_what_was_there_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_all = Fleet.look_at_all
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:

        def look_and_put(fleet: Fleet) -> dict[RemoteQueue, Family]:
            found = look_at_all(fleet)
            client.put("orders", b"later")
            return found

        client.put("orders", *(b"%d" % number for number in range(10)))
        monkeypatch.setattr(Fleet, "look_at_all", look_and_put)
        named = {"servers": daemon.address, "subscribe": "orders"}
        by_queue = f'{{"{daemon.address}/orders": "2999-01-01"}}'
        for at, end in enumerate(({"endingtimestamp": "2999-01-01"}, {"endingoffsetsbytimestamp": by_queue})):
            (partition,) = LiveReader(item_schema(), named | end).partitions()
            assert isinstance(partition, RangePartition)
            assert (partition.what.first, partition.what.end) == (1, 11 + at)


def test_tables_of_a_catalog_are_journals_or_live_queues(spark: Any, fleet: list[Daemon]) -> None:
    a, b = fleet
    servers = f"{a.address},{b.address}"
    try:
        spark.sql(f"CREATE TABLE live USING kestrel OPTIONS (servers '{servers}', subscribe 'orders', reader 'unused')")
        found = spark.sql("SELECT CAST(value AS string) AS value FROM live WHERE id <= 3")
        assert sorted(row.value for row in found.collect()) == ["a0", "a1", "a2", "b0", "b1", "b2"]
        assert spark.sql("SELECT * FROM live WITH (startingOffsets 'latest')").count() == 0
        spark.sql(f"CREATE TABLE journals USING kestrel OPTIONS (path '{a.spool}', queue 'orders')")
        puts = spark.sql("SELECT event, count(*) AS events FROM journals GROUP BY event").collect()
        assert {row.event: row.events for row in puts} == {"put": 100, "got": 10}
        spark.sql(f"CREATE TABLE journals_too USING kestrel LOCATION '{a.spool}'")
        assert spark.table("journals_too").where("event = 'put'").count() == 100
        with pytest.raises(Exception, match=r"no option quue; did you mean queue\?"):
            spark.sql(f"CREATE TABLE mistaken USING kestrel OPTIONS (path '{a.spool}', quue 'orders')")
        spark.sql(f"CREATE TABLE named (event string) USING kestrel OPTIONS (path '{a.spool}')")
        with pytest.raises(Exception, match="name no columns"):
            spark.table("named").count()
    finally:
        for name in ("live", "journals", "journals_too", "mistaken", "named"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTrigger": "1"}, "has no option maxoffsetpertrigger"),
        ({"minPartition": "1"}, r"did you mean minPartitions\? options are servers, .* startingOffsetsByTimestamp"),
        ({"minPartitions": "x"}, "minPartitions must be a number"),
        ({"assign": "{}"}, "requires one of subscribe, subscribePattern and assign"),
        ({"subscribe": None, "assign": "[]"}, 'assign must be {"QUEUE"'),
        ({"subscribe": None, "assign": '{"q": ["127.0.0.1:9"]}'}, "127.0.0.1:9 is not one of servers"),
        ({"subscribe": "nothing,orders"}, "no queue nothing on 127"),
        ({"startingOffsets": "committed"}, "startingOffsets must be earliest, latest or"),
        ({"startingOffsetsByTimestamp": "7"}, "startingOffsetsByTimestamp must be"),
        ({"endingTimestamp": "soon"}, "endingTimestamp must be a time such as"),
        ({"path": "/tmp"}, "a path is for journals, servers for live queues"),
        ({"servers": "127.0.0.1:1", "retries": "0"}, "127.0.0.1:1"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_are_refused(
    spark: Any, fleet: list[Daemon], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        table(spark, fleet, **options).count()
