"""journal-verify finds a journal bad exactly where a start, or whoever reads on, stops its queue."""

from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.records import item_id
from kestreld.journal.segment import decode_header
from kestreld.journal.verify import SegmentReport, verify_journal
from tests.support.engine import Engine, QuickFiles
from tests.support.segments import BEGIN_MS, got, puts, write_segment

WORK = "work"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "spool" / f"{WORK}.journal"


def reports(journal: Path) -> list[SegmentReport]:
    return verify_journal(FileLayer(), str(journal), WORK)


def findings(journal: Path) -> list[tuple[str, str]]:
    """What verify finds bad, and why, by the number of the segment; what a start cuts off is not."""
    return [
        (Path(report.path).name[9:10], report.reason or "")
        for report in reports(journal)
        if report.missing or (report.bad_offset is not None and not report.torn)
    ]


def delivered(journal: Path) -> list[int] | None:
    """The ids that a start on a journal delivers; None where its queue stops."""
    engine = Engine(journal.parent, QuickFiles())
    if WORK in engine.collection.broken:
        return None
    ids: list[int] = []
    try:
        while (record := engine.reader(WORK).take(engine.clock.wall_ms)) is not None:
            ids.append(item_id(record))
    except JournalCorrupt:
        return None
    return ids


def lose(segment: Path, start: int, end: int | None = None) -> None:
    """What of a file a power cut may take although its length is on disk: zeros are there instead."""
    content = segment.read_bytes()
    end = len(content) if end is None else end
    segment.write_bytes(content[:start] + bytes(end - start) + content[end:])


def lose_checkpoint(segment: Path) -> None:
    lose(segment, decode_header(segment.read_bytes(), str(segment))[1])


def cut(segment: Path, size_bytes: int) -> None:
    segment.write_bytes(segment.read_bytes()[:size_bytes])


@pytest.mark.parametrize(
    "size_bytes", [0, 30, 61, 80, None], ids=["nothing", "half a header", "a header", "half", "zeros"]
)
def test_a_segment_that_got_no_further_than_a_checkpoint_that_was_never_synced_is_no_finding(
    journal: Path, size_bytes: int | None
) -> None:
    write_segment(journal, 1, 1, puts(1, 3))
    unsynced = write_segment(journal, 2, 4, [got(1, 1, BEGIN_MS)])
    write_segment(journal, 3, 4, puts(4, 1))
    if size_bytes is None:
        lose(unsynced, 0)
    else:
        cut(unsynced, size_bytes)
    assert findings(journal) == []
    assert delivered(journal) == [1, 2, 3, 4]


def test_nor_is_one_that_has_its_checkpoint_but_not_what_followed(journal: Path) -> None:
    unsynced = write_segment(journal, 1, 1, [])
    size_bytes = unsynced.stat().st_size
    unsynced.write_bytes(unsynced.read_bytes() + bytes(31))
    write_segment(journal, 2, 1, puts(1, 2))
    assert findings(journal) == []
    cut(unsynced, size_bytes)
    assert findings(journal) == []
    assert delivered(journal) == [1, 2]


def test_a_segment_that_had_items_and_lost_its_checkpoint_is_bad(journal: Path) -> None:
    for lost in (lose_checkpoint, lambda segment: lose(segment, 0), lambda segment: cut(segment, 0)):
        lost(write_segment(journal, 1, 1, puts(1, 3)))
        write_segment(journal, 2, 4, puts(4, 1), previous_bytes=800)
        assert [number for number, _ in findings(journal)] == ["1"]
        assert delivered(journal) is None


def test_so_it_is_where_the_one_behind_it_lost_its_own(journal: Path) -> None:
    cut(write_segment(journal, 1, 1, puts(1, 3)), 0)
    cut(write_segment(journal, 2, 4, []), 0)
    write_segment(journal, 3, 4, puts(4, 1))
    assert findings(journal) == [("1", "the segment header is cut short")]
    assert delivered(journal) is None


def test_the_segment_before_one_that_was_being_made_may_end_in_a_torn_tail(journal: Path) -> None:
    torn = write_segment(journal, 1, 1, puts(1, 3))
    cut(torn, torn.stat().st_size - 7)
    for number in (2, 3):
        cut(write_segment(journal, number, 4, []), 50)
    assert [report.torn for report in reports(journal)] == [True, True, True]
    assert findings(journal) == []
    assert delivered(journal) == [1, 2]


def test_a_segment_in_the_making_is_damage_where_none_stands_before_it(journal: Path) -> None:
    cut(write_segment(journal, 2, 4, []), 50)
    assert findings(journal) == [("2", "the segment header is cut short")]
    assert delivered(journal) is None


@pytest.mark.parametrize("number", [2, 3], ids=["the next", "one number is free"])
@pytest.mark.parametrize("cut_bytes", [0, 5], ids=["whole", "torn"])
def test_what_a_failed_commit_left_is_no_part_of_its_segment_though_only_the_ids_behind_it_tell(
    journal: Path, number: int, cut_bytes: int
) -> None:
    failed = write_segment(journal, 1, 1, puts(1, 5))
    cut(failed, failed.stat().st_size - cut_bytes)
    unsynced = write_segment(journal, number, 4, [])
    write_segment(journal, number + 1, 4, puts(4, 2))
    lose_checkpoint(unsynced)
    assert findings(journal) == []
    assert sum(report.live_items for report in reports(journal)) == 5
    assert delivered(journal) == [1, 2, 3, 4, 5]


def test_a_closed_segment_that_was_renamed_by_hand_is_bad(journal: Path) -> None:
    segment = write_segment(journal, 1, 1, puts(1, 3))
    write_segment(journal, 3, 4, puts(4, 1))
    segment.rename(segment.with_name(f"0000000002{segment.name[10:]}"))
    assert findings(journal) == [("2", "the header says segment 1: was the file renamed?")]
    assert delivered(journal) is None
