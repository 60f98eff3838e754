"""Whole segments that were there and are not any more: a start misses those that somebody needs, and none else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.errors import SegmentsMissing
from kestreld.journal.inspection import IDS_AT_MOST
from kestreld.journal.marker import find_marker
from kestreld.journal.records import Reason
from kestreld.journal.repair import repair
from kestreld.journal.verify import verify_journal
from tests.support.clock import FakeClock
from tests.support.engine import Engine, LateFiles, QuickFiles

WORK = "work"
PER_SEGMENT = 3
ITEM = b"." * 50


def filled(spool: Path, segments: int = 5) -> Engine:
    """A queue with so many segments of three items each, the marker at the live one; its process has died."""
    engine = Engine(spool, QuickFiles(), max_journal_size_bytes=200)
    for number in range(segments):
        engine.put(WORK, *[b"%d" % (number * PER_SEGMENT + one) + ITEM for one in range(PER_SEGMENT)])
        engine.end_turn()
    engine.work(20)
    engine.abandon()
    assert [path.name[:10] for path in engine.segments(WORK)] == [f"{one:010}" for one in range(1, segments + 2)]
    return engine


def folder(engine: Engine) -> Path:
    return engine.spool / "work.journal"


def marker(engine: Engine) -> str:
    found = find_marker(os.listdir(folder(engine)))
    return found.name if found is not None else ""


def why_stopped(engine: Engine) -> str:
    """What a new start says of the queue; "" when it serves."""
    problem = Engine(engine.spool, QuickFiles()).collection.broken.get(WORK)
    assert problem is None or isinstance(problem, SegmentsMissing)
    return str(problem or "")


def findings(engine: Engine) -> list[str]:
    reports = verify_journal(QuickFiles(), str(folder(engine)), WORK)
    return [f"{report.path.rpartition('/')[2]}: {report.reason}" for report in reports if report.reason]


def remove_the_first(segments: list[Path]) -> str:
    segments[0].unlink()
    return "everything before segment 2 is missing"


def remove_one_between(segments: list[Path]) -> str:
    segments[2].unlink()
    return "segment 3 is missing"


def remove_two_between(segments: list[Path]) -> str:
    segments[1].unlink()
    segments[2].unlink()
    return "segments 2 to 3 are missing"


def remove_the_live_one(segments: list[Path]) -> str:
    segments[-1].unlink()
    return "segment 6 is missing: the marker is 0000000006-00000000000000000001.live"


def remove_the_last_two(segments: list[Path]) -> str:
    segments[-1].unlink()
    segments[-2].unlink()
    return "segments 5 to 6 are missing: the marker is 0000000006-00000000000000000001.live"


def remove_all(segments: list[Path]) -> str:
    for path in segments:
        path.unlink()
    return "segments 1 to 6 are missing: the marker is 0000000006-00000000000000000001.live"


REMOVALS = [
    remove_the_first,
    remove_one_between,
    remove_two_between,
    remove_the_live_one,
    remove_the_last_two,
    remove_all,
]
every_removal = pytest.mark.parametrize("remove", REMOVALS, ids=lambda remove: remove.__name__.replace("_", " "))


@every_removal
def test_a_start_stops_the_queue_and_verify_and_repair_find_it_too(
    tmp_path: Path, remove: Callable[[list[Path]], str]
) -> None:
    engine = filled(tmp_path)
    words = remove(engine.segments(WORK))
    left = sorted(folder(engine).iterdir())
    assert why_stopped(engine) == f"{folder(engine)}: {words}"
    assert sorted(folder(engine).iterdir()) == left, "nothing is changed"
    assert findings(engine) == [f"work.journal: {words}"]
    report = repair(QuickFiles(), FakeClock(), str(folder(engine)))
    assert len(report.damages) == 1
    assert why_stopped(engine) == ""
    assert findings(engine) == []


@every_removal
def test_a_repair_gives_no_id_a_second_time_and_delivers_the_rest(
    tmp_path: Path, remove: Callable[[list[Path]], str]
) -> None:
    engine = filled(tmp_path)
    before = engine.queue(WORK).next_id
    segments = engine.segments(WORK)
    remove(segments)
    kept = [path.exists() for path in segments[:-1]]
    repair(QuickFiles(), FakeClock(), str(folder(engine)))
    again = Engine(tmp_path, QuickFiles())
    assert again.reader(WORK).queue.next_id >= before
    expected = [number for number in range(15) if kept[number // PER_SEGMENT]]
    assert [int(data.removesuffix(ITEM)) for data in again.drain(WORK)] == expected


def test_where_nobody_knows_how_many_items_went_the_report_says_from_which_on(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    engine.segments(WORK)[-1].unlink()
    (damage,) = repair(QuickFiles(), FakeClock(), str(folder(engine))).damages
    assert str(damage).endswith("segment 6 is missing; items from 16 on may be lost")
    assert Engine(tmp_path, QuickFiles()).reader(WORK).queue.next_id == 16 + IDS_AT_MOST


def test_a_live_segment_that_was_emptied_by_hand_is_no_segment_in_the_making(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    os.truncate(engine.segments(WORK)[-1], 0)
    again = Engine(tmp_path, QuickFiles())
    assert "the segment header is cut short: the marker is" in str(again.collection.broken[WORK])
    assert findings(engine) == [f"{engine.segments(WORK)[-1].name}: the segment header is cut short"]
    (damage,) = repair(QuickFiles(), FakeClock(), str(folder(engine))).damages
    assert str(damage).endswith("items from 16 on may be lost")
    assert len(Engine(tmp_path, QuickFiles()).drain(WORK)) == 15


def test_without_a_marker_nothing_is_said_of_the_live_one_nor_of_the_first(tmp_path: Path) -> None:
    """A journal of an earlier kestreld: a power cut may have lost the word that items were done."""
    for removed in (0, -1):
        engine = filled(tmp_path / str(removed))
        (folder(engine) / marker(engine)).unlink()
        engine.segments(WORK)[removed].unlink()
        assert why_stopped(engine) == ""
        assert findings(engine) == []


def test_a_journal_of_an_earlier_kestreld_gets_its_marker_soon(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    name = marker(engine)
    (folder(engine) / name).unlink()
    engine = Engine(tmp_path, QuickFiles())
    assert marker(engine) == ""
    engine.work(3)
    assert marker(engine) == name


def test_segments_that_nobody_needs_any_more_may_be_missing(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    engine = Engine(tmp_path, QuickFiles())
    for _ in range(7):
        engine.take(WORK)
    engine.end_turn()
    engine.abandon()
    for path in engine.segments(WORK)[:2]:
        path.unlink()
    assert why_stopped(engine) == ""
    assert len(Engine(tmp_path, QuickFiles()).drain(WORK)) == 8


def test_the_number_left_free_for_a_compacted_segment_is_not_a_missing_one(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    engine = Engine(tmp_path, QuickFiles())
    queue = engine.queue(WORK)
    queue.want_segment(wanted=True)
    engine.maintenance.begin_segment(queue, queue.journal)
    engine.put(WORK, b"behind it")
    engine.end_turn()
    engine.abandon()
    assert [int(path.name[:10]) for path in engine.segments(WORK)] == [1, 2, 3, 4, 5, 6, 8]
    assert (why_stopped(engine), findings(engine)) == ("", [])
    engine.segments(WORK)[4].unlink()
    assert why_stopped(engine).endswith("segment 5 is missing")


def test_a_segment_without_items_is_missed_where_it_may_say_what_is_held_back(tmp_path: Path) -> None:
    """As many are held back as are known: but of these one is done, and another is not known."""
    engine = Engine(tmp_path, QuickFiles())
    reader = engine.reader(WORK)
    queue = reader.queue
    assert queue.put_later(b"done", 0, 0, None, 50_000)
    engine.put(WORK, b"to be held", b"waits")
    engine.end_turn()
    queue.want_segment(wanted=True)
    engine.maintenance.begin_segment(queue, queue.journal)
    opened = reader.open_read(engine.clock.wall_ms)
    assert opened is not None
    reader.give_back(opened[0], engine.clock.wall_ms, 50_000)
    reader.withdraw(1, Reason.DISCARDED)
    engine.end_turn()
    engine.maintenance.begin_segment(queue, queue.journal)
    engine.abandon()
    engine.segments(WORK)[-2].unlink()
    problem = Engine(tmp_path, QuickFiles()).collection.broken[WORK]
    assert problem.reason == "segments 2 to 3 are missing, and their DUE records may be missing"
    assert findings(engine) == [f"work.journal: {problem.reason}"]
    assert len(repair(QuickFiles(), FakeClock(), str(folder(engine))).damages) == 1
    again = Engine(tmp_path, QuickFiles())
    again.clock.advance(60_000)
    again.collection.agenda.fall_due(again.clock.monotonic_ms)
    assert again.drain(WORK) == [b"done", b"to be held", b"waits"]


def test_a_repair_knows_what_was_done_at_the_last_checkpoint_before_the_damage(tmp_path: Path) -> None:
    """Those who said so have gone with their segments, as a compaction does."""
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=400, max_journal_overflow=4)
    reader, audit = engine.reader(WORK), engine.reader("work+audit")
    queue = reader.queue
    assert queue.put_later(b"first", 0, 0, None, 50_000)
    engine.put(WORK, b"audited")
    assert queue.put_later(b"last", 0, 0, None, 50_000)
    engine.end_turn()
    assert reader.open_read(engine.clock.wall_ms) is not None
    assert engine.take(audit.name) == b"audited"
    while not queue.journal.segments[0].compacted:  # type: ignore[union-attr]
        engine.put(WORK, b"flows" * 10)
        engine.take(WORK)
        engine.take(audit.name)
        engine.end_turn()
        engine.work(5)
    for _ in range(2):
        engine.maintenance.begin_segment(queue, queue.journal)
    engine.abandon()
    engine.segments(WORK)[-2].write_bytes(b"")
    again = Engine(tmp_path, QuickFiles())
    assert WORK in again.collection.broken
    again.abandon()
    assert repair(QuickFiles(), FakeClock(), str(folder(engine))).restored == 3
    again = Engine(tmp_path, QuickFiles())
    again.clock.advance(60_000)
    again.collection.agenda.fall_due(again.clock.monotonic_ms)
    assert again.drain(WORK) == [b"first", b"last", b"audited"]
    assert again.drain(audit.name) == [b"first", b"last"]


def test_a_repair_that_misses_what_a_child_holds_delivers_nothing_to_it_that_was_put_before_it_was_there(
    tmp_path: Path,
) -> None:
    """What the parent holds is older than the child: from there on the repair looks for what is held."""
    engine = Engine(tmp_path, QuickFiles())
    reader = engine.reader(WORK)
    queue = reader.queue
    assert queue.put_later(b"first", 0, 0, None, 50_000)
    engine.put(WORK, b"second")
    engine.end_turn()
    audit = engine.reader("work+audit")
    engine.put(WORK, b"third")
    engine.end_turn()
    engine.maintenance.begin_segment(queue, queue.journal)
    assert queue.put_later(b"fourth", 0, 0, None, 50_000)
    engine.end_turn()
    for _ in range(2):
        engine.maintenance.begin_segment(queue, queue.journal)
    engine.abandon()
    engine.segments(WORK)[-3].unlink()  # of the fourth
    assert WORK in Engine(tmp_path, QuickFiles()).collection.broken
    assert repair(QuickFiles(), FakeClock(), str(folder(engine))).damages
    again = Engine(tmp_path, QuickFiles())
    again.clock.advance(60_000)
    again.collection.agenda.fall_due(again.clock.monotonic_ms)
    assert again.drain(audit.name) == [b"third"]
    assert again.drain(WORK) == [b"first", b"second", b"third"]


def test_segments_go_only_when_the_marker_that_says_so_is_on_disk(tmp_path: Path) -> None:
    files = LateFiles()
    filled(tmp_path)
    engine = Engine(tmp_path, files)
    engine.work(3)
    files.finish_background()  # from now on the marker is known to be there
    engine.drain(WORK)
    engine.work(20)
    assert len(engine.segments(WORK)) == 6
    assert marker(engine) == "0000000006-00000000000000000016.live"
    files.finish_background()
    engine.work(20)
    assert [path.name for path in engine.segments(WORK)] == ["0000000006-00000000000000000016.seg"]


def test_the_marker_does_not_name_a_segment_whose_sync_is_under_way(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, max_journal_size_bytes=200)
    for _ in range(3):
        engine.put(WORK, ITEM, ITEM, ITEM)
        engine.end_turn()
    assert marker(engine) == ""
    files.finish_background()
    assert marker(engine) == "0000000002-00000000000000000001.live", "what has been begun since is not covered"
    files.finish_background()
    assert marker(engine) == "0000000004-00000000000000000001.live"


def test_a_sync_that_cannot_open_the_live_segment_has_not_put_it_on_disk(tmp_path: Path) -> None:
    class NoDescriptors(QuickFiles):
        """A process that has all the files open that it may, but for those that are there already."""

        is_short = False

        def open_append(self, path: str) -> int:
            if self.is_short:
                raise OSError(24, os.strerror(24))
            return super().open_append(path)

    files = NoDescriptors()
    filled(tmp_path)
    engine = Engine(tmp_path, files)
    (folder(engine) / marker(engine)).unlink()
    journal = engine.queue(WORK).journal
    journal.marker, files.is_short = None, True
    engine.work(3)
    assert (journal.synced_number, marker(engine)) == (0, "")
    files.is_short = False
    engine.work(3)
    assert (journal.synced_number, marker(engine)[:10]) == (6, "0000000006")


def test_what_a_marker_that_was_removed_leaves_behind_is_a_new_one(tmp_path: Path) -> None:
    filled(tmp_path)
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=200)
    (folder(engine) / marker(engine)).unlink()
    for _ in range(3):
        engine.put(WORK, ITEM, ITEM, ITEM)
        engine.end_turn()
        engine.work(3)
    assert marker(engine)[:10] == engine.segments(WORK)[-1].name[:10]
    assert len([line for line in engine.log if "cannot rename the marker" in line]) == 1


def test_a_queue_that_was_deleted_and_made_again_has_no_marker_of_the_old_one(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, max_journal_size_bytes=200)
    for _ in range(3):
        engine.put(WORK, ITEM, ITEM, ITEM)
        engine.end_turn()
    engine.collection.delete(WORK)
    engine.put(WORK, b"new")
    engine.end_turn()
    files.finish_background()
    assert marker(engine) == ""
    engine.crash()
    assert engine.drain(WORK) == [b"new"]
