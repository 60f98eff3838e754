"""From the files of a journal back to its state: the newest whole CHECKPOINT and what was written after it.

A bad record is a torn tail (cut off, its bytes kept beside the segment) only where no sync ever covered it; anything
else is corruption and stops this queue, never the others. Nothing older than a CHECKPOINT is read at start.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, SegmentsMissing
from kestreld.files import FileLayer
from kestreld.journal.journal import Journal
from kestreld.journal.marker import SUFFIX as MARKER_SUFFIX
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.records import (
    ADD_FACTOR,
    ID_MAX,
    PUT,
    PUT_FIELDS_BYTES,
    PUT_HEADER_BYTES,
    READER_MAX,
    Checkpoint,
    Range,
    ReaderChange,
    ReaderState,
    Type,
    checked_end,
    find_whole_records,
    item_oddities,
    merged,
    put_checksum,
    read_abort,
    read_checkpoint,
    read_done,
    read_reader,
    read_sync,
    whole_records,
    why_bad,
)
from kestreld.journal.segment import TORN_MARK, UNSYNCED_MARK, Header, Segment, decode_header, parse_segment_name

HEAD_BYTES: Final = 8192  # of a segment: most have header and CHECKPOINT in them, small ones all they have
Report = Callable[[str], None]


@dataclass(slots=True)
class Recovered:
    """A journal ready to be appended to, and the state it stands for. `notes` are for the log.

    `is_sealed`: it says at its very end that all of it is on disk, as after a stop in good order.
    """

    journal: Journal
    state: Checkpoint
    notes: list[str] = field(default_factory=list)
    is_sealed: bool = False


@dataclass(slots=True)
class _Found:
    segment: Segment
    header: Header
    checkpoint: Checkpoint | None
    checkpoint_end: int
    problem: JournalCorrupt | None
    content: bytes = b""  # all of it, where it is small
    has_sync: bool = False  # it says that something was on disk
    sealed_bytes: int = 0  # where the last SYNC ends that says so of all before it

    def read(self, files: FileLayer) -> bytes:
        return self.content or files.read_file(self.segment.path)


@dataclass(slots=True)
class Survey:
    """What the files of a journal stand for. `state` is None when nothing was ever written to it.

    `buffer` is the newest of `segments`, `end` where its good records do; `aside` are segments that were being made,
    `names` all that is in the folder.
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
        journal = Journal(files, clock, open_files, folder, self.queue, self.journal_id)
        journal.segments = self.segments
        return journal


def recover(files: FileLayer, clock: Clock, open_files: OpenFiles, folder: str) -> Recovered | None:
    """The journal in `folder`, its torn tail cut off. None when nothing was ever written to it.

    Raises JournalCorrupt when what is there cannot be trusted; then nothing was changed.
    """
    found = survey(files, folder)
    newest = found.segments[-1].path.rpartition("/")[2] if found.segments else ""
    for name in found.names:
        is_past = name.endswith(UNSYNCED_MARK) and name != newest + UNSYNCED_MARK
        is_past |= name.endswith(MARKER_SUFFIX) and found.marker is not None and name != found.marker.name
        if is_past or name.endswith(".seg.new"):
            files.unlink(f"{folder}/{name}")  # a roll that a crash cut short was never part of the journal
    notes, is_cut = [], True
    if found.end < len(found.buffer):
        note, is_cut = _cut_tail(files, clock, found.segments[-1], found.buffer, found.end)
        notes.append(note)
    notes.extend([_set_aside(files, clock, segment) for segment in found.aside])
    if found.state is None:
        return None
    journal = found.journal(files, clock, open_files, folder)
    journal.adopt(found.checkpoint_end, is_proven=found.has_sync)
    journal.marker = found.marker
    journal.distrusted = newest + UNSYNCED_MARK in found.names or not is_cut
    journal.leftover = {segment.number: segment for segment in found.replaced}
    return Recovered(journal, found.state, notes, found.is_sealed)


def reread(files: FileLayer, journal: Journal) -> Checkpoint | None:
    """What a journal in use says after a turn was cut short, which it learns itself: all that is written whole.

    What is not is cut off. None when nothing was ever written to it. Raises JournalCorrupt or OSError.
    """
    known = journal.live.number if journal.segments else 0
    found = []
    for name in files.list_dir(journal.folder):
        parsed = parse_segment_name(name)
        if parsed is not None and parsed[0] >= known:
            path = f"{journal.folder}/{name}"
            found.append(_open_segment(files, Segment(parsed[0], parsed[1], path, files.size_bytes(path), 0)))
    if not found:
        if journal.segments:
            raise JournalCorrupt(journal.live.path, 0, "the live segment is gone")
        return None
    newest = found[-1]
    if newest.checkpoint is None:
        raise newest.problem or JournalCorrupt(newest.segment.path, 0, "it has no CHECKPOINT")
    buffer = files.read_file(newest.segment.path)
    if journal.failed is not None and newest.segment.number == known:
        buffer = buffer[: journal.live.used_bytes]  # behind it stands what a failed commit left
    end = newest.segment.used_bytes = _Replay(newest.checkpoint, newest).run(buffer)
    if end < len(buffer):
        fd = files.open_append(newest.segment.path)
        try:
            files.truncate(fd, end)
        finally:
            files.close(fd)
    journal.take_up([one.segment for one in found if one.segment.number > known], end, newest.checkpoint_end)
    return newest.checkpoint


def survey(files: FileLayer, folder: str) -> Survey:
    """Read the journal in `folder` as a start does, changing nothing. Raises JournalCorrupt."""
    names = files.list_dir(folder)
    marker = find_marker(names)
    found = _look(files, folder, names)
    aside: list[Segment] = []
    while found and found[-1].checkpoint is None:
        last = found.pop()
        _must_be_torn(files, last)
        if marker is not None and last.segment.number <= marker.number and last.problem is not None:
            raise JournalCorrupt(last.segment.path, last.problem.offset, f"{last.problem.reason}: {marker}")
        if found and found[-1].header.replaced and last.problem is not None:
            raise last.problem  # a compacted segment goes into place only behind a CHECKPOINT on disk
        if not found and last.segment.number > 1 and last.problem is not None:
            raise last.problem  # what stood before it went only once its CHECKPOINT was on disk
        aside.append(last.segment)
    stood_in_for = {number for one in found for number in one.header.replaced}
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
            raise JournalCorrupt(later.segment.path, 0, f"{other} has the same number: a file put there by hand?")
        size_bytes = earlier.segment.used_bytes
        used_bytes = _used_bytes(files, earlier, later)
        if size_bytes < used_bytes or earlier.problem is not None:
            if earlier.segment.first_id == later.segment.first_id:
                # Nothing was put in it: it got no further than its CHECKPOINT, which was never synced.
                used_bytes = earlier.segment.records_at
            elif size_bytes < used_bytes:
                raise JournalCorrupt(earlier.segment.path, size_bytes, f"the file ends here, not at byte {used_bytes}")
        earlier.segment.used_bytes = used_bytes
    newest = found[-1]
    assert newest.checkpoint is not None
    buffer = newest.read(files)
    end = newest.segment.used_bytes = _Replay(newest.checkpoint, newest).run(buffer)
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
        newest.has_sync,
        newest.sealed_bytes == end == len(buffer),
    )


def missing_words(first: int, last: int) -> str:
    """What to say of segments that have gone."""
    return f"segment {first} is not there" if first == last else f"segments {first} to {last} are not there"


def _must_be_complete(files: FileLayer, folder: str, found: list[_Found], marker: Marker | None) -> None:
    """Raise SegmentsMissing where one has gone that a reader needs. Of those `found` the newest has been replayed."""
    state, first = found[-1].checkpoint, found[0].segment
    assert state is not None
    needed = min((reader.head for reader in state.readers), default=state.next_id)
    if marker is not None:
        needed = max(needed, marker.floor)
        # Without a floor nobody can tell: a power cut may have lost the word that its items were done.
        if needed < first.first_id and not first.compacted:
            raise SegmentsMissing(folder, f"what stood before segment {first.number} is not there")
    for earlier, later in pairwise(found):
        first_missing, last_missing = earlier.segment.number + 1, later.segment.number - 1
        is_gap = first_missing <= last_missing and needed < later.segment.first_id
        # A number is left free for a compacted segment, which may never come.
        if is_gap and _end_id(files, earlier) < later.segment.first_id:
            raise SegmentsMissing(folder, missing_words(first_missing, last_missing))


def _end_id(files: FileLayer, found: _Found) -> int:
    """The id that follows a segment's last item. Raises JournalCorrupt."""
    segment = found.segment
    if segment.compacted and found.checkpoint is not None:
        return found.checkpoint.next_id
    buffer = files.read_file(segment.path)[: segment.used_bytes]
    end_id = segment.first_id
    for record_type, at, _ in whole_records(buffer, segment.records_at, segment.path):
        if record_type == Type.PUT:
            end_id = PUT.unpack_from(buffer, at)[3] + 1
    return end_id


def _used_bytes(files: FileLayer, earlier: _Found, later: _Found) -> int:
    """How much was written to a segment that counts, as far as what stands behind it tells."""
    segment, checkpoint = earlier.segment, later.checkpoint
    if segment.compacted:
        return segment.used_bytes
    if checkpoint is not None:
        if later.segment.number == segment.number + 1:
            return checkpoint.previous_bytes
        if checkpoint.previous_bytes == segment.used_bytes:
            return segment.used_bytes  # a number was left free between them
    # The CHECKPOINT that knows was never synced, and is lost.
    return segment.used_bytes if earlier.problem is not None else _end_below(files, segment, later.segment.first_id)


def _end_below(files: FileLayer, segment: Segment, end_id: int) -> int:
    """Where the items of a segment with ids below `end_id` end. Behind them stands what a commit left that failed and
    could not be cut off: its ids were given out again.
    """
    buffer = files.read_file(segment.path)
    at, next_id = segment.records_at, segment.first_id
    while at < len(buffer):
        record_type, end = checked_end(buffer, at)
        if not record_type and next_id < end_id:
            return segment.used_bytes  # damage, to be found when it is read
        if not record_type or (record_type == Type.PUT and PUT.unpack_from(buffer, at)[3] >= end_id):
            break
        if record_type == Type.PUT:
            next_id = PUT.unpack_from(buffer, at)[3] + 1
        at = end
    return at


def _look(files: FileLayer, folder: str, names: list[str]) -> list[_Found]:
    """The segments of a folder in order, each with its header and CHECKPOINT where these are whole."""
    found = []
    for name in names:
        parsed = parse_segment_name(name)
        if parsed is not None:
            path = f"{folder}/{name}"
            segment = Segment(parsed[0], parsed[1], path, files.size_bytes(path), 0)
            found.append(_open_segment(files, segment))
    return found


def _open_segment(files: FileLayer, segment: Segment) -> _Found:
    fd = files.open_read(segment.path)
    try:
        start = files.read_at(fd, min(HEAD_BYTES, segment.used_bytes), 0)
        stated_bytes = int.from_bytes(start[12:16], "little")
        if len(start) < stated_bytes <= segment.used_bytes:
            start = files.read_at(fd, stated_bytes + HEAD_BYTES, 0)  # a compacted segment may replace thousands
        try:
            header, header_bytes = decode_header(start, segment.path)
        except JournalCorrupt as damage:
            return _Found(segment, Header(0, segment.number, segment.first_id, 0, ""), None, 0, damage)
        if header.segment != segment.number:
            problem = JournalCorrupt(
                segment.path, 0, f"the header says segment {header.segment}: a file renamed by hand?"
            )
            return _Found(segment, header, None, 0, problem)
        segment.records_at = header_bytes
        segment.compacted = bool(header.replaced)
        body_bytes = int.from_bytes(start[header_bytes : header_bytes + 4], "little")
        needed = header_bytes + 9 + body_bytes
        if len(start) < needed <= segment.used_bytes:
            start = files.read_at(fd, needed, 0)
    finally:
        files.close(fd)
    record_type, end = checked_end(start, header_bytes)
    if record_type != Type.CHECKPOINT:
        reason = "the segment does not begin with a CHECKPOINT" if record_type else why_bad(end)
        return _Found(segment, header, None, 0, JournalCorrupt(segment.path, header_bytes, reason))
    checkpoint = read_checkpoint(start[header_bytes + 9 : end])
    content = start if len(start) == segment.used_bytes else b""
    return _Found(segment, header, checkpoint, end, None, content)


def _must_be_torn(files: FileLayer, last: _Found) -> None:
    """A newest segment without a whole CHECKPOINT is a cut-short roll only if nothing whole stands in it."""
    buffer = last.read(files)
    assert last.problem is not None
    if next(find_whole_records(buffer, 1), None) is not None or "version" in last.problem.reason:
        raise last.problem


class _Replay:
    """A CHECKPOINT's state, and what the records after it make of it."""

    def __init__(self, state: Checkpoint, newest: _Found) -> None:
        self._state = state
        self._newest = newest
        self._readers = {reader.number: reader for reader in state.readers}
        # PUTs for every reader are counted once; a reader's share is what came after it joined.
        self._joined = dict.fromkeys(self._readers, (0, 0))
        self._done: dict[int, list[Range]] = {number: list(reader.done) for number, reader in self._readers.items()}

    def run(self, buffer: bytes) -> int:
        """Apply what follows the CHECKPOINT; returns the offset where the good records end. Raises JournalCorrupt.

        The loop over PUTs is written out: it is most of a start's time.
        """
        state, segment, readers = self._state, self._newest.segment, self._readers
        shared_items = shared_bytes = 0
        at, size, synced = self._newest.checkpoint_end, len(buffer), False
        unpack_put = PUT.unpack_from
        next_id, next_mark = state.next_id, at
        while at < size:
            if size - at >= PUT_HEADER_BYTES and buffer[at + 8] == 1:
                body_bytes, checksum, _, put_id, add_ms, expire_ms, flags, only = unpack_put(buffer, at)
                end = at + 9 + body_bytes
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
                continue
            record_type, end = checked_end(buffer, at)
            if not record_type:
                break
            body = buffer[at + 9 : end]
            if record_type == Type.READER:
                change = read_reader(body)
                joined = _count_on(buffer, end, change.at_id - next_id, shared_items, shared_bytes)
                self._change(change, joined)
            elif record_type == Type.SYNC:
                covered_bytes = read_sync(body)
                synced = self._newest.has_sync = covered_bytes > 0
                if covered_bytes == at:
                    self._newest.sealed_bytes = end
            else:
                self._take(record_type, body)
            at = end
        if at < size:
            must_be_torn(buffer, at, segment.path, synced)
        state.next_id = next_id
        self._settle(shared_items, shared_bytes)
        return at

    def _change(self, change: ReaderChange, joined: tuple[int, int]) -> None:
        if change.dropped:
            self._readers.pop(change.reader, None)
            return
        self._readers[change.reader] = ReaderState(change.reader, change.kind, change.name, change.at_id, change.at_id)
        self._joined[change.reader] = joined
        self._done[change.reader] = []
        self._state.next_reader = max(self._state.next_reader, change.reader + 1)

    def _take(self, record_type: int, body: bytes) -> None:
        if record_type == Type.DONE:
            gone = read_done(body)
            reader = self._readers.get(gone.reader)
            if reader is not None:
                reader.items -= gone.items
                reader.data_bytes -= gone.data_bytes
                reader.ended[gone.reason] += gone.items
                self._done[gone.reader].extend(gone.ranges)
        elif record_type == Type.ABORT:
            abort = read_abort(body)
            if abort.reader in self._readers:
                self._readers[abort.reader].retries[abort.item_id] = abort.times

    def _settle(self, shared_items: int, shared_bytes: int) -> None:
        for number, reader in self._readers.items():
            items_before, bytes_before = self._joined[number]
            reader.items += shared_items - items_before
            reader.data_bytes += shared_bytes - bytes_before
            settle(reader, self._done[number])
        self._state.readers = list(self._readers.values())


def _count_on(buffer: bytes, at: int, puts: int, items: int, data_bytes: int) -> tuple[int, int]:
    """Items and bytes put for every reader up to `puts` PUTs further on.

    A commit writes its READER records first: PUTs of the same commit may follow that the reader was too late for.
    """
    while puts > 0:
        record_type, end = checked_end(buffer, at)
        if not record_type:
            break
        if record_type == Type.PUT:
            puts -= 1
            if item_oddities(buffer[at : at + PUT_HEADER_BYTES])[2] == 0:
                items += 1
                data_bytes += end - at - PUT_HEADER_BYTES
        at = end
    return items, data_bytes


def settle(reader: ReaderState, done: list[Range]) -> None:
    """Advance the head over what is done and keep the ranges ahead of it, merged and in order."""
    ahead = merged(done)
    while ahead and ahead[0][0] <= reader.head:
        reader.head = max(reader.head, ahead.pop(0)[1] + 1)
    reader.done = ahead
    if reader.retries:
        reader.retries = {
            retried: times
            for retried, times in reader.retries.items()
            if retried >= reader.head and not any(first <= retried <= last for first, last in ahead)
        }


def must_be_torn(buffer: bytes, at: int, path: str, synced: bool) -> None:
    """Raise JournalCorrupt unless what starts at `at` is a torn tail or preallocated zeros."""
    code = checked_end(buffer, at)[1]
    if code == -3 and not buffer[at:].strip(b"\0"):
        return
    if code == -4:
        raise JournalCorrupt(path, at, why_bad(code))  # whole, so not torn
    anything_whole = False
    for record_type, start, end in find_whole_records(buffer, at + 1):
        anything_whole = True
        if record_type == Type.SYNC:
            if read_sync(buffer[start + 9 : end]) > at:
                raise JournalCorrupt(path, at, why_bad(code) + ", in a part that was on disk")
            synced = True
    if anything_whole and not synced:
        raise JournalCorrupt(path, at, why_bad(code) + ", and whole records follow")


def _cut_tail(files: FileLayer, clock: Clock, segment: Segment, buffer: bytes, end: int) -> tuple[str, bool]:
    """Keep the torn tail beside the segment and cut it off; what to log, and whether it is off on disk, too.

    Else a power cut may lose what is put there next and bring back whole records of the tail, with the same ids.
    """
    tail = buffer[end:]
    kept = ""
    if tail.strip(b"\0"):
        kept = f"{segment.path}{TORN_MARK}{clock.wall_ms}"
        _write_whole(files, kept, tail)
    fd = files.open_append(segment.path)
    try:
        files.truncate(fd, end)
        is_cut = _synced(files, fd)
    finally:
        files.close(fd)
    whole = sum(1 for _ in find_whole_records(buffer, end + 1))
    if not kept:
        return f"{segment.path}: {len(tail)} unused bytes cut off at byte {end}", is_cut
    return (
        f"{segment.path}: torn tail of {len(tail)} bytes cut off at byte {end}, {whole} whole records in it;"
        f" kept as {kept}"
    ), is_cut


def _synced(files: FileLayer, fd: int) -> bool:
    try:
        files.sync(fd)
    except OSError:
        return False  # the journal goes on in a new segment, which says how much of this one counts
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
    return f"{segment.path}: cut short while it was made; kept as {kept}"
