"""Records of a journal as bytes, versions 1 to 4 of the format (docs/journal.md). Pure functions.

    record = u32 body_bytes | u32 checksum | u8 type | body          all little-endian

The checksum is the low half of XXH3-64. A PUT's covers its data and is seeded from every header field, so that one pack
makes the record; any other record's covers its body and is seeded from length and type.
"""

import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt


class Type(IntEnum):
    PUT = 1
    DONE = 2
    ABORT = 3
    READER = 4
    SYNC = 5
    IMPORT = 6
    CHECKPOINT = 7
    DUE = 8  # from here on version 2
    KEY = 9
    ORIGIN = 10
    FAILURE = 11  # of version 3
    LEASE = 12  # of version 4, as is the next
    HOLDER = 13


class Reason(IntEnum):
    """Reason why an item left its reader."""

    GOT = 0
    CONFIRMED = 1
    EXPIRED = 2
    MOVED = 3
    DISCARDED = 4
    FLUSHED = 5


class Why(IntEnum):
    """Reason why an item has a due time."""

    DELAYED = 0  # put or returned with a delay
    FAILED = 1  # waiting for its retry
    LEASED = 2  # leased: also what a LEASE record says


class Kind(IntEnum):
    """Kinds of readers: QUEUE has limits, expiry and a window; STREAM is only a position."""

    QUEUE = 0
    STREAM = 1


Range = tuple[int, int]  # first and last item id, both included


def merged(ranges: list[Range]) -> list[Range]:
    """The same ids as sorted ranges that neither touch nor overlap."""
    made: list[Range] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made


# Large numbers are multiplied by a call: Python checks for signals during a multiplication, and compiled code takes
# an exception that a handler raises there for a lack of memory, which ends the process.
product: Final[Callable[[int, int], int]] = operator.mul

FRAME: Final = struct.Struct("<IIB")
# Offsets of fields in a record. Literals are faster in compiled code; a test compares them with the structs.
TYPE_OFFSET: Final = 8
FRAME_BYTES: Final = 9
ID_OFFSET: Final = 9  # of a PUT, as are the following
ADD_OFFSET: Final = 17
EXPIRE_OFFSET: Final = 25
PUT_HEADER_BYTES: Final = 41  # an item's bytes on disk without its data

# PUT: | body_bytes u32 | checksum u32 | 1 u8 | id u64 | add_ms u64 | expire_ms u64 | flags u32
#      | only_reader u32 | data |
PUT: Final = struct.Struct("<IIBQQQII")
PUT_FIELDS_BYTES: Final = PUT_HEADER_BYTES - FRAME_BYTES
_PUT_AFTER_FRAME: Final = struct.Struct("<QQQII")
ADD_FACTOR: Final = 0x85EBCA77  # odd, so that any change of a field changes the seed (a prime of xxHash)
EXPIRE_FACTOR: Final = 0x9E3779B1
FLAGS_FACTOR: Final = 0xC2B2AE3D
ONLY_FACTOR: Final = 0x27D4EB2F
_U32: Final = 0xFFFFFFFF
READER_MAX: Final = 1 << 31
ID_MAX: Final = 1 << 62  # above every id and every count of items or bytes
RECORD_BYTES_MAX: Final = _U32 - 64

_ID: Final = struct.Struct("<Q")
_TIMES: Final = struct.Struct("<QQ")
_OPTIONAL_FIELDS: Final = struct.Struct("<QII")
unpack_id: Final = _ID.unpack_from
unpack_id_and_add: Final = struct.Struct("<9xQQ").unpack_from


def put_record(item_id: int, add_at_ms: int, expire_at_ms: int, flags: int, only_reader: int, data: bytes) -> bytes:
    """The PUT record of one item, which is also its form in memory.

    `expire_at_ms` 0 = never; `only_reader` 0 = for every reader.
    """
    body_bytes = PUT_FIELDS_BYTES + len(data)
    seed = item_id + body_bytes + product(add_at_ms, ADD_FACTOR)
    checksum = put_checksum(data, seed, expire_at_ms, flags, only_reader)
    return PUT.pack(body_bytes, checksum, 1, item_id, add_at_ms, expire_at_ms, flags, only_reader) + data


def put_checksum(data: bytes, seed: int, expire_at_ms: int, flags: int, only_reader: int) -> int:
    """Checksum of a PUT whose id, length and add time are in `seed` already."""
    if expire_at_ms or flags or only_reader:
        seed += product(expire_at_ms, EXPIRE_FACTOR) + product(flags, FLAGS_FACTOR) + only_reader * ONLY_FACTOR
    return xxh3_64_intdigest(data, seed) & _U32


def item_id(record: bytes) -> int:
    return int(unpack_id(record, ID_OFFSET)[0])


def item_add_at_ms(record: bytes) -> int:
    return int(unpack_id(record, ADD_OFFSET)[0])


def item_expire_at_ms(record: bytes) -> int:
    return int(unpack_id(record, EXPIRE_OFFSET)[0])


def item_times_ms(record: bytes) -> tuple[int, int]:
    """Time at which the item was added, and its client's expiry time (0 = never)."""
    add_at_ms, expire_at_ms = _TIMES.unpack_from(record, ADD_OFFSET)
    return add_at_ms, expire_at_ms


def item_optional_fields(record: bytes) -> tuple[int, int, int]:
    """Expiry time (0 = never), flags and only_reader (0 = all): the three fields that most items do not have."""
    expire_at_ms, flags, only_reader = _OPTIONAL_FIELDS.unpack_from(record, EXPIRE_OFFSET)
    return expire_at_ms, flags, only_reader


def item_flags(record: bytes) -> int:
    return item_optional_fields(record)[1]


def item_data(record: bytes) -> bytes:
    return record[PUT_HEADER_BYTES:]


def record_end(buffer: bytes, at: int) -> int:
    """End of the record at `at` according to its length field."""
    return at + FRAME_BYTES + int.from_bytes(buffer[at : at + 4], "little")


def framed(record_type: int, body: bytes) -> bytes:
    """A record of any type but PUT."""
    size = len(body)
    return FRAME.pack(size, xxh3_64_intdigest(body, size + (record_type << 56)) & _U32, record_type) + body


@dataclass(slots=True)
class Done:
    """Items that left one reader for one reason in one commit."""

    reader: int
    reason: Reason
    at_ms: int
    items: int
    data_bytes: int
    ranges: list[Range]


# DONE: | reader u32 | reason u8 | at_ms u64 | items u32 | data_bytes u64 | n u32 | n * (first u64 | last u64) |
_DONE: Final = struct.Struct("<IBQIQI")
_RANGE: Final = struct.Struct("<QQ")
_REASONS: Final = len(Reason)
_DONE_TYPE: Final = int(Type.DONE)  # arithmetic with an enum's member is slower
# A DONE of one range is packed with it.
_DONE_ONE_BYTES: Final = _DONE.size + _RANGE.size
_DONE_ONE_SEED: Final = _DONE_ONE_BYTES + (_DONE_TYPE << 56)
_pack_done_one: Final = struct.Struct("<IBQIQIQQ").pack
_pack_frame: Final = FRAME.pack


def _pack_ranges(ranges: list[Range]) -> bytes:
    if len(ranges) == 1:
        first, last = ranges[0]
        return _RANGE.pack(first, last)
    return struct.pack(f"<{2 * len(ranges)}Q", *chain.from_iterable(ranges))  # a CHECKPOINT may have very many


def _unpack_ranges(body: bytes, at: int, count: int) -> list[Range]:
    """Unpack ranges. Raises ValueError or struct.error if they are invalid."""
    if not count:
        return []
    ranges = list(_RANGE.iter_unpack(body[at : at + count * _RANGE.size]))
    if len(ranges) != count or any(first > last or last >= ID_MAX for first, last in ranges):
        raise ValueError("invalid number of ranges, or an invalid range")
    return ranges


def _believable(reader: int, *numbers: int) -> None:
    """Raise ValueError for a reader number without a successor, or a count or id that is never reached."""
    if reader >= READER_MAX or max(numbers, default=0) >= ID_MAX:
        raise ValueError("field value out of range")


def done_record(done: Done) -> bytes:
    return ended_record(done.reader, done.reason, done.at_ms, done.items, done.data_bytes, done.ranges)


def ended_record(reader: int, reason: Reason, at_ms: int, items: int, data_bytes: int, ranges: list[Range]) -> bytes:
    """`done_record` without a Done, because one is written for every commit that takes items."""
    head = _DONE.pack(reader, reason, at_ms, items, data_bytes, len(ranges))
    return framed(_DONE_TYPE, head + _pack_ranges(ranges))


def got_record(reader: int, at_ms: int, data_bytes: int, got: int) -> bytes:
    """`done_record` of one item that was taken."""
    body = _pack_done_one(reader, 0, at_ms, 1, data_bytes, 1, got, got)
    return _pack_frame(_DONE_ONE_BYTES, xxh3_64_intdigest(body, _DONE_ONE_SEED) & _U32, _DONE_TYPE) + body


def read_done(body: bytes) -> Done:
    reader, reason, at_ms, items, data_bytes, count = _DONE.unpack_from(body)
    ranges = list(_RANGE.iter_unpack(body[_DONE.size : _DONE.size + count * _RANGE.size]))
    return Done(reader, Reason(reason), at_ms, items, data_bytes, ranges)


@dataclass(slots=True)
class Abort:
    """A failure of an item, its `times`-th. Written if failures are counted and no DUE record has the count."""

    reader: int
    at_ms: int
    item_id: int
    times: int


# ABORT: | reader u32 | at_ms u64 | id u64 | times u16 |
_ABORT: Final = struct.Struct("<IQQH")


def abort_record(abort: Abort) -> bytes:
    return framed(Type.ABORT, _ABORT.pack(abort.reader, abort.at_ms, abort.item_id, min(abort.times, 0xFFFF)))


def _is_done(body: bytes) -> bool:
    """True if a body is that of a DONE. `read_done` would be too slow, as there may be one for each item."""
    if len(body) < _DONE.size:
        return False
    reader, reason, _, _, data_bytes, count = _DONE.unpack_from(body)
    if (
        reader >= READER_MAX
        or reason >= _REASONS
        or data_bytes >= ID_MAX
        or len(body) != _DONE.size + count * _RANGE.size
    ):
        return False
    if count == 1:
        first, last = _RANGE.unpack_from(body, _DONE.size)
        return bool(first <= last < ID_MAX)
    return all(first <= last < ID_MAX for first, last in _RANGE.iter_unpack(body[_DONE.size :]))


def read_abort(body: bytes) -> Abort:
    """Read a body. Like every `read_`: raises struct.error or ValueError if it is not that of such a record."""
    return Abort(*_ABORT.unpack(body))


@dataclass(slots=True)
class Due:
    """An item that is not delivered before `due_at_ms` to one reader, or to every one that it was put for (0).

    `attempts` counts how often it has failed. `lease` is the attempt in the token of a LEASED item, and of any other
    the attempt of its last lease with `LAST_ATTEMPT` added; 0 = there was none since the journal knows. With either are
    the `deliveries` before that one. `holder` is whoever has the lease; "" = not known. A DUE record does not have it.
    `since_at_ms` is when it was granted, by the records that are left; 0 = at the time of writing.
    """

    reader: int
    why: Why
    item_id: int
    at_ms: int  # time of writing: bounds the delay after a step of the clock
    due_at_ms: int
    data_bytes: int
    attempts: int = 0
    lease: int = 0
    holder: str = ""
    since_at_ms: int = 0

    @property
    def deliveries(self) -> int:
        """Number of deliveries before the attempt in `lease`: DELIVERIES_MAX = so many at least."""
        return self.lease >> _DELIVERIES_SHIFT

    def left_ms(self, wall_ms: int) -> int:
        """Time for which the item is still held back, at most the time recorded."""
        left_ms = self.due_at_ms - (wall_ms if wall_ms > self.at_ms else self.at_ms)
        return left_ms if left_ms > 0 else 0


# DUE: | reader u32 | why u8 | id u64 | at_ms u64 | due_at_ms u64 | data_bytes u32 | attempts u16 | lease u16 |
_DUE: Final = struct.Struct("<IBQQQIHH")
DUE_RECORD_BYTES: Final = FRAME_BYTES + _DUE.size
# Of records whose checksums are not verified: length of the body, type, and the id of a PUT;
unpack_frame_and_id: Final = struct.Struct("<I4xBQ").unpack_from
# type and fields of a DUE, except `at_ms` and `data_bytes`.
unpack_due_in_frame: Final = struct.Struct("<8xBIBQ8xQ4xHH").unpack_from


def due_record(due: Due) -> bytes:
    attempts = min(due.attempts, 0xFFFF)
    return framed(
        Type.DUE,
        _DUE.pack(due.reader, due.why, due.item_id, due.at_ms, due.due_at_ms, due.data_bytes, attempts, due.lease),
    )


def read_due(body: bytes) -> Due:
    reader, why, one, at_ms, due_at_ms, data_bytes, attempts, lease = _DUE.unpack(body)
    _believable(reader, one, at_ms, due_at_ms)
    return Due(reader, Why(why), one, at_ms, due_at_ms, data_bytes, attempts, lease)


LEASES_VERSION: Final = 4  # of segments with LEASE records
LAST_ATTEMPT: Final = 0x2000  # in the `lease` of a DUE record of an item that is not leased
DELIVERIES_MAX: Final = 3  # of what `with_deliveries` can say
_DELIVERIES_SHIFT: Final = 14

# LEASE: | reader u32 | at_ms u48 | n * (id u64 | length_ms u48 | data_bytes u32 | lease u16 | holder u16) |
_LEASES: Final = struct.Struct("<IIH")
_LEASE: Final = struct.Struct("<QIHIHH")
_HOLDER: Final = struct.Struct("<H")
LEASES_MAX: Final = 1000  # in one record, so that the holders of one have numbers of their own
HOLDERS_MAX: Final = 0xFFFF
LEASE_MS_MAX: Final = (1 << 48) - 1  # 8,900 years
_NO_HOLDERS: Final[Mapping[int, str]] = {}
LEASE_ENTRY_BYTES: Final = _LEASE.size
pack_lease: Final = _LEASE.pack  # of `lease_entry`, for those of a whole turn


def with_deliveries(lease: int, deliveries: int) -> int:
    """`lease` of a DUE or LEASE record, with how often the item was delivered before that attempt."""
    return lease | (deliveries if deliveries < DELIVERIES_MAX else DELIVERIES_MAX) << _DELIVERIES_SHIFT


def lease_entry(item_id: int, length_ms: int, data_bytes: int, lease: int, holder: int) -> bytes:
    """Entry of a LEASE record: a lease that ends `length_ms` after the time of writing. `lease` is as in Due, `holder`
    a number by the latest HOLDER record of the segment that has it; 0 = not known.
    """
    length_ms = min(max(length_ms, 0), LEASE_MS_MAX)
    return pack_lease(item_id, length_ms & _U32, length_ms >> 32, data_bytes, lease, holder)


def lease_record(reader: int, at_ms: int, entries: list[bytes]) -> bytes:
    """LEASE record of the leases that a reader granted or extended in one turn."""
    return framed(Type.LEASE, _LEASES.pack(reader, at_ms & _U32, at_ms >> 32) + b"".join(entries))


def holder_record(number: int, name: str) -> bytes:
    """HOLDER record: what leases after it in its segment mean by the number."""
    return framed(Type.HOLDER, _HOLDER.pack(number) + name.encode())


def read_holder(body: bytes) -> tuple[int, str]:
    """Read a body as the number of a holder, and its name. Raises like every `read_`."""
    return _HOLDER.unpack_from(body)[0], body[_HOLDER.size :].decode()


def holder_name(holder: str) -> str:
    """Name that a holder gave, of `NAME/ADDRESS`, or its address, if that is all."""
    return holder.partition("/")[0]


def read_leases(body: bytes, holders: Mapping[int, str] = _NO_HOLDERS) -> list[Due]:
    """Read a body as one LEASED Due for each entry, with no `attempts`. Raises like every `read_`."""
    reader, at_low, at_high = _LEASES.unpack_from(body)
    at_ms = at_high << 32 | at_low
    if len(body) == _LEASES.size:
        raise ValueError("no lease")
    leases = [
        Due(reader, Why.LEASED, one, at_ms, at_ms + (high << 32 | low), data_bytes, 0, lease, holders.get(holder, ""))
        for one, low, high, data_bytes, lease, holder in _LEASE.iter_unpack(body[_LEASES.size :])
    ]
    _believable(reader, *(due.item_id for due in leases))
    return leases


@dataclass(slots=True)
class Key:
    """Key of an item that was put for a reader, where puts with it are refused until `until_ms`."""

    reader: int
    item_id: int
    at_ms: int  # time of writing, as in Due
    until_ms: int
    digest: bytes  # 16 bytes


# KEY: | reader u32 | id u64 | at_ms u64 | until_ms u64 | digest 16 |
_KEY: Final = struct.Struct("<IQQQ16s")


def key_record(key: Key) -> bytes:
    return framed(Type.KEY, _KEY.pack(key.reader, key.item_id, key.at_ms, key.until_ms, key.digest))


def read_key(body: bytes) -> Key:
    reader, one, at_ms, until_ms, digest = _KEY.unpack(body)
    _believable(reader, one, at_ms, until_ms)
    return Key(reader, one, at_ms, until_ms, digest)


@dataclass(slots=True, frozen=True)
class Origin:
    """Origin of a moved item: `reason` is EXPIRED, or MOVED if it had failed too often.

    `failure` is the reason given for its last failure, "" = none. With it an ORIGIN is of version 3.
    """

    item_id: int
    reason: Reason
    attempts: int
    put_at_ms: int  # time of its first put
    queue: str
    failure: str = ""

    @property
    def reason_word(self) -> str:
        return "expired" if self.reason == Reason.EXPIRED else "failed"


# ORIGIN: | id u64 | reason u8 | attempts u16 | put_at_ms u64 | queue |, and with a failure | 0x0a | text |
_ORIGIN: Final = struct.Struct("<QBHQ")


def origin_record(origin: Origin) -> bytes:
    head = _ORIGIN.pack(origin.item_id, origin.reason, min(origin.attempts, 0xFFFF), origin.put_at_ms)
    failure = b"\n" + origin.failure.encode() if origin.failure else b""  # no queue has a control character in its name
    return framed(Type.ORIGIN, head + origin.queue.encode("latin-1") + failure)


def read_origin(body: bytes) -> Origin:
    one, reason, attempts, put_at_ms = _ORIGIN.unpack_from(body)
    _believable(0, one, put_at_ms)
    queue, _, failure = body[_ORIGIN.size :].partition(b"\n")
    return Origin(one, Reason(reason), attempts, put_at_ms, queue.decode("latin-1"), failure.decode())


FailedItem = tuple[int, int]  # number of a reader, and the id of an item that failed there

# FAILURE: | reader u32 | id u64 | text |
_FAILURE: Final = struct.Struct("<IQ")


def failure_record(failed: FailedItem, text: str) -> bytes:
    """FAILURE record of why an item failed, in its consumer's words."""
    return framed(Type.FAILURE, _FAILURE.pack(*failed) + text.encode())


def read_failure(body: bytes) -> tuple[FailedItem, str]:
    reader, one = _FAILURE.unpack_from(body)
    _believable(reader, one)
    return (reader, one), body[_FAILURE.size :].decode()


@dataclass(slots=True)
class ReaderChange:
    """A reader that is added (its first item is `at_id`) or dropped. Numbers are never reused."""

    reader: int
    dropped: bool
    kind: Kind
    at_ms: int
    at_id: int
    name: str


# READER: | reader u32 | dropped u8 | kind u8 | at_ms u64 | at_id u64 | name |
_READER: Final = struct.Struct("<IBBQQ")


def reader_record(change: ReaderChange) -> bytes:
    head = _READER.pack(change.reader, change.dropped, change.kind, change.at_ms, change.at_id)
    return framed(Type.READER, head + change.name.encode("latin-1"))


def read_reader(body: bytes) -> ReaderChange:
    reader, dropped, kind, at_ms, at_id = _READER.unpack_from(body)
    _believable(reader, at_id)
    return ReaderChange(reader, bool(dropped), Kind(kind), at_ms, at_id, body[_READER.size :].decode("latin-1"))


def sync_record(offset: int) -> bytes:
    """SYNC record: everything before `offset` in this segment was on disk when it was written."""
    return framed(Type.SYNC, _ID.pack(offset))


def read_sync(body: bytes) -> int:
    return int(_ID.unpack(body)[0])


@dataclass(slots=True, frozen=True)
class ImportedFile:
    """A file that the journal was made from. `checksum` is the XXH3-64 of its content."""

    name: str
    size_bytes: int
    checksum: int


# IMPORT: | n u32 | n * (name_bytes u16 | size_bytes u64 | checksum u64 | name) |
_COUNT: Final = struct.Struct("<I")
_IMPORTED: Final = struct.Struct("<HQQ")


def import_record(imported: list[ImportedFile]) -> bytes:
    parts = [_COUNT.pack(len(imported))]
    for file in imported:
        name = file.name.encode("utf-8", "surrogateescape")
        parts.append(_IMPORTED.pack(len(name), file.size_bytes, file.checksum) + name)
    return framed(Type.IMPORT, b"".join(parts))


def read_import(body: bytes) -> list[ImportedFile]:
    imported = []
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(body)[0]):
        name_bytes, size_bytes, checksum = _IMPORTED.unpack_from(body, at)
        at += _IMPORTED.size + name_bytes
        name = body[at - name_bytes : at].decode("utf-8", "surrogateescape")
        imported.append(ImportedFile(name, size_bytes, checksum))
    return imported


@dataclass(slots=True)
class ReaderState:
    """A reader's state in a CHECKPOINT.

    `head` is the lowest id not done; `segment` and `offset` say where to start reading for it. `items` and `data_bytes`
    count what is not done, open reads included. `ended` counts items that left, by Reason, of all time. `done` are the
    ranges done ahead of head; `retries` maps an item id to how often it failed.

    Items that DUE records are about are neither in `head` and `done` nor in these counts, but in `held_items` and
    `held_bytes`. A CHECKPOINT says no more of them: `due` has their records as read by a recovery.
    """

    number: int
    kind: Kind
    name: str
    at_id: int = 1
    head: int = 1
    segment: int = 0
    offset: int = 0
    items: int = 0
    data_bytes: int = 0
    ended: list[int] = field(default_factory=lambda: [0] * len(Reason))
    done: list[Range] = field(default_factory=list)
    retries: dict[int, int] = field(default_factory=dict)
    held_items: int = 0
    held_bytes: int = 0
    due: dict[int, Due] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)  # as `due`


@dataclass(slots=True)
class Checkpoint:
    """All that startup needs from before this segment.

    `previous_bytes` of the previous segment count; `put_items` and `put_bytes` are of all time. `held_from` is the
    lowest id that a DUE, KEY or ORIGIN record which still counts is about; 0 = there is none, and version 1 of the
    format is enough. `origins` has the ORIGINs read by a recovery. `failures` are the last failure reasons of items
    that may be waiting, the latest at the end; they need version 3.
    """

    segment: int
    previous_bytes: int
    next_id: int
    next_reader: int = 1
    put_items: int = 0
    put_bytes: int = 0
    readers: list[ReaderState] = field(default_factory=list)
    held_from: int = 0
    origins: dict[int, Origin] = field(default_factory=dict)
    failures: dict[FailedItem, str] = field(default_factory=dict)


# CHECKPOINT: | segment u32 | previous_bytes u64 | next_id u64 | next_reader u32 | put_items u64
#             | put_bytes u64 | readers u32 | then each reader:
_CHECKPOINT: Final = struct.Struct("<IQQIQQI")
# | number u32 | kind u8 | at_id u64 | head u64 | segment u32 | offset u64 | items u64 | data_bytes u64 | ended 6 * u64
# | name_bytes u16 | done u32 | retries u32 | name | done * range | retries * (id u64, times u16) |
# and where held_from is not 0, or failures follow: | held_from u64 | then for each reader: held_items u64
# | held_bytes u64 |
# and where there are failures: | n u32 | n * (reader u32 | id u64 | text_bytes u8 | text) |
_STATE: Final = struct.Struct("<IBQQIQQQ6QHII")
_RETRY: Final = struct.Struct("<QH")
_HELD: Final = struct.Struct("<QQ")
_FAILED: Final = struct.Struct("<IQB")


def checkpoint_record(checkpoint: Checkpoint) -> bytes:
    parts = [
        _CHECKPOINT.pack(
            checkpoint.segment,
            checkpoint.previous_bytes,
            checkpoint.next_id,
            checkpoint.next_reader,
            checkpoint.put_items,
            checkpoint.put_bytes,
            len(checkpoint.readers),
        )
    ]
    for state in checkpoint.readers:
        name = state.name.encode("latin-1")
        parts.append(
            _STATE.pack(
                state.number,
                state.kind,
                state.at_id,
                state.head,
                state.segment,
                state.offset,
                max(state.items, 0),  # a damaged DONE may have made it negative
                max(state.data_bytes, 0),
                *state.ended,
                len(name),
                len(state.done),
                len(state.retries),
            )
        )
        parts.append(name)
        parts.append(_pack_ranges(state.done))
        parts.extend([_RETRY.pack(retried, min(times, 0xFFFF)) for retried, times in state.retries.items()])
    if checkpoint.held_from or checkpoint.failures:
        parts.append(_ID.pack(checkpoint.held_from))
        parts.extend([_HELD.pack(state.held_items, max(state.held_bytes, 0)) for state in checkpoint.readers])
    if checkpoint.failures:
        parts.append(_COUNT.pack(len(checkpoint.failures)))
        for (number, one), failure in checkpoint.failures.items():
            text = failure.encode()
            parts.append(_FAILED.pack(number, one, len(text)) + text)
    return framed(Type.CHECKPOINT, b"".join(parts))


def read_checkpoint(body: bytes) -> Checkpoint:
    segment, previous_bytes, next_id, next_reader, put_items, put_bytes, count = _CHECKPOINT.unpack_from(body)
    checkpoint = Checkpoint(segment, previous_bytes, next_id, next_reader, put_items, put_bytes)
    _believable(next_reader, next_id, put_items, put_bytes)
    at = _CHECKPOINT.size
    for _ in range(count):
        fields = _STATE.unpack_from(body, at)
        number, kind, at_id, head, segment, offset, items, data_bytes = fields[:8]
        name_bytes, done_count, retry_count = fields[14:]
        _believable(number, at_id, head, items, data_bytes, *fields[8:14])
        at += _STATE.size
        name = body[at : at + name_bytes].decode("latin-1")
        at += name_bytes
        done = _unpack_ranges(body, at, done_count)
        at += done_count * _RANGE.size
        retries = dict(_RETRY.iter_unpack(body[at : at + retry_count * _RETRY.size]))
        at += retry_count * _RETRY.size
        checkpoint.readers.append(
            ReaderState(
                number,
                Kind(kind),
                name,
                at_id,
                head,
                segment,
                offset,
                items,
                data_bytes,
                list(fields[8:14]),
                done,
                retries,
            )
        )
    if at < len(body):
        (checkpoint.held_from,) = _ID.unpack_from(body, at)
        at += _ID.size
        for state in checkpoint.readers:
            state.held_items, state.held_bytes = _HELD.unpack_from(body, at)
            at += _HELD.size
        _believable(0, checkpoint.held_from)
    if at < len(body):
        (count,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        for _ in range(count):
            number, one, text_bytes = _FAILED.unpack_from(body, at)
            at += _FAILED.size + text_bytes
            checkpoint.failures[number, one] = body[at - text_bytes : at].decode()
    return checkpoint


# Reading a stretch of journal

_TYPES: Final = frozenset(int(known) for known in Type)


def checked_end(buffer: bytes, at: int) -> tuple[int, int]:
    """Type and end of the record at `at`; (0, why) with why < 0 if no whole, correct record starts there.

    why: -1 the buffer ends inside the record, -2 its checksum or type is wrong, -3 its length is zero, -4 its checksum
    is correct but its fields are not.
    """
    if at + FRAME_BYTES > len(buffer):
        return 0, -1
    body_bytes, checksum, record_type = FRAME.unpack_from(buffer, at)
    if body_bytes == 0:
        return 0, -3
    end = at + FRAME_BYTES + body_bytes
    if record_type not in _TYPES:
        return 0, -2
    if end > len(buffer):
        return 0, -1
    if record_type == 1:
        if body_bytes < PUT_FIELDS_BYTES:
            return 0, -2
        put_id, add_ms, expire_ms, flags, only = _PUT_AFTER_FRAME.unpack_from(buffer, at + FRAME_BYTES)
        seed = put_id + body_bytes + product(add_ms, ADD_FACTOR)
        true_checksum = put_checksum(buffer[at + PUT_HEADER_BYTES : end], seed, expire_ms, flags, only)
        if true_checksum == checksum and (put_id >= ID_MAX or only >= READER_MAX):
            return 0, -4
    else:
        body = buffer[at + FRAME_BYTES : end]
        true_checksum = xxh3_64_intdigest(body, body_bytes + (record_type << 56)) & _U32
        if true_checksum == checksum and not _makes_sense(record_type, body):
            return 0, -4
    if true_checksum != checksum:
        return 0, -2
    return record_type, end


def checked_checkpoint(buffer: bytes, at: int) -> tuple[Checkpoint | None, int]:
    """The CHECKPOINT at `at` and its end; None if no whole, correct one starts there: `checked_end` says why."""
    if at + FRAME_BYTES > len(buffer):
        return None, 0
    body_bytes, checksum, record_type = FRAME.unpack_from(buffer, at)
    end = at + FRAME_BYTES + body_bytes
    if record_type != Type.CHECKPOINT or end > len(buffer):
        return None, 0
    body = buffer[at + FRAME_BYTES : end]
    if xxh3_64_intdigest(body, body_bytes + (record_type << 56)) & _U32 != checksum:
        return None, 0
    try:
        return read_checkpoint(body), end
    except (struct.error, ValueError):
        return None, 0


Check = Callable[[bytes, int], tuple[int, int]]  # `checked_end`, or that of another kind of records

_READERS_OF: Final[dict[int, Callable[[bytes], object]]] = {
    Type.ABORT: read_abort,
    Type.READER: read_reader,
    Type.SYNC: read_sync,
    Type.IMPORT: read_import,
    Type.CHECKPOINT: read_checkpoint,
    Type.DUE: read_due,
    Type.KEY: read_key,
    Type.ORIGIN: read_origin,
    Type.FAILURE: read_failure,
    Type.LEASE: read_leases,
    Type.HOLDER: read_holder,
}

# Records about one item, whose PUT may follow them.
NOTES: Final[dict[int, Callable[[bytes], Due | Key | Origin]]] = {
    Type.DUE: read_due,
    Type.KEY: read_key,
    Type.ORIGIN: read_origin,
}


def _makes_sense(record_type: int, body: bytes) -> bool:
    """True if a body has the fields of its type; a newer kestreld's may not."""
    if record_type == 2:
        return _is_done(body)
    try:
        _READERS_OF[record_type](body)
    except (struct.error, ValueError):
        return False
    return True


def why_bad(code: int) -> str:
    """Error message for a code of `checked_end`."""
    return {
        -1: "the record is cut short",
        -2: "the checksum does not match",
        -3: "a record of length zero",
        -4: "unsupported record fields",
    }[code]


def whole_records(buffer: bytes, at: int, path: str, base: int = 0) -> Iterator[tuple[int, int, int]]:
    """(type, start, end) of each record from `at` on. Raises JournalCorrupt at the first that is not whole and correct.

    `base` is the file offset of the buffer's first byte, for the error.
    """
    while at < len(buffer):
        record_type, end = checked_end(buffer, at)
        if not record_type:
            raise JournalCorrupt(path, base + at, why_bad(end))
        yield record_type, at, end
        at = end


_MAY_START_RECORD: Final = re.compile(rb"(?s)(?=(....)....[\x01-\x0d])")


def find_whole_records(
    buffer: bytes, start: int, stop: int | None = None, check: Check = checked_end
) -> Iterator[tuple[int, int, int]]:
    """(type, start, end) of every whole record at or after `start`, at any byte, to judge what follows a bad one.

    Those that begin at or after `stop` are left out. `check` says what a whole record is.
    """
    at = start
    look_end = len(buffer) if stop is None else min(stop + FRAME_BYTES - 1, len(buffer))
    while match := _MAY_START_RECORD.search(buffer, at, look_end):
        found = match.start()
        body_bytes = int.from_bytes(match.group(1), "little")
        if 0 < body_bytes <= len(buffer) - found - FRAME_BYTES:
            record_type, end = check(buffer, found)
            if record_type:
                yield record_type, found, end
                at = end
                continue
        at = found + 1
