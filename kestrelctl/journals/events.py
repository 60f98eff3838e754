"""The history of one queue as events in journal order: items put, held, leased, returned and gone."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.discovery import JournalFile
from kestreld.journal.record_reader import HEADER_LOOK_BYTES, segment_records
from kestreld.journal.recovery import must_be_torn
from kestreld.journal.segment import Header, decode_header


@dataclass(slots=True)
class Begun:
    """Start of a segment or of the queue: the queue's reader with its counts, held items included; None = no such
    queue.
    """

    at_ms: int
    state: records.ReaderState | None


@dataclass(slots=True)
class Came:
    """An item was put: its PUT record, the queue it came from, if any, and its due time; 0 = at once."""

    item_id: int
    at_ms: int
    record: bytes
    origin: records.Origin | None = None
    due_at_ms: int = 0


@dataclass(slots=True)
class Leased:
    """A LEASE: leases that a reader granted or extended."""

    at_ms: int
    leases: list[records.Due]


# Records about an item that may follow its PUT, behind which others about it may come.
_NOTES_BEHIND: Final = (records.Type.DUE, records.Type.KEY)
_NOTES_BEHIND_COPIES: Final = (*_NOTES_BEHIND, records.Type.HOLDER, records.Type.LEASE)
# A DONE: items left the queue. A DUE: an item, put by then, is held. An ABORT: a read was returned.
Event = Begun | Came | Leased | records.Done | records.Due | records.Abort
ATTEMPT_MASK: Final = 0xFFF  # of the `lease` of a Due


def attempt_of(due: records.Due) -> int | None:
    """Number of the attempt of a leased item, or of the last one of an item that is not leased; None = unknown."""
    is_known = due.why == records.Why.LEASED or due.lease & records.LAST_ATTEMPT
    return due.lease & ATTEMPT_MASK if is_known else None


class Step(StrEnum):
    """What happened to a lease: the words are those of Spark's events."""

    LEASED = "leased"
    EXTENDED = "extended"
    RETURNED = "returned"
    FAILED = "failed"
    CONFIRMED = "confirmed"
    ENDED = "ended"  # the item has gone in another way


@dataclass(slots=True)
class Work:
    """A lease. `leased_at_ms` is when it was granted, at the latest: extensions do not change it."""

    item_id: int
    leased_at_ms: int
    attempt: int
    holder: str


@dataclass(slots=True)
class RunningLeases:
    """The leases of a queue that run, by item id, as LEASE records and what ended them say.

    Those that only a DUE record of a stop speaks of are left out: it is not known when they began. One that is extended
    after its end, while its item waits, goes on.
    """

    running: dict[int, Work] = field(default_factory=dict)
    _over: dict[int, Work] = field(default_factory=dict)  # the last lease of items that are not done

    def see(self, event: Event) -> Iterator[tuple[Step, Work]]:
        """What an event did to leases."""
        match event:
            case Leased():
                for due in event.leases:
                    yield self._lease(due)
            case records.Due() if event.why != records.Why.LEASED:
                yield from self._end(event.item_id, is_failed=event.why == records.Why.FAILED)
            case records.Abort():
                yield from self._end(event.item_id, is_failed=True)
            case records.Done() if self.running or self._over:
                step = Step.CONFIRMED if event.reason == records.Reason.CONFIRMED else Step.ENDED
                for one in within(event.ranges, self._over):
                    del self._over[one]
                for one in within(event.ranges, self.running):
                    yield step, self.running.pop(one)
            case Begun(state=None):
                self.running.clear()
                self._over.clear()

    def _end(self, one: int, *, is_failed: bool) -> Iterator[tuple[Step, Work]]:
        if (work := self.running.pop(one, None)) is not None:
            self._over[one] = work
            yield (Step.FAILED if is_failed else Step.RETURNED), work

    def _lease(self, due: records.Due) -> tuple[Step, Work]:
        attempt = due.lease & ATTEMPT_MASK
        known = self.running.get(due.item_id) or self._over.pop(due.item_id, None)
        if known is not None and known.attempt == attempt:
            known.holder = due.holder or known.holder
            self.running[due.item_id] = known
            return Step.EXTENDED, known
        self.running[due.item_id] = work = Work(due.item_id, due.at_ms, attempt, due.holder)
        return Step.LEASED, work


def within(ranges: Sequence[records.Range], known: Collection[int]) -> list[int]:
    """The ids among `known` that are in any of the ranges, of which one may be of millions."""
    found: list[int] = []
    for first, last in ranges:
        if last - first < len(known):
            found += [one for one in range(first, last + 1) if one in known]
        else:
            found += [one for one in known if first <= one <= last]
    return found


def child_of(name: str) -> str:
    """Name of a queue's reader on the journal of its family."""
    return name.partition("+")[2]


def header_of(file: JournalFile) -> Header:
    """Header of a segment. Raises JournalCorrupt, OSError."""
    files = FileLayer()
    fd = files.open_read(file.path)
    try:
        start = files.read_at(fd, HEADER_LOOK_BYTES, 0)
        header_bytes = int.from_bytes(start[12:16], "little")
        if len(start) < header_bytes <= file.size_bytes:
            start = files.read_at(fd, header_bytes, 0)
        return decode_header(start, file.path)[0]
    finally:
        files.close(fd)


def _records(file: JournalFile) -> Iterator[tuple[int, bytes]]:
    """Types and records, without the end of the live segment that a start would cut off."""
    is_synced = False
    try:
        for found in segment_records(FileLayer(), file.path, file.end):
            if found is not None:
                is_synced = is_synced or found[0] == records.Type.SYNC
                yield found
    except JournalCorrupt as problem:
        if not file.is_live:
            raise
        must_be_torn(FileLayer().read_file(file.path), problem.offset, file.path, is_synced)


def segment_events(file: JournalFile, label: str) -> Iterator[Event]:
    """Events of a segment for the reader `label` ("" is the queue itself), Begun first.

    A compacted segment has Came for the items that it repeats. Raises JournalCorrupt, OSError.
    """
    number: int | None = None
    at_id = 0
    header = header_of(file)
    came: Came | None = None
    moved: dict[int, records.Origin] = {}
    later: dict[int, int] = {}
    holders: dict[int, str] = {}
    last_id = 0
    notes = _NOTES_BEHIND_COPIES if header.replaced else _NOTES_BEHIND
    for record_type, record in _records(file):
        if record_type == records.Type.ORIGIN:  # before its PUT, but after it if the PUT was copied
            origin = records.read_origin(record[records.FRAME_BYTES :])
            if came is not None and came.item_id == origin.item_id:
                came.origin = origin
            else:
                moved[origin.item_id] = origin
            continue
        if came is not None and record_type not in notes:
            yield came
            came = None
        if record_type == records.Type.PUT:
            only = records.item_optional_fields(record)[2]
            put_id = records.item_id(record)
            if number is not None and (only == number or (only == 0 and put_id >= at_id)):
                add_at_ms = records.item_add_at_ms(record)
                came = Came(put_id, add_at_ms, record, moved.pop(put_id, None), later.pop(put_id, 0))
            last_id = put_id
        elif record_type == records.Type.DONE:
            done = records.read_done(record[records.FRAME_BYTES :])
            if done.reader == number:
                yield done
        elif record_type == records.Type.DUE:
            due = records.read_due(record[records.FRAME_BYTES :])
            if number is not None and (due.reader == number or (due.reader == 0 and due.item_id >= at_id)):
                if due.why == records.Why.DELAYED and due.item_id > last_id:
                    later[due.item_id] = due.due_at_ms
                elif came is not None and _is_of_put(due, came, header):
                    came.due_at_ms = due.due_at_ms
                yield due
        elif record_type == records.Type.LEASE:
            leases = records.read_leases(record[records.FRAME_BYTES :], holders)
            if leases[0].reader == number:
                yield Leased(leases[0].at_ms, leases)
        elif record_type == records.Type.HOLDER:
            numbered, holder = records.read_holder(record[records.FRAME_BYTES :])
            holders[numbered] = records.holder_name(holder)
        elif record_type == records.Type.ABORT:
            abort = records.read_abort(record[records.FRAME_BYTES :])
            if abort.reader == number:
                yield abort
        elif record_type == records.Type.CHECKPOINT:
            states = records.read_checkpoint(record[records.FRAME_BYTES :]).readers
            mine = next((state for state in states if state.name == label and state.kind == records.Kind.QUEUE), None)
            if mine is not None:
                number, at_id = mine.number, mine.at_id
                mine.items += mine.held_items
                mine.data_bytes += mine.held_bytes
            yield Begun(header.created_at_ms, mine)
        elif record_type == records.Type.READER:
            change = records.read_reader(record[records.FRAME_BYTES :])
            if change.dropped and change.reader == number:
                number = None
                yield Begun(change.at_ms, None)
            elif not change.dropped and change.name == label and change.kind == records.Kind.QUEUE:
                number, at_id = change.reader, change.at_id
                yield Begun(change.at_ms, records.ReaderState(number, records.Kind.QUEUE, label, at_id, at_id))
    if came is not None:
        yield came


def _is_of_put(due: records.Due, came: Came, header: Header) -> bool:
    """True if a DUE after a PUT was copied with the PUT; False if the item was given back."""
    is_copied = bool(header.replaced) or due.at_ms == came.at_ms
    return is_copied and due.why == records.Why.DELAYED and due.item_id == came.item_id


def is_compacted(file: JournalFile) -> bool:
    """True if a segment only repeats items of others. Raises JournalCorrupt, OSError."""
    return bool(header_of(file).replaced)


def events(files: Sequence[JournalFile], label: str) -> Iterator[Event]:
    """Events of all segments in order, compacted segments excepted. Raises JournalCorrupt, OSError."""
    for file in files:
        if not is_compacted(file):
            yield from segment_events(file, label)


def items(files: Sequence[JournalFile], label: str) -> Iterator[Came]:
    """Every item on the disk, once. Raises JournalCorrupt, OSError."""
    by_path = {file.path: file for file in files}
    for file in files:
        came: Iterator[Came] = (event for event in segment_events(file, label) if isinstance(event, Came))
        if is_compacted(file):
            came = _without_originals(list(came), file, by_path, label)
        yield from came


def _without_originals(
    came: Sequence[Came], compacted: JournalFile, by_path: Mapping[str, JournalFile], label: str
) -> Iterator[Came]:
    ids = [event.item_id for event in came]  # they rise
    left = set(ids)
    for original in compacted.originals:
        at = bisect_left(ids, original.first_id)
        if original.path in by_path and at < len(ids) and ids[at] < original.until_id:
            again = segment_events(by_path[original.path], label)
            left.difference_update(event.item_id for event in again if isinstance(event, Came))
    yield from (event for event in came if event.item_id in left)
