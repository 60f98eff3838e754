"""A segment's records found, checked and read many at a time, with numpy over their offsets.

The same bytes are accepted as by `kestreld.journal.records.checked_end`, which is asked about everything unusual.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from kestreld.journal.records import (
    ADD_FACTOR,
    EXPIRE_FACTOR,
    FLAGS_FACTOR,
    FRAME,
    FRAME_BYTES,
    ID_MAX,
    ONLY_FACTOR,
    PUT_FIELDS_BYTES,
    PUT_HEADER_BYTES,
    READER_MAX,
    Reason,
    Type,
    checked_end,
)

BLOCK_RECORDS: Final = 1 << 16
PUT_DTYPE: Final = np.dtype(
    [
        ("body_bytes", "<u4"),
        ("checksum", "<u4"),
        ("type", "u1"),
        ("id", "<u8"),
        ("add_at_ms", "<u8"),
        ("expire_at_ms", "<u8"),
        ("flags", "<u4"),
        ("only_reader", "<u4"),
    ]
)
# A DONE of one range, as almost all are.
DONE_DTYPE: Final = np.dtype(
    [
        ("body_bytes", "<u4"),
        ("checksum", "<u4"),
        ("type", "u1"),
        ("reader", "<u4"),
        ("reason", "u1"),
        ("at_ms", "<u8"),
        ("items", "<u4"),
        ("data_bytes", "<u8"),
        ("ranges", "<u4"),
        ("first", "<u8"),
        ("last", "<u8"),
    ]
)
_DONE_BODY_BYTES: Final = DONE_DTYPE.itemsize - FRAME_BYTES
_DONE_SEED: Final = _DONE_BODY_BYTES + (Type.DONE << 56)
_U32: Final = 0xFFFFFFFF


@dataclass(slots=True)
class Block:
    """Whole and true records that follow one another.

    `puts` and `dones` are arrays of PUT_DTYPE and DONE_DTYPE, `put_offsets` where each PUT begins; `others` are
    (type, offset, end) of the rest, in order. Behind `end` comes another block, the end of what counts, or damage.
    """

    end: int
    records: int = 0
    puts: Any = field(default_factory=lambda: np.empty(0, PUT_DTYPE))
    put_offsets: Any = field(default_factory=lambda: np.empty(0, np.int64))
    dones: Any = field(default_factory=lambda: np.empty(0, DONE_DTYPE))
    others: list[tuple[int, int, int]] = field(default_factory=list)


def blocks(buffer: bytes, at: int, end: int) -> Iterator[Block]:
    """Whole, true records from `at` on; the last block stops at `end`, or before the first that is not."""
    while at < end:
        offsets, stop = _chain(buffer, at, end)
        block = _checked(buffer, offsets, stop, end) if offsets else Block(at)
        if block.records:
            yield block
            at = block.end
        if not block.records or block.records < len(offsets):
            return


def _chain(buffer: bytes, at: int, end: int) -> tuple[list[int], int]:
    """Where records begin if their lengths are true, and where the last of them ends."""
    offsets: list[int] = []
    append, unpack, last = offsets.append, FRAME.unpack_from, end - FRAME_BYTES
    for _ in repeat(None, BLOCK_RECORDS):
        if at > last:
            break
        append(at)
        at += unpack(buffer, at)[0] + FRAME_BYTES
    return offsets, at


def _checked(buffer: bytes, offsets: list[int], stop: int, end: int) -> Block:
    starts = np.array(offsets, np.int64)
    ends = np.append(starts[1:], stop)
    whole = len(starts) - (stop > end)
    types = np.frombuffer(buffer, np.uint8)[starts + 8]
    bodies = ends - starts - FRAME_BYTES
    is_put = (types == Type.PUT) & (bodies >= PUT_FIELDS_BYTES)
    is_done = (types == Type.DONE) & (bodies == _DONE_BODY_BYTES)
    is_put[whole:] = is_done[whole:] = False
    puts, put_is_true = _puts(buffer, starts[is_put], ends[is_put])
    dones, done_is_true = _dones(buffer, starts[is_done], ends[is_done])
    is_true = np.zeros(len(starts), bool)
    is_true[is_put] = put_is_true
    is_true[is_done] = done_is_true
    others = []
    # What the quick ways do not accept is for `checked_end` to judge.
    for at in np.flatnonzero(~is_true).tolist():
        record_type, record_end = checked_end(buffer, offsets[at]) if at < whole else (0, 0)
        if not record_type:
            whole = at
            break
        others.append((record_type, offsets[at], record_end))
    good_puts = np.flatnonzero(is_put) < whole
    good_dones = np.flatnonzero(is_done) < whole
    return Block(
        int(ends[whole - 1]) if whole else offsets[0],
        whole,
        puts[good_puts & put_is_true],
        starts[is_put][good_puts & put_is_true],
        dones[good_dones & done_is_true],
        others,
    )


def _heads(buffer: bytes, starts: Any, dtype: Any) -> Any:
    """The first bytes of each record as a structure. All of them lie within the buffer."""
    if not len(starts):
        return np.empty(0, dtype)
    count = len(buffer) - dtype.itemsize + 1
    return np.ndarray((count,), dtype, buffer, strides=(1,))[starts]


def _digests(buffer: bytes, starts: Any, ends: Any, seeds: Iterator[int] | list[int]) -> Any:
    """The checksum of each stretch."""
    stretches = map(buffer.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return np.fromiter(map(xxh3_64_intdigest, stretches, seeds), np.uint64, len(starts)) & np.uint64(_U32)


def _puts(buffer: bytes, starts: Any, ends: Any) -> tuple[Any, Any]:
    """The heads of PUTs, and which of them are true."""
    puts = _heads(buffer, starts, PUT_DTYPE)
    seeds = puts["id"] + puts["body_bytes"].astype(np.uint64) + puts["add_at_ms"] * np.uint64(ADD_FACTOR)
    seeds += puts["expire_at_ms"] * np.uint64(EXPIRE_FACTOR)
    seeds += puts["flags"].astype(np.uint64) * np.uint64(FLAGS_FACTOR)
    seeds += puts["only_reader"].astype(np.uint64) * np.uint64(ONLY_FACTOR)
    digests = _digests(buffer, starts + PUT_HEADER_BYTES, ends, seeds.tolist())
    is_true = (digests == puts["checksum"]) & (puts["id"] < ID_MAX) & (puts["only_reader"] < READER_MAX)
    return puts, is_true


def _dones(buffer: bytes, starts: Any, ends: Any) -> tuple[Any, Any]:
    """The heads of DONEs of one range, and which of them are true."""
    dones = _heads(buffer, starts, DONE_DTYPE)
    digests = _digests(buffer, starts + FRAME_BYTES, ends, repeat(_DONE_SEED))
    is_true = (digests == dones["checksum"]) & (dones["ranges"] == 1) & (dones["reason"] < len(Reason))
    is_true &= (dones["first"] <= dones["last"]) & (dones["last"] < ID_MAX)
    is_true &= (dones["reader"] < READER_MAX) & (dones["data_bytes"] < ID_MAX)
    return dones, is_true
