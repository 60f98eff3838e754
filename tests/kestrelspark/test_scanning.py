"""The scan with numpy beside the journal's own reading, record by record."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy", reason="numpy is not installed: make test-spark installs it")

from kestreld.journal.records import (
    FRAME_BYTES,
    ID_MAX,
    PUT,
    READER_MAX,
    Done,
    Reason,
    Type,
    checked_end,
    done_record,
    holder_record,
    lease_entry,
    lease_record,
    put_record,
    read_leases,
    record_end,
    sync_record,
)
from kestreld.journal.segment import decode_header
from kestrelspark.checksums import FEW
from kestrelspark.scanning import DONE_DTYPE, Block, Scan, blocks, scans
from tests.support.damage import Sample

Found = list[tuple[int, int, int]]  # type, start, end


def checked_one_by_one(buffer: bytes, at: int) -> Found:
    found = []
    while at < len(buffer):
        record_type, end = checked_end(buffer, at)
        if not record_type:
            break
        found.append((record_type, at, end))
        at = end
    return found


def scanned(buffer: bytes, at: int, scan: Scan) -> tuple[Found, int, int]:
    """The records but for DONEs of one range and LEASEs, how many of all there are, and where they end."""
    found: Found = []
    records, end = 0, at
    for block in blocks(buffer, at, len(buffer), scan):
        found += [
            (Type.PUT, start, start + 9 + size)
            for start, size in zip(block.put_offsets.tolist(), block.puts["body_bytes"].tolist(), strict=True)
        ]
        found += block.others
        records, end = records + block.records, block.end
        leases = {(Type.LEASE, start, record_end(buffer, start)) for start in block.leases.offsets.tolist()}
        assert len(block.puts) + len(block.dones) + len(leases) + len(block.others) == block.records
        found += leases
        assert leases_of(block, buffer) == [
            (due.reader, due.item_id, due.at_ms, due.due_at_ms, due.data_bytes, due.lease)
            for _, start, end in sorted(leases)
            for due in read_leases(buffer[start + FRAME_BYTES : end])
        ]
    return found, records, end


def leases_of(block: Block, buffer: bytes) -> list[tuple[int, ...]]:
    at_ms, readers = block.leases.at_ms.tolist(), block.leases.readers.tolist()
    return [
        (reader, one, at, at + (high << 32 | low), size, lease)
        for reader, at, (one, low, high, size, lease, _) in zip(
            readers, at_ms, block.leases.entries.tolist(), strict=True
        )
    ]


def same(buffer: bytes, at: int) -> None:
    expected = checked_one_by_one(buffer, at)
    for scan in scans():
        found, records, end = scanned(buffer, at, scan)
        assert (records, end) == (len(expected), expected[-1][2] if expected else at)
        seen = set(found)
        assert [one for one in expected if one in seen] == sorted(found, key=lambda one: one[1])
        assert all(kind == Type.DONE and end - at == DONE_DTYPE.itemsize for kind, at, end in set(expected) - seen)


def test_a_sound_segment_is_read_to_its_end() -> None:
    sample = Sample()
    for path in sample.segments:
        buffer = sample.files[path]
        same(buffer, decode_header(buffer, path)[1])
        assert scanned(buffer, decode_header(buffer, path)[1], scans()[0])[2] == len(buffer)


def test_reading_ends_where_checking_one_by_one_does_whatever_bit_is_flipped() -> None:
    sample = Sample()
    for path, bit in random.Random(1).sample(sample.bits, 4000):
        at = decode_header(sample.files[path], path)[1]
        if bit // 8 >= at:
            same(sample.flipped(path, bit), at)


def test_reading_ends_where_checking_one_by_one_does_wherever_a_segment_is_cut() -> None:
    sample = Sample()
    for path, size in sample.cuts:
        at = decode_header(sample.files[path], path)[1]
        if size >= at:
            same(sample.files[path][:size], at)


def test_fields_are_those_that_were_put() -> None:
    sample = Sample()
    for path in sample.segments:
        buffer = sample.files[path]
        for block in blocks(buffer, decode_header(buffer, path)[1], len(buffer)):
            for put, start in zip(block.puts.tolist(), block.put_offsets.tolist(), strict=True):
                assert put == PUT.unpack_from(buffer, start)


GOOD = (
    put_record(1, 2, 3, 4, 5, b"item")
    + lease_record(1, 2, [lease_entry(1, 1, 4, 1, 1)] * 3)
    + done_record(Done(1, Reason.GOT, 2, 1, 4, [(1, 1)]))
)
IMPOSSIBLE = [
    put_record(ID_MAX, 2, 0, 0, 0, b"item"),
    put_record(1, 2, 0, 0, READER_MAX, b"item"),
    done_record(Done(READER_MAX, Reason.GOT, 2, 1, 4, [(1, 1)])),
    done_record(Done(1, Reason.GOT, 2, 1, ID_MAX, [(1, 1)])),
    done_record(Done(1, Reason.GOT, 2, 1, 4, [(1, ID_MAX)])),
    done_record(Done(1, Reason.GOT, 2, 1, 4, [(2, 1)])),
    lease_record(READER_MAX, 2, [lease_entry(1, 60_000, 4, 1, 1)]),
    lease_record(1, 2, [lease_entry(1, 60_000, 4, 1, 1), lease_entry(ID_MAX, 60_000, 4, 1, 1)]),
    lease_record(1, 2, [lease_entry(1, 60_000, 4, 1, 1), b"half"]),
    lease_record(1, 2, []),
]


@pytest.mark.parametrize("record", IMPOSSIBLE)
@pytest.mark.parametrize("times", [1, FEW])
def test_a_record_whose_fields_cannot_be_ends_what_is_read_though_its_checksum_is_right(
    record: bytes, times: int
) -> None:
    same(GOOD * times + record + GOOD, 0)
    assert scanned(GOOD * times + record + GOOD, 0, scans()[0])[2] == len(GOOD) * times


ids = st.integers(0, 1000) | st.sampled_from([ID_MAX - 1, ID_MAX])  # the latter cannot be
readers = st.just(0) | st.sampled_from([1, READER_MAX - 1, READER_MAX])
instants = st.integers(0, (1 << 64) - 1)
puts = st.builds(
    put_record,
    ids,
    instants,
    st.just(0) | instants,
    st.just(0) | st.integers(0, (1 << 32) - 1),
    readers,
    st.integers(0, 300).map(lambda size: b"item" * (size // 4) + b"!" * (size % 4)),
)
ranges = st.lists(st.tuples(ids, ids), max_size=2)
dones = st.builds(
    lambda reader, reason, at_ms, ranges: done_record(Done(reader, reason, at_ms, 1, 1, ranges)),
    readers,
    st.sampled_from(Reason),
    instants,
    ranges,
)
leases = st.builds(
    lease_record,
    readers,
    st.integers(0, (1 << 48) - 1),
    st.lists(st.builds(lease_entry, ids, instants, st.just(7), st.integers(0, 1 << 13), st.just(1)), max_size=4),
)
holders = st.builds(holder_record, st.just(1), st.sampled_from(["10.0.0.1:4001", "Zoë"]))
records = puts | dones | leases | holders | st.builds(sync_record, ids) | st.binary(min_size=1, max_size=40)
often = st.lists(puts | dones | leases, min_size=1, max_size=4).map(lambda some: b"".join(some) * FEW)


@given(st.lists(records, max_size=8).map(b"".join), often | st.just(b""), st.data())
def test_both_ways_end_where_checking_one_by_one_does_on_any_bytes(
    some: bytes, many: bytes, data: st.DataObject
) -> None:
    buffer = bytearray(some + many + some)
    same(bytes(buffer), 0)
    if buffer:
        place = data.draw(st.integers(0, len(buffer) - 1))
        buffer[place] ^= data.draw(st.integers(1, 255))
        same(bytes(buffer), 0)
        same(bytes(buffer[:place]), 0)
