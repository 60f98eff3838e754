"""Recovery of a journal at startup: its state is the newest CHECKPOINT and the records after it.

Older segments are read only for DUE, LEASE, KEY and ORIGIN records, from the lowest id on that one may be about, so
that startup does not take longer with the backlog. A bad record is a torn tail if no SYNC record says that it was on
disk; intact records may follow it only in a journal with SYNCs, whose pages get to the disk in any order. The tail is
cut off and kept beside the segment. Anything else is damage, and so is a missing segment that the marker names or a
reader needs: JournalCorrupt is raised before anything is changed, and stops this queue, never the others.

`survey` reads as startup does and changes nothing. `recover` makes a journal of that. `reread` is for a journal in use
after an interrupted turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, RecordsDisagree, SegmentsMissing
from kestreld.files import FileLayer
from kestreld.journal.beginnings import (
    Beginning,
    counted_bytes,
    is_empty,
    look,
    missing_words,
    open_segment,
    take_unfinished,
)
from kestreld.journal.journal import Journal
from kestreld.journal.marker import SUFFIX as MARKER_SUFFIX
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.reader_states import ReaderStates
from kestreld.journal.records import (
    ADD_FACTOR,
    FRAME_BYTES,
    ID_MAX,
    NOTES,
    PUT,
    PUT_FIELDS_BYTES,
    PUT_HEADER_BYTES,
    READER_MAX,
    TYPE_OFFSET,
    Check,
    Checkpoint,
    Range,
    Type,
    checked_end,
    find_whole_records,
    item_id,
    item_optional_fields,
    merged,
    put_checksum,
    read_reader,
    read_sync,
    record_end,
    whole_records,
    why_bad,
)
from kestreld.journal.segment import TORN_MARK, UNSYNCED_MARK, Segment, parse_segment_name

Report = Callable[[str], None]


@dataclass(slots=True)
class Recovered:
    """A journal ready to be appended to, and its state. `notes` are for the log.

    `is_sealed`: it ends with a SYNC record that covers all of it, as after a controlled stop.
    """

    journal: Journal
    state: Checkpoint
    notes: list[str] = field(default_factory=list)
    is_sealed: bool = False


@dataclass(slots=True)
class Survey:
    """Contents of a journal's files. `state` is None if nothing was ever written to it.

    `buffer` is the content of the newest of `segments`, `end` the end of its good records; `aside` are segments whose
    creation was interrupted, `names` all names in the folder.
    """

    queue: str
    journal_id: int
    segments: list[Segment]
    state: Checkpoint | None
    checkpoint_end: int
    buffer: bytes
    end: int
    aside: list[Segment]
    replaced: list[Segment]
    names: list[str]
    marker: Marker | None
    has_sync: bool = False
    is_sealed: bool = False

    def journal(self, files: FileLayer, clock: Clock, open_files: OpenFiles, folder: str) -> Journal:
        """The journal, ready to be read."""
        return Journal(files, clock, open_files, folder, self.queue, self.journal_id, self.segments)


def recover(files: FileLayer, clock: Clock, open_files: OpenFiles, folder: str) -> Recovered | None:
    """Recover the journal in `folder` and cut off its torn tail. None if nothing was ever written to it.

    Raises JournalCorrupt if the files cannot be trusted; then nothing was changed.
    """
    found = survey(files, folder)
    newest = found.segments[-1].path.rpartition("/")[2] if found.segments else ""
    for name in found.names:
        is_past = name.endswith(UNSYNCED_MARK) and name != newest + UNSYNCED_MARK
        is_past |= name.endswith(MARKER_SUFFIX) and found.marker is not None and name != found.marker.name
        if is_past or name.endswith(".seg.new"):
            files.unlink(f"{folder}/{name}")  # an unfinished segment was never part of the journal
    notes, is_cut = [], True
    if found.end < len(found.buffer):
        note, is_cut = cut_tail(files, clock, found.segments[-1].path, found.buffer, found.end)
        notes.append(note)
    notes.extend([_set_aside(files, clock, segment) for segment in found.aside])
    if found.state is None:
        return None
    journal = found.journal(files, clock, open_files, folder)
    is_distrusted = newest + UNSYNCED_MARK in found.names or not is_cut
    journal.adopt(
        found.checkpoint_end, found.marker, found.replaced, is_proven=found.has_sync, is_distrusted=is_distrusted
    )
    return Recovered(journal, found.state, notes, found.is_sealed)


def reread(files: FileLayer, journal: Journal) -> Checkpoint | None:
    """Read the state of a journal in use after an interrupted turn, and cut off an incomplete record.

    The journal itself is updated. None if nothing was ever written to it. Raises JournalCorrupt or OSError.
    """
    known = journal.live.number if journal.segments else 0
    found = []
    for name in files.list_dir(journal.folder):
        parsed = parse_segment_name(name)
        if parsed is not None and parsed[0] >= known:
            found.append(open_segment(files, f"{journal.folder}/{name}"))
    if not found:
        if journal.segments:
            raise JournalCorrupt(journal.live.path, 0, "the live segment is missing")
        return None
    newest = found[-1]
    if newest.checkpoint is None:
        raise newest.problem or JournalCorrupt(newest.segment.path, 0, "it has no CHECKPOINT")
    buffer = files.read_file(newest.segment.path)
    if journal.failed is not None and newest.segment.number == known:
        buffer = buffer[: journal.live.used_bytes]  # the bytes behind it are the rest of a failed commit
    begun = [one.segment for one in found if one.segment.number > known]
    states = _states_before(files, newest.checkpoint, [*journal.segments, *begun])
    end = newest.segment.used_bytes = _Replay(newest.checkpoint, newest, states).run(buffer)
    if end < len(buffer):
        fd = files.open_append(newest.segment.path)
        try:
            files.truncate(fd, end)
        finally:
            files.close(fd)
    journal.take_up(begun, end, newest.checkpoint_end)
    return newest.checkpoint


def survey(files: FileLayer, folder: str) -> Survey:
    """Read the journal in `folder` as startup does, changing nothing. Raises JournalCorrupt."""
    names = files.list_dir(folder)
    marker = find_marker(names)
    found = look(files, folder, names)
    aside = [one.segment for one in take_unfinished(found, marker, files.read_file)]
    stood_in_for = {number for one in found for number in one.replaced}
    replaced = [one.segment for one in found if one.segment.number in stood_in_for]
    found = [one for one in found if one.segment.number not in stood_in_for]
    last_number = found[-1].segment.number if found else 0
    if marker is not None and last_number < marker.number:
        raise SegmentsMissing(folder, f"{missing_words(last_number + 1, marker.number)}: {marker}")
    if not found:
        return Survey("", 0, [], None, 0, b"", 0, aside, replaced, names, marker)
    for earlier, later in pairwise(found):
        if later.segment.number == earlier.segment.number:
            other = earlier.segment.path.rpartition("/")[2]
            raise JournalCorrupt(later.segment.path, 0, f"{other} has the same number: was a file copied there?")
        size_bytes, used_bytes = earlier.segment.used_bytes, counted_bytes(earlier, later, files.read_file)
        if size_bytes < used_bytes:
            raise JournalCorrupt(earlier.segment.path, size_bytes, f"the file ends here, not at byte {used_bytes}")
        if earlier.problem is not None and size_bytes <= earlier.segment.records_at and not is_empty(earlier, later):
            raise earlier.problem  # readers would meet neither its items nor damage
        earlier.segment.used_bytes = used_bytes
    newest = found[-1]
    assert newest.checkpoint is not None
    assert newest.header is not None
    buffer = newest.read(files)
    floor = 0 if marker is None else marker.floor
    states = _states_before(files, newest.checkpoint, [one.segment for one in found], floor)
    replay = _Replay(newest.checkpoint, newest, states)
    end = newest.segment.used_bytes = replay.run(buffer)
    _must_be_complete(files, folder, found, marker)
    header, segments = newest.header, [one.segment for one in found]
    return Survey(
        header.queue,
        header.journal_id,
        segments,
        newest.checkpoint,
        newest.checkpoint_end,
        buffer,
        end,
        aside,
        replaced,
        names,
        marker,
        replay.has_sync,
        replay.sealed_bytes == end == len(buffer),
    )


def _states_before(files: FileLayer, state: Checkpoint, segments: list[Segment], floor: int = 0) -> ReaderStates:
    """States at the CHECKPOINT of the newest segment; notes before it are read from the lowest id that counts.

    Items below the `floor` are done: a power cut may bring back deleted segments with such items, without the records
    that they are done.
    """
    states = ReaderStates(state)
    states.first_id = max(floor, min([segment.first_id for segment in segments], default=0))
    if not state.held_from:
        return states
    older = [segment for segment in segments if segment.number < state.segment]
    while len(older) > 1 and older[1].first_id <= state.held_from:
        del older[0]
    for segment in older:
        _take_before(files.read_file(segment.path)[: segment.used_bytes], segment, states)
    return states


def _take_before(buffer: bytes, segment: Segment, states: ReaderStates) -> None:
    """Take in a whole segment before the newest. PUTs are skipped by their length; seek points are added.

    Raises JournalCorrupt.
    """
    at, size, path = segment.records_at, len(buffer), segment.path
    while at < size:
        if size - at >= PUT_HEADER_BYTES and buffer[at + TYPE_OFFSET] == Type.PUT:
            end = record_end(buffer, at)
            if not at + PUT_HEADER_BYTES <= end <= size:
                raise JournalCorrupt(path, at, why_bad(-1))
            if at >= segment.mark_at:
                segment.mark(item_id(buffer[at : at + PUT_HEADER_BYTES]), at)
        else:
            record_type, end = checked_end(buffer, at)
            if not record_type:
                raise JournalCorrupt(path, at, why_bad(end))
            states.take_before(record_type, buffer[at + FRAME_BYTES : end])
        at = end


def _must_be_complete(files: FileLayer, folder: str, found: list[Beginning], marker: Marker | None) -> None:
    """Raise SegmentsMissing if a segment that a reader needs is missing. The newest of `found` has been replayed."""
    state, first = found[-1].checkpoint, found[0].segment
    assert state is not None
    needed = min((reader.head for reader in state.readers), default=state.next_id)
    if state.held_from:
        needed = min(needed, state.held_from)
    if marker is not None:
        needed = max(needed, marker.floor)
        # Else unknown: a power cut may have lost the records that its items were done.
        if needed < first.first_id and not first.compacted:
            raise SegmentsMissing(folder, f"everything before segment {first.number} is missing")
    for earlier, later in pairwise(found):
        first_missing, last_missing = earlier.segment.number + 1, later.segment.number - 1
        is_gap = first_missing <= last_missing and needed < later.segment.first_id
        # A number is left free for a compacted segment, which may never be written.
        if is_gap and _end_id(files, earlier) < later.segment.first_id:
            raise SegmentsMissing(folder, missing_words(first_missing, last_missing))
        if is_gap and _misses_due(state, earlier, later):
            words = "and their DUE records may be missing"
            raise RecordsDisagree(folder, 0, f"{missing_words(first_missing, last_missing)}, {words}")


def _misses_due(state: Checkpoint, earlier: Beginning, later: Beginning) -> bool:
    """True if a missing segment between two others may have had DUE records, even without items.

    The number of held items proves nothing then: items that are done may be taken for some of them.
    """
    said_bytes = later.checkpoint.previous_bytes if later.checkpoint is not None else 0
    return bool(state.held_from) and said_bytes != earlier.segment.used_bytes


def _end_id(files: FileLayer, found: Beginning) -> int:
    """Id that follows a segment's last item. Raises JournalCorrupt."""
    segment = found.segment
    if segment.compacted and found.checkpoint is not None:
        return found.checkpoint.next_id
    buffer = files.read_file(segment.path)[: segment.used_bytes]
    end_id = segment.first_id
    for record_type, at, _ in whole_records(buffer, segment.records_at, segment.path):
        if record_type == Type.PUT:
            end_id = PUT.unpack_from(buffer, at)[3] + 1
    return end_id


NEVER_PUT: Final = "a DUE, KEY or ORIGIN record is about an item that was not put"


class _Replay:
    """State of a CHECKPOINT, changed by the records after it."""

    def __init__(self, state: Checkpoint, newest: Beginning, states: ReaderStates) -> None:
        self._states = states
        self.has_sync = False  # a SYNC record was found
        self.sealed_bytes = 0  # end of the last SYNC that covers everything before it
        self._state = state
        self._newest = newest
        self._ahead: list[tuple[int, int, bytes]] = []  # offset, type and body of records before their item's PUT
        self._readers = states.readers
        for reader in state.readers:  # counted together until the end: DONEs do not tell them apart
            reader.items += reader.held_items
            reader.data_bytes += reader.held_bytes
        # PUTs for every reader are counted once; a reader's share are those after it joined.
        self._joined = dict.fromkeys(self._readers, (0, 0))
        self._held_from, self._first_new = state.held_from, state.next_id
        # Held items of each reader whose DUE records were not found. They may have been done since.
        self._unknown = {
            number: unknown
            for number, reader in self._readers.items()
            if (unknown := reader.held_items - len(states.due.get(number, ()))) > 0
        }

    def run(self, buffer: bytes) -> int:
        """Apply the records after the CHECKPOINT; returns the offset where the good ones end. Raises JournalCorrupt.

        The loop over PUTs is written inline, because startup spends most of its time there.
        """
        state, segment, readers = self._state, self._newest.segment, self._readers
        shared_items = shared_bytes = 0
        at, size, synced = self._newest.checkpoint_end, len(buffer), False
        unpack_put = PUT.unpack_from
        next_id, next_mark, ahead = state.next_id, at, self._ahead
        while at < size:
            if size - at >= PUT_HEADER_BYTES and buffer[at + TYPE_OFFSET] == 1:
                body_bytes, checksum, _, put_id, add_ms, expire_ms, flags, only = unpack_put(buffer, at)
                end = at + FRAME_BYTES + body_bytes
                if end > size or body_bytes < PUT_FIELDS_BYTES:
                    break
                seed = put_id + body_bytes + add_ms * ADD_FACTOR
                if put_checksum(buffer[at + PUT_HEADER_BYTES : end], seed, expire_ms, flags, only) != checksum:
                    break
                if put_id >= ID_MAX or only >= READER_MAX:
                    break
                if at >= next_mark:
                    segment.mark(put_id, at)
                    next_mark = at + 65536
                next_id = put_id + 1
                if only == 0:
                    shared_items += 1
                    shared_bytes += body_bytes - PUT_FIELDS_BYTES
                elif only in readers:
                    readers[only].items += 1
                    readers[only].data_bytes += body_bytes - PUT_FIELDS_BYTES
                state.put_items += 1
                state.put_bytes += body_bytes - PUT_FIELDS_BYTES
                at = end
                if ahead:
                    self._catch_up(next_id)
                    if ahead:
                        raise RecordsDisagree(segment.path, ahead[0][0], NEVER_PUT)
                continue
            record_type, end = checked_end(buffer, at)
            if not record_type:
                break
            body = buffer[at + FRAME_BYTES : end]
            if record_type in NOTES and NOTES[record_type](body).item_id >= next_id:
                ahead.append((at, record_type, body))
            elif ahead and record_type not in NOTES:
                raise RecordsDisagree(segment.path, ahead[0][0], NEVER_PUT)
            elif record_type == Type.READER:
                change = read_reader(body)
                joined = _count_on(buffer, end, change.at_id - next_id, shared_items, shared_bytes)
                self._joined.setdefault(change.reader, joined)
                self._states.change(change)
            elif record_type == Type.SYNC:
                covered_bytes = read_sync(body)
                synced = self.has_sync = covered_bytes > 0
                if covered_bytes == at:
                    self.sealed_bytes = end
            else:
                self._states.take(record_type, body)
            at = end
        if at < size:
            must_be_torn(buffer, at, segment.path, synced)
        state.next_id = next_id
        self._must_know_all_held(segment.path)
        self._settle(shared_items, shared_bytes)
        return ahead[0][0] if ahead else at

    def _must_know_all_held(self, path: str) -> None:
        if self._states.is_ahead_of(self._state.next_id):
            raise RecordsDisagree(path, 0, NEVER_PUT)
        for number, unknown in self._unknown.items():
            if number not in self._readers or self._states.first_id > self._held_from:
                continue
            since = self._states.done[number][len(self._readers[number].done) :]
            if unknown > ids_within(since, self._held_from, self._first_new):
                words = f"DUE records are missing: items={unknown} are delayed or retrying, but their ids are unknown"
                raise RecordsDisagree(path, 0, words)

    def _catch_up(self, next_id: int) -> None:
        """Apply the records about PUTs that have followed by now."""
        ahead = self._ahead[:]
        self._ahead.clear()
        for at, record_type, body in ahead:
            if NOTES[record_type](body).item_id < next_id:
                self._states.take(record_type, body)
            else:
                self._ahead.append((at, record_type, body))

    def _settle(self, shared_items: int, shared_bytes: int) -> None:
        state, states = self._state, self._states
        state.readers = states.settled(state.next_id)
        for reader in state.readers:
            items_before, bytes_before = self._joined[reader.number]
            reader.held_items = len(reader.due)
            reader.held_bytes = sum([due.data_bytes for due in reader.due.values()])
            reader.items += shared_items - items_before - reader.held_items
            reader.data_bytes += shared_bytes - bytes_before - reader.held_bytes
        state.next_reader, state.origins, state.failures = states.next_reader, states.origins, states.failures


def ids_within(ranges: list[Range], first: int, end: int) -> int:
    """Number of ids from `first` to before `end` that are in any of the ranges."""
    return sum(max(min(last + 1, end) - max(one, first), 0) for one, last in merged(ranges))


def _count_on(buffer: bytes, at: int, puts: int, items: int, data_bytes: int) -> tuple[int, int]:
    """Items and bytes put for every reader, counting `puts` PUTs further on.

    A commit writes its READER records first: PUTs of the same commit may follow that came before the reader.
    """
    while puts > 0:
        record_type, end = checked_end(buffer, at)
        if not record_type:
            break
        if record_type == Type.PUT:
            puts -= 1
            if item_optional_fields(buffer[at : at + PUT_HEADER_BYTES])[2] == 0:
                items += 1
                data_bytes += end - at - PUT_HEADER_BYTES
        at = end
    return items, data_bytes


def must_be_torn(buffer: bytes, at: int, path: str, synced: bool, check: Check = checked_end) -> None:
    """Raise JournalCorrupt unless a torn tail or preallocated zeros start at `at`."""
    code = check(buffer, at)[1]
    if code == -3 and not buffer[at:].strip(b"\0"):
        return
    if code == -4:
        raise JournalCorrupt(path, at, why_bad(code))  # whole, so not torn
    anything_whole = False
    for record_type, start, end in find_whole_records(buffer, at + 1, None, check):
        anything_whole = True
        if record_type == Type.SYNC:
            if read_sync(buffer[start + FRAME_BYTES : end]) > at:
                raise JournalCorrupt(path, at, why_bad(code) + ", in a part that had been synced")
            synced = True
    if anything_whole and not synced:
        raise JournalCorrupt(path, at, why_bad(code) + ", and intact records follow")


def cut_tail(
    files: FileLayer, clock: Clock, path: str, buffer: bytes, end: int, check: Check = checked_end
) -> tuple[str, bool]:
    """Keep a torn tail beside the segment and cut it off; returns a log line, and True if the cut is on disk.

    If it is not, a power cut may lose the next appends, and bring back whole records of the tail with the same
    ids.
    """
    tail = buffer[end:]
    kept = ""
    if tail.strip(b"\0"):
        kept = f"{path}{TORN_MARK}{clock.wall_ms}"
        _write_whole(files, kept, tail)
    fd = files.open_append(path)
    try:
        files.truncate(fd, end)
        is_cut = _synced(files, fd)
    finally:
        files.close(fd)
    whole = sum(1 for _ in find_whole_records(buffer, end + 1, None, check))
    if not kept:
        return f"{path}: {len(tail)} unused bytes cut off at byte {end}", is_cut
    return (
        f"{path}: torn tail of {len(tail)} bytes cut off at byte {end}, {whole} intact records in it; kept as {kept}"
    ), is_cut


def _synced(files: FileLayer, fd: int) -> bool:
    try:
        files.sync(fd)
    except OSError:
        return False  # a new segment is begun, which says how much of this one counts
    return True


def _write_whole(files: FileLayer, path: str, data: bytes) -> None:
    fd = files.create(path)
    try:
        written = 0
        while written < len(data):
            written += files.write(fd, data[written:])
    finally:
        files.close(fd)


def _set_aside(files: FileLayer, clock: Clock, segment: Segment) -> str:
    kept = f"{segment.path}{TORN_MARK}{clock.wall_ms}"
    files.rename(segment.path, kept)
    return f"{segment.path}: incomplete when it was created; kept as {kept}"
