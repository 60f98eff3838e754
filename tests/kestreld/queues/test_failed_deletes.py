"""A delete that the disk refuses, and journals that are there although their queue is not."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kestreld.errors import JournalFailed
from tests.support.engine import Engine, LateFiles
from tests.support.faulty_files import ALL, FaultyFiles

OLD = [b"old and much longer than the new ones %d" % number for number in range(10)]
NEW = [b"new %d" % number for number in range(2)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """`work` has items in several segments."""
    made = Engine(tmp_path / "spool", FaultyFiles(), max_journal_size_bytes=200)
    put(made, OLD)
    yield made
    made.abandon()


def put(engine: Engine, items: list[bytes]) -> None:
    for data in items:
        assert engine.put("work", data) == [True]
        assert engine.end_turn() == {}


def files_of(engine: Engine) -> FaultyFiles:
    assert isinstance(engine.files, FaultyFiles)
    return engine.files


def fails_to_delete(engine: Engine) -> bool:
    try:
        engine.collection.delete("work")
    except JournalFailed:
        return True
    return False


@pytest.mark.parametrize("trash_ms", [0, 60_000])
@pytest.mark.parametrize("kind", ALL)
def test_a_delete_whatever_fails_in_it_has_happened_or_has_not_and_the_queue_takes_items(
    tmp_path: Path, kind: str, trash_ms: int
) -> None:
    for call in count(1):
        engine = Engine(
            tmp_path / f"{call}",
            FaultyFiles(kinds=(kind,)),
            max_journal_size_bytes=200,
            trash_ms=trash_ms,
            sync_journal_ms=20,
        )
        put(engine, OLD)
        files = files_of(engine)
        files.fail_from(call)
        has_failed = fails_to_delete(engine)
        files.mend()
        there = engine.collection.find("work") is not None
        assert has_failed or not there
        put(engine, NEW)
        engine.crash()
        assert engine.drain("work") == (OLD + NEW if there else NEW)
        assert engine.collection.broken == {}
        engine.abandon()
        if not files.failed:
            return


@pytest.mark.parametrize("keep_s", [0, 60])
def test_of_a_deleted_journal_no_file_goes_before_its_folder_s_new_name_is_on_disk(tmp_path: Path, keep_s: int) -> None:
    """A power cut may give the folder its old name back: the queue is there again then, and whole."""
    done: list[str] = []

    class Listening(LateFiles):
        def sync_dir(self, path: str) -> None:
            done.append("sync")

        def unlink(self, path: str) -> None:
            super().unlink(path)
            if path.endswith(".seg"):
                done.append("unlink")

    files = Listening()
    engine = Engine(tmp_path, files, max_journal_size_bytes=200, trash_ms=keep_s * 1000)
    put(engine, OLD)
    files.finish_background()
    engine.collection.delete("work")
    done.clear()
    engine.clock.advance(keep_s * 1000 + 1)
    engine.work(10)
    assert done == []
    files.finish_background()
    engine.work(10)
    assert done[0] == "sync"
    assert "unlink" in done
    assert list((tmp_path / ".trash").iterdir()) == []


def test_what_was_open_at_a_delete_that_failed_can_be_confirmed(engine: Engine) -> None:
    opened = engine.reader("work").open_read(engine.clock.wall_ms)
    assert opened is not None
    files_of(engine).kinds = ("rename",)
    files_of(engine).fail_from(1)
    assert fails_to_delete(engine)
    engine.reader("work").close(opened[0])
    engine.end_turn()
    engine.crash()
    assert engine.drain("work") == OLD[1:]


def test_a_new_queue_is_not_put_into_the_journal_of_a_deleted_one_that_would_not_go(engine: Engine) -> None:
    queue = engine.queue("work")
    queue.drop_reader("")  # as a crash leaves it between this and the removal
    engine.end_turn()
    files = files_of(engine)
    files.kinds, files.stays = ("rename",), True
    files.fail_from(1)
    engine.crash()
    with pytest.raises(JournalFailed, match="cannot delete"):
        engine.reader("work")
    files.mend()
    put(engine, NEW)
    engine.crash()
    assert engine.drain("work") == NEW


def test_a_journal_that_a_start_left_unread_is_read_when_its_queue_is_to_have_one_again(engine: Engine) -> None:
    engine.configure(journal=False)
    engine.crash()
    assert engine.collection.find("work") is None
    engine.configure(max_journal_size_bytes=200)
    put(engine, NEW)
    engine.crash()
    assert engine.drain("work") == OLD + NEW


def test_what_was_cut_off_in_a_crash_is_not_in_the_way_of_a_queue(engine: Engine) -> None:
    """No segment was ever finished: what is left of the first stays beside the new ones."""
    engine.abandon()
    for path in engine.segments("work")[1:]:
        path.unlink()
    os.truncate(engine.segments("work")[0], 20)
    engine.crash()
    put(engine, NEW)
    engine.crash()
    assert engine.drain("work") == NEW


def test_a_queue_that_is_deleted_during_a_sync_is_not_said_to_have_failed(tmp_path: Path) -> None:
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=20)
    engine.put("work", b"1")
    engine.end_turn()
    engine.clock.advance(1000)
    engine.maintenance.sync_due()
    assert files.under_way
    engine.collection.delete("work")
    files.fail_from(1)
    files.finish_background()
    assert files.failed
    assert engine.log == []
