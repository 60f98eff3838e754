"""Repairing the job log: what of the jobs is there again, whatever was damaged."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt, JournalFailed, LaterVersion
from kestreld.files import FileLayer
from kestreld.jobs.job import DELAYED, Job
from kestreld.jobs.node_sets import NodeSets
from kestreld.jobs.recovery import JobRecovery
from kestreld.journal.job_records import JobType, done_record, flushed_record, read_done, read_job, whole_job_records
from kestreld.journal.job_repair import JobRepairReport, repair_job_log
from kestreld.journal.job_segments import HEADER_BYTES, find_job_log
from kestreld.journal.job_verify import verify_job_log
from kestreld.journal.records import FRAME_BYTES
from tests.support.clock import FakeClock
from tests.support.engine import QuickFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.job_engine import JobEngine
from tests.support.mortal_files import Killed, MortalFiles

Contents = dict[str, bytes]  # of segments, by name
PAGE_BYTES = 4096
SEGMENT_BYTES = 3 * PAGE_BYTES


def written(folder: Path, *, sync_ms: int | None = None, turns: int = 60) -> JobEngine:
    """Jobs of all sizes that come, change and go, in segments of a few pages; the process has died."""
    engine = JobEngine(folder / "spool", sync_ms=sync_ms, segment_bytes_max=SEGMENT_BYTES)
    chance = Random(3)
    for turn in range(turns):
        for _ in range(chance.randrange(1, 5)):
            body = chance.randbytes(chance.choice((0, 10, 100, 700)))
            engine.add(b"q%d" % (turn % 3), body, retry_ms=chance.choice((0, 1000)), key=b"%d" % turn)
        for job_id in sorted(engine.ids()):
            if chance.random() < 0.2:
                engine.ack(job_id)
            elif chance.random() < 0.1:
                engine.jobs.working(engine.job(job_id))
        engine.pass_time(300)
        engine.work()
    engine.end_turn()
    return engine


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log that was left to the kernel."""
    return written(tmp_path_factory.mktemp("sample")).spool / ".jobs"


@pytest.fixture(scope="module")
def synced_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one that was synced before each reply."""
    return written(tmp_path_factory.mktemp("synced"), sync_ms=0).spool / ".jobs"


@pytest.fixture(scope="module")
def small_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `sample`, for what is tried at every step of a repair."""
    return written(tmp_path_factory.mktemp("small"), turns=25).spool / ".jobs"


def contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jobs"))}


def copied(sample: Path, folder: Path, damaged: Contents) -> Path:
    """A spool with a copy of the log; segments are replaced, or missing where they are empty."""
    spool = folder / "spool"
    shutil.rmtree(spool, ignore_errors=True)
    shutil.copytree(sample, spool / ".jobs")
    for name, content in damaged.items():
        if content:
            (spool / ".jobs" / name).write_bytes(content)
        else:
            (spool / ".jobs" / name).unlink()
    return spool / ".jobs"


def loaded(folder: Path, files: FileLayer | None = None) -> dict[bytes, Job]:
    """The jobs that a start finds. Raises JournalCorrupt."""
    recovery = JobRecovery(files or FileLayer(), FakeClock(), str(folder), NodeSets())
    for _ in recovery.run():
        pass
    return {job.id: job for job in recovery.state.jobs}


def records(before: Contents, after: Contents) -> Iterator[tuple[int, bytes]]:
    """Type and body of the records that have not changed."""
    for name, content in before.items():
        for record_type, start, end in whole_job_records(content, HEADER_BYTES, name):
            if after[name][start:end] == content[start:end]:
                yield record_type, content[start + FRAME_BYTES : end]


def expected(before: Contents, after: Contents) -> dict[bytes, bytes]:
    """Ids and bodies of the jobs that the intact records tell of."""
    jobs: dict[bytes, bytes] = {}
    for record_type, body in records(before, after):
        if record_type == JobType.JOB:
            job = read_job(body)
            jobs[job.job_id] = job.body
        elif record_type == JobType.DONE:
            for job_id in read_done(body)[1]:
                jobs.pop(job_id, None)
        elif record_type == JobType.FLUSHED:
            jobs.clear()
    return jobs


def repaired(folder: Path, files: FileLayer | None = None, *, dry_run: bool = False) -> JobRepairReport:
    return repair_job_log(
        files or QuickFiles(), FakeClock(), str(folder), segment_bytes_max=SEGMENT_BYTES, dry_run=dry_run
    )


def is_mended(sample: Path, tmp_path: Path, damaged: Contents) -> JobRepairReport:
    """The log has every job that can be read, and no other; the old one is kept."""
    folder, files = copied(sample, tmp_path, damaged), FileLayer()
    before = contents(sample)
    after = contents(folder)
    try:
        taken = loaded(folder)
        folder = copied(sample, tmp_path, damaged)
    except JournalCorrupt:
        taken = None
    verdicts = [
        one.missing or (one.bad_offset is not None and not one.torn) for one in verify_job_log(files, str(folder))
    ]
    assert any(verdicts) == (taken is None), "journal-verify finds bad what a start stops at"
    report = repaired(folder)
    found = {job_id: job.body for job_id, job in loaded(folder).items()}
    if taken is not None:
        assert found == {job_id: job.body for job_id, job in taken.items()}
        assert (report.damages, report.kept_at) == ([], "")
        return report
    assert found == expected(before, {**dict.fromkeys(before, b""), **after})
    gone = expected(before, before).keys() - found.keys()
    assert any("may be lost" in damage for damage in report.damages) or not gone, "jobs are lost without a word"
    assert report.damages
    assert contents(Path(report.kept_at)) == after
    assert report.jobs == len(found)
    assert min(contents(folder)) > max(after, default="")
    log = find_job_log(files, str(folder))
    assert log.log_id != find_job_log(files, str(sample)).log_id or not after
    assert log.marker is not None
    assert log.marker.floor == log.segments[0].number
    assert [one.reason for one in verify_job_log(files, str(folder))] == [None] * len(log.segments)
    return report


def zeroed(content: bytes, page: int) -> bytes:
    at = page * PAGE_BYTES
    return content[:at] + bytes(len(content[at : at + PAGE_BYTES])) + content[at + PAGE_BYTES :]


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged_in_many_ways(before: Contents) -> Iterator[Contents]:
    """A lost page, segment or end, a flipped bit, a broken header: in the first, a middle and the last segment."""
    names = sorted(before)
    for name in (names[0], names[2], names[-1]):
        content = before[name]
        yield {name: zeroed(content, 1)}
        yield {name: zeroed(content, 0)}
        yield {name: bytes(len(content))}
        yield {name: flipped(content, len(content) * 4)}
        yield {name: b""}
        yield {name: content[:-300]}
        yield {name: flipped(content, 200)}
    yield {names[0]: b"", names[1]: flipped(before[names[1]], 30), names[3]: zeroed(before[names[3]], 2)}
    yield dict.fromkeys(names, b"")
    yield {names[-1]: bytes(10)}


def test_every_job_that_can_be_read_is_there_again_and_no_other(sample: Path, tmp_path: Path) -> None:
    reports = [is_mended(sample, tmp_path, damaged) for damaged in damaged_in_many_ways(contents(sample))]
    assert sum(bool(report.kept_at) for report in reports) >= len(reports) - 4, "but for torn tails"


def test_so_it_is_where_every_reply_waited_for_the_disk(synced_sample: Path, tmp_path: Path) -> None:
    for damaged in damaged_in_many_ways(contents(synced_sample)):
        is_mended(synced_sample, tmp_path, damaged)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_bits_flipped_and_pages_lost_anywhere(sample: Path, synced_sample: Path, tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    for of in (sample, synced_sample):
        after = contents(of)
        for _ in range(chance.randrange(1, 4)):
            name = chance.choice(sorted(after))
            content = after[name]
            page, bit = chance.randrange(-(-len(content) // PAGE_BYTES)), chance.randrange(len(content) * 8)
            after[name] = zeroed(content, page) if chance.random() < 0.5 else flipped(content, bit)
        is_mended(of, tmp_path, after)


def test_a_page_missing_in_the_last_segment_before_intact_records_is_told_by_file_and_offset(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    ids = []
    for number in range(40):
        ids.append(engine.add(body=b"%d" % number * 200))
        engine.end_turn()
    path = engine.segments()[0]
    path.write_bytes(zeroed(path.read_bytes(), 1))
    engine.crash()
    assert "and intact records follow" in (engine.problem or "")
    report = repaired(path.parent)
    (damage,) = report.damages
    found = loaded(path.parent)
    assert ids[0] in found
    assert ids[-1] in found
    assert len(found) == report.jobs < len(ids)
    assert damage.partition(";")[0] == (engine.problem or "").partition(", and")[0], "what the server had said"
    assert damage.endswith("bytes left out, jobs in them may be lost")


def test_jobs_go_on_behind_a_repair_and_an_id_of_the_clients_own_is_known(sample: Path, tmp_path: Path) -> None:
    before = contents(sample)
    name = sorted(before)[1]
    copied(sample, tmp_path, {name: zeroed(before[name], 1)})
    repaired(tmp_path / "spool" / ".jobs")
    engine = JobEngine(tmp_path / "spool")
    assert engine.problem == ""
    one = engine.add(body=b"more")
    engine.end_turn()
    said = engine.said()
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said
    assert one in said


def test_what_looks_like_records_in_a_body_makes_no_job_and_ends_none(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    kept = engine.add(body=b"first")
    engine.end_turn()
    copy = engine.segments()[0].read_bytes()[HEADER_BYTES:]
    forged = copy.replace(kept[:12], b"D-00000000-x")
    assert forged != copy
    engine.pass_time(1000)
    now_ms = engine.jobs.now_ms
    records_in_body = done_record(now_ms - 2000, [kept], "acked") + flushed_record(now_ms - 2000) + copy
    lost = [engine.add(body=b"?" * 5000 + records_in_body), engine.add(body=b"!" * 4000 + records_in_body)]
    last = engine.add(body=b"last" + b"." * 500)
    engine.end_turn()
    path = engine.segments()[0]
    content = path.read_bytes()
    start = content.index(b"?" * 5000)
    second = content.index(b"!" * 4000)
    # From the middle of the one body to the middle of the other: nobody can tell where the record ended.
    path.write_bytes(content[: start - 200] + bytes(second - start + 300) + content[second + 100 :])
    repaired(path.parent)
    found = loaded(path.parent)
    assert set(found) == {kept, last}
    assert not set(lost) & set(found)


class BadDisk(QuickFiles):
    """A page of a segment cannot be read, and nothing behind it."""

    def __init__(self, name: str, page: int, pages: int = 1) -> None:
        super().__init__()
        self.name = f".jobs/{name}"
        self.start, self.end = page * PAGE_BYTES, (page + pages) * PAGE_BYTES
        self.bad = -1

    def open_read(self, path: str) -> int:
        fd = super().open_read(path)
        if path.endswith(self.name):
            self.bad = fd
        return fd

    def close(self, fd: int) -> None:
        self.bad = -1 if fd == self.bad else self.bad
        super().close(fd)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        if fd == self.bad and max(offset, self.start) < min(offset + size_bytes, self.end, os.fstat(fd).st_size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(fd, size_bytes, offset)

    def read_file(self, path: str) -> bytes:
        fd = self.open_read(path)
        try:
            return self.read_at(fd, self.size_bytes(path), 0)
        finally:
            self.close(fd)


def test_a_page_that_the_disk_cannot_read_costs_what_is_on_it(sample: Path, tmp_path: Path) -> None:
    before = contents(sample)
    folder = copied(sample, tmp_path, {})
    report = repaired(folder, BadDisk("0000000002.jobs", 1))
    lost = expected(before, {**before, "0000000002.jobs": zeroed(before["0000000002.jobs"], 1)})
    assert loaded(folder).keys() == lost.keys()
    assert [damage.partition(": byte ")[0] for damage in report.damages] == [f"{folder}/0000000002.jobs"]


def test_where_the_last_pages_cannot_be_read_jobs_may_be_lost(tmp_path: Path) -> None:
    """Also where the first of them begins with a record: zeros at the end of a log are no damage else."""
    engine = JobEngine(tmp_path / "spool")
    engine.add(body=b"kept")
    engine.end_turn()
    (path,) = engine.segments()
    filler = PAGE_BYTES - 2 * path.stat().st_size + HEADER_BYTES
    engine.add(body=bytes(filler + len(b"kept")))
    engine.end_turn()
    assert path.stat().st_size == PAGE_BYTES
    engine.add(body=b"lost")
    engine.end_turn()
    engine.files.die()
    report = repaired(path.parent, BadDisk(path.name, 1))
    (damage,) = report.damages
    assert damage.startswith(f"{path}: byte {PAGE_BYTES}: the disk cannot read the whole file; ")
    assert damage.endswith("jobs in them may be lost")
    assert len(loaded(path.parent)) == report.jobs == 2


# What a repair must not do


def test_a_dry_run_says_the_same_and_changes_nothing(sample: Path, tmp_path: Path) -> None:
    before = contents(sample)
    damaged = {sorted(before)[1]: zeroed(before[sorted(before)[1]], 1)}
    folder = copied(sample, tmp_path, damaged)
    files = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    report = repaired(folder, dry_run=True)
    assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == files
    assert report.kept_at == ""
    assert report.damages == repaired(folder).damages


@pytest.mark.parametrize("tail", [b"", bytes(500), b"\x50\0\0\0torn"])
def test_a_log_without_damage_is_left_as_it_is_but_for_its_torn_tail(sample: Path, tmp_path: Path, tail: bytes) -> None:
    folder = copied(sample, tmp_path, {})
    before = contents(folder)
    name = max(before)
    (folder / name).write_bytes(before[name] + tail)
    report = repaired(folder, dry_run=True)
    assert (folder / name).read_bytes() == before[name] + tail
    report = repaired(folder)
    assert (report.damages, report.kept_at, len(report.notes)) == ([], "", 1 if tail else 0)
    assert contents(folder) == before


def test_a_log_of_a_later_version_is_not_touched(sample: Path, tmp_path: Path) -> None:
    name = sorted(contents(sample))[-1]
    content = bytearray(contents(sample)[name])
    content[8] = 9
    content[52:56] = (xxh3_64_intdigest(bytes(content[:52])) & 0xFFFFFFFF).to_bytes(4, "little")
    folder = copied(sample, tmp_path, {name: bytes(content)})
    before = contents(folder)
    with pytest.raises(LaterVersion, match="job log version 9"):
        repaired(folder)
    assert contents(folder) == before


def test_a_job_that_is_delivered_at_most_once_is_not_again_although_its_done_is_lost(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", sync_ms=0, restores_queues=True)
    done = [engine.add(retry_ms=0), engine.add(retry_ms=0, delay_s=1)]
    repeated = engine.add(retry_ms=1000)
    engine.end_turn()
    engine.pass_time(2000)
    assert set(engine.drain()) == {*done, repeated}
    before_done = engine.segments()[0].stat().st_size
    for job_id in [*done, repeated]:
        engine.ack(job_id)
    engine.end_turn()
    engine.add(b"other")
    engine.end_turn()
    engine.storage.close()
    path = engine.segments()[0]
    path.write_bytes(flipped(path.read_bytes(), before_done * 8 + 100 * 8))
    repaired(path.parent)
    engine.crash()
    assert engine.problem == ""
    assert set(done) < engine.ids()
    engine.pass_time(600_000)
    assert engine.drain() == [repeated], "one with a retry time is delivered again"
    assert all(engine.job(job_id).state != DELAYED for job_id in done)


def test_a_log_that_was_begun_and_does_not_count_yet_is_not_mixed_with_the_damaged_one(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", segment_bytes_max=4000)
    old = [engine.add(body=b"old %d" % number) for number in range(600)]
    engine.end_turn()
    engine.settle()
    engine.storage.turn_off()
    for job_id in old[:50]:
        engine.ack(job_id)
    engine.add(body=b"new")
    assert engine.turn_on() == ""
    engine.pass_time(1000)
    for _ in range(3):
        engine.slices.run(engine.clock.stopwatch_us())
        engine.end_turn()
    assert engine.maintenance.is_fresh
    path = engine.segments()[0]
    content = path.read_bytes()
    at = content.index(b"old 7")
    path.write_bytes(flipped(content, at * 8))
    engine.crash()
    assert engine.problem
    report = repaired(path.parent)
    assert len(report.damages) == 1
    assert loaded(path.parent).keys() == {*old} - {old[7]}


def test_a_disk_that_is_full_keeps_nothing_of_the_attempt_and_the_damaged_log_as_it_is(
    sample: Path, tmp_path: Path
) -> None:
    before = contents(sample)
    name = sorted(before)[1]
    folder = copied(sample, tmp_path, {name: zeroed(before[name], 1)})
    damaged = contents(folder)
    files = FaultyFiles(errno.ENOSPC, ("write",), stays=True)
    files.fail_from(2)
    with pytest.raises(JournalFailed):
        repaired(folder, files)
    assert contents(folder) == damaged
    assert not list((folder.parent / ".tmp").iterdir())
    files.mend()
    assert repaired(folder, files).kept_at


def test_whichever_call_the_disk_refuses_the_old_log_is_there_or_the_new_one(
    small_sample: Path, tmp_path: Path
) -> None:
    before = contents(small_sample)
    name = sorted(before)[1]
    damaged = {name: zeroed(before[name], 1)}
    wanted = expected(before, {**before, **damaged})
    for call in count(1):
        folder = copied(small_sample, tmp_path, damaged)
        files = FaultyFiles()
        files.fail_from(call)
        with suppress(JournalFailed, OSError):
            repaired(folder, files)
        if contents(folder) != {**before, **damaged}:
            assert loaded(folder).keys() == wanted.keys()
        repaired(folder)
        assert loaded(folder).keys() == wanted.keys()
        if not files.failed:
            break
    assert call > 15


# Killed


def test_a_repair_killed_at_any_step_leaves_the_one_log_or_the_other_and_a_second_completes_it(
    small_sample: Path, tmp_path: Path
) -> None:
    before = contents(small_sample)
    name = sorted(before)[1]
    damaged = {name: zeroed(before[name], 1)}
    wanted = expected(before, {**before, **damaged})
    starts = set()
    for dies_at in count(1):
        folder = copied(small_sample, tmp_path, damaged)
        spool = folder.parent
        try:
            repaired(folder, MortalFiles(dies_at))
        except Killed:
            is_killed = True
        else:
            is_killed = False
        started = JobEngine(shutil.copytree(spool, tmp_path / f"start-{dies_at}"), is_on=True)
        starts.add(started.problem == "")
        if started.problem:
            assert name in started.problem
        else:
            assert started.ids() == wanted.keys()
        repaired(folder)
        assert loaded(folder).keys() == wanted.keys()
        (kept,) = (spool / ".damaged").iterdir()
        assert contents(kept) == {**before, **damaged}
        assert not list((spool / ".tmp").iterdir())
        if not is_killed:
            break
    assert starts == {True, False}
    assert dies_at > 15
