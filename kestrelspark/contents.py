"""Contents of a journal file in order, as arrays: items put, their events and leases, and damaged stretches.

Records come in blocks from `scanning`. A DUE, KEY or ORIGIN stands before its PUT, or after it if the PUT was copied:
notes of a put are attached to it, any other DUE is an event. Compacted segments yield only puts, because the originals
have the events. After damage, reading continues as a repair would; a torn tail ends the file as a start does.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kestreld.errors import JournalCorrupt, SegmentsMissing
from kestreld.journal import records
from kestreld.journal.discovery import JournalFile
from kestreld.journal.kestrel import ops
from kestreld.journal.kestrel.salvage import stretches
from kestreld.journal.records import LAST_ATTEMPT, Due, FailedItem, Origin, Why
from kestreld.journal.recovery import must_be_torn
from kestreld.journal.resync import Resync
from kestreld.journal.segment import decode_header, parse_segment_name
from kestreld.journal.segment_scan import records_in
from kestrelspark.lease_entries import ATTEMPT_MASK, HolderNames, LatestLeases
from kestrelspark.scanning import Block, blocks

# In the order of Reason, from GOT_EVENT on.
EVENTS: Final = (
    "put", "got", "confirmed", "expired", "moved", "discarded", "flushed", "aborted", "delayed", "leased", "extended",
    "returned",
)  # fmt: skip
PUT_EVENT, GOT_EVENT, CONFIRMED_EVENT, ABORTED_EVENT, LEASED_EVENT, EXTENDED_EVENT, RETURNED_EVENT = (
    0,
    1,
    2,
    7,
    9,
    10,
    11,
)
# A failed item has returned, just like one without a due time.
_HELD_EVENTS: Final = {Why.DELAYED: 8, Why.FAILED: ABORTED_EVENT, Why.LEASED: LEASED_EVENT}
NO_TIME: Final = -1
NO_ID: Final = 0
NO_ATTEMPTS: Final = -1
NO_LEASE: Final = -1
KESTREL_ROWS: Final = 1 << 16
Failures = dict[tuple[int, int, int], str]
_Ending = tuple[int, int, int, int, int, int, int, int]  # a row of Endings
_Named = tuple[int, int, str]  # offset, number and name of a HOLDER


@dataclass(slots=True)
class Puts:
    """Items put, as arrays. `starts` and `ends` are offsets of their data in the file.

    `only`: number of the one reader that an item is for, 0 = all. `add_at_ms` NO_TIME and `ids` NO_ID: unknown.
    `due_at_ms`: 0 = at once, None = all at once. `origins`: by id, for items that were moved here.
    """

    ids: Any
    add_at_ms: Any
    expire_at_ms: Any
    flags: Any
    only: Any
    starts: Any
    ends: Any
    due_at_ms: Any = None
    origins: dict[int, Origin] = field(default_factory=dict)


@dataclass(slots=True)
class Endings:
    """Events of items, as arrays: `events` index EVENTS; each is for the ids from `firsts` to `lasts`.

    `at_ms` NO_TIME and `firsts` NO_ID: unknown. `readers` 0 = all. `due_at_ms` 0 = none, `attempts` NO_ATTEMPTS =
    unknown; None = for all. `failures`: reasons of failures by reader, id and attempts. `leases`: attempts of leases
    that were granted, extended or ended, NO_LEASE = none or unknown; `holders`: codes of Progress; None = for all.
    """

    events: Any
    readers: Any
    at_ms: Any
    firsts: Any
    lasts: Any
    due_at_ms: Any = None
    attempts: Any = None
    failures: Failures = field(default_factory=dict)
    leases: Any = None
    holders: Any = None


@dataclass(slots=True)
class DamagedStretch:
    """`size_bytes` that cannot be read.

    `is_torn`: the cut-off end of a live file, whose `left_out` whole records are ignored, as kestreld does at its
    start. `is_missing`: segments are missing from the folder.
    """

    at: int
    reason: str
    size_bytes: int = 0
    is_torn: bool = False
    left_out: int = 0
    is_missing: bool = False

    def error(self, file: JournalFile) -> JournalCorrupt:
        """The exception for this damage in `file`, also used as a message."""
        if self.is_missing:
            return SegmentsMissing(file.path if file.missing else os.path.dirname(file.path), self.reason)
        return JournalCorrupt(file.path, self.at, self.reason)


@dataclass(slots=True)
class Progress:
    """State kept while a file is read: readers' names, counts of records and of puts in the journal, the first id of
    the segment, and the next one.

    `due` and `origins` hold notes until their PUTs, `failures` reasons until the record with the count of attempts.
    `leases` go on with the next file of the journal.
    """

    names: dict[int, str] = field(default_factory=dict)
    records: int = 0
    synced: bool = False
    first_id: int = 0
    next_id: int = 0
    put_items: int = 0
    due: dict[int, Due] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    failures: dict[FailedItem, str] = field(default_factory=dict)
    leases: LatestLeases = field(default_factory=LatestLeases)
    holders: HolderNames = field(default_factory=HolderNames)


Piece = Puts | Endings | DamagedStretch


def contents(buffer: bytes, file: JournalFile, progress: Progress) -> Iterator[Piece]:
    """Contents of a file in order, with damaged stretches and, at the end, missing segments."""
    if file.missing:
        yield DamagedStretch(0, file.missing, is_missing=True)
        return
    if file.is_kestrel:
        yield from _kestrel_contents(buffer, file, progress)
        return
    is_whole = True
    for piece in _segment_contents(buffer, file, progress):
        is_whole = is_whole and not isinstance(piece, DamagedStretch)
        yield piece
    if is_whole and file.gap is not None and (words := file.gap.problem(progress.put_items)):
        yield DamagedStretch(len(buffer), words, is_missing=True)


# Segments


def _segment_contents(buffer: bytes, file: JournalFile, progress: Progress) -> Iterator[Piece]:
    if file.end is not None and file.end < len(buffer):
        buffer = buffer[: file.end]  # bytes left by a failed commit do not count
    end = len(buffer)
    _, progress.first_id = parse_segment_name(os.path.basename(file.path)) or (0, 0)
    progress.next_id = progress.first_id
    try:
        at = decode_header(buffer, file.path)[1]
    except JournalCorrupt as problem:
        is_torn = file.is_live and next(records.find_whole_records(buffer, 1), None) is None
        at = _records_in(buffer, file)
        yield DamagedStretch(problem.offset, problem.reason, at - problem.offset, is_torn)
    else:
        record_type = records.checked_end(buffer, at)[0]
        if record_type and record_type != records.Type.CHECKPOINT:
            yield DamagedStretch(at, "the segment does not begin with a CHECKPOINT")
        if file.start > at:
            at = _read_before(buffer, at, min(file.start, end), progress)
    for block in blocks(buffer, at, end):
        at = block.end
        yield from _pieces(buffer, block, progress, is_compacted=file.is_compacted)
    if at < end:
        yield from _salvaged(buffer, at, file, progress)
    if file.end is not None and end < file.end:
        yield DamagedStretch(end, f"the file ends here, not at byte {file.end}")


def _records_in(buffer: bytes, file: JournalFile) -> int:
    try:
        return records_in(file.path, buffer, file.queue)
    except JournalCorrupt:
        return len(buffer)  # a later version's format is not known


def _read_before(buffer: bytes, at: int, end: int, progress: Progress) -> int:
    """Skip the part that was read before, learning readers' names; return its end."""
    for block in blocks(buffer, at, end):
        _note_ids(block, progress)
        said, holders = _other_endings(buffer, block, progress, {}, is_compacted=False)
        _lease_endings(block, holders, progress)
        _end_leases(block, said, progress)
        _forget_puts(block, progress)
        at = block.end
    return at


def _salvaged(buffer: bytes, at: int, file: JournalFile, progress: Progress) -> Iterator[Piece]:
    """Everything from the first bad record on that a repair would recover, unless it is a torn tail."""
    if file.is_live:  # usually a torn tail or preallocated space, with nothing to search for
        damage = _damaged_stretch(buffer, at, len(buffer), file, progress)
        if damage is None or damage.is_torn:
            yield from () if damage is None else (damage,)
            return
    whole_from = whole_to = at
    salvage = Resync(buffer, at, progress.next_id, file.end_id)
    for record_type, start, end in salvage.pieces():
        if record_type > 0:
            whole_to = end
        elif record_type == 0:
            yield from _whole(buffer, whole_from, whole_to, progress, file)
            damage = _damaged_stretch(buffer, start, end, file, progress)
            progress.holders.forget_numbers()
            if damage is not None:
                yield damage
            if damage is None or damage.is_torn:
                return
            for record in salvage.readers:
                change = records.read_reader(record[records.FRAME_BYTES :])
                progress.names.setdefault(change.reader, change.name)
            salvage.readers.clear()
            whole_from = whole_to = end
    yield from _whole(buffer, whole_from, whole_to, progress, file)


def _whole(buffer: bytes, at: int, end: int, progress: Progress, file: JournalFile) -> Iterator[Piece]:
    for block in blocks(buffer, at, end):
        yield from _pieces(buffer, block, progress, is_compacted=file.is_compacted)


def _damaged_stretch(buffer: bytes, at: int, end: int, file: JournalFile, progress: Progress) -> DamagedStretch | None:
    """The damage of a stretch. None = it is only preallocated space."""
    code = records.checked_end(buffer, at)[1]
    reason = records.why_bad(code) if code < 0 else "out of place"
    if not file.is_live or code >= 0:
        return DamagedStretch(at, reason, end - at)
    try:
        must_be_torn(buffer, at, file.path, progress.synced)
    except JournalCorrupt as problem:
        return DamagedStretch(at, problem.reason, end - at)
    if not buffer[at:].strip(b"\0"):
        return None
    if whole := sum(1 for _ in records.find_whole_records(buffer, at + 1)):
        reason += f", and {whole} intact records follow, which a repair would keep"
    # If the CHECKPOINT itself is cut short, the segment never held anything.
    return DamagedStretch(at, reason, len(buffer) - at, is_torn=True, left_out=whole)


def _note_ids(block: Block, progress: Progress) -> None:
    if len(block.puts):
        progress.put_items += len(block.puts)
        progress.next_id = int(block.puts["id"][-1]) + 1


def _forget_puts(block: Block, progress: Progress) -> None:
    """Drop the notes on items of this block."""
    if len(block.puts):
        for known in (progress.due, progress.origins):
            for one in [one for one in known if one < progress.next_id]:
                del known[one]


def _pieces(buffer: bytes, block: Block, progress: Progress, *, is_compacted: bool) -> Iterator[Piece]:
    progress.records += block.records
    _note_ids(block, progress)
    failures: Failures = {}
    endings, holders = _other_endings(buffer, block, progress, failures, is_compacted=is_compacted)
    leases = None
    if is_compacted:
        endings = []  # its originals have these events
    else:
        leases = _lease_endings(block, holders, progress)
        _end_leases(block, endings, progress)
    puts = block.puts
    if len(puts):
        starts = block.put_offsets
        ids = puts["id"].astype(np.int64)
        yield Puts(
            ids,
            _instants(puts["add_at_ms"]),
            _instants(puts["expire_at_ms"]),
            puts["flags"].astype(np.int64),
            puts["only_reader"].astype(np.int64),
            starts + records.PUT_HEADER_BYTES,
            starts + records.FRAME_BYTES + puts["body_bytes"].astype(np.int64),
            _due_of(ids, progress),
            {one: origin for one, origin in progress.origins.items() if one < progress.next_id},
        )
        _forget_puts(block, progress)
    dones = block.dones
    if len(dones):
        yield Endings(
            dones["reason"].astype(np.int8) + GOT_EVENT,
            dones["reader"].astype(np.int64),
            _instants(dones["at_ms"]),
            dones["first"].astype(np.int64),
            dones["last"].astype(np.int64),
        )
    if leases is not None:
        yield leases
    if endings:
        columns = np.array(endings, np.int64).T
        said = Endings(columns[0].astype(np.int8), *columns[1:7])
        said.failures, said.leases = failures, columns[7]
        yield said


def _lease_endings(block: Block, holders: Sequence[_Named], progress: Progress) -> Endings | None:
    """What the LEASE records of a block say; None if there are none. `holders`: the HOLDERs among them."""
    entries, offsets = block.leases.entries, block.leases.offsets
    codes = []
    at = 0
    for offset, number, name in holders:
        behind = int(np.searchsorted(offsets, offset))
        if behind > at:
            codes.append(progress.holders.codes(entries["holder"][at:behind]))
            at = behind
        progress.holders.name(number, records.holder_name(name))
    if not len(entries):
        return None
    codes.append(progress.holders.codes(entries["holder"][at:]))
    ids, attempts = entries["id"].astype(np.int64), entries["lease"].astype(np.int64) & ATTEMPT_MASK
    readers, at_ms = block.leases.readers, np.minimum(block.leases.at_ms, LATEST_MS)
    extends = progress.leases.extend(readers, ids, attempts, progress.first_id)
    length_ms = entries["length_high_ms"].astype(np.int64) << 32 | entries["length_low_ms"]
    return Endings(
        np.where(extends, np.int8(EXTENDED_EVENT), np.int8(LEASED_EVENT)),
        readers,
        at_ms,
        ids,
        ids,
        np.minimum(block.leases.at_ms + length_ms, LATEST_MS),
        np.full(len(ids), NO_ATTEMPTS, np.int64),
        leases=attempts,
        holders=np.concatenate(codes),
    )


def _end_leases(block: Block, endings: Sequence[_Ending], progress: Progress) -> None:
    """Forget the leases of items that a block says are done."""
    if not progress.leases.of:
        return
    dones = block.dones
    ends = [one for one in endings if GOT_EVENT <= one[0] < ABORTED_EVENT]
    readers, firsts, lasts = np.array([(one[1], one[3], one[4]) for one in ends], np.int64).reshape(-1, 3).T
    progress.leases.end(
        np.concatenate([dones["reader"].astype(np.int64), readers]),
        np.concatenate([dones["first"].astype(np.int64), firsts]),
        np.concatenate([dones["last"].astype(np.int64), lasts]),
    )


_COPIED_WITH_PUTS: Final = frozenset({*records.NOTES, records.Type.HOLDER, records.Type.LEASE})
LATEST_MS: Final = (1 << 63) // 1000 - 1  # as microseconds in 64 bits


def _instants(at_ms: Any) -> Any:
    return np.minimum(at_ms, np.uint64(LATEST_MS)).astype(np.int64)


def _due_of(ids: Any, progress: Progress) -> Any:
    """Due times of a block's items, which are in order of id; None = all at once."""
    if not progress.due:
        return None
    due_at_ms = np.zeros(len(ids), np.int64)
    for one, due in progress.due.items():
        at = int(np.searchsorted(ids, one))
        if at < len(ids) and ids[at] == one:
            due_at_ms[at] = min(due.due_at_ms, LATEST_MS)
    return due_at_ms


def _with_notes_behind(buffer: bytes, block: Block, *, is_compacted: bool) -> Sequence[tuple[int, int, int]]:
    """The other records of a block, and the notes after it on its last item, which the next block repeats."""
    others, at = block.others, block.end
    types = _COPIED_WITH_PUTS if is_compacted else records.NOTES.keys()
    while at + records.FRAME_BYTES <= len(buffer) and buffer[at + records.TYPE_OFFSET] in types:
        record_type, end = records.checked_end(buffer, at)
        if not record_type:
            break
        if record_type in records.NOTES:
            others = [*others, (record_type, at, end)]
        at = end
    return others


class _Notes:
    """Decides for notes (DUE, KEY, ORIGIN), in file order, whether they belong to an adjacent PUT."""

    def __init__(self, block: Block, progress: Progress, *, is_compacted: bool) -> None:
        self._is_compacted = is_compacted
        self._ids = block.puts["id"]
        self._before = int(self._ids[0]) - 1 if len(self._ids) else progress.next_id - 1
        self._add_at_ms = block.puts["add_at_ms"]
        self._starts = block.put_offsets
        self._ends = self._starts + records.FRAME_BYTES + block.puts["body_bytes"].astype(np.int64)
        self._end = self._from = -1  # start and end of a run of adjacent notes

    def is_of_put(self, item_id: int, at_ms: int, start: int, end: int) -> bool:
        """True if a note of the item, written `at_ms`, belongs to its put. Call in the order of the file."""
        if start != self._end:
            self._from = start
        self._end = end
        at = int(np.searchsorted(self._starts, start))
        last = int(self._ids[at - 1]) if at else self._before
        if item_id != last or not at:
            return item_id > last
        if self._is_compacted:
            return True
        is_copied = at_ms == int(self._add_at_ms[at - 1])  # else the item was given back
        return is_copied and self._from == int(self._ends[at - 1])


def _other_endings(
    buffer: bytes, block: Block, progress: Progress, failures: Failures, *, is_compacted: bool
) -> tuple[list[_Ending], list[_Named]]:
    """What records but PUTs, DONEs of one range and LEASEs say, and the HOLDERs."""
    endings: list[_Ending] = []
    holders: list[_Named] = []
    notes = None
    others: Sequence[tuple[int, int, int]] = block.others
    if block.end < len(buffer):
        others = _with_notes_behind(buffer, block, is_compacted=is_compacted)
    for record_type, start, end in others:
        if record_type in records.NOTES:
            notes = notes or _Notes(block, progress, is_compacted=is_compacted)
            is_next = start >= block.end
            endings += _noted(buffer, record_type, start, end, notes, progress, failures, is_next=is_next)
            continue
        body = buffer[start + records.FRAME_BYTES : end]
        if record_type == records.Type.DONE:
            done = records.read_done(body)
            at_ms = min(done.at_ms, LATEST_MS)
            event = done.reason + GOT_EVENT
            endings += [
                (event, done.reader, at_ms, first, last, 0, NO_ATTEMPTS, NO_LEASE) for first, last in done.ranges
            ]
        elif record_type == records.Type.ABORT:
            abort = records.read_abort(body)
            item_id = min(abort.item_id, LATEST_MS)
            at_ms = min(abort.at_ms, LATEST_MS)
            endings.append((ABORTED_EVENT, abort.reader, at_ms, item_id, item_id, 0, abort.times, NO_LEASE))
            _tell(progress, failures, abort.reader, item_id, abort.times)
        elif record_type == records.Type.FAILURE:
            failed, text = records.read_failure(body)
            progress.failures[failed] = text
        elif record_type == records.Type.HOLDER:
            holders.append((start, *records.read_holder(body)))
        elif record_type == records.Type.READER:
            change = records.read_reader(body)
            progress.names[change.reader] = change.name
        elif record_type == records.Type.CHECKPOINT:
            checkpoint = records.read_checkpoint(body)
            progress.names.update((state.number, state.name) for state in checkpoint.readers)
            progress.put_items += checkpoint.put_items
        elif record_type == records.Type.SYNC:
            progress.synced = True
    return endings, holders


def _noted(
    buffer: bytes,
    record_type: int,
    start: int,
    end: int,
    notes: _Notes,
    progress: Progress,
    failures: Failures,
    *,
    is_next: bool,
) -> list[_Ending]:
    """Keep a note that belongs to a PUT; return any other as an event. `is_next`: the note is in the next block."""
    body = buffer[start + records.FRAME_BYTES : end]
    if record_type == records.Type.KEY:
        key = records.read_key(body)
        notes.is_of_put(key.item_id, key.at_ms, start, end)
    elif record_type == records.Type.ORIGIN:
        origin = records.read_origin(body)
        notes.is_of_put(origin.item_id, 0, start, end)
        progress.origins[origin.item_id] = origin
    else:
        due = records.read_due(body)
        if notes.is_of_put(due.item_id, due.at_ms, start, end) and due.why == Why.DELAYED:
            progress.due[due.item_id] = due
        elif not is_next:
            event, one = _HELD_EVENTS[due.why], min(due.item_id, LATEST_MS)
            at_ms, due_at_ms = min(due.at_ms, LATEST_MS), min(due.due_at_ms, LATEST_MS)
            lease = due.lease & ATTEMPT_MASK if due.lease & LAST_ATTEMPT else NO_LEASE
            if due.why == Why.DELAYED and lease != NO_LEASE and due.due_at_ms <= due.at_ms:
                event, due_at_ms = RETURNED_EVENT, 0
            _tell(progress, failures, due.reader, one, due.attempts)
            return [(event, due.reader, at_ms, one, one, due_at_ms, due.attempts, lease)]
    return []


def _tell(progress: Progress, failures: Failures, reader: int, one: int, attempts: int) -> None:
    """Attach the reason, recorded earlier, to an item's failure."""
    if progress.failures and (text := progress.failures.pop((reader, one), None)) is not None:
        failures[reader, one, attempts] = text


# Kestrel's own files


def _kestrel_contents(buffer: bytes, file: JournalFile, progress: Progress) -> Iterator[Piece]:
    for stretch in stretches(buffer):
        at = stretch.start
        while at < stretch.end:
            items: list[tuple[int, int, int, int]] = []
            events: list[int] = []
            at = _walk(buffer, at, stretch.end, items, events, progress)
            if items:
                add_at_ms, expire_at_ms, starts, ends = np.array(items, np.int64).T
                zeros = np.zeros(len(items), np.int64)
                yield Puts(zeros, add_at_ms, expire_at_ms, zeros, zeros, starts, ends)
            if events:
                unknown = np.zeros(len(events), np.int64)
                yield Endings(np.array(events, np.int8), unknown, unknown + NO_TIME, unknown, unknown)
        if stretch.damage is not None:
            damage = stretch.damage
            is_torn = file.is_live and damage.resume_at == len(buffer) and ops.is_cut_short(buffer, damage.at)
            yield DamagedStretch(damage.at, damage.reason, damage.resume_at - damage.at, is_torn)


def _walk(
    buffer: bytes, at: int, stop: int, items: list[tuple[int, int, int, int]], events: list[int], progress: Progress
) -> int:
    """Read some ops, collecting items (add time, expiry, offsets of data) and events; return the end offset."""
    for _ in range(KESTREL_ROWS):
        if at >= stop:
            break
        progress.records += 1
        opcode = buffer[at]
        if opcode == ops.REMOVE:
            events.append(GOT_EVENT)
            at += 1
            continue
        end = ops.op_end(buffer, at)
        if opcode == ops.ADDX:
            _, _, add_at_ms, expire_at_ms = ops.ADDX_HEAD.unpack_from(buffer, at)
            items.append((add_at_ms, expire_at_ms, at + ops.ADDX_HEAD.size, end))
        elif opcode == ops.ADD:
            expire_at_s = ops.ADD_HEAD.unpack_from(buffer, at)[2]
            items.append((NO_TIME, expire_at_s * 1000, at + ops.ADD_HEAD.size, end))
        elif opcode in (ops.ADD_XID, ops.CONTINUE):
            _, _, _, add_at_ms, expire_at_ms = ops.XID_ITEM_HEAD.unpack_from(buffer, at)
            items.append((add_at_ms, expire_at_ms, at + ops.XID_ITEM_HEAD.size, end))
            if opcode == ops.CONTINUE:
                events.append(CONFIRMED_EVENT)
        elif opcode == ops.CONFIRM_REMOVE:
            events.append(CONFIRMED_EVENT)
        elif opcode == ops.UNREMOVE:
            events.append(ABORTED_EVENT)
        at = end
    return at
