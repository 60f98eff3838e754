"""Items of journals that are put on queues of real servers again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelctl.journals.replaying import Pace
from kestrelctl.shell.exit_codes import ExitCode
from kestreld.journal.discovery import discover
from kestreld.journal.kestrel.ops import ADDX, REMOVE, Op, encode
from kestreld.journal.records import put_record
from kestrelspark.in_order import COLUMNS, merged, source_batches, sources_of
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.replay import Outcome, Replay, replay
from kestrelspark.options import BadOption
from kestrelspark.rows import RowSelection
from kestrelspark.servers import Servers
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.segments import BEGIN_MS, got, puts, write_segment
from tests.support.spark_job import SparkJob, job_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
AS_FAST_AS_IT_GOES: Final = Pace(None)
FAR_MS: Final = 4_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("server")) as daemon:
        yield daemon


def numbered(first_id: int, count: int, *, every_ms: int = 1, from_ms: int = 0, expire_ms: int = 0) -> list[bytes]:
    """PUT records of items that hold their ids."""
    return [
        put_record(number, BEGIN_MS + from_ms + number * every_ms, expire_ms, 0, 0, b"%d" % number)
        for number in range(first_id, first_id + count)
    ]


def again(
    spark: Any, server: Daemon, paths: list[Path], choice: Choice | None = None, **what: Any
) -> dict[str, Outcome]:
    """Replay, by default as fast as it goes; what became of each queue."""
    given = {"pace": AS_FAST_AS_IT_GOES, **what}
    found = replay(
        spark, list(map(str, paths)), choice or Choice(), Replay(Servers(server.address, retries=0), **given)
    )
    return {one.queue: one for one in found}


def drained(server: Daemon, *queues: str) -> list[list[bytes]]:
    with QueueClient(server.port) as client:
        return [client.drain(queue) for queue in queues]


def test_items_come_again_in_order_with_flags_and_a_childs_own_on_the_child(
    spark: Any, server: Daemon, tmp_path: Path
) -> None:
    spool = tmp_path / "server=a"
    with QueueClient(server.port) as client:
        client.get("orders+audit")
    own = put_record(31, BEGIN_MS, 0, 0, 2, b"audit's own")
    flagged = put_record(32, BEGIN_MS, 0, 7, 0, b"flagged")
    write_segment(spool / "orders.journal", 1, 1, numbered(1, 20), queue="orders")
    write_segment(spool / "orders.journal", 2, 21, [*numbered(21, 10), got(1, 15, BEGIN_MS), own], queue="orders")
    write_segment(spool / "orders.journal", 3, 32, [flagged], queue="orders")
    write_segment(spool / "plain.journal", 1, 1, numbered(1, 5), queue="plain")
    done = again(spark, server, [tmp_path])
    assert {queue: (one.server, one.items, one.last_id, one.code) for queue, one in done.items()} == {
        "orders": ("a", 32, 32, 0),
        "plain": ("a", 5, 5, 0),
    }
    numbers = [b"%d" % number for number in range(1, 31)]
    with QueueClient(server.port) as client:
        assert [client.get("orders") for _ in numbers] == numbers
        client.ask_for("orders")
        client.expect_line(b"VALUE orders 7 7")
    assert drained(server, "orders+audit", "plain") == [
        [*numbers, b"audit's own", b"flagged"],
        [b"1", b"2", b"3", b"4", b"5"],
    ]


def test_time_queue_expression_and_target_choose_and_expired_items_come_when_told(
    spark: Any, server: Daemon, tmp_path: Path
) -> None:
    records = [
        *numbered(1, 10),
        put_record(11, BEGIN_MS + 11, BEGIN_MS + 60_000, 0, 0, b"late"),
        put_record(12, BEGIN_MS + 12, FAR_MS, 0, 0, b"lasting"),
    ]
    write_segment(tmp_path / "work.journal", 1, 1, records)
    write_segment(tmp_path / "other.journal", 1, 1, numbered(1, 10), queue="other")
    choice = Choice(("work",), since=str(BEGIN_MS + 5), until=str(BEGIN_MS + 13))
    done = again(spark, server, [tmp_path], choice, queue="chosen", where="size > 1 or id % 2 = 0")
    assert (done["work"].items, done["work"].expired) == (4, 1)
    assert drained(server, "chosen", "work", "other") == [[b"6", b"8", b"10", b"lasting"], [], []]
    again(spark, server, [tmp_path], choice, queue="chosen", where="size > 2", with_expired=True, has_dedup_key=True)
    assert drained(server, "chosen") == [[b"/work/1700000000000/11\nlate", b"/work/1700000000000/12\nlasting"]]


@pytest.mark.parametrize(("where", "words"), [("size >", "--where 'size >'"), ("colour = 1", "colour")])
def test_an_expression_that_is_none_is_refused_before_anything_is_put(
    spark: Any, server: Daemon, tmp_path: Path, where: str, words: str
) -> None:
    write_segment(tmp_path / "work.journal", 1, 1, numbered(1, 3))
    with pytest.raises(BadOption, match=words):
        again(spark, server, [tmp_path], where=where)
    assert drained(server, "work") == [[]]


def test_with_a_speed_or_a_rate_it_takes_its_time(spark: Any, server: Daemon, tmp_path: Path) -> None:
    for queue in ("one", "two", "three"):
        write_segment(tmp_path / f"{queue}.journal", 1, 1, numbered(1, 4, every_ms=10_000), queue=queue)
    begun_s = time.monotonic()
    again(spark, server, [tmp_path], pace=Pace(speed=30.0))
    assert time.monotonic() - begun_s >= 1
    begun_s = time.monotonic()
    again(spark, server, [tmp_path], pace=Pace(None, 12.0))
    assert time.monotonic() - begun_s >= 0.5  # of two tasks one has eight items, and a rate of eight
    for items in drained(server, "one", "two", "three"):
        assert items == [b"1", b"2", b"3", b"4"] * 2


def test_queues_of_one_task_come_by_their_times_and_each_in_its_order(tmp_path: Path) -> None:
    write_segment(tmp_path / "a.journal", 1, 1, numbered(1, 2500), queue="a")
    write_segment(tmp_path / "b.journal", 1, 1, numbered(1, 300, every_ms=7), queue="b")
    set_back = [*numbered(1, 50, from_ms=3000), *numbered(51, 50)]
    write_segment(tmp_path / "c.journal", 1, 1, set_back, queue="c")
    sources = sources_of(discover([str(tmp_path)]).files)
    batches = merged([source_batches(one, RowSelection(COLUMNS, puts_only=True), "") for one in sources])
    rows = [row for batch in batches for row in batch.select(["queue", "id", "add_time"]).to_pylist()]
    assert len(rows) == 2900
    for queue, count in (("a", 2500), ("b", 300), ("c", 100)):
        assert [row["id"] for row in rows if row["queue"] == queue] == list(range(1, count + 1))
    others = [row["add_time"] for row in rows if row["queue"] != "c"]
    assert others == sorted(others)


def test_after_a_full_queue_the_next_run_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "spool" / "work.journal", 1, 1, numbered(1, 2000))
    write_segment(tmp_path / "spool" / "work.journal", 2, 2001, numbered(2001, 1000))
    with running_daemon(tmp_path / "server", "queues.work.max_items=2500") as server:
        state = str(tmp_path / "state")
        stopped = again(spark, server, [tmp_path / "spool"], state=state)["work"]
        assert (stopped.code, stopped.items) == (ExitCode.FULL, 2048)
        assert "the queue is full" in stopped.problem
        (first,) = drained(server, "work")
        assert first == [b"%d" % number for number in range(1, 2501)]
        done = again(spark, server, [tmp_path / "spool"], state=state)["work"]
        assert (done.code, done.items, done.last_id) == (0, 952, 3000)
        # At least once: what one put carried when it was refused comes twice.
        assert drained(server, "work") == [[b"%d" % number for number in range(2049, 3001)]]
        assert again(spark, server, [tmp_path / "spool"], state=state) == {}


def test_a_run_that_was_killed_goes_on_where_it_was(spark: Any, server: Daemon, tmp_path: Path) -> None:
    write_segment(tmp_path / "spool" / "killed.journal", 1, 1, numbered(1, 5000), queue="killed")
    state = tmp_path / "state"
    options = ["--speed=max", "--rate=500/s", "--master=local[1]", f"--state={state}"]
    job = SparkJob(tmp_path, job_command("replay", tmp_path / "spool", "--servers", server.address, *options))
    job.start()
    job.until((state / "server=" / "killed.json").exists)
    job.kill()
    done = again(spark, server, [tmp_path / "spool"], state=str(state))["killed"]
    assert done.items < 5000
    (items,) = drained(server, "killed")
    assert list(dict.fromkeys(items)) == [b"%d" % number for number in range(1, 5001)]


def test_damage_ends_the_replay_of_its_queue_only_and_is_named(spark: Any, server: Daemon, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "bad.journal", 1, 1, puts(1, 30), queue="bad")
    write_segment(tmp_path / "bad.journal", 2, 31, puts(31, 10), queue="bad")
    write_segment(tmp_path / "good.journal", 1, 1, numbered(1, 3), queue="good")
    content = bytearray(path.read_bytes())
    content[-150] ^= 1
    path.write_bytes(content)
    done = again(spark, server, [tmp_path])
    assert (done["bad"].code, done["bad"].items, done["good"].code) == (ExitCode.CORRUPT, 28, 0)
    assert done["bad"].problem.startswith(f"{path}: byte ")
    bad, good = drained(server, "bad", "good")
    assert (len(bad), len(good)) == (28, 3)


def test_items_of_kestrels_own_journals_come_again_once(spark: Any, server: Daemon, tmp_path: Path) -> None:
    ops = [Op(ADDX, 0, BEGIN_MS, 0, b"a"), Op(REMOVE), Op(ADDX, 0, BEGIN_MS + 10, 0, b"b")]
    for name in ("old", "old+child"):
        (tmp_path / name).write_bytes(b"".join(map(encode, ops)))
    done = again(spark, server, [tmp_path], state=str(tmp_path / ".state"))
    assert [(one.queue, one.items, one.last_id) for one in done.values()] == [("old", 2, 2)]
    assert again(spark, server, [tmp_path], state=str(tmp_path / ".state")) == {}
    assert drained(server, "old") == [[b"a", b"b"]]
