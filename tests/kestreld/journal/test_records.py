"""Records as bytes: what is written is read back, and no single flipped bit goes unnoticed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    ADD_OFFSET,
    EXPIRE_OFFSET,
    FRAME,
    FRAME_BYTES,
    ID_MAX,
    ID_OFFSET,
    PUT,
    PUT_HEADER_BYTES,
    READER_MAX,
    TYPE_OFFSET,
    Abort,
    Checkpoint,
    Done,
    ImportedFile,
    Kind,
    ReaderChange,
    ReaderState,
    Reason,
    Type,
    abort_record,
    checked_end,
    checkpoint_record,
    done_record,
    find_whole_records,
    import_record,
    item_add_at_ms,
    item_data,
    item_expire_at_ms,
    item_flags,
    item_id,
    item_optional_fields,
    put_record,
    read_abort,
    read_checkpoint,
    read_done,
    read_import,
    read_reader,
    read_sync,
    reader_record,
    record_end,
    sync_record,
    unpack_id_and_add,
    whole_records,
)

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
names = st.text(st.characters(max_codepoint=255), max_size=20)
file_names = st.text(st.characters(codec="utf-8"), max_size=20)
ids, readers = st.integers(0, ID_MAX - 1), st.integers(0, READER_MAX - 1)
ranges = st.lists(st.tuples(ids, ids).map(lambda two: (min(two), max(two))), max_size=5)
dones = st.builds(Done, readers, st.sampled_from(Reason), u64, u32, ids, ranges)
aborts = st.builds(Abort, u32, u64, u64, u16)
changes = st.builds(ReaderChange, readers, st.booleans(), st.sampled_from(Kind), u64, ids, names)
states = st.builds(
    ReaderState,
    readers,
    st.sampled_from(Kind),
    names,
    at_id=ids,
    head=ids,
    segment=u32,
    offset=u64,
    items=ids,
    data_bytes=ids,
    ended=st.lists(ids, min_size=len(Reason), max_size=len(Reason)),
    done=ranges,
    retries=st.dictionaries(u64, u16, max_size=3),
)
checkpoints = st.builds(Checkpoint, u32, u64, ids, readers, ids, ids, st.lists(states, max_size=4))

ONE_OF_EACH = {
    "put": put_record(7, 1_700_000_000_123, 0, 0, 0, b"item data"),
    "put with expiry, flags and reader": put_record(2**40, 5, 1_700_000_000_999, 0xFFFFFFFF, 3, b"x"),
    "put without data": put_record(1, 0, 0, 0, 0, b""),
    "done": done_record(Done(1, Reason.CONFIRMED, 99, 3, 12, [(4, 5), (9, 9)])),
    "abort": abort_record(Abort(2, 99, 17, 4)),
    "reader": reader_record(ReaderChange(2, False, Kind.STREAM, 99, 12, "audit")),
    "sync": sync_record(4096),
    "import": import_record([ImportedFile("q", 22, 2**63), ImportedFile("q+caf\xe9", 0, 0)]),
    "checkpoint": checkpoint_record(
        Checkpoint(
            3, 900, 40, 5, 39, 390,
            [ReaderState(1, Kind.QUEUE, "", done=[(3, 4)], retries={2: 1}), ReaderState(4, Kind.STREAM, "spark")],
        )
    ),
}  # fmt: skip


def body(record: bytes, expected: Type) -> bytes:
    assert checked_end(record, 0) == (expected, len(record))
    return record[FRAME_BYTES:]


def test_the_offsets_of_fields_are_those_of_the_packed_record() -> None:
    assert (FRAME.size, PUT.size) == (FRAME_BYTES, PUT_HEADER_BYTES)
    body_bytes, put_id, add_ms, expire_ms = 1 << 24, 4 << 56, 5 << 48, 6 << 40
    record = PUT.pack(body_bytes, 2, 3, put_id, add_ms, expire_ms, 7, 8)
    fields = pairwise([TYPE_OFFSET, ID_OFFSET, ADD_OFFSET, EXPIRE_OFFSET, EXPIRE_OFFSET + 8])
    assert [int.from_bytes(record[at:end], "little") for at, end in fields] == [3, put_id, add_ms, expire_ms]
    assert unpack_id_and_add(record) == (put_id, add_ms)
    assert record_end(record, 0) == FRAME_BYTES + body_bytes


@given(ids, u64, u64, u32, readers, st.binary(max_size=300))
def test_an_item_is_its_put_record(number, add_at_ms, expire_at_ms, flags, only, data):
    record = put_record(number, add_at_ms, expire_at_ms, flags, only, data)
    body(record, Type.PUT)
    assert (item_id(record), item_add_at_ms(record), item_expire_at_ms(record)) == (number, add_at_ms, expire_at_ms)
    assert item_optional_fields(record) == (expire_at_ms, flags, only)
    assert (item_flags(record), item_data(record)) == (flags, data)
    assert len(record) == PUT_HEADER_BYTES + len(data)


@given(dones)
def test_a_done_record_says_what_was_written(done):
    assert read_done(body(done_record(done), Type.DONE)) == done


@given(aborts)
def test_an_abort_record_says_what_was_written(abort):
    assert read_abort(body(abort_record(abort), Type.ABORT)) == abort


def test_an_item_that_came_back_65535_times_is_counted_no_further():
    assert read_abort(body(abort_record(Abort(1, 2, 3, 70_000)), Type.ABORT)).times == 65_535


@given(changes)
def test_a_reader_record_says_what_was_written(change):
    assert read_reader(body(reader_record(change), Type.READER)) == change


@given(u64)
def test_a_sync_record_says_what_was_written(offset):
    assert read_sync(body(sync_record(offset), Type.SYNC)) == offset


@given(st.lists(st.builds(ImportedFile, file_names, u64, u64), max_size=4))
def test_an_import_record_says_what_was_written(imported):
    assert read_import(body(import_record(imported), Type.IMPORT)) == imported


@given(checkpoints)
def test_a_checkpoint_says_what_was_written(checkpoint):
    assert read_checkpoint(body(checkpoint_record(checkpoint), Type.CHECKPOINT)) == checkpoint


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_every_flipped_bit_of_a_record_is_noticed_wherever_it_stands(kind):
    record = ONE_OF_EACH[kind]
    around = put_record(1, 2, 3, 4, 5, b"before"), put_record(2, 3, 4, 5, 6, b"after" * 100)
    for before, after in ((b"", b""), around):
        at = len(before)
        for bit in range(len(record) * 8):
            altered = bytearray(before + record + after)
            altered[at + bit // 8] ^= 1 << bit % 8
            assert checked_end(bytes(altered), at)[0] == 0, f"bit {bit}"


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_record_cut_anywhere_is_not_whole(kind):
    record = ONE_OF_EACH[kind]
    assert [checked_end(record[:cut], 0) for cut in range(len(record))] == [(0, -1)] * len(record)


def test_the_reasons_for_refusing_a_record_are_told_apart():
    record = put_record(1, 2, 0, 0, 0, b"data")
    codes: dict[bytes, int] = {
        record[:-1]: -1,
        record[:-1] + b"!": -2,
        b"\0" * 50: -3,
        record[:8] + b"\x08" + record[9:]: -2,
        b"\x05\0\0\0" + record[4:]: -2,  # a PUT too short for its own fields
    }
    assert {bytes_: checked_end(bytes_, 0) for bytes_ in codes} == {bytes_: (0, code) for bytes_, code in codes.items()}


def reframed(record: bytes, at: int, changed: bytes) -> bytes:
    """A record with other bytes in its body, and the checksum of those."""
    made = bytearray(record)
    made[FRAME_BYTES + at : FRAME_BYTES + at + len(changed)] = changed
    fields, kind = bytes(made[FRAME_BYTES:]), made[8]
    checksum = xxh3_64_intdigest(fields, len(fields) + (kind << 56)) & 0xFFFFFFFF
    return len(fields).to_bytes(4, "little") + checksum.to_bytes(4, "little") + bytes([kind]) + fields


@pytest.mark.parametrize(
    "record",
    [
        reframed(ONE_OF_EACH["done"], 4, b"\x06"),  # a reason that there is not
        reframed(ONE_OF_EACH["done"], 25, b"\x03"),  # three ranges, of which two follow
        done_record(Done(1, Reason.GOT, 99, 1, 1, [(5, 4)])),
        reframed(ONE_OF_EACH["reader"], 5, b"\x02"),  # a kind that there is not
        reframed(ONE_OF_EACH["checkpoint"], 40, b"\x09"),  # nine readers, of which two follow
        reframed(ONE_OF_EACH["sync"], 8, b"more"),
        reframed(ONE_OF_EACH["abort"], 22, b"more"),
        put_record(ID_MAX, 0, 0, 0, 0, b"x"),
        put_record(1, 0, 0, 0, READER_MAX, b"x"),
        reader_record(ReaderChange(2**32 - 1, False, Kind.QUEUE, 99, 12, "")),
    ],
)
def test_a_record_whose_checksum_is_right_and_whose_fields_are_not_is_no_record(record):
    assert checked_end(record, 0) == (0, -4)


@given(st.lists(st.sampled_from(list(ONE_OF_EACH.values())), max_size=6))
def test_whole_records_are_walked_one_after_the_other(records):
    buffer = b"head" + b"".join(records)
    walked = list(whole_records(buffer, 4, "x.seg"))
    assert [buffer[start:end] for _, start, end in walked] == records
    assert [kind for kind, _, _ in walked] == [record[8] for record in records]


def test_a_walk_over_records_says_where_the_first_bad_one_stands():
    good, bad = ONE_OF_EACH["sync"], ONE_OF_EACH["done"][:-1] + b"?"
    with pytest.raises(JournalCorrupt) as refused:
        list(whole_records(good + bad, 0, "x.seg", base=100))
    assert (refused.value.path, refused.value.offset) == ("x.seg", 100 + len(good))


@given(
    st.lists(st.sampled_from(list(ONE_OF_EACH.values())), max_size=4),
    st.lists(st.binary(max_size=30), min_size=5, max_size=5),
)
def test_whole_records_are_found_at_any_byte_among_rubbish(records, rubbish):
    buffer = b"".join(left + right for left, right in zip(rubbish, [*records, b"", b"", b"", b"", b""], strict=False))
    found = [buffer[start:end] for _, start, end in find_whole_records(buffer, 0)]
    assert found == records
