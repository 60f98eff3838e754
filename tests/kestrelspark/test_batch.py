"""The source, beside a plain reading of the same files in one process."""

import datetime
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from pyspark.errors import AnalysisException

from kestreld.files import FileLayer
from kestreld.journal.kestrel.format import find_queues, replayed_files
from kestreld.journal.kestrel.salvage import stretches
from kestreld.journal.records import Reason, put_record, sync_record
from tests.support.damage import Sample
from tests.support.segments import BEGIN_MS, Row, got, plain_kestrel_rows, plain_rows, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
GOLDEN: Final = Path(__file__).parents[1] / "golden" / "journals"
READ: Final = (
    "server", "queue", "reader", "event", "id", "unix_millis(at)", "unix_millis(expire_time)", "flags", "size",
    "journal_id", "value",
)  # fmt: skip


def source(spark: Any, *paths: Path, **options: object) -> Any:
    reader = spark.read.format("kestrel")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load([str(path) for path in paths])


def rows(frame: Any) -> Counter[Row]:
    collected = frame.where("_corrupt is null").selectExpr(*READ).collect()
    return Counter(tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in collected)


def plain(paths: Iterable[Path], server: str = "") -> Counter[Row]:
    leases: dict[Path, dict[tuple[int, int], int]] = {}
    return Counter(
        row for path in sorted(paths) for row in plain_rows(path, server, leases.setdefault(path.parent, {}))
    )


def sample_spool(folder: Path) -> list[Path]:
    """A spool with something of everything on the disk."""
    paths = []
    for path, content in Sample().files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if target.suffix == ".seg":
            paths.append(target)
    return paths


def test_rows_of_a_spool_are_those_of_a_plain_reading(spark: Any, tmp_path: Path) -> None:
    paths = sample_spool(tmp_path / "server=one")
    found = rows(source(spark, tmp_path, includeValue="true"))
    assert found == plain(paths, "one")
    assert {row[3] for row in found} >= {"put", "got", "aborted", "leased", "extended"}


def test_add_time_is_the_time_of_a_put_and_unknown_elsewhere(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, [*puts(1, 3), got(1, 2, BEGIN_MS + 50)])
    frame = source(spark, tmp_path)
    assert frame.where("event = 'put' and add_time = at").count() == 3
    assert frame.where("event != 'put' and add_time is null").count() == 2


def test_rows_of_kestrels_own_journals_are_those_of_a_plain_reading(spark: Any, tmp_path: Path) -> None:
    """All the recorded journals that are sound: one folder each."""
    expected: Counter[Row] = Counter()
    for folder in sorted(path / "files" for path in GOLDEN.iterdir() if path.is_dir()):
        queues, _ = find_queues(FileLayer(), str(folder))
        used = [folder / name for queue in queues for name in replayed_files(FileLayer(), str(folder), queue)]
        if used and all(stretch.damage is None for path in used for stretch in stretches(path.read_bytes())):
            server = folder.parent.name
            shutil.copytree(folder, tmp_path / f"server={server}")
            for queue in queues:
                for name in replayed_files(FileLayer(), str(folder), queue):
                    expected.update(plain_kestrel_rows(folder / name, queue, server))
    assert len({row[0] for row in expected}) > 10
    assert rows(source(spark, tmp_path, includeValue="true")) == expected


def test_values_are_read_only_when_asked_for(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, puts(1, 5))
    assert "value" not in source(spark, tmp_path).columns
    assert source(spark, tmp_path, includeValue="true").where("length(value) = 64").count() == 5


def test_large_and_empty_items_are_read_whole(spark: Any, tmp_path: Path) -> None:
    large = os.urandom(5 << 20)
    records = [put_record(number, BEGIN_MS, 0, 0, 0, data) for number, data in enumerate([b"", *[large] * 9], 1)]
    path = write_segment(tmp_path, 1, 1, records)
    assert rows(source(spark, tmp_path, includeValue="true")) == plain([path])


def test_a_range_of_many_items_is_a_row_for_each(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, [got(1, 300_000, BEGIN_MS, reason=Reason.FLUSHED), got(7, 7, BEGIN_MS)])
    frame = source(spark, tmp_path)
    assert frame.where("event = 'flushed'").count() == 300_000
    assert frame.selectExpr("sum(id)").first()[0] == sum(range(300_001)) + 7


def test_a_queue_a_pattern_and_a_child_choose_families(spark: Any, tmp_path: Path) -> None:
    for name in ("work", "waste", "other"):
        write_segment(tmp_path / f"{name}.journal", 1, 1, puts(1, 2), queue=name)

    def chosen(queue: str) -> set[str]:
        return {row.queue for row in source(spark, tmp_path, queue=queue).select("queue").distinct().collect()}

    assert chosen("work") == {"work"}
    assert chosen("w*") == {"work", "waste"}
    assert chosen("work+audit, other") == {"work", "other"}


def test_since_and_until_cut_out_a_stretch_of_time(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, [*puts(1, 100, every_ms=1000), got(1, 1, BEGIN_MS + 50_000)])
    at = datetime.datetime.fromtimestamp(BEGIN_MS / 1000, datetime.UTC)
    since, until = at + datetime.timedelta(seconds=40), at + datetime.timedelta(seconds=60)
    by_words = source(spark, tmp_path, since=since.isoformat(), until=until.isoformat())
    assert by_words.where("event = 'put'").selectExpr("min(id)", "max(id)").first() == (40, 59)
    assert by_words.where("event = 'got'").count() == 1
    assert source(spark, tmp_path, since=BEGIN_MS + 40_000, until=BEGIN_MS + 60_000).count() == by_words.count()


def test_segments_that_ended_long_before_are_not_opened(spark: Any, tmp_path: Path) -> None:
    day_ms = 86_400_000
    old = write_segment(tmp_path, 1, 1, puts(1, 10))
    write_segment(tmp_path, 2, 11, puts(11, 10), created_at_ms=BEGIN_MS + day_ms)
    frame = source(spark, tmp_path, since=BEGIN_MS + 2 * day_ms, mode="FAILFAST")
    old.write_bytes(old.read_bytes()[:200] + b"damage" + old.read_bytes()[206:])
    assert frame.count() == 0


def test_only_the_columns_of_a_given_schema_are_made(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, puts(1, 5))
    frame = spark.read.format("kestrel").schema("event string, size int").load(str(tmp_path))
    assert frame.groupBy("event").sum("size").collect() == [("put", 320)]


def test_globs_and_single_segments_are_read_once(spark: Any, tmp_path: Path) -> None:
    one = write_segment(tmp_path / "server=a" / "work.journal", 1, 1, puts(1, 5))
    write_segment(tmp_path / "server=b" / "work.journal", 1, 1, puts(1, 7))
    assert source(spark, one).count() == 5
    assert source(spark, tmp_path / "server=*").count() == 12
    assert source(spark, tmp_path, one, tmp_path / "server=a").count() == 12
    counts = source(spark, tmp_path).groupBy("server").count().collect()
    assert {row.server: row["count"] for row in counts} == {"a": 5, "b": 7}


def test_a_segment_that_is_being_archived_counts_once(spark: Any, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "spool" / "work.journal", 1, 1, puts(1, 5))
    archived = tmp_path / "archive" / "work" / "1700000000000" / path.name
    archived.parent.mkdir(parents=True)
    shutil.copy(path, archived)
    assert source(spark, tmp_path).count() == 5


@pytest.mark.parametrize("there", [(1, 2), (1,), ()])
def test_items_of_a_compacted_segment_count_once_whatever_is_left_of_the_originals(
    spark: Any, tmp_path: Path, there: tuple[int, ...]
) -> None:
    archive, live = tmp_path / "archive" / "work" / "1700000000000", tmp_path / "spool" / "work.journal"
    for number in there:
        write_segment(archive, number, number * 10, puts(number * 10, 10))
    survivors = [*puts(13, 2), *puts(25, 3)]
    write_segment(live, 3, 13, survivors, replaced=(1, 2))
    write_segment(live, 4, 30, puts(30, 4))
    ids = [row.id for row in source(spark, tmp_path).where("event = 'put'").select("id").collect()]
    expected = {*range(30, 34), 13, 14, 25, 26, 27}
    for number in there:
        expected |= set(range(number * 10, number * 10 + 10))
    assert sorted(ids) == sorted(expected)


@pytest.mark.parametrize("there", [(1, 2, 4), (1, 4), (1, 2), ()])
def test_items_that_were_compacted_twice_count_once(spark: Any, tmp_path: Path, there: tuple[int, ...]) -> None:
    archive, live = tmp_path / "archive" / "work" / "1700000000000", tmp_path / "spool" / "work.journal"
    for number in there:
        write_segment(archive, number, number * 10, puts(number * 10, 10))
    # It stands for what segment 3 stood for, too; that one has gone.
    write_segment(live, 5, 13, [*puts(13, 2), *puts(25, 3), *puts(44, 1)], replaced=(3, 4))
    write_segment(live, 6, 50, puts(50, 4))
    ids = [row.id for row in source(spark, tmp_path).where("event = 'put'").select("id").collect()]
    expected = {*range(50, 54), 13, 14, 25, 26, 27, 44}
    for number in there:
        expected |= set(range(number * 10, number * 10 + 10))
    assert sorted(ids) == sorted(expected)


def test_what_a_failed_commit_left_behind_does_not_count(spark: Any, tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, 1, puts(1, 5))
    used = path.stat().st_size
    path.write_bytes(path.read_bytes() + puts(6, 1)[0][:-3])
    write_segment(tmp_path, 2, 6, puts(6, 2), previous_bytes=used)
    assert source(spark, tmp_path, mode="FAILFAST").count() == 7


# Damage


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_a_torn_tail_is_the_end_in_every_mode(spark: Any, tmp_path: Path, mode: str) -> None:
    path = write_segment(tmp_path / "work.journal", 1, 1, puts(1, 5))
    path.write_bytes(path.read_bytes()[:-10])
    assert sorted(row.id for row in source(spark, tmp_path, mode=mode).collect()) == [1, 2, 3, 4]


def test_room_taken_in_advance_is_nothing(spark: Any, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "work.journal", 1, 1, puts(1, 5))
    path.write_bytes(path.read_bytes() + bytes(100_000))
    assert source(spark, tmp_path, mode="FAILFAST").count() == 5


def corrupt(tmp_path: Path) -> tuple[Path, int]:
    """A journal whose first segment has a flipped bit in its third item, and where that record begins."""
    records = puts(1, 5)
    path = write_segment(tmp_path, 1, 1, [*records, sync_record(100)])
    content = bytearray(path.read_bytes())
    at = content.index(records[2])
    content[at + 60] ^= 4
    path.write_bytes(content)
    write_segment(tmp_path, 2, 6, puts(6, 2))
    return path, at


def test_permissive_reads_around_damage_and_says_where_it_is(spark: Any, tmp_path: Path) -> None:
    path, at = corrupt(tmp_path)
    frame = source(spark, tmp_path)
    assert sorted(row.id for row in frame.where("_corrupt is null").collect()) == [1, 2, 4, 5, 6, 7]
    (bad,) = frame.where("_corrupt is not null").collect()
    assert bad._corrupt == f"{path}: byte {at}: the checksum does not match"
    assert (bad.queue, bad.event, bad.id) == ("work", None, None)


def test_dropmalformed_reads_around_damage(spark: Any, tmp_path: Path) -> None:
    corrupt(tmp_path)
    assert sorted(row.id for row in source(spark, tmp_path, mode="dropmalformed").collect()) == [1, 2, 4, 5, 6, 7]


def test_failfast_stops_and_names_file_and_byte(spark: Any, tmp_path: Path) -> None:
    path, at = corrupt(tmp_path)
    with pytest.raises(Exception, match=f"{path}: byte {at}: the checksum does not match"):
        source(spark, tmp_path, mode="FAILFAST").collect()


def test_a_segment_without_a_header_is_read_where_its_records_are(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "work.journal"
    path = write_segment(folder, 1, 1, puts(1, 5))
    path.write_bytes(b"\xff" * 20 + path.read_bytes()[20:])
    write_segment(folder, 2, 6, puts(6, 2))
    frame = source(spark, tmp_path)
    assert sorted(row.id for row in frame.where("queue = 'work' and id is not null").collect()) == list(range(1, 8))
    assert frame.where("_corrupt is not null").count() == 1


# Mistakes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "SLOPPY"}, "mode must be one of PERMISSIVE"),
        ({"since": "yesterday"}, "since must be a time such as"),
        ({"includeVaule": "true"}, "no option includeV"),
        ({"maxPartitionBytes": "lots"}, "a size such as 128m"),
    ],
)
def test_a_wrong_option_says_what_is_right(spark: Any, tmp_path: Path, options: dict[str, str], words: str) -> None:
    write_segment(tmp_path, 1, 1, puts(1, 5))
    with pytest.raises(Exception, match=f"(?i){words}"):
        source(spark, tmp_path, **options).count()


def test_a_path_where_nothing_is_is_an_error(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such file or folder"):
        source(spark, tmp_path / "none").count()


def test_a_folder_without_journals_has_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("nothing here")
    assert source(spark, tmp_path).count() == 0


def test_filters_that_are_pushed_down_give_the_same_rows(spark: Any, tmp_path: Path) -> None:
    from kestrelspark.batch import PUSHDOWN_SETTING, register

    for name in ("work", "w*rk", "caf\xc3\xa9"):
        write_segment(tmp_path / f"{name.replace('*', '%2A')}.journal", 1, 1, puts(1, 50, every_ms=1000), queue=name)
    wheres = [
        "queue = 'w*rk'",
        "queue in ('work', 'none') and event = 'put'",
        "queue = 'café'",
        "at >= timestamp_millis(1700000010000) and at < timestamp_millis(1700000020000)",
        "at > timestamp_millis(1700000010000) and at <= timestamp_millis(1700000020000)",
        "at is null",
    ]
    expected = [rows(source(spark, tmp_path, includeValue="true").where(where)) for where in wheres]
    assert [sum(one.values()) for one in expected] == [50, 50, 50, 30, 30, 0]
    spark.conf.set(PUSHDOWN_SETTING, "true")
    register(spark)
    try:
        assert [rows(source(spark, tmp_path, includeValue="true").where(where)) for where in wheres] == expected
    finally:
        spark.conf.unset(PUSHDOWN_SETTING)
        register(spark)


def test_insert_into_is_refused_in_words_by_a_table_of_journals_in_spark_sql(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "work.journal", 1, 1, puts(1, 3))
    spark.read.format("kestrel").load(str(tmp_path)).createOrReplaceTempView("kestrel_view")
    spark.sql(f"CREATE TABLE kestrel_table USING kestrel OPTIONS (path '{tmp_path}')")
    try:
        for how in ("INTO kestrel_table", "OVERWRITE kestrel_table", "INTO kestrel_view"):
            with pytest.raises(AnalysisException) as refused:
                spark.sql(f"INSERT {how} SELECT * FROM kestrel_view")
            assert "a table of journals or of live queues is for reading only" in str(refused.value)
            assert 'use frame.write.format("kestrel").mode("append")' in str(refused.value)
        assert spark.sql("SELECT count(*) FROM kestrel_table").first()[0] == 3
    finally:
        spark.sql("DROP TABLE kestrel_table")
