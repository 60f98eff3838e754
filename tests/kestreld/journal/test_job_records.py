"""The job log's records as bytes."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.errors import JournalCorrupt
from kestreld.journal import job_records as jr
from kestreld.journal.job_segments import HEADER_BYTES, JobHeader, decode_job_header, encode_job_header
from kestreld.journal.records import FRAME_BYTES, framed, sync_record

instants = st.integers(0, (1 << 62) - 1)
spans = st.integers(0, (1 << 62) - 1)
counts = st.integers(0, (1 << 32) - 1)
ids = st.binary(min_size=40, max_size=40)
words = st.binary(max_size=50)
extras = st.builds(
    jr.JobExtras,
    key=words,
    retries_max=st.integers(-1, 1 << 40),
    origin=st.none() | st.builds(jr.JobOrigin, queue=words, reason=words, dead_at_ms=instants),
    delivered=st.lists(ids, max_size=3).map(tuple),
    confirmed=st.lists(ids, max_size=3).map(tuple),
)
jobs = st.builds(
    jr.JobRecord,
    at_ms=instants,
    job_id=ids,
    queue=words,
    body=st.binary(max_size=200),
    created=st.integers(0, (1 << 64) - 1),
    ttl_ms=spans,
    delay_ms=spans,
    retry_ms=spans,
    requeue_at_ms=instants,
    state=st.sampled_from(list(jr.JobState)),
    replicas=st.integers(0, 65535),
    nacks=counts,
    deliveries=counts,
    extras=extras,
)
changes = st.builds(
    jr.JobChange,
    at_ms=instants,
    job_id=ids,
    requeue_at_ms=instants,
    state=st.sampled_from(list(jr.JobState)),
    nacks=counts,
    deliveries=counts,
)
keys = st.builds(jr.JobKey, at_ms=instants, until_ms=instants, job_id=ids, key=words)


def packed_change(change: jr.JobChange) -> bytes:
    return jr.change_record(
        change.at_ms, change.job_id, change.requeue_at_ms, change.state, change.nacks, change.deliveries
    )


records = st.one_of(
    jobs.map(jr.pack_job),
    changes.map(packed_change),
    st.builds(jr.done_record, instants, st.lists(ids, max_size=4), st.sampled_from(jr.ENDS)),
    instants.map(jr.flushed_record),
    st.builds(jr.queued_record, words, st.lists(ids, max_size=4)),
    st.builds(jr.stopped_record, instants, instants),
    keys.map(jr.key_record),
    st.builds(jr.owners_record, instants, ids, st.lists(ids, max_size=4)),
    st.builds(jr.paused_record, instants, words, st.integers(0, jr.PAUSE_MAX)),
    st.integers(0, 1 << 40).map(sync_record),
)


@given(jobs)
def test_a_job_reads_back_as_it_was_written(job: jr.JobRecord) -> None:
    record = jr.pack_job(job)
    assert jr.checked_job_end(record, 0) == (jr.JobType.JOB, len(record))
    assert jr.read_job(record[FRAME_BYTES:]) == job


@given(changes, keys, instants, st.lists(ids, max_size=4), words)
def test_every_other_record_reads_back_as_it_was_written(
    change: jr.JobChange, key: jr.JobKey, at_ms: int, some: list[bytes], queue: bytes
) -> None:
    assert jr.read_change(packed_change(change)[FRAME_BYTES:]) == change
    assert jr.read_key(jr.key_record(key)[FRAME_BYTES:]) == key
    for end in jr.ENDS:
        assert jr.read_done(jr.done_record(at_ms, some, end)[FRAME_BYTES:]) == (at_ms, some, end)
    assert jr.read_flushed(jr.flushed_record(at_ms)[FRAME_BYTES:]) == at_ms
    assert jr.read_queued(jr.queued_record(queue, some)[FRAME_BYTES:]) == (queue, some)
    assert jr.read_stopped(jr.stopped_record(at_ms, 7)[FRAME_BYTES:]) == (at_ms, 7)
    assert jr.read_owners(jr.owners_record(at_ms, key.job_id, some)[FRAME_BYTES:]) == (at_ms, key.job_id, some)
    for pause in range(jr.PAUSE_MAX + 1):
        assert jr.read_paused(jr.paused_record(at_ms, queue, pause)[FRAME_BYTES:]) == (at_ms, queue, pause)


@given(records, st.randoms(use_true_random=False))
def test_a_flipped_bit_and_a_cut_are_noticed_in_every_record(record: bytes, chance: Random) -> None:
    flipped = bytearray(record)
    flipped[chance.randrange(len(record))] ^= 1 << chance.randrange(8)
    # Behind a longer length may stand what makes it a whole record again: the checksum says that it is none.
    assert jr.checked_job_end(bytes(flipped) + record * 3, 0)[0] == 0
    assert jr.checked_job_end(record[: chance.randrange(len(record))], 0)[0] == 0


@given(st.lists(records, max_size=6))
def test_a_stretch_of_records_reads_back_one_by_one(some: list[bytes]) -> None:
    buffer = b"".join(some)
    found = [buffer[start:end] for _, start, end in jr.whole_job_records(buffer, 0, "f")]
    assert found == some


def version_of(record: bytes) -> int:
    return jr.version_needed(jr.checked_job_end(record, 0)[0], record[FRAME_BYTES:])


def test_only_how_often_a_job_was_moved_needs_segments_of_version_3() -> None:
    job = jr.JobRecord(1, b"i" * 40, b"q", b"body", 1, 1000)
    origin = jr.JobOrigin(b"q", b"asked", 1)
    assert version_of(jr.pack_job(replace(job, extras=jr.JobExtras(delivered=(b"n" * 40,), moves=2)))) == 3
    assert version_of(jr.pack_job(replace(job, extras=jr.JobExtras(origin=origin)))) == 1
    assert version_of(jr.pack_job(replace(job, extras=jr.JobExtras(origin=origin, delivered=(b"n" * 40,))))) == 2


def test_only_what_nodes_of_a_cluster_have_to_do_with_needs_segments_of_version_2() -> None:
    def needs(record: bytes) -> bool:
        return version_of(record) == 2

    job = jr.JobRecord(1, b"i" * 40, b"q", b"body", 1, 1000)
    lone = {jr.JobState.WAIT_REPL, jr.JobState.ACTIVE, jr.JobState.QUEUED, jr.JobState.DELAYED}
    assert {state for state in jr.JobState if not needs(jr.pack_job(replace(job, state=state)))} == lone
    assert needs(jr.pack_job(replace(job, extras=jr.JobExtras(delivered=(b"n" * 40,)))))
    assert not needs(jr.pack_job(replace(job, extras=jr.JobExtras(key=b"key", retries_max=2))))
    assert needs(jr.owners_record(1, b"i" * 40, []))
    assert needs(jr.paused_record(1, b"q", 0))
    assert not any(map(needs, (jr.flushed_record(1), jr.done_record(1, [], "acked"), jr.queued_record(b"q", []))))


@pytest.mark.parametrize(
    "body", [b"", b"\0" * 8, b"\0" * 8 + b"\x04q", b"\0" * 8 + b"\xffq"], ids=["empty", "short", "4", "255"]
)
def test_a_pause_of_an_unknown_kind_is_no_record(body: bytes) -> None:
    assert jr.checked_job_end(framed(jr.JobType.PAUSED, body), 0)[0] == 0


@pytest.mark.parametrize("body_bytes", [0, 8, 47, 49, 87])
def test_owners_that_are_cut_short_are_no_record(body_bytes: int) -> None:
    assert jr.checked_job_end(framed(jr.JobType.OWNERS, b"\0" * body_bytes), 0)[0] == 0


def test_a_bad_record_is_named_by_file_and_offset() -> None:
    good = jr.flushed_record(5)
    with pytest.raises(JournalCorrupt, match=f"x.jobs: byte {len(good)}: the record is cut short"):
        list(jr.whole_job_records(good + good[:-1], 0, "x.jobs"))


def test_a_header_reads_back_and_none_of_its_bits_can_flip_unseen() -> None:
    header = JobHeader(1_700_000_000_000, 7, 1_700_000_000_500, 1 << 33, 1 << 32)
    packed = encode_job_header(header)
    assert len(packed) == HEADER_BYTES
    assert decode_job_header(packed, "f") == header
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(JournalCorrupt):
            decode_job_header(bytes(flipped), "f")
