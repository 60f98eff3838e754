"""Leases as rows: which begin and which go on, who has them, and how they end."""

import datetime
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

import numpy as np

from kestreld.journal.discovery import JournalFile, discover
from kestreld.journal.records import Reason, holder_record, lease_entry, lease_record, whole_records
from kestreld.journal.segment import decode_header
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.report import report
from kestrelspark.jobs.report import rows as rows_of
from kestrelspark.jobs.time_in_work import HOLDERS_MAX
from kestrelspark.lease_entries import LatestLeases
from kestrelspark.rows import RowSelection, batches
from kestrelspark.work import items, leases
from tests.support.clock import START_WALL_MS
from tests.support.leased_past import ANN, BOB, STORY, late_confirm, write_compacted, write_leases
from tests.support.segments import BEGIN_MS, got, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NAMES = {"failed": "aborted", "returned later": "delayed"}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_leases(tmp_path_factory.mktemp("leases") / "spool").spool


@pytest.fixture(scope="module")
def in_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in many segments."""
    engine = write_leases(tmp_path_factory.mktemp("many") / "spool", max_journal_size_bytes=120)
    assert len(engine.segments("work")) > 4
    return engine.spool


def rows(spark: Any, spool: Path, *columns: str) -> list[tuple[object, ...]]:
    frame = spark.read.format("kestrel").load(str(spool)).where("event != 'put'").orderBy("at", "id")
    ms = [f"unix_millis({name}) - {START_WALL_MS}" if name in ("at", "due_time") else name for name in columns]
    return [tuple(row) for row in frame.selectExpr(*ms).collect()]


def test_every_lease_has_its_holder_and_end_and_so_does_its_extension(spark: Any, spool: Path, in_many: Path) -> None:
    expected = [
        (NAMES.get(event, event), one, at_ms, holder or None, None if event == "returned" else ends_ms)
        for event, one, at_ms, holder, ends_ms in STORY
    ]
    for folder in (spool, in_many):
        found = rows(spark, folder, "event", "id", "at", "holder", "due_time")
        assert sorted(found, key=str) == sorted(expected, key=str)


def test_what_a_lease_is_and_how_it_ends_have_the_same_number(spark: Any, spool: Path) -> None:
    found = rows(spark, spool, "id", "event", "lease")
    of = {one: [(event, lease) for found_id, event, lease in found if found_id == one] for one in (1, 2, 3)}
    first = of[1][0][1]
    assert isinstance(first, int)
    assert of[1] == [("leased", first), ("extended", first), ("confirmed", None)]
    assert of[2] == [("leased", first), ("returned", first), ("leased", first + 1), ("confirmed", None)]
    assert [event for event, _ in of[3]] == ["leased", "aborted", "leased", "confirmed"]
    assert of[3][1][1] == of[3][0][1]


def test_rows_are_the_same_however_many_tasks_read_them(spark: Any, in_many: Path) -> None:
    one, many = (
        spark.read.format("kestrel").option("maxPartitionBytes", size).load(str(in_many)) for size in ("1g", "1k")
    )
    assert (one.rdd.getNumPartitions(), many.rdd.getNumPartitions() > 4) == (1, True)
    expected, found = (Counter(tuple(row) for row in frame.collect()) for frame in (one, many))
    assert found == expected


def test_a_read_that_begins_in_a_segment_knows_the_leases_and_holders_before(spool: Path) -> None:
    (*_, file) = discover([str(spool)]).files
    buffer = Path(file.path).read_bytes()
    columns = ("event", "id", "holder", "lease")
    ends = [end for _, _, end in whole_records(buffer, decode_header(buffer, file.path)[1], file.path)]
    assert len(ends) > 10
    whole = rows_in(file, columns)
    for end in ends:
        before, behind = rows_in(replace(file, end=end), columns), rows_in(replace(file, start=end), columns)
        assert before + behind == whole


def rows_in(file: JournalFile, columns: tuple[str, ...]) -> Counter[tuple[object, ...]]:
    found = (batch.to_pylist() for batch in batches([file], RowSelection(columns)))
    return Counter(tuple(row.values()) for some in found for row in some)


def test_what_a_compacted_segment_repeats_of_leases_is_no_row(tmp_path: Path) -> None:
    engine = write_compacted(tmp_path / "spool", tmp_path / "archive")
    (compacted,) = [path for path in engine.segments("work") if decode_header(path.read_bytes(), str(path))[0].replaced]
    columns = ("event", "reader", "id", "due_time", "holder")
    (alone,) = discover([str(compacted)]).files
    due = datetime.datetime.fromtimestamp(START_WALL_MS / 1000 + 60, datetime.UTC)
    assert rows_in(alone, columns) == {("put", None, 1, due, None): 1}
    everything = [row for file in discover([str(tmp_path)]).files for row in rows_in(file, columns)]
    assert [(event, one, holder) for event, _, one, _, holder in everything if event == "leased"] == [
        ("leased", 1, ANN)
    ]


def test_leases_go_on_as_a_plain_reading_of_them_says() -> None:
    """Beside a dict of them, in blocks of any length."""
    chance = random.Random(1)
    for _ in range(200):
        known: dict[tuple[int, int], int] = {}
        latest = LatestLeases()
        for _ in range(chance.randrange(1, 6)):
            block, expected = [], []
            for _ in range(chance.randrange(0, 20)):
                key, attempt = (chance.randrange(1, 3), chance.randrange(1, 9)), chance.randrange(3)
                block.append((*key, attempt))
                expected.append(known.get(key) == attempt)
                known[key] = attempt
            readers, ids, attempts = np.array(block, np.int64).reshape(-1, 3).T
            assert latest.extend(readers, ids, attempts).tolist() == expected
            ends = [(chance.randrange(1, 3), (first := chance.randrange(1, 9)), first + chance.randrange(3))]
            for reader, first, last in ends:
                for one in range(first, last + 1):
                    known.pop((reader, one), None)
            latest.end(*np.array(ends, np.int64).T)
            kept = {(reader, one) for reader, of in latest.of.items() for one in of.ids.tolist()}
            assert kept == set(known)


def test_the_time_in_work_is_from_the_lease_to_the_confirm_by_queue_and_holder(
    spark: Any, spool: Path, in_many: Path
) -> None:
    for folder in (spool, in_many):
        made = report(spark, [str(folder)], Choice())
        assert made is not None
        (work,) = rows_of(made.queues)
        counts = ["leases", "leases_confirmed", "leases_returned", "leases_failed"]
        figures = ["work_p50_ms", "work_p95_ms", "work_max_ms"]
        assert [work[name] for name in counts] == [7, 3, 2, 1]
        assert [work[name] for name in figures] == [4000, 10_000, 10_000]
        assert work["wait_max_ms"] == 20_000
        by_holder = {row["holder"]: [row[name] for name in [*counts, *figures]] for row in rows_of(made.holders)}
        assert by_holder == {ANN: [3, 2, 1, 0, 2000, 10_000, 10_000], BOB: [4, 1, 1, 1, 4000, 4000, 4000]}


def test_of_a_period_the_work_counts_that_was_confirmed_in_it(spark: Any, spool: Path) -> None:
    since, until = (str(START_WALL_MS + at_ms) for at_ms in (12_000, 20_000))
    made = report(spark, [str(spool)], Choice(since=since, until=until))
    assert made is not None
    (work,) = rows_of(made.queues)
    assert [work[name] for name in ("leases", "leases_confirmed", "work_max_ms")] == [2, 1, 2000]


def test_journals_without_leases_have_no_time_in_work(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, [*puts(1, 3), got(1, 2, BEGIN_MS + 50)])
    made = report(spark, [str(tmp_path)], Choice())
    assert made is not None
    (work, _) = rows_of(made.queues)
    assert (work["leases"], work["work_p50_ms"]) == (None, None)
    assert made.holders.isEmpty()


def test_who_has_many_leases_is_named_and_the_others_are_counted_together(spark: Any, tmp_path: Path) -> None:
    holders = [holder_record(number, f"10.0.0.{number}:1") for number in range(1, 31)]
    granted = [
        lease_record(1, BEGIN_MS + 100, [lease_entry(one, 60_000, 64, 7, 1 + (one % 30)) for one in range(1, 601)]),
        lease_record(1, BEGIN_MS + 100, [lease_entry(one, 60_000, 64, 7, 5) for one in range(601, 611)]),
    ]
    ends = got(1, 610, BEGIN_MS + 1100, reason=Reason.CONFIRMED)
    write_segment(tmp_path, 1, 1, [*puts(1, 610, every_ms=0), *holders, *granted, ends])
    made = report(spark, [str(tmp_path)], Choice())
    assert made is not None
    by_holder = {row["holder"]: row for row in rows_of(made.holders)}
    assert len(by_holder) == HOLDERS_MAX + 1
    assert by_holder["10.0.0.5:1"]["leases"] == 30
    assert by_holder[None]["leases"] == 200
    assert {row["work_p99_ms"] for row in by_holder.values()} == {1000}


def test_each_lease_is_a_row_with_its_end_and_its_time_in_work(spark: Any, spool: Path, in_many: Path) -> None:
    columns = ["id", "holder", "extensions", "outcome", "in_work_ms"]
    for folder in (spool, in_many):
        table = leases(spark.read.format("kestrel").load(str(folder))).orderBy("leased_at", "id")
        assert [tuple(row) for row in table.select(*columns).collect()] == [
            (1, ANN, 1, "confirmed", 10_000),
            (2, BOB, 0, "returned", None),
            (2, ANN, 0, "confirmed", 2000),
            (3, BOB, 0, "failed", None),
            (3, BOB, 0, "confirmed", 4000),
            (4, ANN, 0, "returned", None),
            (5, BOB, 1, None, None),
        ]
        ends = [f"unix_millis({name}) - {START_WALL_MS}" for name in ("leased_at", "ends_at", "ended_at")]
        assert tuple(table.selectExpr(*ends).first()) == (0, 65_000, 10_000)


def test_each_item_is_a_row_with_its_leases_its_wait_and_its_time_in_work(spark: Any, spool: Path) -> None:
    table = items(spark.read.format("kestrel").load(str(spool))).orderBy("id")
    columns = ["id", "leases", "holder", "outcome", "wait_ms", "in_work_ms"]
    assert [tuple(row) for row in table.select(*columns).collect()] == [
        (1, 1, ANN, "confirmed", 10_000, 10_000),
        (2, 2, ANN, "confirmed", 13_000, 2000),
        (3, 2, BOB, "confirmed", 20_000, 4000),
        (4, 1, ANN, None, None, None),
        (5, 1, BOB, None, None, None),
    ]
    first = [f"unix_millis({name}) - {START_WALL_MS}" for name in ("put_at", "first_leased_at", "ended_at")]
    assert tuple(table.where("id = 2").selectExpr(*first).first()) == (0, 0, 13_000)


def test_a_lease_that_is_extended_after_it_ran_out_is_still_that_lease(spark: Any, tmp_path: Path) -> None:
    table = leases(spark.read.format("kestrel").load(str(late_confirm(tmp_path / "spool").spool)))
    (row,) = table.select("extensions", "outcome", "in_work_ms").collect()
    assert tuple(row) == (1, "confirmed", 40_000)
