"""What follows a sync that failed: what is synced later, and what the next process is told."""

import errno
import os
from pathlib import Path

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.segment import UNSYNCED_MARK
from tests.support.engine import Engine, LateFiles


class Disk(LateFiles):
    """`synced` are the files whose syncs succeeded; of those in `bad` they fail. `is_full`: no file can be made."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[int] = set()
        self.bad: set[int] = set()
        self.is_full = False
        self.refuses_writes = False

    def sync(self, fd: int) -> None:
        number = os.fstat(fd).st_ino
        if number in self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.add(number)

    def create(self, path: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path)

    def write(self, fd: int, data: bytes) -> int:
        if self.refuses_writes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(fd, data)


@pytest.fixture
def disk() -> Disk:
    return Disk()


def put(engine: Engine, times: int) -> None:
    for _ in range(times):
        engine.put("work", b"." * 100)
        engine.end_turn()


def inodes(engine: Engine) -> list[int]:
    return [path.stat().st_ino for path in engine.segments("work")]


def marks(engine: Engine) -> list[str]:
    return [path.name[:10] for path in engine.spool.glob(f"work.journal/*{UNSYNCED_MARK}")]


def test_full_segments_behind_the_one_whose_sync_failed_go_to_the_disk_with_the_next(
    tmp_path: Path, disk: Disk
) -> None:
    """The next segment's SYNC vouches for all before it: what nobody has asked the disk for must not be among that."""
    engine = Engine(tmp_path, disk, max_journal_size_bytes=100)
    put(engine, 4)
    first, *filled, _ = inodes(engine)
    disk.bad = {first}
    while disk.under_way:
        disk.finish_background()
    assert "work: " in engine.log[0]
    assert "sync failed" in engine.log[0]
    disk.bad.clear()
    engine.configure()
    put(engine, 1)
    engine.work(10)
    while disk.under_way:
        disk.finish_background()
    assert set(filled) <= disk.synced
    assert first not in disk.synced, "a sync that failed is not asked again"


def test_what_stood_before_a_write_that_failed_goes_to_the_disk_with_the_next_segment(
    tmp_path: Path, disk: Disk
) -> None:
    engine = Engine(tmp_path, disk)
    put(engine, 1)
    disk.refuses_writes = True
    put(engine, 1)
    disk.refuses_writes = False
    engine.configure()
    engine.maintenance.sync(engine.queue("work"))
    disk.finish_background()
    assert set(inodes(engine)) == disk.synced


def test_a_full_segment_whose_sync_failed_before_a_reply_is_not_asked_again(tmp_path: Path, disk: Disk) -> None:
    """Nothing would tell of the bytes that the kernel has given up: the second sync of a file succeeds."""
    engine = Engine(tmp_path, disk)
    put(engine, 1)
    disk.refuses_writes = True
    put(engine, 1)
    disk.refuses_writes = False
    engine.configure()
    engine.configure(sync_journal_ms=0)
    first, _ = inodes(engine)
    disk.bad = {first}
    put(engine, 1)
    disk.finish_background()
    assert any("sync failed" in line for line in engine.log)
    disk.bad.clear()
    engine.configure(sync_journal_ms=0)
    put(engine, 1)
    disk.finish_background()
    assert set(inodes(engine)) - {first} <= disk.synced
    assert first not in disk.synced


def test_a_synced_queue_goes_on_in_a_new_segment_only_once_what_stood_before_is_on_disk(
    tmp_path: Path, disk: Disk
) -> None:
    engine = Engine(tmp_path, disk, sync_journal_ms=0, max_journal_size_bytes=100)
    put(engine, 1)
    disk.finish_background()
    disk.refuses_writes = True
    put(engine, 1)
    disk.refuses_writes = False
    _, begun = inodes(engine)
    disk.bad = {begun}
    engine.configure(sync_journal_ms=0)
    assert "sync failed" in engine.log[-1]
    assert inodes(engine)[1:] == [begun]
    engine.configure(sync_journal_ms=0)
    assert len(inodes(engine)) == 3, "a sync that failed is not asked again"


def test_nor_is_a_full_one_whose_sync_failed_in_the_middle_of_a_turn(tmp_path: Path, disk: Disk) -> None:
    engine = Engine(tmp_path, disk, max_journal_size_bytes=100, sync_journal_ms=1000)
    put(engine, 4)
    journal = engine.queue("work").journal
    assert journal is not None
    *behind, lost = [os.stat(segment.path).st_ino for segment in journal.filled.values()]
    assert behind
    disk.bad = {lost}
    with pytest.raises(JournalFailed):
        journal.sync()
    disk.bad.clear()
    engine.configure(sync_journal_ms=1000)
    put(engine, 1)
    engine.work(10)
    while disk.under_way:
        disk.finish_background()
    assert set(behind) <= disk.synced
    assert lost not in disk.synced


def test_the_live_segment_goes_to_the_disk_with_the_next_if_it_was_an_earlier_ones_sync_that_failed(
    tmp_path: Path, disk: Disk
) -> None:
    engine = Engine(tmp_path, disk, max_journal_size_bytes=100)
    put(engine, 2)
    first, *_, live = inodes(engine)
    disk.bad = {first}
    while disk.under_way:
        disk.finish_background()
    engine.configure()
    put(engine, 1)
    engine.work(10)
    while disk.under_way:
        disk.finish_background()
    assert live in disk.synced
    assert first not in disk.synced


def test_the_note_of_a_failed_sync_that_the_disk_refused_is_left_as_soon_as_it_can_be(
    tmp_path: Path, disk: Disk
) -> None:
    """Without it the next process believes what the kernel shows it, which no power cut need leave."""
    engine = Engine(tmp_path, disk)
    put(engine, 1)
    disk.bad = set(inodes(engine))
    disk.is_full = True
    engine.maintenance.sync(engine.queue("work"))
    disk.finish_background()
    engine.work(10)
    assert marks(engine) == []
    disk.is_full = False
    engine.work(10)
    assert marks(engine) == ["0000000001"]


def test_it_is_left_at_a_stop_at_the_latest(tmp_path: Path, disk: Disk) -> None:
    engine = Engine(tmp_path, disk)
    put(engine, 1)
    disk.bad = set(inodes(engine))
    disk.is_full = True
    engine.maintenance.sync(engine.queue("work"))
    disk.finish_background()
    disk.is_full = False
    engine.collection.close()
    assert marks(engine) == ["0000000001"]
