"""Jobs that take only what is new since their last run."""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.records import Reason
from kestrelspark.incremental import JournalProgress
from kestrelspark.jobs.convert import Added, Choice, convert, convert_new
from kestrelspark.jobs.report import Report, report, rows
from kestrelspark.jobs.verify import CORRUPT, OK, verify
from kestrelspark.runs import PENDING, exclusive_run
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient
from tests.support.segments import BEGIN_MS, got, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Lake:
    """A folder that convert adds to, and its state."""

    def __init__(self, spark: Any, tmp_path: Path) -> None:
        self.spark, self.spool, self.folder = spark, tmp_path / "spool", tmp_path / "lake"
        self.journal = self.spool / "work.journal"
        self.state = tmp_path / "state.json"

    def add(self) -> int:
        added = convert_new(
            self.spark, [str(self.spool)], str(self.folder), str(self.state), Choice(), with_values=False
        )
        return added.rows

    def events(self) -> Counter[tuple[str, str, int]]:
        found = self.spark.read.parquet(str(self.folder)).select("event", "reader", "id").collect()
        return Counter((row.event, row.reader, row.id) for row in found)

    def events_of_one_run(self, target: Path) -> Counter[tuple[str, str, int]]:
        convert(self.spark, [str(self.spool)], str(target), Choice(), with_values=False, overwrite=True)
        found = self.spark.read.parquet(str(target)).select("event", "reader", "id").collect()
        return Counter((row.event, row.reader, row.id) for row in found)


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def append(path: Path, *records: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(records))


def test_runs_with_traffic_between_them_add_what_one_run_finds(lake: Lake, tmp_path: Path) -> None:
    write_segment(lake.journal, 1, 1, [*puts(1, 30), got(1, 10, BEGIN_MS + 99)])
    live = write_segment(lake.journal, 2, 31, [*puts(31, 20), puts(51, 1)[0][:-7]])
    assert lake.add() == 60
    assert lake.add() == 0
    whole = live.read_bytes()
    live.write_bytes(whole[: whole.rindex(puts(51, 1)[0][:20])])  # the record is written whole now
    append(live, *puts(51, 5), got(1, 3, BEGIN_MS + 100, reader=2))
    write_segment(lake.journal, 3, 56, [*puts(56, 4), got(11, 12, BEGIN_MS + 101, reason=Reason.EXPIRED)])
    assert lake.add() == 5 + 3 + 4 + 2
    assert lake.add() == 0
    found = lake.events()
    assert found == lake.events_of_one_run(tmp_path / "one")
    assert found["got", "audit", 3] == 1
    assert sorted(path.name for path in lake.folder.glob("run=*")) == ["run=1", "run=2"]


def test_a_run_that_was_killed_anywhere_leaves_no_row_twice(lake: Lake, tmp_path: Path) -> None:
    live = write_segment(lake.journal, 1, 1, puts(1, 30))
    lake.add()
    before = lake.state.read_bytes()
    append(live, *puts(31, 10))
    shutil.copytree(lake.folder / "run=1", lake.folder / PENDING)  # killed while it wrote
    assert lake.add() == 10
    lake.state.write_bytes(before)  # killed before the state was written
    assert lake.add() == 0
    lake.state.unlink()
    append(live, *puts(41, 10))
    assert lake.add() == 10
    assert lake.events() == lake.events_of_one_run(tmp_path / "one")


def test_a_compacted_segment_adds_only_items_that_no_run_has_seen(lake: Lake) -> None:
    first = write_segment(lake.journal, 1, 1, puts(1, 10))
    second = write_segment(lake.journal, 2, 11, puts(11, 10))
    assert lake.add() == 20
    append(second, *puts(21, 5))
    first.unlink()
    second.unlink()
    write_segment(lake.journal, 3, 3, [*puts(3, 2), *puts(19, 5)], replaced=(1, 2))
    write_segment(lake.journal, 4, 26, puts(26, 1), previous_bytes=0)
    assert lake.add() == 3 + 1
    assert lake.add() == 0
    assert max(lake.events().values()) == 1


def test_a_state_of_other_runs_is_refused_and_so_is_a_second_run_at_the_same_time(
    lake: Lake, spark: Any, tmp_path: Path
) -> None:
    write_segment(lake.journal, 1, 1, puts(1, 3))
    lake.add()
    arguments = spark, [str(lake.spool)], str(lake.folder), str(lake.state), Choice()
    with pytest.raises(Failure, match="use another --state"):
        convert_new(*arguments, with_values=True)
    with exclusive_run(str(lake.folder)), pytest.raises(Failure, match="another run is in progress") as refused:
        lake.add()
    assert refused.value.code == ExitCode.TRY_AGAIN


def test_kestrels_own_files_are_left_out_and_counted(lake: Lake, spark: Any) -> None:
    lake.spool.mkdir()
    (lake.spool / "old").write_bytes(b"\x01" * 10)
    added = convert_new(spark, [str(lake.spool)], str(lake.folder), str(lake.state), Choice(), with_values=False)
    assert added == Added(0, 1)


def test_reports_with_a_state_have_the_figures_of_one_over_everything(spark: Any, tmp_path: Path) -> None:
    fleet, state = tmp_path / "fleet", str(tmp_path / "state")
    archive = fleet / "archive" / "server=one"
    with running_daemon(fleet / "server=one", "max_journal_size=16KiB", f"archive_path={archive}") as daemon:
        for turn in range(2):
            if turn:
                daemon.start()
            with QueueClient(daemon.port) as client:
                client.get("orders+audit")
                client.put("orders", *(b"%d" % number for number in range(600)))
                for _ in range(500):
                    client.get("orders")
                for _ in range(250):
                    client.get("orders+audit/open")
                    client.get("orders+audit/close")
                if turn:
                    client.get("orders+late")
                    client.put("orders", b"for all three")
            daemon.stop()
            found = report(spark, [str(fleet)], Choice(), 60, state)
    figures = figures_of(found)
    assert [row["puts"] for row in figures] == [1201, 1201, 1]
    assert figures == figures_of(report(spark, [str(fleet)], Choice(), 60))
    assert len(list(Path(state).glob("run=*"))) == 2
    # What has gone from the disk stays in the report.
    shutil.rmtree(archive)
    assert figures == figures_of(report(spark, [str(fleet)], Choice(), 60, state))


def figures_of(found: Report | None) -> list[dict[str, Any]]:
    assert found is not None
    return sorted(rows(found.queues), key=lambda row: row["reader"])


def test_verify_reads_again_only_what_has_changed(spark: Any, tmp_path: Path) -> None:
    spool, state = tmp_path / "spool", str(tmp_path / "state.json")
    old, live = [write_segment(spool / "work.journal", number, number * 20, puts(number * 20, 20)) for number in (1, 2)]
    assert (verdict := verify(spark, [str(spool)], (), state)).code == OK
    assert (verdict.files, verdict.passed_over) == (2, 0)
    append(live, *puts(60, 5))
    verdict = verify(spark, [str(spool)], (), state)
    assert (verdict.code, verdict.files, verdict.passed_over) == (OK, 1, 1)
    content = bytearray(old.read_bytes())
    content[700] ^= 1
    old.write_bytes(content)
    os.utime(old, ns=(0, 0))
    for _ in range(2):
        verdict = verify(spark, [str(spool)], (), state)
        assert (verdict.code, verdict.files, verdict.passed_over) == (CORRUPT, 1, 1)
    write_segment(spool / "work.journal", 3, 65, [], previous_bytes=live.stat().st_size + 100)
    assert str(live) in {finding.path for finding in verify(spark, [str(spool)], (), state).problems}


def test_segments_that_were_read_are_remembered_as_stretches() -> None:
    journal = JournalProgress(ends={3: 100})
    for number in (1, 2, 5, 3, 4, 9):
        journal.close(number)
    assert (journal.numbers, journal.ends) == ([(1, 5), (9, 9)], {})
    assert [number for number in range(12) if journal.is_read(number)] == [1, 2, 3, 4, 5, 9]
