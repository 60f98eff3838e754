"""Rows that become items of real servers."""

import datetime
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

import pyarrow as pa
from pyspark.sql.types import StructType

from kestreld.client.items import PutItem
from kestrelspark.batch import COLUMNS as JOURNAL_COLUMNS
from kestrelspark.batch import field_of
from kestrelspark.options import BadOption
from kestrelspark.readers import Fleet
from kestrelspark.servers import Servers
from kestrelspark.sink import FLAGS_MAX, Outlet, Plan, batch_sink
from kestrelspark.streaming import item_schema
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
MANY: Final = 200_000


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_daemon(tmp_path / name)) for name in ("a", "b")]


def addresses(fleet: list[Daemon]) -> str:
    return ",".join(daemon.address for daemon in fleet)


def drained(daemon: Daemon, queue: str) -> list[bytes]:
    with QueueClient(daemon.port) as client:
        return client.drain(queue)


def put(frame: Any, servers: str, **options: object) -> None:
    writing = frame.write.format("kestrel").mode("append").option("servers", servers)
    for name, value in options.items():
        writing = writing.option(name, str(value))
    writing.save()


def test_200_000_rows_are_put_on_two_servers_and_drained_equal(spark: Any, fleet: list[Daemon]) -> None:
    frame = spark.range(0, MANY, 1, 4).selectExpr("concat('item ', id) AS value")
    put(frame, addresses(fleet), queue="orders")
    taken = [drained(daemon, "orders") for daemon in fleet]
    assert all(len(items) > MANY // 4 for items in taken)
    assert Counter(taken[0] + taken[1]) == Counter(f"item {number}".encode() for number in range(MANY))


def test_two_users_of_one_session_each_use_their_own_password(spark: Any, tmp_path: Path) -> None:
    """Spark keeps its workers: each has the sources of both."""
    config = "users:\n"
    for user in ("alice", "bob"):
        (tmp_path / user).write_text(f"password of {user}")
        hashed = quick_hash(f"password of {user}")
        config += f"  {user}: {{password: '{hashed}', rights: {{{user}: [put, get]}}}}\n"
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id AS string) AS value")
    with running_daemon(tmp_path / "spool", config=config, admin="127.0.0.1:0") as daemon:
        for user in ("alice", "bob", "alice", "bob"):
            put(rows, daemon.address, queue=user, user=user, passwordFile=tmp_path / user)
        for user in ("alice", "bob", "alice"):
            servers = Servers(daemon.address, user, str(tmp_path / user))
            (family,) = Fleet(servers, "lake", (user,)).look().values()
            assert family.next_id == 21
        with QueueClient(daemon.port) as client:
            client.ask(login("alice", "password of alice"), b"STORED\r\n")
            assert client.drain("alice") == 2 * [b"%d" % number for number in range(10)]


def test_one_partition_arrives_in_its_order(spark: Any, fleet: list[Daemon]) -> None:
    put(spark.range(0, 3000, 1, 1).selectExpr("cast(id AS string) AS value"), fleet[0].address, queue="orders")
    assert drained(fleet[0], "orders") == [b"%d" % number for number in range(3000)]


def test_rows_say_queue_flags_and_expiry(spark: Any, fleet: list[Daemon]) -> None:
    daemon = fleet[0]
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    rows = [("one", b"1", 7, None), ("two", b"\xff\r\n", None, None), ("two", b"late", None, long_ago)]
    frame = spark.createDataFrame(rows, "queue string, value binary, flags int, expire_time timestamp")
    put(frame, daemon.address, queue="default", expirySeconds=60)
    with QueueClient(daemon.port) as client:
        client.ask_for("one")
        client.expect_line(b"VALUE one 7 1")
    assert drained(daemon, "two") == [b"\xff\r\n"]


def test_rows_of_one_key_go_to_one_server_in_their_order(spark: Any, fleet: list[Daemon]) -> None:
    frame = spark.range(0, 4000, 1, 1).selectExpr("concat(id % 20, ' ', id) AS value", "id % 20 AS n")
    put(frame.selectExpr("value", "cast(n AS string) AS key"), addresses(fleet), queue="orders")
    taken = [drained(daemon, "orders") for daemon in fleet]
    seen = [{item.split()[0] for item in items} for items in taken]
    assert seen[0]
    assert seen[1]
    assert not seen[0] & seen[1]
    for items in taken:
        for key in {item.split()[0] for item in items}:
            numbers = [int(item.split()[1]) for item in items if item.split()[0] == key]
            assert numbers == list(range(int(key), 4000, 20))


def test_a_server_that_is_away_is_passed_over(spark: Any, fleet: list[Daemon]) -> None:
    servers = addresses(fleet)
    fleet[1].kill()
    put(spark.range(100).selectExpr("cast(id AS string) AS value"), servers, queue="orders")
    assert len(drained(fleet[0], "orders")) == 100


def test_items_are_put_again_after_a_server_was_killed(fleet: list[Daemon]) -> None:
    a = fleet[0]
    outlet = Outlet(Servers(a.address))
    outlet.put(b"orders", [PutItem(b"%d" % number) for number in range(1000)])
    a.kill()
    restart = threading.Thread(target=a.start)
    restart.start()
    outlet.put(b"orders", [PutItem(b"%d" % number) for number in range(1000, 2000)])
    restart.join()
    outlet.close()
    assert drained(a, "orders") == [b"%d" % number for number in range(2000)]


def test_a_full_queue_gets_none_of_the_stored_items_twice(spark: Any, tmp_path: Path) -> None:
    with running_daemon(tmp_path, "queues.orders.max_items=2500") as daemon:
        frame = spark.range(0, 3000, 1, 1).selectExpr("cast(id AS string) AS value")
        with pytest.raises(Exception, match="the queue is full"):
            put(frame, daemon.address, queue="orders", retries=1)
        # The whole task was not tried again: on local masters Spark gives up at the first failure.
        assert drained(daemon, "orders") == [b"%d" % number for number in range(2500)]


def test_items_carry_a_key_that_tells_repeats_apart(spark: Any, fleet: list[Daemon]) -> None:
    put(spark.range(0, 50, 1, 2).selectExpr("cast(id AS string) AS value"), fleet[0].address, queue="a", dedupKey=True)
    keys = [item.split(b"\n")[0].decode() for item in drained(fleet[0], "a")]
    assert len(set(keys)) == 50
    assert all(re.fullmatch(r"[0-9a-f]{32}-[01]-\d+", key) for key in keys)
    own = spark.createDataFrame([("value", "mine")], "value string, dedup_key string")
    put(own, fleet[0].address, queue="b", dedupKey=True)
    assert drained(fleet[0], "b") == [b"mine\nvalue"]


def test_a_stream_puts_its_batches_and_its_keys_name_query_and_batch(
    spark: Any, fleet: list[Daemon], tmp_path: Path
) -> None:
    spark.range(0, 300, 1, 3).selectExpr("cast(id AS string) AS value").write.text(str(tmp_path / "in"))
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = (
        rows.writeStream.format("kestrel")
        .option("servers", addresses(fleet))
        .option("queue", "orders")
        .option("dedupKey", "true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    items = [item.decode().split("\n") for daemon in fleet for item in drained(daemon, "orders")]
    assert sorted(int(value) for _, value in items) == list(range(300))
    assert {key.rpartition("-")[0] for key, _ in items} == {f"{query.id}-{batch}-0" for batch in range(3)}


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id AS value", {"queue": "q"}, "the column value has an unsupported type: bigint"),
        ("'x' AS value", {}, "the option queue or a column queue"),
        ("'x' AS other", {"queue": "q"}, "no column other"),
        ("'x' AS value", {"queue": "q", "colour": "red"}, "no option colour"),
        ("'x' AS value", {"queue": "q", "retries": "many"}, "retries must be a number"),
    ],
)
def test_what_cannot_be_put_is_refused_before_anything_is(
    spark: Any, columns: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        put(spark.range(1).selectExpr(columns), "127.0.0.1:1", **options)


@pytest.mark.parametrize("flags", [-1, FLAGS_MAX + 1, 1 << 62])
def test_flags_that_no_item_can_have_are_refused_and_the_largest_is_stored(fleet: list[Daemon], flags: int) -> None:
    a = fleet[0]
    plan = Plan(Servers(a.address), "orders", 0, ("value", "flags"), has_dedup_key=False, run="")

    def rows(flags: int) -> Any:
        return pa.RecordBatch.from_pydict({"value": ["one"], "flags": pa.array([flags], pa.int64())})

    with pytest.raises(BadOption, match=f"a row for orders has the flags {flags}: they must be from 0 to 4294967295"):
        plan.put([rows(flags)])
    assert plan.put([rows(FLAGS_MAX)]).items == 1
    with QueueClient(a.port) as client:
        client.ask_for("orders")
        client.expect_line(b"VALUE orders %d 3" % FLAGS_MAX)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("schema", [StructType([field_of(name) for name in JOURNAL_COLUMNS]), item_schema()])
def test_rows_are_not_inserted_into_tables_of_journals_or_live_queues(schema: StructType, overwrite: bool) -> None:
    with pytest.raises(BadOption, match="is for reading only; to put rows on queues, use frame"):
        batch_sink(schema, {}, overwrite=overwrite)
