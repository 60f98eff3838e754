"""Records of the job log as bytes (docs/journal.md). Pure functions; encode and decode are neighbours.

    record = u32 body_bytes | u32 checksum | u8 type | body          all little-endian

Frame and checksum are those of a queue journal's records; the types are the job log's own, except SYNC. Only a JOB
record describes a job: the others change one, by its id, or end it. `version_needed` alone knows which records need
later versions of segments.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import FRAME, FRAME_BYTES, ID_MAX, framed, read_sync, why_bad


class JobType(IntEnum):
    JOB = 1
    CHANGE = 2
    DONE = 3
    FLUSHED = 4
    SYNC = 5  # as in a queue's journal
    QUEUED = 6
    STOPPED = 7
    KEY = 8
    OWNERS = 9
    PAUSED = 10


class JobState(IntEnum):
    """State of a job. The numbers are those of Disque's own file."""

    WAIT_REPL = 0  # copies on enough nodes
    ACTIVE = 1  # its acknowledgement, or its next requeue
    QUEUED = 2  # a client that fetches it
    ACKED = 3  # its other nodes to learn of the acknowledgement; it has no body
    DELAYED = 4  # its time to be queued: here only, to clients it is active
    BORROWED = 5  # its giver to let go of it: delivered at most once, like the following
    LENT = 6  # the node that it was sent to, to store it
    LET_GO = 7  # that node to learn that it may deliver it; it has no body


ENDS: Final = ("acked", "deleted", "expired")  # how jobs end, by number in DONE
ID_BYTES: Final = 40
NEVER: Final = 0  # instead of a time
_LAST_STATE: Final = max(JobState)
_OF_CLUSTERS: Final = frozenset({JobState.ACKED, JobState.BORROWED, JobState.LENT, JobState.LET_GO})
_U32: Final = 0xFFFFFFFF


class Extra(IntEnum):
    """Optional fields of a job, each as | tag u8 | bytes u32 | value |."""

    KEY = 1  # the client's own id
    RETRIES = 2  # | how often it may be put back before it goes to the dead-letter queue u64 |
    ORIGIN = 3  # | dead_at_ms u64 | reason_bytes u16 | reason | queue |
    DELIVERED = 4  # nodes that may hold it, 40 bytes each
    CONFIRMED = 5  # nodes that confirmed
    MOVES = (
        6  # | how often it was moved to the dead letters and back u32 |, where that is not 0, nor 1 for a dead letter
    )


@dataclass(slots=True, frozen=True)
class JobOrigin:
    """Origin of a dead letter: its queue, the reason, and the time at which it died."""

    queue: bytes
    reason: bytes
    dead_at_ms: int


@dataclass(slots=True, frozen=True)
class JobExtras:
    """Optional fields of a job. `key` b"" = the client gave none; `retries_max` -1 = no limit.

    Empty `delivered` and `confirmed` mean this node alone; `moves` 0 is the default, which is not stored.
    """

    key: bytes = b""
    retries_max: int = -1
    origin: JobOrigin | None = None
    delivered: tuple[bytes, ...] = ()
    confirmed: tuple[bytes, ...] = ()
    moves: int = 0


NO_EXTRAS: Final = JobExtras()


@dataclass(slots=True)
class JobRecord:
    """A job at the instant `at_ms`, as in a JOB record. `created` is in units of 10^-6 ms: it orders a queue."""

    at_ms: int
    job_id: bytes
    queue: bytes
    body: bytes
    created: int
    ttl_ms: int
    delay_ms: int = 0
    retry_ms: int = 0
    requeue_at_ms: int = NEVER
    state: int = JobState.ACTIVE
    replicas: int = 1
    nacks: int = 0
    deliveries: int = 0  # additional ones
    extras: JobExtras = NO_EXTRAS


# JOB: | at_ms u64 | created u64 | requeue_at_ms u64 | id 40 | state u8 | nacks u32 | deliveries u32
#      | extras_bytes u32 | ttl_ms u64 | delay_ms u64 | retry_ms u64 | replicas u16 | queue_bytes u32
#      | queue | extras | body |
JOB: Final = struct.Struct("<QQQ40sBIIIQQQHI")
JOB_FIELDS_BYTES: Final = JOB.size
JOB_HEADER_BYTES: Final = FRAME_BYTES + JOB_FIELDS_BYTES  # a job's bytes on disk without its queue's name and body
# From ttl_ms to the end of the queue's name: fields that many jobs have in common are one stretch of bytes.
_OWN: Final = struct.Struct("<QQQ40sBIII")
_SHARED: Final = struct.Struct("<QQQHI")
SHARED_OFFSET: Final = _OWN.size
_pack_own: Final = _OWN.pack
_pack_frame: Final = FRAME.pack
_JOB_SEED: Final = int(JobType.JOB) << 56


def shared_fields(queue: bytes, ttl_ms: int, delay_ms: int, retry_ms: int, replicas: int) -> bytes:
    """Packed fields that many jobs have in common, for `job_record`."""
    return _SHARED.pack(ttl_ms, delay_ms, retry_ms, replicas, len(queue)) + queue


def job_record(
    at_ms: int,
    job_id: bytes,
    body: bytes,
    created: int,
    requeue_at_ms: int,
    state: int,
    nacks: int,
    deliveries: int,
    shared: bytes,
    extras: bytes,
) -> bytes:
    """The JOB record of a JobRecord's fields, some of them packed already, because one is written for every job."""
    own = _pack_own(at_ms, created, requeue_at_ms, job_id, state, nacks, deliveries, len(extras))
    content = b"".join((own, shared, extras, body))
    size = len(content)
    return _pack_frame(size, xxh3_64_intdigest(content, size + _JOB_SEED) & _U32, 1) + content


def pack_job(job: JobRecord) -> bytes:
    shared = shared_fields(job.queue, job.ttl_ms, job.delay_ms, job.retry_ms, job.replicas)
    return job_record(
        job.at_ms, job.job_id, job.body, job.created, job.requeue_at_ms, job.state, job.nacks, job.deliveries, shared,
        pack_extras(job.extras),
    )  # fmt: skip


def read_job(body: bytes) -> JobRecord:
    """Read a body. Like every `read_`: raises struct.error or ValueError if it is not that of such a record."""
    (
        at_ms, created, requeue_at_ms, job_id, state, nacks, deliveries, extras_bytes, ttl_ms, delay_ms,
        retry_ms, replicas, queue_bytes,
    ) = JOB.unpack_from(body)  # fmt: skip
    queue_end = JOB_FIELDS_BYTES + queue_bytes
    extras_end = queue_end + extras_bytes
    if extras_end > len(body) or state > _LAST_STATE or ttl_ms >= ID_MAX or requeue_at_ms >= ID_MAX:
        raise ValueError("field value out of range")
    extras = read_extras(body[queue_end:extras_end]) if extras_bytes else NO_EXTRAS
    return JobRecord(
        at_ms, job_id, body[JOB_FIELDS_BYTES:queue_end], body[extras_end:], created, ttl_ms, delay_ms, retry_ms,
        requeue_at_ms, state, replicas, nacks, deliveries, extras,
    )  # fmt: skip


_EXTRA: Final = struct.Struct("<BI")
_RETRIES: Final = struct.Struct("<Q")
_ORIGIN: Final = struct.Struct("<QH")
_MOVES: Final = struct.Struct("<I")


def pack_extras(extras: JobExtras) -> bytes:
    """Pack the optional fields; b"" if there are none."""
    if extras == NO_EXTRAS:
        return b""
    values = []
    if extras.key:
        values.append((Extra.KEY, extras.key))
    if extras.retries_max >= 0:
        values.append((Extra.RETRIES, _RETRIES.pack(extras.retries_max)))
    origin = extras.origin
    if origin is not None:
        values.append(
            (Extra.ORIGIN, _ORIGIN.pack(origin.dead_at_ms, len(origin.reason)) + origin.reason + origin.queue)
        )
    if extras.delivered:
        values.append((Extra.DELIVERED, b"".join(extras.delivered)))
    if extras.confirmed:
        values.append((Extra.CONFIRMED, b"".join(extras.confirmed)))
    if extras.moves:
        values.append((Extra.MOVES, _MOVES.pack(extras.moves)))
    return b"".join([_EXTRA.pack(tag, len(value)) + value for tag, value in values])


def read_extras(packed: bytes) -> JobExtras:
    found: dict[Extra, bytes] = {}
    at = 0
    while at < len(packed):
        tag, size = _EXTRA.unpack_from(packed, at)
        at += _EXTRA.size + size
        if at > len(packed):
            raise ValueError("a value goes past the end of its record")
        found[Extra(tag)] = packed[at - size : at]
    retries_max = int(_RETRIES.unpack(found[Extra.RETRIES])[0]) if Extra.RETRIES in found else -1
    origin = _read_origin(found[Extra.ORIGIN]) if Extra.ORIGIN in found else None
    delivered, confirmed = (tuple(_ids(found.get(tag, b""))) for tag in (Extra.DELIVERED, Extra.CONFIRMED))
    moves = int(_MOVES.unpack(found[Extra.MOVES])[0]) if Extra.MOVES in found else 0
    return JobExtras(found.get(Extra.KEY, b""), retries_max, origin, delivered, confirmed, moves)


def _read_origin(value: bytes) -> JobOrigin:
    dead_at_ms, reason_bytes = _ORIGIN.unpack_from(value)
    reason_end = _ORIGIN.size + reason_bytes
    if reason_end > len(value):
        raise ValueError("a reason goes past the end of its record")
    return JobOrigin(value[reason_end:], value[_ORIGIN.size : reason_end], dead_at_ms)


def _ids(packed: bytes) -> list[bytes]:
    """Split packed ids. Raises ValueError if one is cut short."""
    if len(packed) % ID_BYTES:
        raise ValueError("an id is cut short")
    return [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]


@dataclass(slots=True, frozen=True)
class JobChange:
    """The fields of a job that can change, as of `at_ms`."""

    at_ms: int
    job_id: bytes
    requeue_at_ms: int
    state: int
    nacks: int
    deliveries: int


# CHANGE: | at_ms u64 | requeue_at_ms u64 | id 40 | state u8 | nacks u32 | deliveries u32 |
CHANGE: Final = struct.Struct("<QQ40sBII")
_pack_change: Final = CHANGE.pack
_CHANGE_BYTES: Final = CHANGE.size
_CHANGE_SEED: Final = CHANGE.size + (int(JobType.CHANGE) << 56)


def change_record(at_ms: int, job_id: bytes, requeue_at_ms: int, state: int, nacks: int, deliveries: int) -> bytes:
    body = _pack_change(at_ms, requeue_at_ms, job_id, state, nacks, deliveries)
    return _pack_frame(_CHANGE_BYTES, xxh3_64_intdigest(body, _CHANGE_SEED) & _U32, 2) + body


def read_change(body: bytes) -> JobChange:
    at_ms, requeue_at_ms, job_id, state, nacks, deliveries = CHANGE.unpack(body)
    if state > _LAST_STATE or requeue_at_ms >= ID_MAX:
        raise ValueError("field value out of range")
    return JobChange(at_ms, job_id, requeue_at_ms, state, nacks, deliveries)


# DONE: | at_ms u64 | end u8 | ids n * 40 |
# FLUSHED: | at_ms u64 |
_AT: Final = struct.Struct("<Q")
_DONE: Final = struct.Struct("<QB")


def done_record(at_ms: int, ids: Sequence[bytes], end: str) -> bytes:
    """DONE record of jobs that are gone; `end` is one of ENDS."""
    return framed(JobType.DONE, _DONE.pack(at_ms, ENDS.index(end)) + b"".join(ids))


def read_done(body: bytes) -> tuple[int, list[bytes], str]:
    """Time, ids, and one of ENDS."""
    at_ms, end = _DONE.unpack_from(body)
    if end >= len(ENDS):
        raise ValueError("field value out of range")
    return at_ms, _ids(body[_DONE.size :]), ENDS[end]


def flushed_record(at_ms: int) -> bytes:
    """FLUSHED record: all jobs so far are gone."""
    return framed(JobType.FLUSHED, _AT.pack(at_ms))


def read_flushed(body: bytes) -> int:
    return int(_AT.unpack(body)[0])


# QUEUED: | queue_bytes u32 | queue | ids n * 40 |
_QUEUE: Final = struct.Struct("<I")


def queued_record(queue: bytes, ids: Sequence[bytes]) -> bytes:
    """QUEUED record of a controlled stop: jobs in the order of their queue, after those of its earlier records."""
    return framed(JobType.QUEUED, b"".join((_QUEUE.pack(len(queue)), queue, *ids)))


def read_queued(body: bytes) -> tuple[bytes, list[bytes]]:
    """The queue, and the ids."""
    end = _QUEUE.size + _QUEUE.unpack_from(body)[0]
    if end > len(body):
        raise ValueError("a queue's name goes past the end of its record")
    return body[_QUEUE.size : end], _ids(body[end:])


# STOPPED: | at_ms u64 | queued_jobs u64 |
_STOPPED: Final = struct.Struct("<QQ")


def stopped_record(at_ms: int, queued_jobs: int) -> bytes:
    """STOPPED record, which ends a controlled stop; `queued_jobs` jobs are in the QUEUED records before it."""
    return framed(JobType.STOPPED, _STOPPED.pack(at_ms, queued_jobs))


def read_stopped(body: bytes) -> tuple[int, int]:
    """Time, and number of jobs."""
    at_ms, queued_jobs = _STOPPED.unpack(body)
    return at_ms, queued_jobs


@dataclass(slots=True, frozen=True)
class JobKey:
    """A client's own id that is refused until `until_ms`, although its job is gone."""

    at_ms: int
    until_ms: int
    job_id: bytes
    key: bytes


# KEY: | at_ms u64 | until_ms u64 | id 40 | key |
_KEY: Final = struct.Struct("<QQ40s")


def key_record(key: JobKey) -> bytes:
    return framed(JobType.KEY, _KEY.pack(key.at_ms, key.until_ms, key.job_id) + key.key)


def read_key(body: bytes) -> JobKey:
    at_ms, until_ms, job_id = _KEY.unpack_from(body)
    if until_ms >= ID_MAX:
        raise ValueError("field value out of range")
    return JobKey(at_ms, until_ms, job_id, body[_KEY.size :])


# OWNERS: | at_ms u64 | id 40 | nodes n * 40 |
_OWNERS: Final = struct.Struct("<Q40s")


def owners_record(at_ms: int, job_id: bytes, owners: Sequence[bytes]) -> bytes:
    """OWNERS record: these nodes may hold the job."""
    return framed(JobType.OWNERS, _OWNERS.pack(at_ms, job_id) + b"".join(owners))


def read_owners(body: bytes) -> tuple[int, bytes, list[bytes]]:
    """Time, the job's id, and the ids of the nodes."""
    at_ms, job_id = _OWNERS.unpack_from(body)
    return at_ms, job_id, _ids(body[_OWNERS.size :])


# PAUSED: | at_ms u64 | pause u8 | queue |
_PAUSED: Final = struct.Struct("<QB")
PAUSE_MAX: Final = 3  # 1 in, 2 out


def paused_record(at_ms: int, queue: bytes, pause: int) -> bytes:
    """PAUSED record of a queue's pause from now on."""
    return framed(JobType.PAUSED, _PAUSED.pack(at_ms, pause) + queue)


def read_paused(body: bytes) -> tuple[int, bytes, int]:
    """Time, the queue, and its pause."""
    at_ms, pause = _PAUSED.unpack_from(body)
    if pause > PAUSE_MAX:
        raise ValueError("field value out of range")
    return at_ms, body[_PAUSED.size :], pause


def version_needed(record_type: int, body: bytes) -> int:
    """First version of segments that may have a record."""
    if record_type != JobType.JOB:
        return 2 if record_type in (JobType.OWNERS, JobType.PAUSED) else 1
    job = read_job(body)
    if job.extras.moves:
        return 3
    return 2 if job.state in _OF_CLUSTERS or job.extras.delivered else 1


# Reading a stretch of log

_READERS_OF: Final[dict[int, Callable[[bytes], object]]] = {
    JobType.JOB: read_job,
    JobType.CHANGE: read_change,
    JobType.DONE: read_done,
    JobType.FLUSHED: read_flushed,
    JobType.SYNC: read_sync,
    JobType.QUEUED: read_queued,
    JobType.STOPPED: read_stopped,
    JobType.KEY: read_key,
    JobType.OWNERS: read_owners,
    JobType.PAUSED: read_paused,
}


def checked_job_end(buffer: bytes, at: int) -> tuple[int, int]:
    """Type and end of the record at `at`; (0, why) as in `records.checked_end`."""
    if at + FRAME_BYTES > len(buffer):
        return 0, -1
    body_bytes, checksum, record_type = FRAME.unpack_from(buffer, at)
    if body_bytes == 0:
        return 0, -3
    if record_type not in _READERS_OF:
        return 0, -2
    end = at + FRAME_BYTES + body_bytes
    if end > len(buffer):
        return 0, -1
    body = buffer[at + FRAME_BYTES : end]
    if xxh3_64_intdigest(body, body_bytes + (record_type << 56)) & _U32 != checksum:
        return 0, -2
    try:
        _READERS_OF[record_type](body)
    except (struct.error, ValueError):
        return 0, -4
    return record_type, end


def whole_job_records(buffer: bytes, at: int, path: str) -> Iterator[tuple[JobType, int, int]]:
    """(type, start, end) of each record from `at` on. Raises JournalCorrupt at the first that is not correct."""
    while at < len(buffer):
        record_type, end = checked_job_end(buffer, at)
        if not record_type:
            raise JournalCorrupt(path, at, why_bad(end))
        yield JobType(record_type), at, end
        at = end
