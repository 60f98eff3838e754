"""Damage in a file that nobody writes to any more is never the end of a journal: it is reported, raised or logged."""

import random
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-spark installs it")

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.discovery import discover
from kestreld.journal.kestrel.ops import ADDX, Op, encode
from kestreld.journal.kestrel.verify import verify_kestrel
from kestreld.journal.records import FRAME_BYTES, PUT_HEADER_BYTES, Type, item_id, sync_record
from kestreld.journal.resync import Resync
from kestreld.journal.segment import parse_segment_name
from kestreld.journal.segment_scan import find_segments
from kestreld.journal.verify import SegmentReport, verify_spool
from kestrelspark.rows import CORRUPT, Mode, RowSelection, batches
from tests.support.damage import RECORDS, Sample, of_each_byte, some_of
from tests.support.segments import BEGIN_MS, puts, write_segment

CLOSED: Final = "archive/work/1700000000000"
PLACES: Final = ["spool/work.journal", CLOSED]


class Closed:
    """The closed segments of a journal; in a spool the live one follows. Each begins with a SYNC."""

    def __init__(self, folder: Path) -> None:
        sample = Sample()
        self.root = folder.parents[1] if folder.name.isdecimal() else folder.parent
        folder.mkdir(parents=True)
        names = sample.segments[:-1] if folder.name.isdecimal() else sample.segments
        for name in names:
            (folder / Path(name).name).write_bytes(sample.files[name])
        self.paths = [folder / Path(name).name for name in sample.segments[:-1]]
        self.last = self.paths[-1]

    def found(self, mode: Mode) -> Any:
        return read([self.root], mode)


def read(paths: Iterable[Path], mode: Mode) -> tuple[list[int], list[str]]:
    """The ids of the items that were put, and what is said of damage."""
    ids: list[int] = []
    corrupt: list[str] = []
    for batch in batches(discover([str(path) for path in paths]).files, RowSelection(("event", "id", CORRUPT), mode)):
        for row in batch.to_pylist():
            if row[CORRUPT] is not None:
                corrupt.append(row[CORRUPT])
            elif row["event"] == "put":
                ids.append(row["id"])
    return ids, corrupt


def first_of_each(corrupt: Iterable[str]) -> dict[str, tuple[int, str]]:
    first: dict[str, tuple[int, str]] = {}
    for words in corrupt:
        match = re.fullmatch(r"(.*): byte (\d+): (.*)", words)
        assert match is not None
        first.setdefault(match[1], (int(match[2]), match[3]))
    return first


def bad(reports: Iterable[SegmentReport]) -> dict[str, tuple[int, str]]:
    """What journal-verify finds damaged: offset and reason by path."""
    return {
        report.path: (report.bad_offset, report.reason or "")
        for report in reports
        if report.bad_offset is not None and not report.torn
    }


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def bits_of(path: Path) -> list[int]:
    """Those to flip: of each byte, or of one in some."""
    return [bit for _, bit in some_of(of_each_byte((str(path), bit) for bit in range(path.stat().st_size * 8)))]


def each_bit_is_found(folder: Path, bits: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """So many `bits` are tried, None = some of each byte."""
    closed = Closed(folder)
    assert closed.found(Mode.FAILFAST)[1] == []
    count = closed.last.stat().st_size * 8
    for bit in bits_of(closed.last) if bits is None else random.Random(8).sample(range(count), bits):
        flip(closed.last, bit)
        caplog.clear()
        ids, corrupt = closed.found(Mode.PERMISSIVE)
        assert set(first_of_each(corrupt)) == {str(closed.last)}, f"bit {bit}"
        assert first_of_each(corrupt) == bad(verify_spool(FileLayer(), str(closed.root))), f"bit {bit}"
        assert caplog.messages == []
        with pytest.raises(JournalCorrupt, match=re.escape(corrupt[0])):
            closed.found(Mode.FAILFAST)
        assert closed.found(Mode.DROPMALFORMED) == (ids, [])
        assert [words.replace("dropped: ", "") for words in caplog.messages[:-1]] == corrupt
        assert re.fullmatch(
            rf"{re.escape(str(closed.last))}: {len(corrupt)} damaged stretches of \d+ bytes dropped",
            caplog.messages[-1],
        )
        flip(closed.last, bit)


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_of_a_closed_segment_is_found_in_each_mode_and_where_journal_verify_finds_it(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    each_bit_is_found(tmp_path / place, 90, caplog)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_anywhere_in_a_closed_segment_is_found_in_each_mode_and_where_journal_verify_finds_it(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    each_bit_is_found(tmp_path / place, None, caplog)


def salvaged(path: Path, end_id: int) -> list[int]:
    """The ids of the items that a repair finds in a segment."""
    (segment,) = [one for one in find_segments(FileLayer(), str(path.parent), "work") if one.path == str(path)]
    buffer = path.read_bytes()
    pieces = Resync(buffer, segment.records_at, segment.first_id, end_id).pieces()
    return [item_id(buffer[start:end]) for record_type, start, end in pieces if record_type == Type.PUT]


def each_flip_leaves_what_a_repair_finds(folder: Path, bits: Callable[[Path], Iterable[int]]) -> None:
    closed = Closed(folder)
    for path, following in pairwise(sorted(folder.glob("*.seg"))):
        end_id = (parse_segment_name(following.name) or (0, 0))[1]
        for bit in bits(path):
            flip(path, bit)
            (file,) = [one for one in discover([str(closed.root)]).files if one.path == str(path)]
            rows = [row for batch in batches([file], RowSelection(("event", "id"))) for row in batch.to_pylist()]
            assert [row["id"] for row in rows if row["event"] == "put"] == salvaged(path, end_id), f"{path} {bit}"
            flip(path, bit)


def test_items_within_a_damaged_item_are_no_rows_as_a_repair_takes_none_of_them_for_its_own(tmp_path: Path) -> None:
    def frame(path: Path) -> Iterable[int]:
        at = path.read_bytes().find(RECORDS) - PUT_HEADER_BYTES
        return range(at * 8, (at + FRAME_BYTES) * 8) if at > 0 else ()

    each_flip_leaves_what_a_repair_finds(tmp_path / "spool" / "work.journal", frame)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_flipped_bit_anywhere_in_a_closed_segment_leaves_the_rows_that_a_repair_finds(tmp_path: Path) -> None:
    each_flip_leaves_what_a_repair_finds(tmp_path / "spool" / "work.journal", bits_of)


def synced_early(folder: Path, number: int = 1) -> tuple[Path, int]:
    """A segment with a SYNC behind its first item, and damage further on; where that is."""
    records = puts(1, 50)
    path = write_segment(folder, number, 1, [records[0], sync_record(300), *records[1:]])
    at = path.read_bytes().index(records[20])
    flip(path, (at + 60) * 8)
    return path, at


def test_the_rows_behind_damage_in_an_archive_are_there(tmp_path: Path) -> None:
    path, at = synced_early(tmp_path / CLOSED)
    ids, corrupt = read([tmp_path / "archive"], Mode.PERMISSIVE)
    assert ids == [number for number in range(1, 51) if number != 21]
    assert corrupt == [f"{path}: byte {at}: the checksum does not match"]


def test_a_closed_segment_that_is_named_alone_is_no_live_one(tmp_path: Path) -> None:
    path, at = synced_early(tmp_path / "work.journal")
    write_segment(tmp_path / "work.journal", 2, 51, puts(51, 1))
    assert read([path], Mode.PERMISSIVE)[1] == [f"{path}: byte {at}: the checksum does not match"]


def test_whole_records_that_a_torn_tail_leaves_out_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, at = synced_early(tmp_path / "work.journal")
    assert read([path], Mode.FAILFAST) == (list(range(1, 21)), [])
    (words,) = caplog.messages
    assert words.startswith(f"{path}: byte {at}: torn tail: ")
    assert "29 intact records follow" in words


@pytest.mark.parametrize("size", [-10, 100])
def test_a_segment_that_is_cut_short_in_an_archive_is_damaged(tmp_path: Path, size: int) -> None:
    path = write_segment(tmp_path / CLOSED, 1, 1, puts(1, 50))
    path.write_bytes(path.read_bytes()[:size])
    found = first_of_each(read([tmp_path / "archive"], Mode.PERMISSIVE)[1])
    assert found == bad(verify_spool(FileLayer(), str(tmp_path / "archive")))
    assert set(found) == {str(path)}


def test_what_a_failed_commit_left_behind_is_no_damage_in_an_archive_either(tmp_path: Path) -> None:
    path = write_segment(tmp_path / CLOSED, 1, 1, puts(1, 5))
    used_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + puts(6, 1)[0][:-3])
    write_segment(tmp_path / CLOSED, 2, 6, puts(6, 2), previous_bytes=used_bytes)
    assert read([tmp_path / "archive"], Mode.FAILFAST) == (list(range(1, 8)), [])
    assert bad(verify_spool(FileLayer(), str(tmp_path / "archive"))) == {}


@pytest.mark.parametrize(("number", "replaced"), [(2, (1,)), (3, ())])
def test_only_the_checkpoint_of_the_next_segment_says_how_much_of_one_counts(
    tmp_path: Path, number: int, replaced: tuple[int, ...]
) -> None:
    """Not that of a compacted one, which says 0, nor one further on, which speaks of a segment that is missing."""
    folder = tmp_path / "spool" / "work.journal"
    path, at = synced_early(folder)
    write_segment(folder, number, 51, puts(51, 1), previous_bytes=0 if replaced else 200, replaced=replaced)
    write_segment(folder, 9, 52, puts(52, 1))
    assert bad(verify_spool(FileLayer(), str(folder.parent)))[str(path)][0] == at
    assert [words for words in read([path], Mode.PERMISSIVE)[1] if f"byte {at}" in words]


def test_an_archived_segment_counts_though_a_repair_began_anew_behind_it(tmp_path: Path) -> None:
    write_segment(tmp_path / CLOSED, 1, 1, puts(1, 5))
    write_segment(tmp_path / "spool" / "work.journal", 2, 6, puts(6, 2), previous_bytes=0)
    assert sorted(read([tmp_path], Mode.FAILFAST)[0]) == list(range(1, 8))


@pytest.mark.parametrize(("name", "is_damage"), [("work", False), (f"work.{BEGIN_MS}", True)])
def test_only_the_live_file_of_kestrels_may_be_cut_short(tmp_path: Path, name: str, is_damage: bool) -> None:
    ops = b"".join(encode(Op(ADDX, data=b"item %d" % number, add_at_ms=BEGIN_MS + number)) for number in range(9))
    (tmp_path / name).write_bytes(ops[:-3])
    if is_damage:
        (tmp_path / "work").write_bytes(ops)
    found = first_of_each(read([tmp_path], Mode.PERMISSIVE)[1])
    (report,) = [one for one in verify_kestrel(FileLayer(), str(tmp_path), Clock().wall_ms) if one.bad_offset]
    assert report.torn is not is_damage
    assert found == bad([report])
    assert (report.path in found) is is_damage


@pytest.mark.parametrize("number", [2, 3], ids=["the next", "one number is free"])
@pytest.mark.parametrize("cut_bytes", [0, 5], ids=["whole", "torn"])
def test_ids_that_were_given_out_again_are_rows_once_though_the_checkpoint_that_says_so_is_lost(
    tmp_path: Path, number: int, cut_bytes: int
) -> None:
    """A commit had failed, and could not be cut off; of the segment behind it a power cut took what was not synced."""
    folder = tmp_path / "spool" / "work.journal"
    path = write_segment(folder, 1, 1, puts(1, 5))
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut_bytes])
    unsynced = write_segment(folder, number, 4, [])
    write_segment(folder, number + 1, 4, puts(4, 2))
    unsynced.write_bytes(unsynced.read_bytes()[:100])
    assert read([tmp_path / "spool"], Mode.FAILFAST) == ([1, 2, 3, 4, 5], [])


def test_they_are_so_where_a_number_was_left_free(tmp_path: Path) -> None:
    path = write_segment(tmp_path / CLOSED, 1, 1, puts(1, 3))
    used_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"".join(puts(4, 2)))
    write_segment(tmp_path / CLOSED, 3, 4, puts(4, 2), previous_bytes=used_bytes)
    assert read([tmp_path / "archive"], Mode.FAILFAST) == ([1, 2, 3, 4, 5], [])


@pytest.mark.parametrize("size_bytes", [0, 30, 100])
def test_a_segment_in_which_nothing_was_ever_put_may_have_lost_all_it_said(tmp_path: Path, size_bytes: int) -> None:
    folder = tmp_path / "spool" / "work.journal"
    write_segment(folder, 1, 1, puts(1, 3))
    unsynced = write_segment(folder, 2, 4, [])
    write_segment(folder, 3, 4, puts(4, 1))
    unsynced.write_bytes(unsynced.read_bytes()[:size_bytes])
    assert read([folder], Mode.FAILFAST) == ([1, 2, 3, 4], [])


def test_the_segment_before_one_that_was_being_made_may_end_in_a_torn_tail(tmp_path: Path) -> None:
    folder = tmp_path / "spool" / "work.journal"
    path = write_segment(folder, 1, 1, puts(1, 3))
    path.write_bytes(path.read_bytes()[:-7])
    unfinished = write_segment(folder, 2, 4, [])
    unfinished.write_bytes(unfinished.read_bytes()[:50])
    assert read([folder], Mode.FAILFAST) == ([1, 2], [])
    assert bad(verify_spool(FileLayer(), str(folder.parent))) == {}
