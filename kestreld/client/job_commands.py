"""Commands of jobs: the words to send, and the meaning of the replies. Nothing is sent from here.

Queues and ids may be str or bytes. Results have them as text that encodes to the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kestreld import checks
from kestreld.client.blocks import text
from kestreld.client.resp import RespValue, Word
from kestreld.errors import InvalidType

T = TypeVar("T")
NODE_OF_ID: Final = slice(2, 10)  # part of a job's id: the beginning of its node's id
SCAN_COUNT: Final = 256
Shown = str | int | bytes | list[str] | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job that a node has handed out or shown. Only a job that was handed out has counters."""

    queue: str
    id: str
    body: bytes = field(repr=False)
    nacks: int = 0  # how often workers gave it back
    additional_deliveries: int = 0  # how often it was queued again for other reasons
    node: str = field(default="", repr=False, compare=False)  # address of the node that has handed it out; "" = unknown


JobName = Job | str | bytes  # a job, or its id


@dataclass(frozen=True, slots=True)
class JobCommand(Generic[T]):
    """A command: its words and options. `read` raises ValueError for a reply of another kind."""

    words: Sequence[Word]
    read: Callable[[RespValue], T]
    wait_ms: int = 0  # time the node may take beyond the time-out
    job_id: bytes = b""  # one of the jobs it is about
    is_repeatable: bool = False  # it may be sent again if a node was lost before its reply
    node: str = ""  # address of the node that has handed out the job
    hands_out: bool = False  # the result is jobs that the node has handed out


# Jobs


def add(
    queue: str | bytes,
    body: bytes,
    wait_ms: int,
    *,
    delay: int = 0,
    ttl: int | None = None,
    retry: int | None = None,
    maxlen: int | None = None,
    retries: int | None = None,
    replicate: int | None = None,
    key: str | bytes | None = None,
) -> JobCommand[str]:
    """ADDJOB; spans in whole seconds, None = the server's default. The result is the job's id."""
    checks.data(body, "body")
    words: list[Word] = [b"ADDJOB", any_bytes(queue, "queue"), bytes(body), wait_ms]
    for word, value, name, least in (
        (b"DELAY", checks.whole(delay, "delay") or None, "delay", 0),
        (b"TTL", ttl, "ttl", 1),
        (b"RETRY", retry, "retry", 0),
        (b"MAXLEN", maxlen, "maxlen", 1),
        (b"RETRIES", retries, "retries", 0),
        (b"REPLICATE", replicate, "replicate", 1),
    ):
        if value is not None:
            words += [word, checks.whole_or_none(value, name, least) or 0]
    if key is not None:
        words += [b"ID", checks.key(key, "key")]
    return JobCommand(words, _text, wait_ms, is_repeatable=key is not None)


def get(
    queues: Sequence[str | bytes], count: int = 1, wait_ms: int = 0, *, is_pattern: bool = False
) -> JobCommand[list[Job]]:
    """GETJOB; `wait_ms` 0 = do not wait. A node that has to wait for jobs returns one, not `count`."""
    checks.whole(count, "count", 1)
    names = [any_bytes(queue, "queue") for queue in queues]
    words: list[Word] = [b"GETJOB"]
    words += [b"TIMEOUT", wait_ms] if wait_ms else [b"NOHANG"]
    if is_pattern:
        words.append(b"MATCH")
    if count > 1:
        words += [b"COUNT", count]
    words += [b"WITHCOUNTERS", b"FROM", *names]
    return JobCommand(words, jobs_of, wait_ms, is_repeatable=True, hands_out=True)


def ack(jobs: Sequence[JobName]) -> JobCommand[int]:
    return _on_jobs(b"ACKJOB", jobs, is_repeatable=True)


def fastack(jobs: Sequence[JobName]) -> JobCommand[int]:
    return _on_jobs(b"FASTACK", jobs, is_repeatable=True)


def nack(jobs: Sequence[JobName], delay: int | None = None) -> JobCommand[int]:
    if delay is None:
        return _on_jobs(b"NACK", jobs)
    return _on_jobs(b"NACK", jobs, b"DELAY", checks.whole(delay, "delay"))


def enqueue(jobs: Sequence[JobName]) -> JobCommand[int]:
    """ENQUEUE: queue jobs now, which does not count as a failure."""
    return _on_jobs(b"ENQUEUE", jobs, is_repeatable=True)


def dequeue(jobs: Sequence[JobName]) -> JobCommand[int]:
    """DEQUEUE: take jobs out of their queues; with a retry time they are queued again after that."""
    return _on_jobs(b"DEQUEUE", jobs, is_repeatable=True)


def delete(jobs: Sequence[JobName]) -> JobCommand[int]:
    return _on_jobs(b"DELJOB", jobs, is_repeatable=True)


def _on_jobs(verb: bytes, jobs: Sequence[JobName], *more: Word, is_repeatable: bool = False) -> JobCommand[int]:
    ids = [id_of(job) for job in jobs]
    first, node = (ids[0], node_of(jobs[0])) if ids else (b"", "")
    return JobCommand([verb, *ids, *more], _number, job_id=first, is_repeatable=is_repeatable, node=node)


def working(job: JobName) -> JobCommand[int]:
    """WORKING: restart the retry time. The result is that time in seconds, 0 = the job is never queued again."""
    job_id = id_of(job)
    return JobCommand([b"WORKING", job_id], _number, job_id=job_id, is_repeatable=True, node=node_of(job))


def show(job: JobName) -> JobCommand[dict[str, Shown] | None]:
    """SHOW: the result is None if there is no such job; `body` is bytes."""
    job_id = id_of(job)
    return JobCommand([b"SHOW", job_id], fields_of, job_id=job_id, is_repeatable=True, node=node_of(job))


def deadshow(job: JobName) -> JobCommand[dict[str, Shown] | None]:
    """DEADSHOW: the result is the origin of a dead letter, None if the job is not one."""
    job_id = id_of(job)
    return JobCommand([b"DEADSHOW", job_id], fields_of, job_id=job_id, is_repeatable=True)


def wait(job: JobName, wait_ms: int) -> JobCommand[str | None]:
    """WAITJOB: the result is `acked`, `deleted` or `expired`; None = the time is over. `wait_ms` 0 is sent as 1."""
    job_id = id_of(job)
    words: list[Word] = [b"WAITJOB", job_id, max(wait_ms, 1)]
    return JobCommand(
        words,
        lambda value: None if value is None else _text(value),
        wait_ms,
        job_id,
        is_repeatable=True,
        node=node_of(job),
    )


def import_saved(job: bytes) -> JobCommand[int]:
    """IMPORTJOB: add a job of Disque's append-only file. The result is 1, or 0 if it has expired or was known."""
    return JobCommand([b"IMPORTJOB", job], _number)


# Queues


def qlen(queue: str | bytes) -> JobCommand[int]:
    return JobCommand([b"QLEN", any_bytes(queue, "queue")], _number, is_repeatable=True)


def qstat(queue: str | bytes) -> JobCommand[dict[str, Shown] | None]:
    """QSTAT: the result is None if there is no such queue."""
    return JobCommand([b"QSTAT", any_bytes(queue, "queue")], fields_of, is_repeatable=True)


def qcount(queue: str | bytes) -> JobCommand[dict[str, Shown] | None]:
    return JobCommand([b"QCOUNT", any_bytes(queue, "queue")], fields_of, is_repeatable=True)


def qpeek(queue: str | bytes, count: int) -> JobCommand[list[Job]]:
    """QPEEK: the oldest jobs, or the newest if `count` is negative."""
    checks.whole(count, "count", -checks.FAR_MS)
    return JobCommand([b"QPEEK", any_bytes(queue, "queue"), count], jobs_of, is_repeatable=True)


def qdel(queue: str | bytes) -> JobCommand[int]:
    return JobCommand([b"QDEL", any_bytes(queue, "queue")], _number)


def redrive(queue: str | bytes, count: int | None = None) -> JobCommand[int]:
    words: list[Word] = [b"REDRIVE", any_bytes(queue, "queue")]
    return JobCommand(words if count is None else [*words, b"COUNT", count], _number)


def pause(queue: str | bytes, what: str) -> JobCommand[str]:
    """PAUSE with `what`: in, out, all, none or state; the result is the state."""
    return JobCommand([b"PAUSE", any_bytes(queue, "queue"), what], _text, is_repeatable=True)


# Steps of scans: results are the next cursor, "0" = the end, and what was found


def qscan(cursor: str) -> JobCommand[tuple[str, list[bytes]]]:
    return JobCommand([b"QSCAN", cursor, b"COUNT", SCAN_COUNT], _names_scanned, is_repeatable=True)


def jscan(
    cursor: str, queues: Sequence[str | bytes] = (), states: Sequence[str] = ()
) -> JobCommand[tuple[str, list[dict[str, Shown]]]]:
    """JSCAN: jobs as `show` returns them."""
    words: list[Word] = [b"JSCAN", cursor, b"COUNT", SCAN_COUNT, b"REPLY", b"all"]
    for queue in queues:
        words += [b"QUEUE", any_bytes(queue, "queue")]
    for state in states:
        words += [b"STATE", state]
    return JobCommand(words, _jobs_scanned, is_repeatable=True)


def done(words: Sequence[Word], wait_ms: int = 0) -> JobCommand[None]:
    """A command that is only answered with OK."""

    def read(value: RespValue) -> None:
        if value != b"OK":
            raise ValueError

    return JobCommand(words, read, wait_ms)


# Arguments and replies


def any_bytes(value: object, what: str) -> bytes:
    """Return a name as bytes; it may be empty and have any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        raise InvalidType(what, "a str or bytes", value)
    return value


def by_node(jobs: Sequence[JobName]) -> list[list[JobName]]:
    """Group jobs by the node that has handed them out, or else by the node they were added to."""
    groups: dict[str | bytes, list[JobName]] = {}
    for job in jobs:
        groups.setdefault(node_of(job) or id_of(job)[NODE_OF_ID], []).append(job)
    return list(groups.values())


def node_of(job: JobName) -> str:
    """Return the address of the node that has handed out a job; "" if only its id is known."""
    return job.node if isinstance(job, Job) else ""


def id_of(job: object) -> bytes:
    """Return a job's id, as it is sent."""
    if isinstance(job, Job):
        return job.id.encode()
    if not isinstance(job, (str, bytes)):
        raise InvalidType("job", "a Job, or an id as str or bytes", job)
    return any_bytes(job, "job")


def _number(value: RespValue) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value


def _bytes(value: RespValue) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _text(value: RespValue) -> str:
    return text(_bytes(value))


def _list(value: RespValue) -> list[RespValue]:
    if not isinstance(value, list):
        raise ValueError
    return value


def fields_of(value: RespValue) -> dict[str, Shown] | None:
    """Return a list of alternating keys and values as a dictionary, None as None."""
    if value is None:
        return None
    items = _list(value)
    return {_text(key): _shown(_text(key), one) for key, one in zip(items[::2], items[1::2], strict=True)}


def _shown(key: str, value: RespValue) -> Shown:
    if isinstance(value, list):
        return [_text(item) for item in value]
    if value is None or isinstance(value, int):
        return value
    return _bytes(value) if key == "body" else _text(value)


def jobs_of(value: RespValue) -> list[Job]:
    """Return the jobs in a reply of GETJOB or QPEEK; empty for an empty reply."""
    return [] if value is None else [_job(_list(item)) for item in _list(value)]


def _job(items: list[RespValue]) -> Job:
    if len(items) < 3:
        raise ValueError
    more = fields_of(items[3:]) or {}
    nacks, deliveries = (number if isinstance(number := more.get(name), int) else 0 for name in _COUNTERS)
    return Job(_text(items[0]), _text(items[1]), _bytes(items[2]), nacks, deliveries)


_COUNTERS: Final = ("nacks", "additional-deliveries")


def _step(value: RespValue) -> tuple[str, list[RespValue]]:
    cursor, found = _list(value)
    return _text(cursor), _list(found)


def _names_scanned(value: RespValue) -> tuple[str, list[bytes]]:
    cursor, found = _step(value)
    return cursor, [_bytes(name) for name in found]


def _jobs_scanned(value: RespValue) -> tuple[str, list[dict[str, Shown]]]:
    cursor, found = _step(value)
    return cursor, [fields_of(job) or {} for job in found]
