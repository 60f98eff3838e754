"""Repair of a damaged job log: it is rebuilt from its whole records beside the old one, which is kept.

Each job whose JOB is whole is restored. Other damage brings jobs back rather than losing them: without its DONE a job
is delivered again, without its CHANGE it returns to its state before.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed, LaterVersion
from kestreld.files import FileLayer
from kestreld.journal.inspection import MAY_BE_LOST
from kestreld.journal.job_records import JobType, checked_job_end, read_done, read_job, version_needed
from kestreld.journal.job_resync import JobResync, result_of
from kestreld.journal.job_segments import (
    HEADER_BYTES,
    VERSION,
    FoundJobSegment,
    JobJournal,
    job_segment_name,
    last_job_segment,
    open_job_segment,
    parse_job_segment_name,
)
from kestreld.journal.job_torn_tails import cut_as_a_start_does
from kestreld.journal.job_verify import verify_job_log
from kestreld.journal.marker import find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.records import FRAME_BYTES, Range, why_bad
from kestreld.journal.replacement import Replacement, finish_repairs
from kestreld.journal.segment_scan import UNREAD, is_unread, read_readable

# The records that list segments and queued jobs are not true of a log with gaps.
LEFT_OUT: Final = (JobType.SYNC, JobType.QUEUED, JobType.STOPPED)
WRITE_BYTES: Final = 1 << 20
LOST: Final = f"jobs in them {MAY_BE_LOST}"
NONE_LOST: Final = "no job known to be lost"


@dataclass(slots=True)
class JobRepairReport:
    """Damages and the outcome of a repair. If `kept_at` is empty nothing was replaced."""

    damages: list[str] = field(default_factory=list)
    jobs: int = 0  # jobs in the new log that are not done
    kept_at: str = ""  # the folder of the damaged log
    notes: list[str] = field(default_factory=list)  # of a torn tail that was cut off


def repair_job_log(
    files: FileLayer, clock: Clock, folder: str, *, segment_bytes_max: int = 16 << 20, dry_run: bool = False
) -> JobRepairReport:
    """Repair the job log in `folder`, which nobody may be using.

    A log that startup accepts is left as it is, except that its torn tail is cut off. Raises JournalCorrupt if this
    kestreld must not touch the log, JournalFailed and OSError if the disk fails; then the damaged log is still in
    place.
    """
    if not dry_run:
        finish_repairs(files, folder.rpartition("/")[0])
    work = _JobRepair(files, clock, folder)
    if not _is_damaged(files, folder):
        if not dry_run:
            work.report.notes = cut_as_a_start_does(files, clock, folder)
        return work.report
    work.find()
    if dry_run:
        for _ in work.records():
            pass
    else:
        work.replace(segment_bytes_max)
    return work.report


def _is_damaged(files: FileLayer, folder: str) -> bool:
    try:
        reports = verify_job_log(files, folder)
    except OSError as error:
        if not files.is_bad_block(error):
            raise
        return True
    return any(one.missing or one.unreadable or (one.bad_offset is not None and not one.torn) for one in reports)


class _JobRepair:
    def __init__(self, files: FileLayer, clock: Clock, folder: str) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._parts: list[FoundJobSegment] = []
        self._log_ids: set[int] = set()
        self._last_number = 0  # the highest segment number ever used
        self.report = JobRepairReport()

    def find(self) -> None:
        """Find the segments that count, and those that are missing. Raises LaterVersion or OSError."""
        names = self._files.list_dir(self._folder)
        marker = find_marker(names)
        floor, newest = (marker.floor, marker.number) if marker is not None else (0, 0)
        log_id, expected = 0, floor
        self._last_number = max(last_job_segment(names), newest)
        numbers = sorted(filter(None, map(parse_job_segment_name, names)))
        for number in [number for number in numbers if number >= floor]:
            one = self._open(number)
            if one.header is not None:
                self._log_ids.add(one.header.log_id)
                log_id = log_id or one.header.log_id
                if one.header.log_id != log_id:
                    break  # of a log that was begun and does not count yet
            self._miss(expected, number - 1)
            self._parts.append(one)
            expected = number + 1
        self._miss(expected, newest)
        for one, behind in zip(self._parts, self._parts[1:], strict=False):
            if behind.header is not None and behind.number == one.number + 1:
                one.used_bytes = behind.header.previous_bytes

    def _open(self, number: int) -> FoundJobSegment:
        try:
            one = open_job_segment(self._files, self._folder, number)
        except OSError as error:
            if not self._files.is_bad_block(error):
                raise
            path = f"{self._folder}/{job_segment_name(number)}"
            size_bytes = self._files.size_bytes(path)
            problem = JournalCorrupt(path, 0, "the segment header cannot be read")
            one = FoundJobSegment(number, path, None, size_bytes, size_bytes, problem=problem)
        if isinstance(one.problem, LaterVersion):
            raise one.problem
        return one

    def _miss(self, first: int, last: int) -> None:
        for number in range(first, last + 1) if first else ():
            self.report.damages.append(f"{self._folder}/{job_segment_name(number)}: missing; its jobs {MAY_BE_LOST}")

    def records(self) -> Iterator[bytes]:
        """All records for the new log, in order. Raises OSError."""
        live: set[bytes] = set()
        since_ms = 0
        for one in self._parts:
            end = min(one.used_bytes, one.size_bytes)
            unread: list[Range] = []
            resync = JobResync(result_of(read_readable(self._files, one.path, end, unread)), since_ms)
            for record_type, record in self._whole(one, resync, unread):
                body = record[FRAME_BYTES:]
                if record_type == JobType.JOB:
                    live.add(read_job(body).job_id)
                elif record_type == JobType.DONE:
                    live.difference_update(read_done(body)[1])
                elif record_type == JobType.FLUSHED:
                    live.clear()
                yield record
            # The next segment repeats failed records, with earlier times than this one's end.
            since_ms = resync.first_ms or since_ms
        self.report.jobs = len(live)

    def _whole(self, one: FoundJobSegment, resync: JobResync, unread: list[Range]) -> Iterator[tuple[int, bytes]]:
        """Type and bytes of each record that counts; damages go into the report."""
        buffer = resync.buffer
        if one.problem is not None:
            loss = NONE_LOST if len(buffer) > HEADER_BYTES else LOST  # if longer: the rest of the segment is read
            self._report(one, 0, one.problem.reason, min(HEADER_BYTES, len(buffer)), loss)
        may_end_in_zeros = one is self._parts[-1] and one.problem is None
        for record_type, at, end in resync.pieces():
            if not record_type:
                is_bad = is_unread(unread, at, end)
                if is_bad or not may_end_in_zeros or buffer[at:].strip(b"\0"):
                    code = checked_job_end(buffer, at)[1]
                    reason = UNREAD if is_bad else why_bad(code) if code < 0 else "it stands in a job's body"
                    self._report(one, at, reason, end - at)
            elif record_type not in LEFT_OUT:
                yield record_type, buffer[at:end]
        if one.size_bytes < one.used_bytes:
            self._report(one, one.size_bytes, "the file ends here", one.used_bytes - one.size_bytes)

    def _report(self, one: FoundJobSegment, at: int, reason: str, size_bytes: int, loss: str = LOST) -> None:
        self.report.damages.append(f"{one.path}: byte {at}: {reason}; {size_bytes} bytes left out, {loss}")

    def _version_of(self, one: FoundJobSegment) -> int:
        """Version in the segment's header, or the one that its records need. Raises OSError."""
        if one.header is not None:
            return one.header.version
        buffer = result_of(read_readable(self._files, one.path, min(one.used_bytes, one.size_bytes), []))
        whole = [(kind, buffer[at + FRAME_BYTES : end]) for kind, at, end in JobResync(buffer, 0).pieces() if kind]
        return max((version_needed(kind, body) for kind, body in whole), default=VERSION)

    def replace(self, segment_bytes_max: int) -> None:
        """Build the new log and put it in place. Raises JournalFailed or OSError."""
        new = Replacement(self._files, self._clock, self._folder)
        new.abandon()
        try:
            self._build(new.building, self.records(), segment_bytes_max)
            new.publish()
        except (JournalFailed, OSError):
            with suppress(OSError):
                new.abandon()  # a full disk needs the space
            raise
        self.report.kept_at = new.put_in_place()
        new.sync_names()

    def _build(self, folder: str, records: Iterable[bytes], segment_bytes_max: int) -> None:
        log_id = self._clock.wall_ms
        while log_id in self._log_ids:
            log_id += 1
        journal = JobJournal(self._files, self._clock, OpenFiles(), folder, log_id, self._last_number)
        journal.use_version(max(map(self._version_of, self._parts), default=VERSION))
        journal.make_folder()
        try:
            journal.begin_segment()
            floor = journal.live.number
            parts, part_bytes = list[bytes](), 0
            for record in records:
                parts.append(record)
                part_bytes += len(record)
                if part_bytes >= min(WRITE_BYTES, segment_bytes_max):
                    journal.write(parts, 0)
                    parts, part_bytes = [], 0
                    if journal.live.used_bytes >= segment_bytes_max:
                        journal.sync()
                        journal.begin_segment()
            if parts:
                journal.write(parts, 0)
            journal.sync()
            journal.count_from(floor)
            self._files.sync_dir(folder)
        finally:
            journal.close()
