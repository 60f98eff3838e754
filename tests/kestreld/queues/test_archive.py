"""The archive: every segment that has died, whole, or an error in the log and nothing lost."""

import errno
import os
from pathlib import Path

import pytest

from kestreld.journal.verify import verify_journal
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.flow import SEGMENT_BYTES, SETTINGS, WORK, Flow, put_ids, used_bytes
from tests.support.other_disk import OtherLateDisk, OtherQuickDisk


def archived(archive: Path) -> Path:
    """The folder of the one journal that has been archived."""
    (folder,) = (archive / "work").iterdir()
    return folder


@pytest.mark.parametrize("files", [QuickFiles, OtherQuickDisk, OtherLateDisk])
def test_an_archive_has_every_item_that_ever_was(tmp_path: Path, files: type[QuickFiles]) -> None:
    archive, disk = tmp_path / "archive", files()
    engine = Engine(tmp_path / "spool", disk, archive=archive, **SETTINGS)
    flow = Flow(engine)
    flow.begin()
    for _ in range(100):
        flow.turns(1)
        if isinstance(disk, LateFiles):
            disk.finish_background()
    for _ in range(60):
        engine.work(3)
        if isinstance(disk, LateFiles):
            disk.finish_background()
    folder = archived(archive)
    assert put_ids(folder, tmp_path / "spool" / "work.journal") == list(range(1, 302))
    assert len(put_ids(folder)) > 200
    assert [report.reason for report in verify_journal(disk, str(folder), WORK) if report.bad_offset is not None] == []
    assert engine.log == []
    assert used_bytes(engine) < 6 * SEGMENT_BYTES


@pytest.mark.parametrize("files", [QuickFiles, OtherQuickDisk])
@pytest.mark.parametrize("obstacle", ["a file where the folder should be", "no room", "no right"])
def test_an_archive_that_takes_nothing_is_in_the_log_and_nothing_is_lost(
    tmp_path: Path, files: type[QuickFiles], obstacle: str
) -> None:
    archive = tmp_path / "archive"

    class Refusing(files):  # type: ignore[misc,valid-type]
        refuses = True

        def _look(self, path: str) -> None:
            if self.refuses and "/archive" in path and obstacle != "a file where the folder should be":
                code = errno.ENOSPC if obstacle == "no room" else errno.EACCES
                raise OSError(code, os.strerror(code))

        def make_dir(self, path: str) -> None:
            self._look(path)
            super().make_dir(path)

        def copy(self, path: str, new_path: str) -> None:
            self._look(new_path)
            super().copy(path, new_path)

    disk = Refusing()
    if obstacle == "a file where the folder should be":
        archive.write_bytes(b"")
    engine = Engine(tmp_path / "spool", disk, archive=archive, max_journal_size_bytes=SEGMENT_BYTES)
    flow = Flow(engine)
    flow.turns(40)
    assert put_ids(tmp_path / "spool" / "work.journal") == list(range(1, 121)), "nothing goes before it is archived"
    assert len(engine.log) == 1, "once a minute"
    assert "will be retried" in engine.log[0]
    engine.clock.advance(60_000)
    flow.turns(1)
    assert len(engine.log) == 2
    disk.refuses = False
    if archive.is_file():
        archive.unlink()
    engine.work(100)
    assert len(engine.segments(WORK)) == 1
    assert put_ids(archived(archive), tmp_path / "spool" / "work.journal") == list(range(1, 124))
    assert list(archive.rglob("*.new")) == []


def test_a_copy_that_the_archives_disk_has_no_room_for_does_not_stay_there(tmp_path: Path) -> None:
    class SmallDisk(OtherQuickDisk):
        room = False

        def copy(self, path: str, new_path: str) -> None:
            super().copy(path, new_path)
            if not self.room:
                os.truncate(new_path, 100)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    archive = tmp_path / "archive"
    engine = Engine(tmp_path / "spool", disk := SmallDisk(), archive=archive, max_journal_size_bytes=SEGMENT_BYTES)
    flow = Flow(engine)
    flow.turns(10)
    assert list(archived(archive).iterdir()) == []
    disk.room = True
    engine.work(60)
    assert put_ids(archived(archive), tmp_path / "spool" / "work.journal") == list(range(1, 31))


def test_a_copy_that_ends_after_its_queue_was_deleted_and_made_again_takes_nothing_with_it(tmp_path: Path) -> None:
    disk = OtherLateDisk()
    engine = Engine(tmp_path / "spool", disk, archive=tmp_path / "archive", max_journal_size_bytes=SEGMENT_BYTES)
    flow = Flow(engine)
    while not (tmp_path / "archive").exists():
        disk.finish_background()
        flow.turns(1)
    assert disk.under_way, "the first segment is being copied"
    engine.collection.delete(WORK)
    engine.put(WORK, b"new")
    engine.end_turn()
    disk.finish_background()
    engine.work(3)
    assert len(engine.segments(WORK)) == 1
    engine.crash()
    assert engine.drain(WORK) == [b"new"]
