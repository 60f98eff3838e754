"""Damaged journals are built anew: every item whose PUT is whole is delivered, in order, and nothing else is."""

import errno
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.inspection import IDS_AT_MOST
from kestreld.journal.records import (
    FRAME_BYTES,
    NOTES,
    PUT_HEADER_BYTES,
    Due,
    Key,
    Type,
    checked_end,
    item_data,
    item_id,
    put_record,
    read_due,
    read_key,
    read_leases,
)
from kestreld.journal.repair import RepairReport, repair
from kestreld.journal.segment import Header, decode_header, encode_header
from kestreld.queues.leases import lease
from kestreld.queues.reader_lifecycle import ReaderLifecycle
from tests.support.clock import FakeClock
from tests.support.damage import (
    FAMILY,
    FOLDER,
    KEYS,
    OTHER,
    RECORDS,
    SPOOL,
    Place,
    Sample,
    drained,
    held_back,
    holders,
    known_key,
    of_each_byte,
    some_of,
)
from tests.support.engine import Engine, QuickFiles
from tests.support.memory_files import MemoryFiles
from tests.support.mortal_files import Killed, MortalFiles

SAMPLE = Sample()
QUEUES = (FAMILY, f"{FAMILY}+audit")
READ: Mapping[Type, Callable[[bytes], Sequence[Due | Key]]] = {
    Type.DUE: lambda body: [read_due(body)],
    Type.KEY: lambda body: [read_key(body)],
    Type.LEASE: read_leases,
}
QUICK = 1500  # so many of the bits and cuts are tried where there is no time for all
Changes = Mapping[str, bytes | None]  # what is wrong with files, by path; None = missing
Spans = list[tuple[str, int, int]]  # path, and from where to where it is not what was written


def mended(disk: MemoryFiles) -> RepairReport:
    return repair(disk, FakeClock(), FOLDER, segment_bytes_max=600)


def is_hit(place: Place, spans: Spans) -> bool:
    """Whether the record there is not whole."""
    return any(place.path == path and place.start < end and start < place.end for path, start, end in spans)


def is_believed(place: Place, spans: Spans) -> bool:
    """Whether the record is whole and, right behind damage, leads to a whole PUT: else an item may hold it."""
    there = [one for one in SAMPLE.places if one.path == place.path]
    at = there.index(place)
    if is_hit(place, spans):
        return False
    if at == 0 or not is_hit(there[at - 1], spans):
        return at == 0 or is_believed(there[at - 1], spans)
    following = next((one for one in there[at:] if one.record_type not in NOTES or is_hit(one, spans)), None)
    return following is not None and following.record_type == Type.PUT and not is_hit(following, spans)


def hit(spans: Spans) -> set[int]:
    """The items whose PUTs are not whole."""
    return {found for found, put in SAMPLE.puts.items() if is_hit(put, spans)}


def known_to_have_been(changes: Changes, lost: set[int]) -> range:
    """The ids that what is left speaks of. What is missing before them is taken for done with, what was behind the last
    whole item may never have been.
    """
    first = next(path for path in SAMPLE.segments if changes.get(path, b"there"))
    return range(int(first[-24:-4]), max(set(SAMPLE.puts) - lost, default=0) + 1)


def said_of(one: int, record_type: Type) -> list[Place]:
    """The records of that type that are about an item."""
    read = READ[record_type]
    return [
        place
        for place in SAMPLE.places
        if place.record_type == record_type and any(said.item_id == one for said in read(place.record[FRAME_BYTES:]))
    ]


def copied(disk: MemoryFiles) -> MemoryFiles:
    copy = MemoryFiles()
    for path, content in disk.files.items():
        copy.make_dir(path.rpartition("/")[0])
        copy.files[path] = bytearray(content)
    return copy


def is_named(name: bytes, spans: Spans) -> bool:
    """Whether a whole record is left that says what the number of the reader `name` is called."""
    return any(
        name in place.record and not is_hit(place, spans) for place in SAMPLE.places if place.record_type != Type.PUT
    )


def assert_all_that_is_whole_is_delivered(changes: Changes, spans: Spans, where: str = "") -> RepairReport:
    disk = SAMPLE.disk(changes)
    assert Engine(SPOOL, SAMPLE.disk(changes)).take(OTHER) == b"sound", where
    report = mended(disk)
    started = Engine(SPOOL, copied(disk))
    held, leased, keys = held_back(started), holders(started), {key: known_key(started, key) for key in KEYS}
    found = drained(disk)
    lost = hit(spans)
    for key, one in SAMPLE.keys.items():
        assert keys[key] in (0, one), where
        if one not in lost and not any(is_hit(said, spans) for said in said_of(one, Type.KEY)):
            assert keys[key] == one, f"{where}: the key of {one} is forgotten"
    # A reader whose name is nowhere left is a queue with its number for a name, if anything is left that speaks of it:
    # and the next one too, as a name that stands amid damage is believed only if its number is the next.
    known = list(QUEUES)
    if not is_named(b"audit", spans):
        known.remove(QUEUES[1])
        found.pop(f"{FAMILY}+reader-2", None)
    if not (is_named(b"audit", spans) and is_named(b"spark", spans)):
        found.pop(f"{FAMILY}+reader-3", None)
    assert [item_data(record) for record in found[OTHER]] == [b"sound"], where
    assert set(found) == {OTHER, *known}, where
    for name in known:
        ids = list(map(item_id, found[name]))
        assert len(ids) == len(set(ids)), f"{where}: {name} twice"
        waiting = [one for one in ids if one not in held[name]]
        assert waiting == sorted(waiting), f"{where}: {name} out of order"
        for one, due_at_ms in SAMPLE.held_back[name].items():
            said = [*said_of(one, Type.DUE), *said_of(one, Type.LEASE)]
            if one in ids and all(is_believed(place, spans) for place in said):
                assert held[name][one] == due_at_ms, f"{where}: {name} forgot when {one} is due"
        for one, had in leased[name].items():
            was = SAMPLE.holders[name].get(one)
            assert was is not None, f"{where}: {name} has leased {one} out to nobody"
            assert had[0] in ("", was[0]), f"{where}: {name} has leased {one} out to somebody else"
            assert had[1] == was[1], f"{where}: {name} has leased {one} out once more"
        for one, was in SAMPLE.holders[name].items():
            paths = {place.path for place in said_of(one, Type.LEASE)}
            if one in ids and not any(path in paths for path, _, _ in spans):
                assert leased[name].get(one) == was, f"{where}: {name} has forgotten who has {one}"
        assert [SAMPLE.puts[one].record for one in ids] == found[name], f"{where}: {name} altered"
        assert set(SAMPLE.undone[name]) - lost <= set(ids), f"{where}: {name} lost more than {lost}"
        assert not lost & set(ids)
    if report.kept_at:
        undone = {one for name in known for one in SAMPLE.undone[name]}
        assert all(report.is_lost(one) for one in lost & undone.intersection(known_to_have_been(changes, lost))), where
        lost_from = min([damage.lost_from for damage in report.damages if damage.lost_from], default=1 << 64)
        assert all(report.is_lost(one) or one >= lost_from for one in lost & undone), f"{where}: lost without a word"
        kept = {path.removeprefix(report.kept_at): bytes(data) for path, data in disk.files.items()}
        for path in SAMPLE.segments:
            original = changes.get(path, SAMPLE.files[path])
            assert kept.get(path.removeprefix(FOLDER)) == original, f"{where}: the damaged original is not kept"
    return report


# Everything that can happen to one byte


def assert_a_flip_does_no_more_than_it_must(path: str, bit: int) -> None:
    place = SAMPLE.place_at(path, bit // 8)
    what = Type(place.record_type).name if place else "header"
    where = f"{path} bit {bit} of the {what}"
    spans = [(path, bit // 8, bit // 8 + 1)]
    report = assert_all_that_is_whole_is_delivered({path: SAMPLE.flipped(path, bit)}, spans, where)
    if what != "DONE":  # without it its items are there again
        redelivered = report.restored - len({one for name in QUEUES for one in SAMPLE.undone[name]} - hit(spans))
        assert redelivered == 0 or not report.kept_at, where


def assert_a_cut_does_no_more_than_it_must(path: str, size_bytes: int) -> None:
    changes = {path: SAMPLE.files[path][:size_bytes]}
    assert_all_that_is_whole_is_delivered(
        changes, [(path, size_bytes, len(SAMPLE.files[path]))], f"{path} cut at {size_bytes}"
    )


@pytest.mark.long
def test_bits_flipped_here_and_there() -> None:
    for path, bit in random.Random(4).sample(SAMPLE.bits, QUICK):
        assert_a_flip_does_no_more_than_it_must(path, bit)


def test_segments_cut_here_and_there() -> None:
    for path, size_bytes in random.Random(4).sample(SAMPLE.cuts, 60):
        assert_a_cut_does_no_more_than_it_must(path, size_bytes)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_bits_flipped_all_over_every_segment() -> None:
    for path, bit in some_of(of_each_byte(SAMPLE.bits)):
        assert_a_flip_does_no_more_than_it_must(path, bit)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_segment_cut_all_over() -> None:
    for path, size_bytes in some_of(SAMPLE.cuts):
        assert_a_cut_does_no_more_than_it_must(path, size_bytes)


def test_the_sample_has_something_of_everything() -> None:
    assert {place.record_type for place in SAMPLE.places} == set(Type) - {Type.IMPORT}
    assert len(SAMPLE.segments) == 7
    assert SAMPLE.undone[FAMILY] != SAMPLE.undone[f"{FAMILY}+audit"] != list(SAMPLE.puts)


# More than that


segments = st.sampled_from(SAMPLE.segments)
places = st.floats(0, 1, exclude_max=True)
cuts = st.tuples(segments, places, st.just(1.0), st.none())
blots = st.tuples(segments, places, places, st.binary(min_size=1, max_size=8))
missing = st.tuples(segments, st.just(0.0), st.just(1.0), st.none())


def blotted(blots: list[tuple[str, float, float, bytes | None]]) -> tuple[dict[str, bytes | None], Spans]:
    """Stretches overwritten with a pattern, or (None) with nothing to the end; at the start of a file it is missing."""
    changes: dict[str, bytes | None] = {}
    spans: Spans = []
    for path, first, last, pattern in blots:
        content = changes.get(path, SAMPLE.files[path])
        if not content:
            continue
        start = int(first * len(content))
        if pattern is None:
            changes[path] = content[:start] or None
            spans.append((path, start, len(SAMPLE.files[path])))
            continue
        end = min(start + int(last * 300) + 1, len(content))
        blot = (pattern * 301)[: end - start]
        changes[path] = content[:start] + blot + content[end:]
        spans += [(path, at, at + 1) for at in range(start, end) if content[at] != blot[at - start]]
    return changes, spans


def can_be_told(changes: Changes, spans: Spans) -> bool:
    """Something is left, and an item that holds records of other journals is not bad itself where ids are missing."""
    holder = next(found for found, put in SAMPLE.puts.items() if item_data(put.record) == RECORDS)
    return any(changes.get(path, b"there") for path in SAMPLE.segments) and (
        len(changes) == 1 or holder not in hit(spans)
    )


@settings(max_examples=settings().max_examples * 3)
@given(st.lists(cuts | blots, min_size=1, max_size=4))
def test_damage_in_several_places(places: list[tuple[str, float, float, bytes | None]]) -> None:
    changes, spans = blotted(places)
    assume(can_be_told(changes, spans))
    assert_all_that_is_whole_is_delivered(changes, spans)


@given(missing, st.lists(cuts | blots, max_size=2))
def test_a_missing_segment_and_more(
    gone: tuple[str, float, float, bytes | None], places: list[tuple[str, float, float, bytes | None]]
) -> None:
    changes, spans = blotted([*places, gone])
    assume(can_be_told(changes, spans))
    assert_all_that_is_whole_is_delivered(changes, spans)


def test_a_missing_segment_is_named_with_the_items_that_went_with_it() -> None:
    path = SAMPLE.segments[1]
    report = assert_all_that_is_whole_is_delivered({path: None}, [(path, 0, len(SAMPLE.files[path]))])
    ids = [found for found, put in SAMPLE.puts.items() if put.path == path]
    assert [str(damage) for damage in report.damages] == [
        f"{FOLDER}: byte 0: segment 2 is missing; lost: item {ids[0]} to {ids[-1]}"
    ]
    assert report.lost == len(ids)


class BadBlocks(MemoryFiles):
    """Some bytes of the file at `bad` cannot be read."""

    bad = ""
    start = 0
    end = 1 << 30

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        content = self._open[fd]
        end = min(self.end, offset + size_bytes, len(content))
        if content is self.files.get(self.bad) and max(offset, self.start) < end:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(fd, size_bytes, offset)

    def read_file(self, path: str) -> bytes:
        fd = self.open_read(path)
        try:
            return self.read_at(fd, self.size_bytes(path), 0)
        finally:
            self.close(fd)


def with_items(disk: MemoryFiles, segment_bytes_max: int = 16 << 20) -> str:
    """A queue with 40 items, of which a page holds eight; its newest segment."""
    engine = Engine(SPOOL, disk, max_journal_size_bytes=segment_bytes_max)
    for first in range(0, 40, 8):
        engine.put("q", *[b"%0500d" % number for number in range(first, first + 8)])
        engine.end_turn()
        engine.maintenance.after_turn()
    return max(path for path in disk.files if path.startswith(f"{SPOOL}/q.journal/") and path.endswith(".seg"))


def test_a_disk_that_cannot_read_a_page_costs_what_is_on_that_page() -> None:
    disk = BadBlocks()
    disk.bad, disk.start, disk.end = with_items(disk), 8192, 12288
    report = repair(disk, FakeClock(), f"{SPOOL}/q.journal")
    assert [damage.path for damage in report.damages] == [disk.bad]
    assert report.lost in range(8, 11)
    delivered = [int(data) for data in Engine(SPOOL, disk).drain("q")]
    assert delivered == sorted(delivered)
    assert len(delivered) == 40 - report.lost


@pytest.mark.parametrize("is_readable", [True, False], ids=["zeros", "unreadable"])
def test_where_the_newest_segment_cannot_be_read_items_may_be_lost_whatever_its_length(*, is_readable: bool) -> None:
    disk = BadBlocks()
    newest = with_items(disk, 10_000)
    first_id = int(newest[-24:-4])
    assert first_id > 16
    if is_readable:
        disk.files[newest][:] = bytes(len(disk.files[newest]))
    else:
        disk.bad = newest
    report = repair(disk, FakeClock(), f"{SPOOL}/q.journal")
    assert str(report.damages[-1]).endswith(f"; items from {first_id} on may be lost")
    again = Engine(SPOOL, disk)
    assert again.reader("q").queue.next_id >= first_id + IDS_AT_MOST
    assert len(again.drain("q")) == first_id - 1


def test_where_the_last_pages_cannot_be_read_the_report_says_from_which_item_on() -> None:
    disk = BadBlocks()
    disk.bad, disk.start = with_items(disk), 8192
    (damage,) = repair(disk, FakeClock(), f"{SPOOL}/q.journal").damages
    assert str(damage).endswith("the disk cannot read the whole file; lost: item 15; items from 16 on may be lost")
    again = Engine(SPOOL, disk)
    assert again.reader("q").queue.next_id > 41, "no id is given out again"
    assert len(again.drain("q")) == 14


def test_what_a_failed_commit_left_behind_is_no_part_of_the_journal() -> None:
    first, second = SAMPLE.segments[:2]
    reused = min(found for found, put in SAMPLE.puts.items() if put.path == second)
    junk = put_record(reused, 1, 0, 0, 0, b"never stored")
    checkpoint = next(
        place for place in SAMPLE.places if place.path == second
    )  # which says how much of the first counts
    changes = {first: SAMPLE.files[first] + junk, second: SAMPLE.flipped(second, checkpoint.end * 8 - 1)}
    assert_all_that_is_whole_is_delivered(changes, [])


@pytest.mark.parametrize("is_refused", [True, False], ids=["a start refuses it", "a start takes it"])
def test_an_item_with_an_id_of_a_later_segment_hides_none_of_those_behind_it(*, is_refused: bool) -> None:
    put, second = SAMPLE.puts[22], SAMPLE.segments[3]
    stray = put_record(1 << 40, 1, 0, 0, 0, bytes(put.end - put.start - PUT_HEADER_BYTES))
    content = SAMPLE.files[second][: put.start] + stray + SAMPLE.files[second][put.end :]
    spans = [(second, put.start, put.end)]
    changes = {second: content}
    if is_refused:
        other = SAMPLE.puts[12]
        changes[other.path] = SAMPLE.flipped(other.path, other.end * 8 - 1)
        spans.append((other.path, other.start, other.end))
    report = assert_all_that_is_whole_is_delivered(changes, spans)
    assert f"{second}: byte {put.start}: PUT: out of place; lost: item 22" in map(str, report.damages)


# What is said, and what is left as it is


def of_type(record_type: Type) -> Place:
    return [place for place in SAMPLE.places if place.record_type == record_type][-2]


def test_a_lost_item_is_named_with_file_and_offset_and_where_the_original_is() -> None:
    put = SAMPLE.puts[12]
    disk = SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)})
    report = mended(disk)
    assert list(map(str, report.damages)) == [
        f"{put.path}: byte {put.start}: PUT: the checksum does not match; lost: item 12"
    ]
    undone = {one for name in QUEUES for one in SAMPLE.undone[name]}
    assert (report.lost, report.restored, report.kept_at) == (
        1,
        len(undone) - 1,
        f"{SPOOL}/.damaged/{FAMILY}.{FakeClock().wall_ms}",
    )


def test_a_bad_done_brings_its_items_back_and_loses_none() -> None:
    done = of_type(Type.DONE)
    report = mended(SAMPLE.disk({done.path: SAMPLE.flipped(done.path, done.end * 8 - 1)}))
    assert [str(damage) for damage in report.damages] == [
        f"{done.path}: byte {done.start}: DONE: the checksum does not match; no item known to be lost"
    ]
    assert report.restored > len({one for name in QUEUES for one in SAMPLE.undone[name]})


def test_a_done_item_whose_put_is_bad_is_no_loss() -> None:
    put = SAMPLE.puts[1]
    report = mended(SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)}))
    assert (report.lost, len(report.damages)) == (0, 1)


@pytest.mark.parametrize("tail", [b"", b"\0" * 5000, b"\x40\0\0\0half"], ids=["none", "zeros", "torn"])
def test_a_journal_that_a_start_takes_is_left_as_it_is(tail: bytes) -> None:
    newest = SAMPLE.segments[-1]
    disk = SAMPLE.disk({newest: SAMPLE.files[newest] + tail})
    before = {path: bytes(content) for path, content in disk.files.items()}
    report = mended(disk)
    assert (report.damages, report.kept_at) == ([], "")
    assert disk.files == before


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    put = SAMPLE.puts[12]
    disk = SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)})
    before = {path: bytes(content) for path, content in disk.files.items()}
    report = repair(disk, FakeClock(), FOLDER, dry_run=True)
    assert (report.lost, report.kept_at) == (1, "")
    assert disk.files == before


def test_without_a_lease_its_items_are_delivered_at_once() -> None:
    (first, *_) = [place for place in SAMPLE.places if place.record_type == Type.LEASE]
    ids = [due.item_id for due in read_leases(first.record[FRAME_BYTES:])]
    disk = SAMPLE.disk({first.path: SAMPLE.flipped(first.path, first.end * 8 - 1)})
    assert mended(disk).lost == 0
    assert ids == [10, 11]
    extended = {10: ("", SAMPLE.holders[FAMILY][10][1])}  # and whose it is may have been in the bad stretch
    assert holders(Engine(SPOOL, disk))[FAMILY] == extended
    assert item_id(Engine(SPOOL, disk).reader(FAMILY).take(FakeClock().wall_ms) or b"") == 11


def test_without_a_holder_it_is_not_known_who_has_the_lease_and_nobody_else_has_it() -> None:
    first, second = [place for place in SAMPLE.places if place.record_type == Type.HOLDER]
    attempt, bob = SAMPLE.holders[FAMILY][10][1], SAMPLE.holders[FAMILY][11]
    for bad, expected in ((first, bob), (second, ("", bob[1]))):
        disk = SAMPLE.disk({bad.path: SAMPLE.flipped(bad.path, bad.end * 8 - 1)})
        mended(disk)
        assert holders(Engine(SPOOL, disk))[FAMILY] == {10: ("", attempt), 11: expected}


def test_the_name_of_a_number_is_not_taken_from_before_the_damage(tmp_path: Path) -> None:
    engine = Engine(SPOOL, MemoryFiles(), retry_delays_ms=(1000,))
    engine.put(FAMILY, b"one", b"two")
    engine.end_turn()
    for number in (1, 2):  # each process numbers them from 1 on
        assert lease(engine.reader(FAMILY), engine.clock.wall_ms, 60_000, f"10.0.0.{number}:1")
        engine.end_turn()
        engine.crash()
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    content = disk.files[max(path for path in disk.files if path.endswith(".seg"))]
    content[content.index(b"10.0.0.2:1")] ^= 1
    mended(disk)
    found = holders(Engine(SPOOL, disk))[FAMILY]
    assert {one: holder for one, (holder, _) in found.items()} == {1: "10.0.0.1:1", 2: ""}


def test_a_journal_of_a_later_version_is_not_touched() -> None:
    path = SAMPLE.segments[2]
    content = bytearray(SAMPLE.files[path])
    header, header_bytes = decode_header(bytes(content), path)
    later = bytearray(encode_header(Header(header.journal_id, 3, header.first_id, header.created_at_ms, FAMILY)))
    later[8] = 5  # the version; its checksum is made anew
    disk = SAMPLE.disk({path: sealed(bytes(later)) + bytes(content[header_bytes:])})
    before = {name: bytes(data) for name, data in disk.files.items()}
    with pytest.raises(JournalCorrupt, match="journal version 5"):
        mended(disk)
    assert disk.files == before


def sealed(header: bytes) -> bytes:
    return header[:-4] + (xxh3_64_intdigest(header[:-4]) & 0xFFFFFFFF).to_bytes(4, "little")


# Afterwards


def test_a_repaired_journal_is_sound_and_goes_on_with_new_ids() -> None:
    put = SAMPLE.puts[12]
    disk = SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)})
    mended(disk)
    assert mended(disk).damages == []
    engine = Engine(SPOOL, disk)
    engine.put(FAMILY, b"new")
    engine.end_turn()
    engine.crash()
    assert engine.drain(FAMILY)[-1] == b"new"
    assert engine.queue(FAMILY).next_id > max(SAMPLE.puts) + 1
    assert engine.log == []


def after_a_takeover() -> tuple[MemoryFiles, str]:
    """A spool whose default reader goes by the name of `a` now, and the segment whose CHECKPOINT alone says so."""
    disk = MemoryFiles()
    engine = Engine(SPOOL, disk)
    lifecycle = ReaderLifecycle(engine.collection, engine.maintenance)
    family = lifecycle.family(FAMILY)
    for take_over in (lambda: None, lambda: lifecycle.reader(family, "a")):
        take_over()
        assert family.put(b"item")
        assert engine.end_turn() == {}
    return disk, max(path for path in disk.files if path.startswith(FOLDER))


def assert_both_items_are_repaired_for(queue: str, disk: MemoryFiles) -> None:
    assert mended(disk).damages
    found = {name: list(map(item_data, records)) for name, records in drained(disk).items() if name != OTHER}
    assert found == {queue: [b"item", b"item"]}


@pytest.mark.parametrize("step", [13, pytest.param(3, marks=pytest.mark.long)])
def test_a_reader_that_took_over_keeps_its_name_where_one_bit_of_the_checkpoint_that_has_it_is_wrong(step: int) -> None:
    disk, newest = after_a_takeover()
    sound = bytes(disk.files[newest])
    at = decode_header(sound, newest)[1]
    written = {path: bytes(content) for path, content in disk.files.items()}
    for bit in range(at * 8, checked_end(sound, at)[1] * 8, step):
        disk.files = {path: bytearray(content) for path, content in written.items()}
        disk.files[newest][bit // 8] ^= 1 << (bit % 8)
        assert_both_items_are_repaired_for(f"{FAMILY}+a", disk)


def test_a_reader_that_took_over_is_the_default_one_again_where_the_checkpoint_that_has_its_name_is_gone() -> None:
    disk, newest = after_a_takeover()
    at = decode_header(bytes(disk.files[newest]), newest)[1]
    disk.files[newest][at + 20 : at + 24] = b"gone"
    assert_both_items_are_repaired_for(FAMILY, disk)


def test_what_readers_and_streams_had_done_is_kept() -> None:
    put = SAMPLE.puts[12]
    disk = SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)})
    before = Engine(SPOOL, SAMPLE.disk()).queue(FAMILY)
    mended(disk)
    queue = Engine(SPOOL, disk).queue(FAMILY)
    assert {stream.name: stream.head for stream in queue.streams.values()} == {"spark": 4}
    for label, reader in queue.readers.items():
        assert (reader.number, reader.retries) == (before.readers[label].number, before.readers[label].retries)
        assert reader.items == before.readers[label].items - 1


def test_a_disk_that_is_full_keeps_nothing_of_the_attempt_and_the_damaged_journal_as_it_is() -> None:
    class Full(MemoryFiles):
        room_bytes = 1000

        def write(self, fd: int, data: bytes) -> int:
            self.room_bytes -= len(data)
            if self.room_bytes < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(fd, data)

    put = SAMPLE.puts[12]
    disk = Full()
    for path, content in SAMPLE.disk({put.path: SAMPLE.flipped(put.path, put.end * 8 - 1)}).files.items():
        disk.make_dir(path.rpartition("/")[0])
        disk.files[path] = content
    before = {path: bytes(content) for path, content in disk.files.items()}
    with pytest.raises(JournalFailed):
        mended(disk)
    assert disk.files == before
    disk.room_bytes = 1 << 20
    assert mended(disk).lost == 1


# Killed


def on_disk(folder: Path) -> Path:
    """The sample on a real disk, with a bad item and a bad CHECKPOINT."""
    folder.mkdir(parents=True)
    bad = [SAMPLE.puts[12], of_type(Type.CHECKPOINT)]
    for path, content in SAMPLE.files.items():
        damaged = bytearray(content)
        for place in bad:
            if place.path == path:
                damaged[place.end - 1] ^= 1
        target = folder / Path(path).relative_to(SPOOL)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(damaged)
    return folder


def repairs_killed(folder: Path) -> Iterator[Path]:
    """A spool for every change to the disk that a repair makes, killed there; the last one was repaired whole."""
    for dies_at in count(1):
        spool = on_disk(folder / str(dies_at))
        try:
            repair(MortalFiles(dies_at), FakeClock(), f"{spool}/{FAMILY}.journal", segment_bytes_max=600)
        except Killed:
            yield spool
        else:
            yield spool
            return


def delivered(spool: Path) -> dict[str, list[int]]:
    engine = Engine(spool, QuickFiles())
    found = {}
    for name in QUEUES:
        found[name] = []
        while (record := engine.reader(name).take(engine.clock.wall_ms)) is not None:
            found[name].append(item_id(record))
    engine.abandon()
    return found


def originals(spool: Path) -> set[str]:
    """Where a folder is whose files are those that were damaged."""
    names = [Path(path).name for path in SAMPLE.segments]
    damaged = {name: (on_disk_once(spool) / f"{FAMILY}.journal" / name).read_bytes() for name in names}
    found = set()
    for folder in [spool / f"{FAMILY}.journal", *(spool / ".damaged").glob("*")]:
        if {path.name: path.read_bytes() for path in folder.glob("*.seg")} == damaged:
            found.add(folder.parent.name)
    return found


def on_disk_once(spool: Path) -> Path:
    folder = spool.parent / "damaged"
    return folder if folder.exists() else on_disk(folder)


def test_a_repair_killed_at_any_step_and_begun_again_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    expected = {
        name: [one for one in SAMPLE.undone[name] if one != 12 and one not in SAMPLE.held_back[name]] for name in QUEUES
    }
    steps = 0
    for spool in repairs_killed(tmp_path):
        steps += 1
        report = repair(QuickFiles(), FakeClock(), f"{spool}/{FAMILY}.journal", segment_bytes_max=600)
        assert len(originals(spool)) == 1, "the damaged journal is kept, once"
        assert report.lost in (0, 1)  # 0 where the killed one had done it
        assert delivered(spool) == expected
    assert steps > 15


def test_a_server_started_on_a_killed_repair_has_the_old_journal_or_the_new(tmp_path: Path) -> None:
    expected = {
        name: [one for one in SAMPLE.undone[name] if one != 12 and one not in SAMPLE.held_back[name]] for name in QUEUES
    }
    outcomes = set()
    for spool in repairs_killed(tmp_path):
        engine = Engine(spool, QuickFiles())
        assert engine.drain(OTHER) == [b"sound"]
        engine.abandon()
        (place,) = originals(spool)
        outcomes.add(place == ".damaged")
        if place != ".damaged":
            repair(QuickFiles(), FakeClock(), f"{spool}/{FAMILY}.journal", segment_bytes_max=600)
        assert delivered(spool) == expected
        assert originals(spool) == {".damaged"}
    assert outcomes == {True, False}
