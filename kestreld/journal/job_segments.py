"""Segment files of the job log: names, headers, which of them count, and the open log that is appended to.

<queue_path>/.jobs/<segment number, 10 digits>.jobs
header = "KESTRJOB" | version u16 | flags u16 | header_bytes u32 | log_id u64 | segment u32 | created_ms u64
         | previous_bytes u64 | previous_synced u64 | checksum u32
"""

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, LaterVersion, SegmentsMissing
from kestreld.files import FileLayer, naming
from kestreld.journal.job_records import JobType, checked_job_end
from kestreld.journal.journal import Journal
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.records import find_whole_records, sync_record
from kestreld.journal.segment import NUMBER_MAX, UNSYNCED_MARK, Segment

FOLDER: Final = ".jobs"  # in the spool
SUFFIX: Final = ".jobs"
MAGIC: Final = b"KESTRJOB"
VERSION: Final = 1
VERSION_OF_CLUSTERS: Final = 2  # has records of jobs that other nodes hold, and of pauses
VERSION_OF_MOVES: Final = 3  # has counts of moves to the dead letters and back
_HEADER: Final = struct.Struct("<8sHHIQIQQQ")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_NAME: Final = re.compile(r"(\d{10})\.jobs")


@dataclass(slots=True, frozen=True)
class JobHeader:
    """Header of a segment. `log_id` is the time at which the log was begun, ms since 1970; a rebuilt log has another.

    Of the previous segment `previous_bytes` count, and `previous_synced` of them were known to be on disk.
    """

    log_id: int
    segment: int
    created_at_ms: int
    previous_bytes: int = 0
    previous_synced: int = 0
    version: int = VERSION


def encode_job_header(header: JobHeader) -> bytes:
    fields = _HEADER.pack(
        MAGIC, header.version, 0, HEADER_BYTES, header.log_id, header.segment, header.created_at_ms,
        header.previous_bytes, header.previous_synced,
    )  # fmt: skip
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields) & 0xFFFFFFFF)


def decode_job_header(buffer: bytes, path: str) -> JobHeader:
    """Read a header. Raises JournalCorrupt if it is damaged, LaterVersion if this kestreld cannot read it."""
    if len(buffer) < HEADER_BYTES:
        raise JournalCorrupt(path, 0, "the segment header is cut short")
    fields = _HEADER.unpack_from(buffer)
    if fields[0] != MAGIC:
        raise JournalCorrupt(path, 0, "not a segment of a job log")
    (checksum,) = _CHECKSUM.unpack_from(buffer, _HEADER.size)
    if xxh3_64_intdigest(buffer[: _HEADER.size]) & 0xFFFFFFFF != checksum:
        raise JournalCorrupt(path, 0, "the segment header's checksum does not match")
    if not VERSION <= fields[1] <= VERSION_OF_MOVES:
        raise LaterVersion(
            path, 8, f"job log version {fields[1]}; this kestreld reads versions up to {VERSION_OF_MOVES}"
        )
    _, version, _, _, log_id, segment, created_at_ms, previous_bytes, previous_synced = fields
    return JobHeader(log_id, segment, created_at_ms, previous_bytes, previous_synced, version)


def job_segment_name(number: int) -> str:
    return f"{number:010d}{SUFFIX}"


def parse_job_segment_name(name: str) -> int | None:
    """The segment's number, or None if `name` is not a segment's."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None and 0 < int(found[1]) < NUMBER_MAX else None


@dataclass(slots=True)
class FoundJobSegment:
    """A segment on disk. `used_bytes` of it count: more than `size_bytes` if its end is missing.

    `synced_bytes` were certainly on disk once.
    """

    number: int
    path: str
    header: JobHeader | None
    size_bytes: int
    used_bytes: int
    synced_bytes: int = 0
    problem: JournalCorrupt | None = None  # why there is no header: then nothing counts of it


@dataclass(slots=True)
class FoundLog:
    """Files in the folder of a job log. `segments` are those that count, in order.

    `stale` are names that no longer count, or not yet: of dead segments, of another log, and of unfinished files.
    `aside` are segments that were being created when the power failed. `last_number` is the highest number of a file.
    """

    segments: list[FoundJobSegment] = field(default_factory=list)
    aside: list[FoundJobSegment] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    marker: Marker | None = None
    last_number: int = 0

    @property
    def log_id(self) -> int:
        """Id of the log; 0 if there is no segment."""
        return next((one.header.log_id for one in self.segments if one.header is not None), 0)

    def has_failed_sync(self, number: int) -> bool:
        """True if a sync of that segment failed: its missing records were written again behind it, or never synced."""
        return f"{job_segment_name(number)}{UNSYNCED_MARK}" in self.names


def last_job_segment(names: Iterable[str]) -> int:
    """The highest segment number among these names; 0 = there is none."""
    return max([number for name in names if (number := parse_job_segment_name(name)) is not None], default=0)


def find_job_log(files: FileLayer, folder: str) -> FoundLog:
    """Find the segments that count, changing nothing. Raises OSError, and JournalCorrupt if a needed one is missing."""
    log = FoundLog(names=files.list_dir(folder) if files.is_dir(folder) else [])
    log.marker = marker = find_marker(log.names)
    numbers = [number for name in log.names if (number := parse_job_segment_name(name)) is not None]
    log.last_number = last_job_segment(log.names)
    floor = marker.floor if marker is not None else 0
    log.stale = [name for name in log.names if name.endswith(".new")]
    log.stale += [job_segment_name(number) for number in numbers if number < floor]
    if marker is not None:
        log.stale += [name for name in log.names if name.endswith(".live") and name != marker.name]
    found = [open_job_segment(files, folder, number) for number in numbers if number >= floor]
    log_id = next((one.header.log_id for one in found if one.header is not None), 0)
    others = [one for one in found if one.header is not None and one.header.log_id != log_id]
    log.stale += [job_segment_name(one.number) for one in others]  # a log that was not finished
    found = [one for one in found if one not in others]
    whole, why = _last_whole(folder, log, found)
    log.aside = [_unfinished(files, one, marker, why) for one in found[whole:]]
    log.segments = found[:whole]
    _must_be_complete(folder, log)
    return log


def _last_whole(folder: str, log: FoundLog, found: list[FoundJobSegment]) -> tuple[int, JournalCorrupt | None]:
    """Number of segments that count, and why not more: up to the last with a header, without a loss or gap before it.

    A segment whose sync failed may have lost its header: perhaps nothing of it was ever on disk.
    """
    last = 0
    for place, one in enumerate(found):
        if place and one.number != found[place - 1].number + 1:
            return last, _missing(folder, found[place - 1].number + 1, one.number - 1)
        if one.header is not None:
            last = place + 1
        elif isinstance(one.problem, LaterVersion) or not log.has_failed_sync(one.number):
            return last, one.problem
    return last, found[last].problem if last < len(found) else None


def open_job_segment(files: FileLayer, folder: str, number: int) -> FoundJobSegment:
    """A segment with its header, or the reason why it has none. Raises OSError."""
    path = f"{folder}/{job_segment_name(number)}"
    size_bytes = files.size_bytes(path)
    found = FoundJobSegment(number, path, None, size_bytes, size_bytes)
    fd = files.open_read(path)
    try:
        with naming(path):
            header = decode_job_header(files.read_at(fd, HEADER_BYTES, 0), path)
        if header.segment != number:
            raise JournalCorrupt(path, 0, f"the header says segment {header.segment}: was the file renamed?")
        found.header = header
    except JournalCorrupt as problem:
        found.problem = problem
    finally:
        files.close(fd)
    return found


def _unfinished(
    files: FileLayer, one: FoundJobSegment, marker: Marker | None, why: JournalCorrupt | None
) -> FoundJobSegment:
    """Check a segment that does not count, as it has no header, or follows such a one or a gap (`why`).

    Raises JournalCorrupt if it has lost its header instead, or was on disk once.
    """
    if one.header is not None:
        if why is not None and (one.header.previous_synced or was_synced(files, one, marker)):
            raise why
        return one
    if one.problem is None:
        return one
    if isinstance(one.problem, LaterVersion):
        raise one.problem
    if next(find_whole_records(files.read_file(one.path), 1, None, checked_job_end), None):
        raise JournalCorrupt(one.path, one.problem.offset, f"{one.problem.reason}, and intact records follow")
    if marker is not None and one.number <= marker.number:
        raise JournalCorrupt(one.path, one.problem.offset, f"{one.problem.reason}: {marker}")
    return one


def was_synced(files: FileLayer, one: FoundJobSegment, marker: Marker | None) -> bool:
    """True if the marker or a SYNC says that some of the segment, and so everything before it, was on disk once."""
    if marker is not None and marker.number >= one.number:
        return True
    content = files.read_file(one.path)
    return any(found[0] == JobType.SYNC for found in find_whole_records(content, HEADER_BYTES, None, checked_job_end))


def _missing(folder: str, first: int, last: int) -> SegmentsMissing:
    which = f"segment {first} is" if first == last else f"{first} to {last} are"
    return SegmentsMissing(folder, f"{which} missing")


def _must_be_complete(folder: str, log: FoundLog) -> None:
    """Raise if a segment or a part of one is missing, and set how many bytes of each count."""
    expected = log.marker.floor if log.marker is not None else 0
    before: FoundJobSegment | None = None
    for one in log.segments:
        if expected and one.number != expected:
            raise _missing(folder, expected, one.number - 1)
        if one.header is None:
            one.used_bytes = 0
        if before is not None and one.header is not None:
            before.synced_bytes = one.header.previous_synced
            if before.problem is None:
                before.used_bytes = one.header.previous_bytes
            elif before.synced_bytes:
                raise before.problem  # it was on disk once
        expected, before = one.number + 1, one
    last_number = log.segments[-1].number if log.segments else 0
    if log.marker is not None and last_number < log.marker.number:
        raise SegmentsMissing(folder, f"segments up to {log.marker.number} are missing: {log.marker}")


class JobJournal(Journal):
    """The open job log. All jobs are in memory: its segments are read at startup only."""

    __slots__ = ("doubtful_number", "last_number", "may_mark", "synced_at", "synced_bytes", "version")

    def __init__(
        self, files: FileLayer, clock: Clock, open_files: OpenFiles, folder: str, log_id: int, last_number: int = 0
    ) -> None:
        """`last_number` is the highest segment number in the folder."""
        super().__init__(files, clock, open_files, folder, "jobs", log_id)
        self.last_number = last_number
        self.synced_bytes = 0  # of the live segment
        self.synced_at = (0, 0)  # segment number and offset: everything before is on disk
        self.doubtful_number = 0  # segments up to it may have lost what an earlier process failed to sync
        self.may_mark = True  # not while another log counts, until this one holds all jobs
        self.version = VERSION  # of the segments that are begun

    @property
    def next_number(self) -> int:
        """Number of the next segment."""
        return self.last_number + 1

    def begin_segment(self, unsaid: bytes = b"") -> None:
        """Continue in a new segment that begins with these records.

        Raises JournalFailed, which sets `failed`; the segments stay as they were.
        """
        if self.sync_untold:
            self.tell_of_sync()
        failure = self.failed
        if self.sync_untold and failure is not None:
            raise failure  # without the note startup would take what the segment lost for damage
        number = self.next_number
        previous_bytes = self.live.used_bytes if self.segments else 0
        is_synced = not self.unsynced and self.failed is None
        header = encode_job_header(
            JobHeader(
                self.journal_id,
                number,
                self.clock.wall_ms,
                previous_bytes,
                previous_bytes if is_synced else self.synced_bytes,
                self.version,
            )
        )
        path = f"{self.folder}/{job_segment_name(number)}"
        segment = Segment(number, number, path, len(header) + len(unsaid), len(header))
        self._go_on_in(segment, header + unsaid)
        self.last_number = number
        self.synced_bytes = 0
        self.written_to = True

    def use_version(self, version: int) -> None:
        """Begin segments of this version from now on."""
        self.version = version

    def go_on_behind(
        self, segments: Sequence[Segment], marker: Marker | None, synced_bytes: int = 0, *, is_distrusted: bool = False
    ) -> None:
        """Take over a log that was read. Nothing is appended to its segments, which may not be on disk.

        Of the last one `synced_bytes` are. `is_distrusted`: a sync of one failed, and the next proves nothing.
        """
        if is_distrusted and segments:
            self.doubtful_number = segments[-1].number
        self.synced_bytes = synced_bytes
        self.segments = list(segments)
        self.unproven = list(segments[:-1])
        self.unsynced = self.names_unsynced = bool(segments)
        self.marker = marker

    def begin_beside(self, marker: Marker | None) -> None:
        """Begin a log while another one counts, until `count_from`."""
        self.marker = marker
        self.may_mark = False

    def count_from(self, floor: int) -> None:
        """Make this log count, from the segment `floor` on, which must be on disk. Raises OSError."""
        self.may_mark = True
        self.mark(floor)

    def synced(self, number: int, used_bytes: int, started_us: int) -> None:
        super().synced(number, used_bytes, started_us)
        self.synced_at = max(self.synced_at, (number, used_bytes))
        if number == self.live.number:
            self.synced_bytes = used_bytes

    def seal(self, next_id: int) -> None:
        """`Journal.seal` with two SYNCs: a single one at the end may be the beginning of a commit that was lost."""
        if self._sync_note >= 0 and self.written_to:
            self.write([sync_record(self._sync_note)], next_id)

    def _paths_to_note(self, lost: list[Segment]) -> list[str]:
        """Each of them: no CHECKPOINT stands for what a segment has lost, until the log is rewritten."""
        return [*[segment.path for segment in lost], self.live.path]

    @property
    def wants_mark(self) -> bool:
        return self.may_mark and self.synced_number > self.doubtful_number and super().wants_mark

    def is_dead(self, name: str, floor: int) -> bool:
        """True if the name is that of a segment before `floor`, or of its note."""
        number = parse_job_segment_name(name.removesuffix(UNSYNCED_MARK))
        return number is not None and number < floor

    def dead_segments(self, lowest_head: int) -> int:
        """0, so that `queues.retirement` removes none: only the log knows which jobs are done."""
        return 0
