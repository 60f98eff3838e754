"""Verification of journals, of a stopped server or a running one; changes nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kestreld.config.queue_names import decode_queue_name, encode_queue_name
from kestreld.errors import JournalCorrupt, RecordsDisagree, SegmentsMissing
from kestreld.files import FileLayer, why_unread
from kestreld.journal import records
from kestreld.journal.beginnings import Beginning, Gap, counted_bytes, is_empty, open_segment, take_unfinished
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.reader_states import WAITING, ReaderStates
from kestreld.journal.recovery import must_be_torn, survey
from kestreld.journal.segment import FOLDER_SUFFIX, parse_segment_name

CANNOT_TELL: Final = -1
# A file that need not be read -> how many items were ever put up to its end, or CANNOT_TELL. None: read it.
Known = Callable[[str], int | None]


def nothing_known(path: str) -> int | None:
    """None: every file is read."""
    return None


@dataclass(slots=True)
class SegmentReport:
    """Contents of one segment. `bad_offset` is None if it is whole.

    `torn`: it ends inside a record, as the last segment of a running or crashed server may. `missing`: segments are
    missing in the folder `path`; `unreadable`: the disk cannot read it. `put_items` is the number of items ever put up
    to its end, or CANNOT_TELL.
    """

    queue: str
    path: str
    records: int = 0
    live_items: int = 0
    size_bytes: int = 0
    bad_offset: int | None = None
    reason: str | None = None
    torn: bool = False
    missing: bool = False
    unreadable: bool = False
    put_items: int = CANNOT_TELL


@dataclass(slots=True)
class _Contents:
    """Contents of a segment that tell which items are live, and whether the segment before it is complete."""

    number: int
    first_id: int
    replaced: tuple[int, ...] = ()
    put_before: int = 0  # items ever put, by its CHECKPOINT
    synced: bool = False  # a SYNC record was met
    shared: list[records.Range] = field(default_factory=list)
    private: list[tuple[int, int]] = field(default_factory=list)  # item id, reader number


@dataclass(slots=True)
class _Folder:
    """Beginnings of a journal's segments by name, and their contents. One that cannot be opened is left out.

    `live` is the one that startup goes on in, "" in an archive or if there is none; it sets `unfinished` ones aside.
    """

    beginnings: dict[str, Beginning] = field(default_factory=dict)
    live: str = ""
    unfinished: set[str] = field(default_factory=set)
    counted_bytes: dict[str, int] = field(default_factory=dict)  # of closed segments with a successor
    empty: set[str] = field(default_factory=set)  # nothing was ever put in them
    stood_in_for: set[str] = field(default_factory=set)  # replaced by a compacted segment


def journal_folders(files: FileLayer, spool: str, queue: str | None = None) -> Iterator[tuple[str, str]]:
    """Family and folder of every journal in the spool, or of one queue's. Raises OSError."""
    if queue is not None:
        family = queue.partition("+")[0]
        folder = f"{spool}/{encode_queue_name(family)}{FOLDER_SUFFIX}"
        if files.is_dir(folder):
            yield family, folder
        return
    for name in files.list_dir(spool):
        folder = f"{spool}/{name}"
        if name.endswith(FOLDER_SUFFIX) and not name.startswith(".") and files.is_dir(folder):
            yield decode_queue_name(name.removesuffix(FOLDER_SUFFIX)), folder


def archived_folders(files: FileLayer, archive: str, queue: str | None = None) -> Iterator[tuple[str, str]]:
    """Family and folder of every journal in an archive, <queue>/<journal_id>, or of one queue's. Raises OSError."""
    wanted = None if queue is None else encode_queue_name(queue.partition("+")[0])
    for name in files.list_dir(archive):
        if name.startswith(".") or name.endswith(FOLDER_SUFFIX) or wanted not in (None, name):
            continue
        folder = f"{archive}/{name}"
        for journal_id in files.list_dir(folder) if files.is_dir(folder) else []:
            if journal_id.isdecimal() and files.is_dir(f"{folder}/{journal_id}"):
                yield decode_queue_name(name), f"{folder}/{journal_id}"


def verify_spool(
    files: FileLayer, spool: str, queue: str | None = None, known: Known = nothing_known
) -> Iterator[SegmentReport]:
    """A report for every segment of every journal in the spool or archive, or of one queue's. Raises OSError.

    A segment that is `known` has no report, and its contents are not counted.
    """
    for find in (journal_folders, archived_folders):
        for family, folder in find(files, spool, queue):
            yield from verify_journal(files, folder, family, known)


def verify_journal(files: FileLayer, folder: str, queue: str, known: Known = nothing_known) -> list[SegmentReport]:
    """Reports of one journal's segments, in order; none if the folder is gone meanwhile."""
    try:
        all_names = files.list_dir(folder)
    except FileNotFoundError:
        return []
    names, marker = [name for name in all_names if parse_segment_name(name)], find_marker(all_names)
    around = _look_around(files, folder, names, marker)
    reports: list[SegmentReport] = []
    contents: list[_Contents] = []
    readers = ReaderStates(None)
    missing: list[tuple[int, str]] = []  # number of the segment after a gap, and the message
    previous: SegmentReport | None = None
    last_number, put_items = 0, CANNOT_TELL
    for name in names:
        report = SegmentReport(queue, f"{folder}/{name}")
        found = _Contents(*(parse_segment_name(name) or (0, 0)))
        number, before, put_before = found.number, last_number, put_items
        # Numbers are left free for compacted segments: how many items were put tells whether this is one.
        may_miss = number > before + 1 and put_before != CANNOT_TELL
        # Its CHECKPOINT says how much of a bad segment before it counts.
        needs_reading = may_miss or number == before or (previous is not None and previous.bad_offset is not None)
        last_number, known_items = number, None if needs_reading else known(report.path)
        put_items = CANNOT_TELL if known_items is None else known_items
        if known_items is not None:
            previous = None
            continue
        try:
            buffer = files.read_file(report.path)
            beginning = around.beginnings.get(name) or open_segment(files, report.path)
        except FileNotFoundError:
            continue  # a running server has removed it meanwhile
        except OSError as error:
            report.unreadable, report.reason, previous = True, why_unread(error, report.path).lower(), None
        else:
            report.size_bytes, found.replaced = len(buffer), beginning.replaced
            if name in around.empty:
                report.put_items = put_items = put_before
            else:
                _read_segment(report, buffer, beginning, around, found, readers, is_first=previous is None)
                previous, put_items = report, report.put_items
            is_needed = marker is None or found.first_id > marker.floor
            if may_miss and is_needed and (words := Gap(before + 1, number - 1, found.put_before).problem(put_before)):
                missing.append((number, words))
            if number == before:
                report.bad_offset, report.torn, report.put_items = 0, False, CANNOT_TELL
                report.reason = "another segment has the same number"
        reports.append(report)
        contents.append(found)
    _count_live(reports, contents, readers)
    stood_in_for = {number for found in contents for number in found.replaced}
    gone = [reason for number, reason in missing if number - 1 not in stood_in_for]
    if marker is not None and (reason := missing_at_a_start(files, folder, names, marker)) not in ("", *gone):
        gone.append(reason)
    return reports + [SegmentReport(queue, folder, reason=reason, missing=True) for reason in gone]


def _look_around(files: FileLayer, folder: str, names: list[str], marker: Marker | None) -> _Folder:
    """Facts that the segments tell about one another, as startup sees them."""
    around = _Folder()
    for name in names:
        with suppress(OSError):  # found when it is read, or removed meanwhile
            around.beginnings[name] = open_segment(files, f"{folder}/{name}")
    found = list(around.beginnings.values())
    if folder.endswith(FOLDER_SUFFIX) and names and names[-1] in around.beginnings:
        left = list(found)
        with suppress(JournalCorrupt, OSError):
            for one in take_unfinished(left, marker, files.read_file):
                around.unfinished.add(_name_of(one))
            around.live = _name_of(left[-1]) if left else ""
    numbers = {number for one in found for number in one.replaced}
    around.stood_in_for = {_name_of(one) for one in found if one.segment.number in numbers}
    plain = [one for one in found if not one.segment.compacted and _name_of(one) not in around.unfinished]
    for earlier, later in pairwise(plain):
        if is_empty(earlier, later):
            around.empty.add(_name_of(earlier))
        with suppress(OSError):
            around.counted_bytes[_name_of(earlier)] = counted_bytes(earlier, later, files.read_file)
    return around


def _name_of(beginning: Beginning) -> str:
    return beginning.segment.path.rpartition("/")[2]


def missing_at_a_start(files: FileLayer, folder: str, names: list[str], marker: Marker) -> str:
    """Error message for segments that startup would miss by the marker and the readers' heads; "" = none.

    That is at either end, or between segments where DUE records may be missing.
    """
    places = [place for name in names if (place := parse_segment_name(name)) is not None]
    is_row = bool(places) and places[-1][0] - places[0][0] + 1 == len(places)
    if is_row and places[-1][0] >= marker.number and places[0][1] <= marker.floor:
        return ""
    reason = ""
    for _ in range(2):  # a running server may have changed names while they were read
        try:
            survey(files, folder)
        except (SegmentsMissing, RecordsDisagree) as problem:
            reason = problem.reason
        except (JournalCorrupt, FileNotFoundError):
            return ""  # found by its records, or removed meanwhile
        else:
            return ""
    return reason


def _read_segment(
    report: SegmentReport,
    buffer: bytes,
    beginning: Beginning,
    around: _Folder,
    found: _Contents,
    readers: ReaderStates,
    *,
    is_first: bool,
) -> None:
    name = _name_of(beginning)
    is_live, counted = name == around.live, around.counted_bytes.get(name, len(buffer))
    written, buffer = buffer, buffer[:counted]  # the rest of a failed commit was never part of the journal
    try:
        if beginning.checkpoint is None:
            raise beginning.problem or JournalCorrupt(report.path, 0, "it has no CHECKPOINT")
        found.put_before = report.put_items = beginning.checkpoint.put_items
        at = _read_records(report, buffer, beginning.segment.records_at, found, readers, first=is_first)
        if found.replaced:
            report.put_items = found.put_before  # as at the start of the next one; its own items are old ones
        if at < len(buffer):
            reason = records.why_bad(records.checked_end(buffer, at)[1])
            if is_live:
                must_be_torn(buffer, at, report.path, synced=found.synced)
                report.torn = bool(buffer[at:].strip(b"\0"))
            if report.torn or not is_live:
                report.bad_offset, report.reason = at, reason
            if report.torn and (whole := sum(1 for _ in records.find_whole_records(buffer, at + 1))):
                report.reason = f"{reason}, and {whole} intact records follow, which a repair would keep"
        elif len(written) < counted and name not in around.stood_in_for:
            report.bad_offset, report.reason = len(written), f"the file ends here, not at byte {counted}"
    except JournalCorrupt as problem:
        report.bad_offset, report.reason = problem.offset, problem.reason
        report.torn = name in around.unfinished
    if report.bad_offset is not None:
        report.put_items = CANNOT_TELL


def _read_records(
    report: SegmentReport, buffer: bytes, at: int, found: _Contents, readers: ReaderStates, *, first: bool
) -> int:
    """Read the records; returns the offset at which whole ones end."""
    start = last = -1
    while at < len(buffer):
        record_type, end = records.checked_end(buffer, at)
        if not record_type:
            break
        report.records += 1
        if record_type == records.Type.PUT:
            _, _, _, put_id, _, _, _, only = records.PUT.unpack_from(buffer, at)
            report.put_items += 1
            if only:
                found.private.append((put_id, only))
            elif put_id == last + 1:
                last = put_id
            else:
                if start >= 0:
                    found.shared.append((start, last))
                start = last = put_id
        elif record_type in WAITING:
            readers.take(record_type, buffer[at + records.FRAME_BYTES : end])
        elif record_type == records.Type.CHECKPOINT and first:
            readers.take_checkpoint(records.read_checkpoint(buffer[at + records.FRAME_BYTES : end]))
        elif record_type == records.Type.SYNC:
            found.synced = True
        at = end
    if start >= 0:
        found.shared.append((start, last))
    return at


def _count_live(reports: list[SegmentReport], contents: list[_Contents], readers: ReaderStates) -> None:
    """Count live items: those that a reader they are for is not done with."""
    done = {
        number: _without(
            records.merged([(0, max(state.at_id, state.head) - 1), *readers.done[number]]), readers.due[number]
        )
        for number, state in readers.readers.items()
        if state.kind == records.Kind.QUEUE
    }
    everywhere: list[records.Range] | None = None
    for ranges in done.values():
        everywhere = ranges if everywhere is None else common(everywhere, ranges)
    stood_in_for = {number for found in contents for number in found.replaced}
    for report, found in zip(reports, contents, strict=True):
        if found.number in stood_in_for:
            continue  # a compacted segment has its live items
        if everywhere is not None:
            items = sum(last - first + 1 for first, last in found.shared)
            gone = sum(last - first + 1 for first, last in common(records.merged(found.shared), everywhere))
            report.live_items = items - gone
        for put_id, only in found.private:
            if only in done and not any(first <= put_id <= last for first, last in done[only]):
                report.live_items += 1


def _without(ranges: list[records.Range], ids: Iterable[int]) -> list[records.Range]:
    """Sorted ranges without some ids."""
    ends = [-1, *sorted(ids), records.ID_MAX]
    return common(ranges, [(before + 1, after - 1) for before, after in pairwise(ends) if before + 1 < after])


def common(left: list[records.Range], right: list[records.Range]) -> list[records.Range]:
    """Overlap of two lists of sorted ranges."""
    common: list[records.Range] = []
    at = other = 0
    while at < len(left) and other < len(right):
        first, last = max(left[at][0], right[other][0]), min(left[at][1], right[other][1])
        if first <= last:
            common.append((first, last))
        if left[at][1] < right[other][1]:
            at += 1
        else:
            other += 1
    return common
