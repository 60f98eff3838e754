"""Items of a family that a reader has yet to finish, in order of id, with their notes: input of a compaction.

The steps are spread over many turns while the queue goes on. The result is the state at the first step: later segments
have later changes, so an item that is finished meanwhile may be kept, but none is missed.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import islice, repeat
from typing import Final, NamedTuple

from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    DUE_RECORD_BYTES,
    FRAME_BYTES,
    LEASES_VERSION,
    TYPE_OFFSET,
    Due,
    Key,
    Range,
    Type,
    Why,
    due_record,
    item_id,
    item_optional_fields,
    key_record,
    origin_record,
    record_end,
    unpack_due_in_frame,
    unpack_frame_and_id,
)
from kestreld.journal.segment import Segment
from kestreld.queues.held import Held
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.reader_window import FILL_BYTES

PAUSE_BYTES: Final = 256 * 1024  # of unwanted items, after which a search pauses: a fifth of a millisecond
PASSED_COST_BYTES: Final = 1024  # cost of passing over an item, as bytes
RUN_BYTES: Final = 64 * 1024  # read in one step: less than half a millisecond

Describe = Callable[[int, bytes], bytes]  # `due_records` of an item with its PUT record
Numbered = tuple[int, bytes | None]  # id and PUT record; without one, a pause


class Part(NamedTuple):
    """Data to write of one item, or of several consecutive ones in the journal. `items` 0 = a pause."""

    first_id: int
    data: bytes
    items: int


def live_parts(queue: Queue, end_id: int) -> Iterator[Part | None]:
    """Unfinished items with ids below `end_id`, each once and with the records about it; None = a pause.

    The state is that of the first step: an item finished later may still come. Raises JournalCorrupt.
    """
    sources: list[Iterator[Numbered]] = []
    held = [reader.held for reader in queue.readers.values() if reader.held is not None]
    needs_notes = queue.needs_notes  # later segments describe items held from now on
    for one in held:
        one.track()
    for reader in queue.readers.values():
        sources.append(_numbered(sorted([*reader.unfinished(), *reader.ended_in_memory()], key=item_id)))
        sources.append(_numbered(list(islice(reader.window, reader.returned, None))))
        if not reader.attached:
            sources.append(_on_disk(queue, reader.next_unread, end_id, partial(_wanted, reader, list(reader.skip))))
    sources.extend([_on_disk(queue, stream.head, end_id, _anything) for stream in queue.streams.values()])
    others = _Others(merge(*sources, key=_id_of), end_id)
    describe = partial(due_records, queue, queue.journal.live_version if queue.journal is not None else 1)
    held_back = _held_back(queue, held, others, end_id, describe)
    part = next(held_back, None)
    last = 0
    while True:
        found, record = others.first
        if part is not None and part.first_id < found:
            yield part if part.items else None
            part = next(held_back, None)
        elif found >= end_id:
            return
        else:
            others.advance()
            if record is None:
                yield None
                continue
            if part is not None and part.first_id == found:
                part = next(held_back, None)
            if found != last:
                last = found
                yield Part(found, record + describe(found, record) if needs_notes else record, 1)


class _Others:
    """Items that are not held back; `first` is the next of them."""

    def __init__(self, numbered: Iterator[Numbered], end_id: int) -> None:
        self._numbered = numbered
        self._end: Numbered = (end_id, None)
        self.advance()

    def advance(self) -> None:
        self.first = next(self._numbered, self._end)


def _held_back(queue: Queue, held: list[Held], others: _Others, end_id: int, describe: Describe) -> Iterator[Part]:
    """Items held back at the first step. One that `others` have as well may be missing."""
    first = min([one for one in map(Held.lowest, held) if one], default=0)
    end = min(end_id, max([one.highest for one in held], default=0) + 1)
    journal = queue.journal
    if not first or journal is None:
        return
    holders = [reader for reader in queue.readers.values() if reader.held is not None]
    segment = journal.segment(journal.position_before(first)[0])
    following = journal.after(segment.number)
    if segment.compacted and following is not None and len(holders) == 1 and not queue.origins:
        yield from _as_they_stand(holders[0], journal, segment, first, others, describe)
        first = max(first, following.first_id)
    for found, record in _on_disk(queue, first, end, partial(_was_held, held)):
        yield Part(found, record + describe(found, record), 1) if record is not None else Part(found, b"", 0)


def _as_they_stand(
    reader: Reader, journal: Journal, segment: Segment, first: int, others: _Others, describe: Describe
) -> Iterator[Part]:
    """Held items of a compacted segment, in runs copied unchanged while their DUE records are still correct.

    With a million held items this loop takes most of a compaction's time, so it checks nothing else.
    """
    queue, held, number = reader.queue, reader.held_items(), reader.number
    offset, wanted_bytes = segment.offset_before(first), RUN_BYTES
    while chunk := journal.read_raw(segment.number, offset, wanted_bytes):
        at = start = run = run_id = 0
        size, is_last = len(chunk), offset + len(chunk) >= segment.used_bytes
        set_at_ms = queue.clock.wall_ms - queue.clock.monotonic_ms
        wanted_bytes = RUN_BYTES
        while at < size:
            put_end = record_end(chunk, at)
            end = put_end + DUE_RECORD_BYTES
            if end + FRAME_BYTES > size and not is_last and offset + put_end <= segment.used_bytes:
                wanted_bytes = max(end + FRAME_BYTES - at, RUN_BYTES)
                break
            if put_end + DUE_RECORD_BYTES <= size and chunk[at + TYPE_OFFSET] == Type.PUT:
                found = unpack_frame_and_id(chunk, at)[2]
                kind, holder, why, one, due_ms, attempts, _ = unpack_due_in_frame(chunk, put_end)
                if (
                    kind == Type.DUE
                    and (end + TYPE_OFFSET >= size or chunk[end + TYPE_OFFSET] in (Type.PUT, Type.KEY))
                    and one == found < others.first[0]
                    and holder == number
                    and attempts == (reader.retries.get(one, 0) if reader.retries else 0)
                    and why != Why.LEASED
                    and held.is_as_noted(one, due_ms - set_at_ms, has_failed=why == Why.FAILED)
                ):
                    if not run:
                        start, run_id = at, one
                    run += 1
                    at = end
                    continue
            if run:
                yield Part(run_id, chunk[start:at], run)
                run = 0
            kind, put_end = journal.check(chunk, at, segment.number, offset)
            if kind == Type.PUT and held.holds_since_tracked(found := item_id(chunk[at:put_end])):
                record = chunk[at:put_end]
                yield Part(found, record + describe(found, record), 1)
            at = put_end
        if run:
            yield Part(run_id, chunk[start:at], run)
        else:
            yield Part(0, b"", 0)
        offset += at


def due_records(queue: Queue, version: int, found: int, record: bytes) -> bytes:
    """Records that a compacted segment has beside an item: its ORIGIN, and a DUE for each reader that holds it.

    In a segment of a `version` that has LEASE records, that of a lease whose holder has a name is there, too.
    """
    notes = b""
    if queue.origins and (origin := queue.origins.get(found)) is not None:
        notes = origin_record(origin)
    for reader in queue.readers.values():
        held = reader.held
        if held is None or (due_at_ms := held.noted_due(found)) is None:
            continue
        wall_ms = queue.clock.wall_ms
        due_wall_ms = max(wall_ms + due_at_ms - queue.clock.monotonic_ms, 0)
        why, lease = Why.DELAYED, reader.lease_in_records(found)
        if held.failed and found in held.failed:
            why = Why.FAILED
        elif held.leases and held.is_leased(found):
            why = Why.LEASED
        size, attempts = len(record) - ITEM_HEADER_BYTES, reader.retries.get(found, 0)
        notes += due_record(Due(reader.number, why, found, wall_ms, due_wall_ms, size, attempts, lease))
        if why == Why.LEASED and version >= LEASES_VERSION:
            notes += reader.lease_copy(found)
    return notes


def key_records(queue: Queue) -> Iterator[list[bytes]]:
    """KEY records for a compacted segment, of the keys that still count, in batches."""
    clock = queue.clock
    for reader in list(queue.readers.values()):
        for known in reader.keys.in_parts() if reader.keys is not None else ():
            wall_ms, now_ms = clock.wall_ms, clock.monotonic_ms
            counting = [one for one in known if one[2] > now_ms]
            yield [
                key_record(Key(reader.number, one, wall_ms, wall_ms + until_ms - now_ms, digest))
                for digest, one, until_ms in counting
            ]


def _id_of(numbered: Numbered) -> int:
    return numbered[0]


def _numbered(records: Iterable[bytes]) -> Iterator[Numbered]:
    return ((item_id(record), record) for record in records)


def _on_disk(queue: Queue, first: int, end_id: int, is_wanted: Callable[[int, bytes], bool]) -> Iterator[Numbered]:
    """Items in the journal from id `first` on that are wanted; without a record, a pause."""
    assert queue.journal is not None
    passed_bytes = 0
    for found, record in queue.journal.puts(first, FILL_BYTES):
        if found >= end_id:
            return
        if is_wanted(found, record):
            yield found, record
        else:
            passed_bytes += len(record) + PASSED_COST_BYTES
            if passed_bytes >= PAUSE_BYTES:
                passed_bytes = 0
                yield found, None


def _anything(found: int, record: bytes) -> bool:
    """True: a stream has nothing done beyond its position."""
    return True


def _was_held(held: list[Held], found: int, record: bytes) -> bool:
    """True if the item was held back at the first step."""
    return any(map(Held.holds_since_tracked, held, repeat(found)))


def _wanted(reader: Reader, skip: list[Range], found: int, record: bytes) -> bool:
    """True if a reader that is behind has yet to load the item."""
    if item_optional_fields(record)[2] not in (0, reader.number):
        return False
    while skip and skip[0][1] < found:
        del skip[0]
    return not (skip and skip[0][0] <= found)
