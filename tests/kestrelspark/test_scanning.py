"""The scan with numpy beside the journal's own reading, record by record."""

import random

import pytest

pytest.importorskip("numpy", reason="numpy is not installed: make test-spark installs it")

from kestreld.journal.records import PUT, Type, checked_end
from kestreld.journal.segment import decode_header
from kestrelspark.scanning import DONE_DTYPE, blocks
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


def scanned(buffer: bytes, at: int) -> tuple[Found, int, int]:
    """The records but for DONEs of one range, how many of all there are, and where they end."""
    found: Found = []
    records, end = 0, at
    for block in blocks(buffer, at, len(buffer)):
        found += [
            (Type.PUT, start, start + 9 + size)
            for start, size in zip(block.put_offsets.tolist(), block.puts["body_bytes"].tolist(), strict=True)
        ]
        found += block.others
        records, end = records + block.records, block.end
        assert len(block.puts) + len(block.dones) + len(block.others) == block.records
    return found, records, end


def same(buffer: bytes, at: int) -> None:
    expected = checked_one_by_one(buffer, at)
    found, records, end = scanned(buffer, at)
    assert (records, end) == (len(expected), expected[-1][2] if expected else at)
    assert [one for one in expected if one in set(found)] == sorted(found, key=lambda one: one[1])
    assert all(kind == Type.DONE and end - at == DONE_DTYPE.itemsize for kind, at, end in set(expected) - set(found))


def test_a_sound_segment_is_read_to_its_end() -> None:
    sample = Sample()
    for path in sample.segments:
        buffer = sample.files[path]
        same(buffer, decode_header(buffer, path)[1])
        assert scanned(buffer, decode_header(buffer, path)[1])[2] == len(buffer)


def test_reading_ends_where_checking_one_by_one_does_whatever_bit_is_flipped() -> None:
    sample = Sample()
    for path, bit in random.Random(1).sample(sample.bits, 6000):
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
