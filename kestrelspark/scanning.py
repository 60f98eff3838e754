"""Finds, checks and reads a segment's records many at a time, with numpy.

Accepts the same bytes as `kestreld.journal.records.checked_end`, which is called for every record that the fast paths
do not accept.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import repeat
from typing import Any, Final

import numpy as np

from kestreld.journal import records
from kestrelspark import checksums

BLOCK_RECORDS: Final = 1 << 14  # so that the working set stays in the processor's cache
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
# What precedes the entries of a LEASE, and one of them.
LEASES_DTYPE: Final = np.dtype(
    [
        ("body_bytes", "<u4"),
        ("checksum", "<u4"),
        ("type", "u1"),
        ("reader", "<u4"),
        ("at_low_ms", "<u4"),
        ("at_high_ms", "<u2"),
    ]
)
LEASE_DTYPE: Final = np.dtype(
    [
        ("id", "<u8"),
        ("length_low_ms", "<u4"),
        ("length_high_ms", "<u2"),
        ("data_bytes", "<u4"),
        ("lease", "<u2"),
        ("holder", "<u2"),
    ]
)
_LENGTH: Final = struct.Struct("<I")
_DONE_BODY_BYTES: Final = DONE_DTYPE.itemsize - records.FRAME_BYTES
_DONE_SEED: Final = _DONE_BODY_BYTES + (records.Type.DONE << 56)
_LEASES_FIELDS_BYTES: Final = LEASES_DTYPE.itemsize - records.FRAME_BYTES
_LEASES_SEED: Final = np.uint64(records.Type.LEASE << 56)
_U32: Final = np.uint64(0xFFFFFFFF)


@dataclass(slots=True)
class LeaseEntries:
    """Entries of LEASE records as arrays: LEASE_DTYPE, and the reader, the time and the offset of their records."""

    entries: Any = field(default_factory=lambda: np.empty(0, LEASE_DTYPE))
    readers: Any = field(default_factory=lambda: np.empty(0, np.int64))
    at_ms: Any = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: Any = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(slots=True)
class Block:
    """Consecutive valid records.

    `puts` and `dones`: arrays of PUT_DTYPE and DONE_DTYPE; `put_offsets`: start of each PUT; `leases`: what the LEASE
    records say; `others`: (type, offset, end) of the rest, in order. `end` is followed by another block, the end of the
    data, or damage.
    """

    end: int
    records: int = 0
    puts: Any = field(default_factory=lambda: np.empty(0, PUT_DTYPE))
    put_offsets: Any = field(default_factory=lambda: np.empty(0, np.int64))
    dones: Any = field(default_factory=lambda: np.empty(0, DONE_DTYPE))
    leases: LeaseEntries = field(default_factory=LeaseEntries)
    others: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Scan:
    """The three operations on every record. Both implementations give the same results."""

    name: str
    chain: Callable[[bytes, int, int], tuple[Any, int]]
    heads: Callable[[bytes, Any, Any], Any]
    digests: Callable[[bytes, Any, Any, Any], Any]


def _chain(buffer: bytes, at: int, end: int) -> tuple[Any, int]:
    """Offsets of at most BLOCK_RECORDS records, following their lengths, and the end of the last one."""
    offsets: list[int] = []
    append, unpack, last = offsets.append, _LENGTH.unpack_from, end - records.FRAME_BYTES
    for _ in repeat(None, BLOCK_RECORDS):
        if at > last:
            break
        append(at)
        (body_bytes,) = unpack(buffer, at)
        at += body_bytes + records.FRAME_BYTES
    return np.array(offsets, np.int64), at


def _heads(buffer: bytes, starts: Any, dtype: Any) -> Any:
    """The first bytes of each record as a structure. All of them must lie within the buffer."""
    heads = np.empty(len(starts), dtype)
    if len(starts):
        count = len(buffer) - dtype.itemsize + 1
        for name, (kind, at) in dtype.fields.items():  # faster than whole structures at once
            heads[name] = np.ndarray((count,), kind, buffer, at, (1,))[starts]
    return heads


PLAIN: Final = Scan("numpy", _chain, _heads, checksums.digests)


@cache
def scans() -> tuple[Scan, ...]:
    """The available scans, the fastest first: compiled if numba is installed and NUMBA_DISABLE_JIT=1 is not set.

    numba, whose import takes most of a second, is imported by the workers that read records, not by the driver.
    """
    try:
        from kestrelspark import compiled
    except ImportError:
        return (PLAIN,)
    return Scan("numba", partial(compiled.chain, most=BLOCK_RECORDS), compiled.heads, compiled.digests), PLAIN


def __getattr__(name: str) -> tuple[Scan, ...]:
    if name == "SCANS":  # the former name of `scans`
        return scans()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def blocks(buffer: bytes, at: int, end: int, scan: Scan | None = None) -> Iterator[Block]:
    """Valid records from `at` on; the last block stops at `end`, or before the first invalid record."""
    scan = scan or scans()[0]
    while at < end:
        starts, stop = scan.chain(buffer, at, end)
        block = _checked(buffer, starts, stop, end, scan) if len(starts) else Block(at)
        if block.records:
            yield block
            at = block.end
        if not block.records or block.records < len(starts):
            return


def _checked(buffer: bytes, starts: Any, stop: int, end: int, scan: Scan) -> Block:
    ends = np.append(starts[1:], stop)
    whole = len(starts) - (stop > end)
    types = np.frombuffer(buffer, np.uint8)[starts + 8]
    bodies = ends - starts - records.FRAME_BYTES
    is_put = (types == records.Type.PUT) & (bodies >= records.PUT_FIELDS_BYTES)
    is_done = (types == records.Type.DONE) & (bodies == _DONE_BODY_BYTES)
    is_put[whole:] = is_done[whole:] = False
    put_starts, done_starts = starts[is_put], starts[is_done]
    puts, put_is_true = _puts(buffer, put_starts, ends[is_put], scan)
    dones, done_is_true = _dones(buffer, done_starts, ends[is_done], scan)
    is_true = np.zeros(len(starts), bool)
    is_true[is_put] = put_is_true
    is_true[is_done] = done_is_true
    is_lease = types == records.Type.LEASE
    is_lease[whole:] = False
    if is_lease.any():
        is_true[is_lease] = _are_leases(buffer, starts[is_lease], ends[is_lease], scan)
        is_lease &= is_true
    others = []
    # `checked_end` decides on records that the fast paths do not accept.
    for at in np.flatnonzero(~is_true).tolist():
        start = int(starts[at])
        record_type, record_end = records.checked_end(buffer, start) if at < whole else (0, 0)
        if not record_type:
            whole = at
            break
        others.append((record_type, start, record_end))
    block_end = int(ends[whole - 1] if whole else starts[0])
    good_puts = put_is_true & (put_starts < block_end)
    good_dones = done_is_true & (done_starts < block_end)
    if not good_puts.all():
        puts, put_starts = puts[good_puts], put_starts[good_puts]
    if not good_dones.all():
        dones = dones[good_dones]
    is_lease[whole:] = False
    leases = _lease_entries(buffer, starts[is_lease], ends[is_lease], scan) if is_lease.any() else LeaseEntries()
    return Block(block_end, whole, puts, put_starts, dones, leases, others)


def _puts(buffer: bytes, starts: Any, ends: Any, scan: Scan) -> tuple[Any, Any]:
    """The heads of PUTs, and a mask of the valid ones."""
    puts = scan.heads(buffer, starts, PUT_DTYPE)
    seeds = puts["id"] + puts["body_bytes"].astype(np.uint64) + puts["add_at_ms"] * np.uint64(records.ADD_FACTOR)
    seeds += puts["expire_at_ms"] * np.uint64(records.EXPIRE_FACTOR)
    seeds += puts["flags"].astype(np.uint64) * np.uint64(records.FLAGS_FACTOR)
    seeds += puts["only_reader"].astype(np.uint64) * np.uint64(records.ONLY_FACTOR)
    digests = scan.digests(buffer, starts + records.PUT_HEADER_BYTES, ends, seeds)
    is_true = (
        (digests & _U32 == puts["checksum"])
        & (puts["id"] < records.ID_MAX)
        & (puts["only_reader"] < records.READER_MAX)
    )
    return puts, is_true


def _dones(buffer: bytes, starts: Any, ends: Any, scan: Scan) -> tuple[Any, Any]:
    """The heads of DONEs of one range, and a mask of the valid ones."""
    dones = scan.heads(buffer, starts, DONE_DTYPE)
    seeds = np.full(len(starts), _DONE_SEED, np.uint64)
    digests = scan.digests(buffer, starts + records.FRAME_BYTES, ends, seeds)
    is_true = (digests & _U32 == dones["checksum"]) & (dones["ranges"] == 1) & (dones["reason"] < len(records.Reason))
    is_true &= (dones["first"] <= dones["last"]) & (dones["last"] < records.ID_MAX)
    is_true &= (dones["reader"] < records.READER_MAX) & (dones["data_bytes"] < records.ID_MAX)
    return dones, is_true


def _are_leases(buffer: bytes, starts: Any, ends: Any, scan: Scan) -> Any:
    """A mask of the valid LEASE records."""
    bodies = ends - starts - records.FRAME_BYTES
    entries, rest = np.divmod(bodies - _LEASES_FIELDS_BYTES, records.LEASE_ENTRY_BYTES)
    is_true = (entries > 0) & (rest == 0)
    starts, ends, bodies = starts[is_true], ends[is_true], bodies[is_true]
    heads = scan.heads(buffer, starts, LEASES_DTYPE)
    digests = scan.digests(buffer, starts + records.FRAME_BYTES, ends, bodies.astype(np.uint64) + _LEASES_SEED)
    is_whole = (digests & _U32 == heads["checksum"]) & (heads["reader"] < records.READER_MAX)
    is_whole[is_whole] = _have_ids(buffer, starts[is_whole], ends[is_whole], scan)
    is_true[is_true] = is_whole
    return is_true


def _have_ids(buffer: bytes, starts: Any, ends: Any, scan: Scan) -> Any:
    """A mask of the LEASE records whose ids can all be."""
    if not len(starts):
        return np.zeros(0, bool)
    offsets, counts = _entry_offsets(starts, ends)
    is_id = scan.heads(buffer, offsets, LEASE_DTYPE)["id"] < records.ID_MAX
    return np.logical_and.reduceat(is_id, np.cumsum(counts) - counts)


def _entry_offsets(starts: Any, ends: Any) -> tuple[Any, Any]:
    """Offsets of the entries of LEASE records, and how many each has."""
    counts = (ends - starts - LEASES_DTYPE.itemsize) // records.LEASE_ENTRY_BYTES
    before = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(before, counts)
    return np.repeat(starts + LEASES_DTYPE.itemsize, counts) + within * records.LEASE_ENTRY_BYTES, counts


def _lease_entries(buffer: bytes, starts: Any, ends: Any, scan: Scan) -> LeaseEntries:
    heads = scan.heads(buffer, starts, LEASES_DTYPE)
    offsets, counts = _entry_offsets(starts, ends)
    at_ms = heads["at_high_ms"].astype(np.int64) << 32 | heads["at_low_ms"]
    return LeaseEntries(
        scan.heads(buffer, offsets, LEASE_DTYPE),
        np.repeat(heads["reader"].astype(np.int64), counts),
        np.repeat(at_ms, counts),
        np.repeat(starts, counts),
    )
