"""The jobs: verify beside journal-verify, report beside counting by hand, convert, and what they say without Spark."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.files import FileLayer
from kestreld.journal.kestrel.ops import ADD, ADDX, CONFIRM_REMOVE, REMOVE, REMOVE_TENTATIVE_XID, UNREMOVE, Op, encode
from kestreld.journal.records import Kind, ReaderChange, ReaderState, Reason, put_record, reader_record
from kestreld.journal.verify import verify_spool
from kestrelspark.__main__ import main
from kestrelspark.analysis import PERCENTILES
from kestrelspark.jobs.convert import Choice, convert
from kestrelspark.jobs.page import page
from kestrelspark.jobs.plots import plot, whole_buckets
from kestrelspark.jobs.report import Report, report, rows, write_tables
from kestrelspark.jobs.verify import CORRUPT, OK, TRUNCATED, verify
from kestrelspark.session import java_version
from tests.support.daemon import running_daemon
from tests.support.damage import Sample
from tests.support.queue_client import QueueClient
from tests.support.segments import BEGIN_MS, JOURNAL_ID, got, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SEGMENTS: Final = 1000


def nearest_ranks(counts: Mapping[int, int]) -> list[int]:
    """For each percentile the smallest value that this share of all values does not exceed. `counts`: of each value."""
    total = sum(counts.values())
    ranks = []
    for share in PERCENTILES:
        so_far = 0
        for value in sorted(counts):
            so_far += counts[value]
            if so_far >= share * total:
                ranks.append(value)
                break
    return ranks


def test_verify_finds_one_flipped_bit_in_a_thousand_segments_and_names_it(spark: Any, tmp_path: Path) -> None:
    paths = []
    for server in range(10):
        for number in range(1, SEGMENTS // 10 + 1):
            folder = tmp_path / f"server=s{server}" / "work.journal"
            records = puts(number * 20, 20)
            paths.append(write_segment(folder, number, number * 20, records))
    verdict = verify(spark, [str(tmp_path)])
    assert (verdict.code, verdict.files, verdict.problems) == (OK, SEGMENTS, [])
    assert verdict.records == SEGMENTS * 21
    path = random.Random(1).choice(paths)
    content = bytearray(path.read_bytes())
    content[700] ^= 0x10
    path.write_bytes(content)
    verdict = verify(spark, [str(tmp_path)])
    (finding,) = verdict.problems
    (other,) = [one for one in verify_spool(FileLayer(), str(path.parents[1])) if one.bad_offset is not None]
    assert verdict.code == CORRUPT
    assert (finding.path, finding.offset, finding.reason) == (str(path), other.bad_offset, other.reason)
    assert finding.server == path.parts[-3].removeprefix("server=")


def test_verify_judges_as_journal_verify_does_whatever_bit_is_flipped_or_wherever_it_is_cut(
    spark: Any, tmp_path: Path
) -> None:
    sample, chance = Sample(), random.Random(2)
    changes = [(path, sample.flipped(path, bit)) for path, bit in chance.sample(sample.bits, 150)]
    changes += [(path, sample.files[path][:size]) for path, size in chance.sample(sample.cuts, 50)]
    expected: dict[str, int] = {}
    for number, (changed, content) in enumerate(changes):
        spool = tmp_path / f"server={number}"
        for path, sound in sample.files.items():
            target = spool / path.removeprefix("/spool/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if path == changed else sound)
        for one in verify_spool(FileLayer(), str(spool)):
            if one.bad_offset is not None:
                expected[one.path] = TRUNCATED if one.torn else CORRUPT
    found: dict[str, int] = {}
    for finding in verify(spark, [str(tmp_path)]).problems:
        found[finding.path] = max(finding.code, found.get(finding.path, 0))
    assert found == expected


def test_convert_writes_every_row_and_overwrites_only_when_told(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "spool" / "work.journal", 1, 1, [*puts(1, 30), got(1, 10, BEGIN_MS + 99)])
    target = str(tmp_path / "out")
    spool = [str(tmp_path / "spool")]
    assert convert(spark, spool, target, Choice(), with_values=True, overwrite=False) == 40
    frame = spark.read.parquet(target)
    assert frame.where("event = 'put' and length(value) = 64").count() == 30
    with pytest.raises(FileExistsError):
        convert(spark, spool, target, Choice(), with_values=True, overwrite=False)
    assert convert(spark, spool, target, Choice(until=str(BEGIN_MS + 6)), with_values=False, overwrite=True) == 5


def test_a_report_says_what_is_damaged_and_failfast_has_none(spark: Any, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "archive" / "work" / "1700000000000", 1, 1, [*puts(1, 9), got(1, 3, BEGIN_MS + 99)])
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    whole = report(spark, [str(tmp_path)], Choice())
    assert whole is not None
    assert [note for note in whole.notes if note.startswith("Damaged stretches in the journals: 1.")]
    kestrel = tmp_path / "old"
    kestrel.mkdir()
    ops = b"".join(encode(Op(ADDX, data=b"item", add_at_ms=BEGIN_MS + number)) for number in range(9))
    (kestrel / f"old.{BEGIN_MS}").write_bytes(ops[:-3])
    (kestrel / "old").write_bytes(ops)
    both = report(spark, [str(tmp_path)], Choice())
    assert both is not None
    assert [note for note in both.notes if note.startswith("Damaged stretches in the journals: 2.")]
    for folder in (tmp_path / "archive", kestrel):
        with pytest.raises(Exception, match="JournalCorrupt"):
            report(spark, [str(folder)], Choice(mode="FAILFAST"))


def test_what_a_task_fails_with_is_said_in_a_line_with_its_exit_code(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_segment(tmp_path / "spool" / "work.journal", 1, 1, puts(1, 30))
    write_segment(tmp_path / "spool" / "work.journal", 2, 31, puts(31, 1))
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    arguments = ["convert", str(tmp_path / "spool"), f"--to={tmp_path}/out"]
    assert main([*arguments, "--mode=FAILFAST"]) == CORRUPT
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"kestrelspark: {path}: byte ")
    assert main([*arguments, f"--state={tmp_path}/state", "--since=24h"]) == 2
    assert "cannot be combined with --overwrite, --since or --until" in capsys.readouterr().err
    assert main([*arguments[:2], "--to=s3a://lake/out", f"--state={tmp_path}/state"]) == 2
    assert "with --state, --to must be a path, not a URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "spool", "--to=s3a://lake/load"],
        ["compare", "--before=1", "--after=2", "--to=file:/lake/compared"],
        ["replay", "spool", "--servers=a:22133", "--state=hdfs://lake/replay"],
    ],
)
def test_a_url_is_refused_where_a_path_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "must be a path, not a URL" in capsys.readouterr().err


def test_the_report_counts_as_counting_by_hand_does(spark: Any, tmp_path: Path) -> None:
    """A random history over several segments, read by the queue and by a child that starts with a backlog of 3."""
    chance = random.Random(3)
    at_ms, next_id, records = BEGIN_MS, 1, []
    segments: list[list[bytes]] = []
    added: dict[int, int] = {}
    waits: dict[str, Counter[int]] = {"": Counter(), "audit": Counter()}
    counts: dict[str, Counter[str]] = {"": Counter(), "audit": Counter()}
    heads = {"": 1, "audit": 1}
    for _ in range(3000):
        at_ms += chance.randrange(40)
        reader = chance.choice(["", "", "audit"])
        if chance.random() < 0.5:
            records.append(put_record(next_id, at_ms, 0, 0, 0, b"x" * chance.randrange(50)))
            added[next_id] = at_ms
            next_id += 1
        elif heads[reader] < next_id:
            last = chance.randrange(heads[reader], min(next_id, heads[reader] + 5))
            reason = chance.choice([Reason.GOT, Reason.CONFIRMED, Reason.EXPIRED])
            records.append(got(heads[reader], last, at_ms, reader=1 if reader == "" else 2, reason=reason))
            for item in range(heads[reader], last + 1):
                counts[reader]["expired" if reason == Reason.EXPIRED else "got"] += 1
                if reason != Reason.EXPIRED:
                    waits[reader][at_ms - added[item]] += 1
            heads[reader] = last + 1
        if len(records) > 300:
            segments.append(records)
            records = []
    first_id = 1
    for number, some in enumerate([*segments, records], 1):
        write_segment(tmp_path / "work.journal", number, first_id, some, backlog_items=3 if number == 1 else 0)
        first_id += sum(record[8] == 1 for record in some)
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    for row in rows(found.queues):
        reader = row["reader"]
        assert (row["puts"], row["got"], row["expired"]) == (
            len(added), counts[reader]["got"], counts[reader]["expired"]
        )  # fmt: skip
        ranks = [row[f"wait_{name}_ms"] for name in ("p50", "p90", "p95", "p99", "p999")]
        assert ranks == nearest_ranks(waits[reader])
        assert row["wait_max_ms"] == max(waits[reader])
        assert row["backlog_items"] == 3 + next_id - heads[reader]
    by_bucket = rows(found.buckets)
    assert sum(row["puts"] for row in by_bucket) == 2 * len(added)
    write_tables(found, str(tmp_path / "tables"))
    assert spark.read.parquet(str(tmp_path / "tables" / "queues")).count() == 2
    shown = page(found)
    assert "work+audit" in shown
    assert shown.count("<svg") >= 6
    assert "http" not in shown.replace("http-equiv", "")


def test_the_report_of_a_live_run_has_every_operation(spark: Any, tmp_path: Path) -> None:
    with running_daemon(
        tmp_path / "server=one", "max_journal_size=64KiB", f"archive_path={tmp_path}/archive"
    ) as daemon:
        with QueueClient(daemon.port) as client:
            client.get("orders+audit")
            for number in range(2000):
                client.put("orders", b"%d" % number)
            for _ in range(1500):
                client.get("orders")
            for _ in range(500):
                client.get("orders+audit/open")
                client.get("orders+audit/close")
        daemon.stop()
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    figures = {row["reader"]: (row["puts"], row["got"], row["backlog_items"]) for row in rows(found.queues)}
    assert figures == {"": (2000, 1500, 500), "audit": (2000, 500, 1500)}


def test_waits_in_kestrels_journals_are_intervals(spark: Any, tmp_path: Path) -> None:
    ops = [
        Op(ADDX, 0, BEGIN_MS, 0, b"a"), Op(ADDX, 0, BEGIN_MS + 10, 0, b"b"),
        Op(REMOVE_TENTATIVE_XID, 1), Op(UNREMOVE, 1), Op(REMOVE),  # a, after it came back
        Op(ADDX, 0, BEGIN_MS + 100, 0, b"c"), Op(REMOVE_TENTATIVE_XID, 2),
    ]  # fmt: skip
    later = [Op(ADDX, 0, BEGIN_MS + 200, 0, b"d"), Op(CONFIRM_REMOVE, 2), Op(ADDX, 0, BEGIN_MS + 250, 0, b"e")]
    (tmp_path / "work.1").write_bytes(b"".join(map(encode, ops)))
    (tmp_path / "work").write_bytes(b"".join(map(encode, later)))
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    (row,) = rows(found.queues)
    assert (row["puts"], row["got"], row["backlog_items"]) == (5, 2, 3)
    assert (row["wait_p50_ms"], row["longest_wait_p50_ms"]) == (10, 100)
    assert (row["wait_p999_ms"], row["longest_wait_p999_ms"]) == (190, 240)
    assert "intervals" in page(found)


def test_how_long_an_item_of_a_copied_kestrel_file_waited_is_unknown_after_the_last_add(
    spark: Any, tmp_path: Path
) -> None:
    ops = [Op(ADDX, 0, BEGIN_MS + number * 10, 0, b"item") for number in range(4)]
    (tmp_path / "work").write_bytes(b"".join(map(encode, [*ops[:3], Op(REMOVE), ops[3], Op(REMOVE), Op(REMOVE)])))
    os.utime(tmp_path / "work", (BEGIN_MS / 1000 + 3600,) * 2)
    untimed = [Op(ADD, 0, 0, 0, b"old"), Op(REMOVE), Op(ADDX, 0, BEGIN_MS, 0, b"new")]
    (tmp_path / "older").write_bytes(b"".join(map(encode, untimed)))
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    assert (found.first_ms, found.last_ms) == (BEGIN_MS, BEGIN_MS + 30)
    figures = {row["queue"]: row for row in rows(found.queues)}
    work = figures["work"]
    assert (work["puts"], work["got"], work["backlog_items"], work["oldest_age_ms"]) == (4, 3, 1, 0)
    assert (work["wait_p50_ms"], work["longest_wait_p50_ms"]) == (20, None)
    assert (work["wait_p999_ms"], work["longest_wait_p999_ms"], work["wait_max_ms"]) == (20, None, None)
    assert figures["older"]["backlog_items"] == 1
    shown = page(found)
    assert "<td>≥ 20 ms<small>at most unknown</small></td>" in shown
    assert "<td>unknown</td>" in shown


def test_a_queue_where_items_wait_and_nothing_happens_in_the_period_is_in_the_report(
    spark: Any, tmp_path: Path
) -> None:
    hour_ms = 3_600_000
    busy = [*puts(1, 9, every_ms=hour_ms), got(1, 9, BEGIN_MS + 10 * hour_ms)]
    write_segment(tmp_path / "stuck" / "1700000000000", 1, 1, puts(1, 9), queue="stuck")
    write_segment(tmp_path / "busy" / "1700000000000", 1, 1, busy, queue="busy")
    found = report(spark, [str(tmp_path)], Choice(since=str(BEGIN_MS + 5 * hour_ms)))
    assert found is not None
    figures = {
        (row["queue"], row["reader"]): (row["puts"], row["got"], row["backlog_items"], row["backlog_max_items"])
        for row in rows(found.queues)
    }
    assert figures == {
        ("busy", ""): (5, 9, 0, 9),
        ("busy", "audit"): (5, 0, 9, 9),
        ("stuck", ""): (0, 0, 9, 9),
        ("stuck", "audit"): (0, 0, 9, 9),
    }
    backlog = page(found).partition("<h2>stuck</h2>")[2].partition("Backlog, items")[2].partition("</figure>")[0]
    assert ">10</text>" in backlog  # the top of the scale


def test_items_that_wait_are_in_the_report_even_if_nothing_happened_in_any_queue(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "work.journal", 1, 1, [*puts(1, 9), got(1, 9, BEGIN_MS + 50, reader=2)])
    since_ms = BEGIN_MS + 1_000_000
    found = report(spark, [str(tmp_path)], Choice(since=str(since_ms), until=str(since_ms + 60_000)))
    assert found is not None
    assert (found.first_ms, found.last_ms) == (since_ms, since_ms + 60_000)
    figures = [
        (row["reader"], row["puts"], row["backlog_items"], row["backlog_max_items"]) for row in rows(found.queues)
    ]
    assert figures == [("", 0, 9, 9)]
    assert "<h2>work</h2>" in page(found)
    write_segment(tmp_path / "work.journal", 2, 10, [got(1, 9, BEGIN_MS + 60)])
    assert report(spark, [str(tmp_path)], Choice(since=str(since_ms))) is None


def test_the_largest_backlog_may_be_the_one_at_the_beginning_of_the_period(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "work.journal", 1, 1, [*puts(1, 9), got(1, 7, BEGIN_MS + 1_000_000)])
    found = report(spark, [str(tmp_path)], Choice(since=str(BEGIN_MS + 500_000)))
    assert found is not None
    (row,) = [one for one in rows(found.queues) if one["reader"] == ""]
    assert (row["backlog_items"], row["backlog_max_items"]) == (2, 9)


def test_queues_and_children_have_any_names_and_are_selected_by_them(spark: Any, tmp_path: Path) -> None:
    on_disk = "café".encode().decode("latin-1")
    created = reader_record(ReaderChange(3, False, Kind.QUEUE, BEGIN_MS, 1, on_disk))
    records = [created, *puts(1, 9), got(1, 3, BEGIN_MS + 50), got(1, 5, BEGIN_MS + 50, reader=3)]
    write_segment(tmp_path / "caf%C3%A9.journal", 1, 1, records, queue=on_disk)
    write_segment(tmp_path / "work.journal", 1, 1, puts(1, 9))
    found = report(spark, [str(tmp_path)], Choice(queues=["caf?"]))
    assert found is not None
    figures = {
        (row["queue"], row["reader"]): (row["puts"], row["got"], row["backlog_items"]) for row in rows(found.queues)
    }
    assert figures == {("café", ""): (9, 3, 6), ("café", "audit"): (9, 0, 9), ("café", "café"): (9, 5, 4)}


def test_kestrels_queues_of_one_name_in_two_folders_do_not_mix(spark: Any, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        ops = [*(Op(ADDX, 0, BEGIN_MS + number, 0, b"item") for number in range(5)), Op(REMOVE), Op(REMOVE)]
        (tmp_path / folder / "work").write_bytes(b"".join(map(encode, ops)))
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    (row,) = rows(found.queues)
    assert (row["puts"], row["got"], row["backlog_items"]) == (10, 4, 6)


def test_a_kestrel_file_that_begins_with_a_remove_does_not_begin_in_1970(spark: Any, tmp_path: Path) -> None:
    ops = [Op(REMOVE), Op(ADDX, 0, BEGIN_MS, 0, b"a"), Op(ADDX, 0, BEGIN_MS + 10, 0, b"b")]
    (tmp_path / "work").write_bytes(b"".join(map(encode, ops)))
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    assert (found.first_ms, found.last_ms) == (BEGIN_MS, BEGIN_MS + 10)


def figures_of(found: Report | None) -> dict[str, tuple[int, int, int]]:
    """Puts, gets and the backlog at the end, by reader."""
    assert found is not None
    return {row["reader"]: (row["puts"], row["got"], row["backlog_items"]) for row in rows(found.queues)}


def reader_change(number: int, name: str, at_id: int, *, dropped: bool = False, kind: Kind = Kind.QUEUE) -> bytes:
    return reader_record(ReaderChange(number, dropped, kind, BEGIN_MS + at_id, at_id, name))


def test_a_reader_that_is_dropped_and_created_again_has_the_items_of_both_times(spark: Any, tmp_path: Path) -> None:
    on_disk = "café".encode().decode("latin-1")
    records = [
        reader_change(3, on_disk, 1), *puts(1, 4), got(1, 1, BEGIN_MS + 4, reader=3),
        reader_change(3, on_disk, 5, dropped=True), *puts(5, 3), reader_change(4, on_disk, 8), *puts(8, 2),
    ]  # fmt: skip
    live = write_segment(tmp_path / "spool" / "work.journal", 1, 1, records, queue=on_disk)
    spool, state = [str(tmp_path / "spool")], str(tmp_path / "state")
    expected = {"": (9, 0, 9), "audit": (9, 0, 9), "café": (6, 1, 2)}
    assert figures_of(report(spark, spool, Choice())) == expected
    assert figures_of(report(spark, spool, Choice(), 0, state)) == expected
    # As a state was saved when readers had no numbers.
    saved = json.loads((tmp_path / "state" / "state.json").read_text())
    first = [one for one in saved["more"] if one[3] != "café" or one[4] == 1]
    saved["more"] = [
        [name.encode().decode("latin-1") if isinstance(name, str) else name for name in one[:8]] for one in first
    ]
    (tmp_path / "state" / "state.json").write_text(json.dumps(saved))
    with live.open("ab") as file:
        file.write(b"".join([*puts(10, 1), got(8, 8, BEGIN_MS + 20, reader=4)]))
    expected = {"": (10, 0, 10), "audit": (10, 0, 10), "café": (7, 2, 2)}
    assert figures_of(report(spark, spool, Choice(), 0, state)) == expected


def test_what_a_dropped_reader_had_left_does_not_wait_any_more(spark: Any, tmp_path: Path) -> None:
    folder, dropped_at_ms = tmp_path / "work.journal", BEGIN_MS + 100_000
    write_segment(folder, 1, 1, [*puts(1, 9), got(1, 2, BEGIN_MS + 50, reader=2)], backlog_items=3)
    alone = [ReaderState(1, Kind.QUEUE, "", items=12)]
    write_segment(folder, 2, 10, puts(10, 1), created_at_ms=dropped_at_ms, readers=alone)
    assert figures_of(report(spark, [str(tmp_path)], Choice())) == {"": (10, 0, 13), "audit": (9, 2, 0)}
    assert figures_of(report(spark, [str(tmp_path)], Choice(until=str(dropped_at_ms))))["audit"] == (9, 2, 10)
    assert figures_of(report(spark, [str(tmp_path)], Choice(since=str(dropped_at_ms + 1)))) == {"": (0, 0, 13)}


def test_what_a_replaced_journal_had_left_does_not_wait_but_that_of_another_server_does(
    spark: Any, tmp_path: Path
) -> None:
    newer_id = JOURNAL_ID + 100_000
    write_segment(tmp_path / "archive" / "work" / str(JOURNAL_ID), 1, 1, puts(1, 9))
    write_segment(tmp_path / "spool" / "work.journal", 1, 1, puts(1, 2), journal_id=newer_id)
    found = figures_of(report(spark, [str(tmp_path)], Choice()))
    assert found == {"": (11, 0, 2), "audit": (11, 0, 2)}
    (tmp_path / "archive" / "work" / str(JOURNAL_ID)).rename(tmp_path / "work.journal")
    found = figures_of(report(spark, [str(tmp_path)], Choice()))
    assert found == {"": (11, 0, 11), "audit": (11, 0, 11)}


def test_the_backlog_of_a_stream_is_what_it_has_not_reached(spark: Any, tmp_path: Path) -> None:
    readers = [ReaderState(1, Kind.QUEUE, ""), ReaderState(2, Kind.STREAM, "lake", 1, 4)]
    records = [
        reader_change(3, "late", 10, kind=Kind.STREAM), *puts(10, 5), got(4, 11, BEGIN_MS + 50, reader=2),
        got(10, 10, BEGIN_MS + 50, reader=3),
    ]  # fmt: skip
    write_segment(tmp_path / "work.journal", 2, 10, records, readers=readers)
    found = figures_of(report(spark, [str(tmp_path)], Choice()))
    assert found == {"": (5, 0, 5), "lake": (5, 8, 3), "late": (5, 1, 4)}


def test_nothing_to_report_is_said(spark: Any, tmp_path: Path) -> None:
    assert report(spark, [str(tmp_path)], Choice()) is None


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    run = subprocess.run(
        [sys.executable, "-m", "kestrelspark", "verify", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 87
    assert run.stderr == (
        "kestrelspark: java not found on PATH; Spark needs Java 17 or newer: apt install default-jre-headless,"
        " or set JAVA_HOME\n"
    )


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_412"', 8),
        ("no such thing", 0),
    ],
)
def test_javas_version_is_read(said: str, version: int) -> None:
    assert java_version(said) == version


def test_an_item_whose_put_is_in_none_of_the_segments_has_no_wait(spark: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "work.journal", 2, 10, [*puts(10, 2), got(8, 10, BEGIN_MS + 500)], backlog_items=2)
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    (row,) = [one for one in rows(found.queues) if one["reader"] == ""]
    assert (row["got"], row["got_without_wait"]) == (3, 2)
    assert row["wait_p50_ms"] == row["wait_max_ms"] == 490


def test_plots_have_whole_intervals_and_ticks_at_round_times_or_say_that_there_is_nothing() -> None:
    assert list(whole_buckets(1500, 4999, 1)) == [2000, 3000, 4000]
    assert list(whole_buckets(1500, 1900, 1)) == []
    day_ms = 86_400_000
    drawn = plot("Puts", {"puts/s": [(at_ms, 1.0) for at_ms in range(day_ms - 40_000, day_ms + 35_000, 1000)]})
    labels = re.findall(r'class="tick"[^>]*>([^<]*)<', drawn)
    assert labels == ["23:59:30", "23:59:45", "1970-01-02", "00:00:15", "00:00:30"]
    assert "nothing in this period" in plot("Waits", {"p50": [(0, None), (1000, None)]})
    assert "shorter than an interval" in plot("Waits", {"p50": []})
