"""Reading the job log to see whether it is whole: of a stopped server or a running one, changing nothing."""

from contextlib import suppress
from typing import Final

from kestreld.errors import JournalCorrupt, SegmentsMissing
from kestreld.files import FileLayer
from kestreld.journal.job_records import JobType, checked_job_end, read_done, read_job
from kestreld.journal.job_segments import HEADER_BYTES, FoundJobSegment, FoundLog, find_job_log
from kestreld.journal.records import FRAME_BYTES, read_sync, why_bad
from kestreld.journal.recovery import must_be_torn
from kestreld.journal.verify import SegmentReport

NAME: Final = ".jobs"  # in the place of a queue's name, which none can be
LOOKS: Final = 3  # at a folder from which a running server removes segments


def verify_job_log(files: FileLayer, folder: str) -> list[SegmentReport]:
    """A report for each segment that counts, with the jobs in it that are not done; none where there is no log.

    Raises OSError.
    """
    try:
        found = _find(files, folder)
    except JournalCorrupt as problem:
        is_of_segment = problem.path != folder
        offset = problem.offset if is_of_segment else None
        return [SegmentReport(NAME, problem.path, bad_offset=offset, reason=problem.reason, missing=not is_of_segment)]
    reports: list[SegmentReport] = []
    live: dict[bytes, SegmentReport] = {}
    for one in found.segments:
        report = SegmentReport(NAME, one.path)
        try:
            buffer = files.read_file(one.path)
        except FileNotFoundError:
            continue  # a running server has let it go meanwhile
        report.size_bytes = len(buffer)
        _read(report, buffer, one, live, is_last=one is found.segments[-1])
        reports.append(report)
    for report in live.values():
        report.live_items += 1
    return reports


def _find(files: FileLayer, folder: str) -> FoundLog:
    for _ in range(LOOKS - 1):
        with suppress(FileNotFoundError, SegmentsMissing):
            return find_job_log(files, folder)
    return find_job_log(files, folder)


def _read(
    report: SegmentReport, buffer: bytes, one: FoundJobSegment, live: dict[bytes, SegmentReport], *, is_last: bool
) -> None:
    at, is_synced = HEADER_BYTES, False
    buffer = buffer if is_last else buffer[: one.used_bytes]
    while at < len(buffer):
        record_type, end = checked_job_end(buffer, at)
        if not record_type:
            break
        report.records += 1
        body = buffer[at + FRAME_BYTES : end]
        if record_type == JobType.JOB:
            live[read_job(body).job_id] = report
        elif record_type == JobType.DONE:
            for job_id in read_done(body)[1]:
                live.pop(job_id, None)
        elif record_type == JobType.FLUSHED:
            live.clear()
        elif record_type == JobType.SYNC:
            is_synced = is_synced or read_sync(body) > 0
        at = end
    if at < len(buffer):
        reason = why_bad(checked_job_end(buffer, at)[1])
        try:
            if not is_last:
                raise JournalCorrupt(report.path, at, reason)
            must_be_torn(buffer, at, report.path, is_synced, checked_job_end)
            report.torn = bool(buffer[at:].strip(b"\0"))
            report.bad_offset, report.reason = (at, reason) if report.torn else (None, None)
        except JournalCorrupt as problem:
            report.bad_offset, report.reason = problem.offset, problem.reason
    elif not is_last and len(buffer) < one.used_bytes:
        report.bad_offset = len(buffer)
        report.reason = f"the file ends here, not at byte {one.used_bytes}"
