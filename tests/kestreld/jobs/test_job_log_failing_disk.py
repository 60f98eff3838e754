"""The job log on a disk that refuses writes or syncs, or is full."""

import errno
import os
from pathlib import Path

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.job_segments import open_job_segment
from kestreld.journal.job_verify import verify_job_log
from tests.support.compiled import interpreted_only
from tests.support.faulty_files import FULL, FaultyFiles
from tests.support.job_engine import Consumer, JobEngine, numbered


def full_disk(**options: bool) -> FaultyFiles:
    return FaultyFiles(errno.ENOSPC, FULL, stays=True, **options)


def test_a_full_disk_is_told_to_who_waits_for_the_write_and_refuses_changes_until_it_has_room(tmp_path: Path) -> None:
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    first = engine.add()
    engine.end_turn()
    files.fail_from(1)
    second = engine.add()
    failed = engine.end_turn()
    assert list(failed) == [engine.storage.writer]
    assert "No space left on device" in engine.storage.refusal
    engine.pass_time(1000)
    assert engine.storage.refusal
    files.mend()
    engine.pass_time(1000)
    assert engine.storage.refusal == ""
    said = engine.said()
    assert said.keys() == {first, second}
    engine.crash()
    assert engine.said() == said


def test_a_write_that_was_cut_short_leaves_nothing_behind(tmp_path: Path) -> None:
    files = full_disk(short=True)
    engine = JobEngine(tmp_path / "spool", files)
    engine.add()
    engine.end_turn()
    files.fail_from(1)
    engine.add(body=b"x" * 5000)
    engine.end_turn()
    files.mend()
    engine.settle()
    engine.add()
    engine.end_turn()
    said = engine.said()
    assert len(said) == 3
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said


def test_a_full_disk_is_reported_once_a_second_and_not_at_every_requeue(tmp_path: Path) -> None:
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    for body in numbered(20):
        engine.add(body=body, retry_ms=1000)
    engine.end_turn()
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    for _ in range(40):
        engine.drain()
        engine.pass_time(100)
    assert 1 <= len([line for line in engine.log if "No space left" in line]) <= 5


@interpreted_only
def test_what_happens_on_a_full_disk_takes_only_so_much_memory_and_the_log_is_whole_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.jobs.log.KEPT_BYTES_MAX", 3000)
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    for body in numbered(20):
        engine.add(body=body, retry_ms=1000)
    engine.end_turn()
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    for _ in range(20):
        engine.drain()
        engine.pass_time(1000)
    assert engine.storage.writer is not None
    assert engine.storage.writer.unwritten_bytes < 8000
    files.mend()
    engine.settle(70)
    said = engine.said()
    assert len(said) == 21
    engine.crash()
    assert engine.said() == said


@interpreted_only
def test_a_job_whose_record_was_dropped_on_a_full_disk_is_written_by_the_rewrite_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.jobs.log.KEPT_BYTES_MAX", 100)
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    one = engine.add(retry_ms=1000, retries_max=0)
    engine.end_turn()
    engine.drain()
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    engine.pass_time(1500)
    assert engine.job(one).terms.queue.name == b"q.dead"
    files.mend()
    engine.settle(70)
    said = engine.said()
    assert len(said) == 2
    engine.crash()
    assert engine.said() == said


def test_a_log_that_is_begun_behind_one_that_the_disk_did_not_take_has_all_jobs(tmp_path: Path) -> None:
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    engine.add()
    engine.end_turn()
    assert engine.storage.rewrite()
    files.fail_from(1)
    engine.work()
    assert engine.storage.refusal
    engine.storage.turn_off()
    files.mend()
    assert engine.turn_on() == ""
    engine.settle()
    said = engine.said()
    assert len(said) == 1
    engine.crash()
    assert engine.said() == said


def test_a_log_that_is_turned_off_while_it_is_tried_again_is_left_once_that_is_over(tmp_path: Path) -> None:
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    engine.add()
    engine.end_turn()
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    files.mend()
    engine.clock.advance(1000)
    maintenance = engine.maintenance
    maintenance.look(engine.clock.monotonic_ms)
    engine.storage.turn_off()
    engine.slices.run(engine.clock.stopwatch_us())
    assert not maintenance.is_left
    engine.work_until(lambda: maintenance.is_left)
    engine.work(3)
    assert len(engine.segments()) == 2
    assert engine.base.collection.open_files.held == 0


@interpreted_only
def test_a_new_log_that_the_disk_takes_in_part_only_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.jobs.maintenance.UNWRITTEN_BYTES_MAX", 300)
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files, segment_bytes_max=300)
    for body in numbered(40):
        engine.add(body=body)
    engine.end_turn()
    engine.storage.turn_off()
    assert engine.turn_on() == ""
    engine.work_until(lambda: len(engine.maintenance.journal.segments) == 3)
    files.fail_from(1)
    engine.work(3)
    assert engine.storage.refusal
    files.mend()
    for job_id in [job.id for job in engine.jobs.table][:10]:
        engine.ack(job_id)
    engine.settle(10)
    assert engine.maintenance.is_fresh
    assert len(engine.ids()) == 30
    engine.crash()
    assert len(engine.ids()) == 40, "those of the log from before"


@interpreted_only
def test_a_rewrite_whose_sync_has_failed_keeps_the_segments_that_it_was_to_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.jobs.maintenance.REWRITTEN_AT_ONCE", 1)
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=1000)
    for body in numbered(10):
        engine.add(body=body)
    engine.end_turn()
    engine.settle(3)
    old = engine.segments()
    assert engine.storage.rewrite()
    engine.work(3)
    files.fail_from(1)
    engine.clock.advance(1000)
    engine.work()
    assert files.failed
    engine.settle(3)
    assert set(old) < set(engine.segments())
    engine.settle(70)
    assert not set(old) & set(engine.segments())


def test_a_failed_sync_is_told_to_who_waits_for_it_and_never_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    kept = engine.add()
    engine.end_turn()
    engine.work()
    files.fail_from(1)
    lost = engine.add()
    engine.end_turn()
    commit = engine.pending()
    assert commit is not None
    assert commit.pending
    files.finish_background()
    assert isinstance(commit.failure, JournalFailed)
    before = [path.name for path in engine.segments()]
    engine.end_turn()
    assert [path.name for path in engine.segments()] != before
    engine.settle(70)
    said = engine.said()
    assert said.keys() == {kept, lost}
    engine.crash()
    assert engine.said() == said


def test_while_the_disk_refuses_jobs_that_come_once_are_kept_back_and_others_are_not(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",), stays=True)
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    once, often = engine.add(retry_ms=0, delay_s=2), engine.add(delay_s=2)
    engine.end_turn()
    engine.work(2)
    files.fail_from(1)
    for _ in range(2):
        engine.add(b"other")
        engine.end_turn()
        engine.work(2)
    engine.pass_time(2100)
    engine.work(4)
    assert engine.storage.refusal
    assert engine.drain() == [often]
    queue, consumer = engine.jobs.find_queue(b"q"), Consumer()
    assert queue is not None
    assert (queue.jobs_out, queue.jobs.count) == (1, 1)
    engine.jobs.wait(consumer, [queue], [], 0)
    engine.jobs.serve(queue)
    files.mend()
    engine.settle()
    assert engine.storage.refusal == ""
    assert consumer.given == [once]
    engine.clock.wall_ms -= 10_000
    engine.crash()
    engine.settle(10)
    assert engine.drain() == []


@interpreted_only
def test_changes_are_refused_and_jobs_that_come_once_kept_back_until_what_was_dropped_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.jobs.log.KEPT_BYTES_MAX", 100)
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files)
    once = engine.add(retry_ms=0, delay_s=1)
    engine.end_turn()
    engine.settle(0)
    files.fail_from(1)
    engine.add(b"other", body=b"x" * 100)
    engine.end_turn()
    engine.pass_time(1500)
    assert engine.drain() == []
    files.mend()
    engine.pass_time(1000)
    assert "No space left" in engine.storage.refusal
    assert engine.drain() == []
    engine.settle(3)
    assert engine.storage.refusal == ""
    assert engine.drain() == [once]


def test_after_a_failed_sync_in_the_background_all_jobs_are_written_anew(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=1000)
    for body in numbered(10):
        engine.add(body=body)
    engine.end_turn()
    files.fail_from(1)
    engine.pass_time(1000)
    engine.work(3)
    assert files.failed
    bad = engine.segments()[0]
    engine.add()
    engine.end_turn()
    engine.settle(70)
    assert not bad.exists()
    said = engine.said()
    assert len(said) == 11
    engine.crash()
    assert engine.said() == said


def test_a_process_after_one_whose_sync_failed_does_not_rely_on_what_it_reads(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    files.finish_background()
    suspect = engine.segments()[0]
    assert (suspect.parent / (suspect.name + ".unsynced")).exists()
    engine.crash()
    engine.settle()
    assert not suspect.exists()
    assert len(engine.ids()) == 1


def test_a_segment_whose_sync_failed_need_not_even_have_its_header(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    files.fail_from(1)
    for body in numbered(2):
        engine.add(body=body)
        engine.end_turn()
        engine.work(2)
    said = engine.said()
    os.truncate(engine.segments()[0], 0)
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said
    assert not any(report.reason for report in verify_job_log(files, str(tmp_path / "spool/.jobs")))


def test_a_segment_whose_sync_failed_has_to_have_its_header_where_an_earlier_one_had_succeeded(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    engine.add()
    engine.end_turn()
    engine.work(2)
    files.fail_from(1)
    for body in numbered(2):
        engine.add(body=body)
        engine.end_turn()
        engine.work(2)
    os.truncate(engine.segments()[0], 0)
    engine.crash()
    assert "the segment header is cut short" in (engine.problem or "")


def test_the_sync_of_a_start_proves_nothing_of_a_segment_whose_sync_had_failed(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    files.fail_from(1)
    engine.add()
    engine.end_turn()
    files.finish_background()
    engine.crash()
    engine.add()
    engine.end_turn()
    header = open_job_segment(files, str(tmp_path / "spool/.jobs"), 2).header
    assert (header.segment, header.previous_synced) == (2, 0)


def test_each_segment_that_a_failed_sync_may_have_lost_is_noted_for_the_processes_to_come(tmp_path: Path) -> None:
    """A later process syncs and seals what it reads of them, which is not what a power cut leaves."""
    files = FaultyFiles(errno.EIO, ("sync",))
    engine = JobEngine(tmp_path / "spool", files, sync_ms=1000, segment_bytes_max=400)
    for body in numbered(8):
        engine.add(body=body)
        engine.end_turn()
    lost, live = engine.segments()[0], engine.segments()[-1]
    assert lost != live
    files.fail_from(1)
    engine.pass_time(1000)
    engine.work(3)
    noted = [path.name for path in sorted((tmp_path / "spool/.jobs").glob("*.unsynced"))]
    assert noted == [f"{lost.name}.unsynced", f"{live.name}.unsynced"]
    engine.crash()
    engine.add()
    engine.restart()
    os.truncate(lost, lost.stat().st_size - 1)
    engine.crash()
    assert engine.problem == ""


def test_the_marker_does_not_name_a_segment_whose_sync_had_failed_in_an_earlier_process(tmp_path: Path) -> None:
    """A power cut before anything else is on disk may take even its header."""
    files = FaultyFiles(errno.EIO, ("sync",), stays=True)
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    engine.add()
    engine.end_turn()
    engine.work(2)
    files.fail_from(1)
    engine.storage.rewrite()
    engine.work(3)
    files.mend()
    engine.crash()
    *_, lost = sorted((tmp_path / "spool/.jobs").glob("*.unsynced"))
    assert lost.name.startswith(engine.segments()[-1].name)
    said = engine.said()
    os.truncate(engine.segments()[-1], 0)
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said


def test_a_gap_before_segments_of_which_nothing_was_ever_on_disk_ends_the_log(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync",), stays=True)
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    files.fail_from(1)
    for body in numbered(3):
        engine.add(body=body)
        engine.end_turn()
        engine.work(2)
        engine.pass_time(1000)
    segments = engine.segments()
    assert len(segments) > 2
    segments[1].unlink()
    files.mend()
    engine.crash()
    assert engine.problem == ""
    assert any(f"{segments[2]}: incomplete on disk" in line for line in engine.log)
    engine.add()
    engine.settle()
    said = engine.said()
    engine.crash()
    assert (engine.problem, engine.said()) == ("", said)


def test_no_segment_is_begun_behind_one_whose_sync_failed_before_that_is_noted(tmp_path: Path) -> None:
    files = FaultyFiles(errno.EIO, ("sync", "create"), stays=True)
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    engine.add()
    engine.end_turn()
    files.fail_from(1)
    engine.work()
    assert len(engine.segments()) == 1
    files.kinds = ("create",)
    files.calls, files.fail_at, files.stays = 0, 1, False  # the note once more
    engine.settle(3)
    assert [path.name for path in (tmp_path / "spool/.jobs").glob("*.unsynced")] == ["0000000001.jobs.unsynced"]


@pytest.mark.parametrize(("sync_ms", "first"), [(None, 1), (0, 2), (1000, 3)])
@pytest.mark.parametrize(
    ("error", "step"),
    [
        (errno.EIO, 3),
        pytest.param(errno.EIO, 1, marks=pytest.mark.long),
        pytest.param(errno.ENOSPC, 1, marks=pytest.mark.long),
    ],
)
def test_whichever_call_fails_memory_and_log_agree_again(
    tmp_path: Path, sync_ms: int | None, first: int, error: int, step: int
) -> None:
    """The quick tests try every third call, others in each mode."""
    for call in range(first if step > 1 else 1, 40, step):
        files = FaultyFiles(error)
        engine = JobEngine(tmp_path / f"spool{call}", files, sync_ms=sync_ms, segment_bytes_max=900)
        files.fail_from(call)
        for body in numbered(12):
            if not engine.storage.refusal:
                engine.add(body=body)
                if len(engine.ids()) > 6:
                    engine.ack(min(engine.ids()))
            engine.end_turn()
            engine.pass_time(700)
            engine.work(3)
        engine.settle(70)
        assert engine.storage.refusal == ""
        said = engine.said()
        files.mend()
        engine.crash()
        assert engine.problem == ""
        assert engine.said() == said


def test_a_log_that_cannot_be_begun_is_told_and_the_jobs_stay_in_memory(tmp_path: Path) -> None:
    files = full_disk()
    engine = JobEngine(tmp_path / "spool", files, is_on=False)
    ids = {engine.add(body=body) for body in numbered(10)}
    files.fail_from(1)
    assert "No space left on device" in engine.turn_on()
    assert not engine.storage.is_on
    assert engine.ids() == ids
