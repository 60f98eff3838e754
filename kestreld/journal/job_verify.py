"""Verification of the job log, of a stopped server or a running one; changes nothing."""

from contextlib import suppress
from typing import Final

from kestreld.errors import JournalCorrupt, SegmentsMissing
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.journal.job_records import JobType, checked_job_end, read_done, read_job
from kestreld.journal.job_segments import HEADER_BYTES, FoundLog, find_job_log
from kestreld.journal.job_torn_tails import is_said_again, must_be_torn_tail
from kestreld.journal.records import FRAME_BYTES, read_sync, why_bad
from kestreld.journal.verify import SegmentReport

NAME: Final = ".jobs"  # instead of a queue's name; no queue can be called so
LOOKS: Final = 3  # reads of a folder from which a running server removes segments


def verify_job_log(files: FileLayer, folder: str) -> list[SegmentReport]:
    """A report for each segment that counts, with its number of jobs that are not done; none if there is no log.

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
    for place, one in enumerate(found.segments):
        report = SegmentReport(NAME, one.path)
        try:
            buffer = files.read_file(one.path)
            report.size_bytes = len(buffer)
            _read(report, buffer, files, found, place, live)
        except FileNotFoundError:
            continue  # a running server has removed it meanwhile
        except OSError as error:
            must_be_the_systems(error)
            report.unreadable, report.reason = True, (error.strerror or str(error)).lower()
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
    report: SegmentReport,
    buffer: bytes,
    files: FileLayer,
    found: FoundLog,
    place: int,
    live: dict[bytes, SegmentReport],
) -> None:
    at, is_synced, is_last = HEADER_BYTES, False, place + 1 == len(found.segments)
    used_bytes = found.segments[place].used_bytes
    buffer = buffer if is_last else buffer[:used_bytes]
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
    if at < max(len(buffer), 0 if is_last else used_bytes) and not is_said_again(found, place):
        try:
            must_be_torn_tail(files, found, place, buffer, at, is_synced=is_synced)
            report.torn = bool(buffer[at:].strip(b"\0")) or not is_last
            if report.torn:
                cut_short = f"the file ends here, not at byte {used_bytes}"
                reason = why_bad(checked_job_end(buffer, at)[1]) if at < len(buffer) else cut_short
                report.bad_offset, report.reason = at, reason
        except JournalCorrupt as problem:
            report.bad_offset, report.reason = problem.offset, problem.reason
