"""Records of the job log as rows, in the form that `dumping` gives those of a queue's journal."""

from collections.abc import Callable, Iterator
from typing import Final

from kestrelctl.items.framing import data_fields
from kestrelctl.journals.spools import shown
from kestreld.client.blocks import Cell
from kestreld.errors import JournalCorrupt
from kestreld.journal import job_records
from kestreld.journal.job_records import JobState, JobType, checked_job_end
from kestreld.journal.job_segments import HEADER_BYTES, decode_job_header
from kestreld.journal.records import FRAME_BYTES, find_whole_records, read_sync, why_bad

Row = dict[str, Cell]
OK: Final = "ok"


def job_rows(path: str, buffer: bytes, bad: Callable[[str], str], *, with_values: bool) -> Iterator[Row]:
    """The header and every record. `bad` makes the cell for a fault and notes the damage."""
    row: Row = {"offset": 0, "type": "HEADER", "bytes": HEADER_BYTES}
    try:
        header = decode_job_header(buffer, path)
        row |= {"at_ms": header.created_at_ms, "checksum": OK, "log_id": header.log_id}
        row |= {"segment_number": header.segment, "previous_bytes": header.previous_bytes}
    except JournalCorrupt as problem:
        row["checksum"] = bad(problem.reason)
    yield row
    at = HEADER_BYTES
    while at < len(buffer):
        record_type, end = checked_job_end(buffer, at)
        if record_type:
            body = buffer[at + FRAME_BYTES : end]
            row = {"offset": at, "type": JobType(record_type).name, "bytes": end - at, "checksum": OK}
            yield row | _fields(JobType(record_type), body, with_values=with_values)
            at = end
            continue
        following = next(find_whole_records(buffer, at + 1, None, checked_job_end), None)
        resume_at = len(buffer) if following is None else following[1]
        is_unused = following is None and not buffer[at:].strip(b"\0")
        checksum = "unused" if is_unused else "cut short" if following is None and end == -1 else bad(why_bad(end))
        yield {"offset": at, "type": "", "bytes": resume_at - at, "checksum": checksum}
        at = resume_at


def _fields(record_type: JobType, body: bytes, *, with_values: bool) -> Row:
    match record_type:
        case JobType.JOB:
            job = job_records.read_job(body)
            row: Row = {"queue": _text(job.queue), "id": _text(job.job_id), "at_ms": job.at_ms}
            row |= {"data_bytes": len(job.body), "ttl_ms": job.ttl_ms, "retry_ms": job.retry_ms}
            row |= {"delay_ms": job.delay_ms, "created": job.created}
            row |= _state(job.state, job.requeue_at_ms, job.nacks, job.deliveries)
            if job.extras.key:
                row["key"] = _text(job.extras.key)
            if job.extras.origin is not None:
                row |= {"origin": _text(job.extras.origin.queue), "reason": _text(job.extras.origin.reason)}
            return row | (data_fields(job.body) if with_values else {})
        case JobType.CHANGE:
            change = job_records.read_change(body)
            row = {"id": _text(change.job_id), "at_ms": change.at_ms}
            return row | _state(change.state, change.requeue_at_ms, change.nacks, change.deliveries)
        case JobType.DONE:
            at_ms, ids, end = job_records.read_done(body)
            return {"at_ms": at_ms, "jobs": len(ids), "ids": ",".join(map(_text, ids)), "reason": end}
        case JobType.FLUSHED:
            return {"at_ms": job_records.read_flushed(body)}
        case JobType.SYNC:
            return {"synced_bytes": read_sync(body)}
        case JobType.QUEUED:
            queue, ids = job_records.read_queued(body)
            return {"queue": _text(queue), "jobs": len(ids), "ids": ",".join(map(_text, ids))}
        case JobType.STOPPED:
            at_ms, queued_jobs = job_records.read_stopped(body)
            return {"at_ms": at_ms, "jobs": queued_jobs}
        case JobType.KEY:
            key = job_records.read_key(body)
            return {"id": _text(key.job_id), "at_ms": key.at_ms, "key": _text(key.key), "until_ms": key.until_ms}
        case JobType.OWNERS:
            at_ms, job_id, owners = job_records.read_owners(body)
            return {"id": _text(job_id), "at_ms": at_ms, "owners": ",".join(map(_text, owners))}
        case JobType.PAUSED:
            at_ms, name, pause = job_records.read_paused(body)
            return {"queue": _text(name), "at_ms": at_ms, "pause": PAUSE_WORDS[pause]}


PAUSE_WORDS = ("none", "in", "out", "all")


def _state(state: int, requeue_at_ms: int, nacks: int, deliveries: int) -> Row:
    row: Row = {"state": JobState(state).name.lower().replace("_", "-"), "nacks": nacks, "deliveries": deliveries}
    return row | ({"requeue_at_ms": requeue_at_ms} if requeue_at_ms else {})


def _text(name: bytes) -> str:
    return shown(name.decode("latin-1"))
