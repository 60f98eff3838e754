"""The files of the job log: their names, their headers, which of them count, and the log that is appended to.

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
VERSION_OF_MOVES: Final = 3  # says how often jobs were moved to the dead letters and back
_HEADER: Final = struct.Struct("<8sHHIQIQQQ")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_NAME: Final = re.compile(r"(\d{10})\.jobs")


@dataclass(slots=True, frozen=True)
class JobHeader:
    """`log_id` is when the log was begun, in ms since 1970; a log that is written anew has another one.

    Of the segment before, `previous_bytes` count, and `previous_synced` of them were known to be on disk.
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
    """Raises JournalCorrupt when it is not whole and true, LaterVersion when this kestreld cannot read it."""
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
    """The segment's number, or None when `name` is not a segment's."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None and 0 < int(found[1]) < NUMBER_MAX else None


@dataclass(slots=True)
class FoundJobSegment:
    """A segment on disk. `used_bytes` are what counts of it: more than `size_bytes` where the end has gone.

    `synced_bytes` were on disk once, for sure.
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
    """What there is in the folder of a job log. `segments` are those that count, in order.

    `stale` are names that count no more, or do not count yet: of dead segments, of another log than the current one, of
    files that were being made. `aside` are segments that were being made when the power went. `last_number` is the
    highest there is a file of.
    """

    segments: list[FoundJobSegment] = field(default_factory=list)
    aside: list[FoundJobSegment] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    marker: Marker | None = None
    last_number: int = 0

    @property
    def log_id(self) -> int:
        """0 where there is no segment."""
        return next((one.header.log_id for one in self.segments if one.header is not None), 0)

    def has_failed_sync(self, number: int) -> bool:
        """Whether a sync of that segment has failed: what is missing in it stands behind it, or was never synced."""
        return f"{job_segment_name(number)}{UNSYNCED_MARK}" in self.names


def last_job_segment(names: Iterable[str]) -> int:
    """The highest number that a segment among these names has; 0 = there is none."""
    return max([number for name in names if (number := parse_job_segment_name(name)) is not None], default=0)


def find_job_log(files: FileLayer, folder: str) -> FoundLog:
    """Which segments count. Changes nothing. Raises OSError, and JournalCorrupt where one has gone that is needed."""
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
    log.stale += [job_segment_name(one.number) for one in others]  # one that was not written to its end
    found = [one for one in found if one not in others]
    whole, why = _last_whole(folder, log, found)
    log.aside = [_unfinished(files, one, marker, why) for one in found[whole:]]
    log.segments = found[:whole]
    _must_be_complete(folder, log)
    return log


def _last_whole(folder: str, log: FoundLog, found: list[FoundJobSegment]) -> tuple[int, JournalCorrupt | None]:
    """How many count, and why not more: up to the last with a header, none before it having lost its own or gone.

    One whose sync failed may have lost it: nothing of it need ever have got to the disk.
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
    """With its header, or why there is none. Raises OSError."""
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
    """A segment that was being made, as it has no header, or that comes behind such a one or a gap: `why`.

    Raises JournalCorrupt where it has lost its header instead, or was on disk once.
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
    """Whether something says that some of it was on disk once, and so what stands before it."""
    if marker is not None and marker.number >= one.number:
        return True
    content = files.read_file(one.path)
    return any(found[0] == JobType.SYNC for found in find_whole_records(content, HEADER_BYTES, None, checked_job_end))


def _missing(folder: str, first: int, last: int) -> SegmentsMissing:
    which = f"segment {first} is" if first == last else f"{first} to {last} are"
    return SegmentsMissing(folder, f"{which} missing")


def _must_be_complete(folder: str, log: FoundLog) -> None:
    """Raise where a segment has gone, or a part of one, and have each know how much of it counts."""
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
    """The open job log. What is in memory is all of it: its segments are read at the start, and never again."""

    __slots__ = ("last_number", "may_mark", "synced_at", "synced_bytes", "version")

    def __init__(
        self, files: FileLayer, clock: Clock, open_files: OpenFiles, folder: str, log_id: int, last_number: int = 0
    ) -> None:
        """`last_number` is the highest number that a segment in the folder has."""
        super().__init__(files, clock, open_files, folder, "jobs", log_id)
        self.last_number = last_number
        self.synced_bytes = 0  # of the live segment
        self.synced_at = (0, 0)  # segment number and offset: everything before is on disk
        self.may_mark = True  # not while another log counts, until this one holds all jobs
        self.version = VERSION  # of the segments that are begun

    @property
    def next_number(self) -> int:
        """The number of the segment that is begun next."""
        return self.last_number + 1

    def begin_segment(self, unsaid: bytes = b"") -> None:
        """Go on in a new segment that begins with these records. Raises JournalFailed and leaves all as it was."""
        if self.sync_untold:
            self.tell_of_sync()
        failure = self.failed
        if self.sync_untold and failure is not None:
            raise failure  # without the note a start would miss what the segment has lost
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

    def go_on_behind(self, segments: Sequence[Segment], marker: Marker | None, synced_bytes: int = 0) -> None:
        """Take up a log that was read. Nothing is appended to what is there, of which not all need be on disk.

        So much of the last segment is.
        """
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
        """This log counts from now on, from that segment on, which is on disk. Raises OSError."""
        self.may_mark = True
        self.mark(floor)

    def synced(self, number: int, used_bytes: int, started_us: int) -> None:
        super().synced(number, used_bytes, started_us)
        self.synced_at = max(self.synced_at, (number, used_bytes))
        if number == self.live.number:
            self.synced_bytes = used_bytes

    def seal(self, next_id: int) -> None:
        """As of any journal, but twice: behind what was lost of a commit stands the SYNC that it began with."""
        if self._sync_note >= 0 and self.written_to:
            self.write([sync_record(self._sync_note)], next_id)

    @property
    def wants_mark(self) -> bool:
        return self.may_mark and super().wants_mark

    def is_dead(self, name: str, floor: int) -> bool:
        """Whether a file of that name in the folder is of a segment before `floor`."""
        number = parse_job_segment_name(name.removesuffix(UNSYNCED_MARK))
        return number is not None and number < floor

    def dead_segments(self, lowest_head: int) -> int:
        """None for `queues.retirement`: which jobs are done only the log knows."""
        return 0
