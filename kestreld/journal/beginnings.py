"""Headers and CHECKPOINTs of a journal's segments: which segments count, and how many bytes of each.

Recovery, verification and discovery use these functions, so that they judge alike. A newest segment without a
CHECKPOINT is taken for unfinished only if it holds no whole record and the marker does not name it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, naming
from kestreld.journal import records
from kestreld.journal.marker import Marker
from kestreld.journal.segment import Header, Segment, decode_header, parse_segment_name

HEAD_BYTES: Final = 8192  # first read of a segment: most have header and CHECKPOINT in it
Read = Callable[[str], bytes]  # all of a file. Raises OSError


@dataclass(slots=True)
class Beginning:
    """Header and CHECKPOINT of a segment; None if not whole, and then `problem` says why.

    The segment's `used_bytes` are the file's length until more is known.
    """

    segment: Segment
    header: Header | None
    checkpoint: records.Checkpoint | None
    checkpoint_end: int
    problem: JournalCorrupt | None
    content: bytes = b""  # the whole file, if it is small

    @property
    def replaced(self) -> tuple[int, ...]:
        return self.header.replaced if self.header is not None else ()

    def read(self, files: FileLayer) -> bytes:
        return self.content or files.read_file(self.segment.path)


@dataclass(slots=True, frozen=True)
class Gap:
    """Numbers `first` to `last` that no segment has.

    They were left free for compacted segments, unless fewer than `put_items` items were put before them: that is the
    count in the CHECKPOINT behind them.
    """

    first: int
    last: int
    put_items: int

    def problem(self, put_items: int) -> str:
        """Error message if only `put_items` were put before the gap; "" if nothing is missing."""
        return missing_words(self.first, self.last) if put_items < self.put_items else ""


def missing_words(first: int, last: int) -> str:
    """Error message for missing segments."""
    return f"segment {first} is missing" if first == last else f"segments {first} to {last} are missing"


def look(files: FileLayer, folder: str, names: Sequence[str]) -> list[Beginning]:
    """Beginnings of the segments among the `names` in a folder, in order. Raises OSError."""
    return [open_segment(files, f"{folder}/{name}") for name in names if parse_segment_name(name) is not None]


def open_segment(files: FileLayer, path: str) -> Beginning:
    """Beginning of the segment at `path`. Raises OSError."""
    size_bytes = files.size_bytes(path)
    fd = files.open_read(path)
    try:
        with naming(path):
            return read_beginning(path, size_bytes, lambda most: files.read_at(fd, most, 0))
    finally:
        files.close(fd)


def read_beginning(path: str, size_bytes: int, read_start: Callable[[int], bytes]) -> Beginning:
    """Beginning of a segment of `size_bytes`. `read_start(n)` returns its first n bytes, or all."""
    number, first_id = parse_segment_name(path.rpartition("/")[2]) or (0, 0)
    segment = Segment(number, first_id, path, size_bytes, 0)
    start = read_start(min(HEAD_BYTES, size_bytes))
    header_bytes = int.from_bytes(start[12:16], "little")
    if len(start) < header_bytes <= size_bytes:
        start = read_start(header_bytes + HEAD_BYTES)  # a compacted segment may replace thousands
    try:
        header, segment.records_at = decode_header(start, path)
    except JournalCorrupt as problem:
        return Beginning(segment, None, None, 0, problem)
    if header.segment != number:
        segment.records_at = 0
        words = f"the header says segment {header.segment}: was the file renamed?"
        return Beginning(segment, header, None, 0, JournalCorrupt(path, 0, words))
    segment.compacted = bool(header.replaced)
    segment.version = header.version
    at = segment.records_at
    needed = records.record_end(start, at)
    if len(start) < needed <= size_bytes:
        start = read_start(needed)
    checkpoint, end = records.checked_checkpoint(start, at)
    if checkpoint is None:
        record_type, end = records.checked_end(start, at)
        reason = "the segment does not begin with a CHECKPOINT" if record_type else records.why_bad(end)
        return Beginning(segment, header, None, 0, JournalCorrupt(path, at, reason))
    return Beginning(segment, header, checkpoint, end, None, start if len(start) == size_bytes else b"")


def take_unfinished(found: list[Beginning], marker: Marker | None, read: Read) -> Iterator[Beginning]:
    """Remove from `found` and yield the newest segments without a CHECKPOINT: their creation was interrupted.

    Raises JournalCorrupt if one has lost its CHECKPOINT instead, after removing it, too. Raises OSError.
    """
    while found and found[-1].problem is not None:
        last = found.pop()
        number, problem = last.segment.number, last.problem
        assert problem is not None
        # Its creation was interrupted only if no whole record is in it.
        if (
            "version" in problem.reason
            or next(records.find_whole_records(read(last.segment.path), 1), None) is not None
        ):
            raise problem
        if marker is not None and number <= marker.number:
            raise JournalCorrupt(last.segment.path, problem.offset, f"{problem.reason}: {marker}")
        if found and found[-1].segment.compacted:
            raise problem  # a compacted segment is put in place only with a later CHECKPOINT on disk
        if not found and number > 1:
            raise problem  # segments before it were deleted only once its CHECKPOINT was on disk
        yield last


def is_empty(earlier: Beginning, later: Beginning) -> bool:
    """True if a segment without its CHECKPOINT has no items: it was never synced, and says nothing."""
    return earlier.problem is not None and _says_nothing(earlier, later)


def _says_nothing(earlier: Beginning, later: Beginning) -> bool:
    """True if the next CHECKPOINT says all that a segment does: it has no items, and none are held back."""
    is_all_said = later.checkpoint is None or not later.checkpoint.held_from
    return is_all_said and earlier.segment.first_id == later.segment.first_id


def counted_bytes(earlier: Beginning, later: Beginning, read: Read) -> int:
    """Bytes of a segment that count, as far as the next one tells. The file is shorter if some were lost.

    Raises OSError.
    """
    segment, end_id = earlier.segment, later.segment.first_id
    if is_empty(earlier, later):
        return segment.records_at
    has_items = not _says_nothing(earlier, later)
    if (
        not has_items
        and earlier.content
        and next(records.find_whole_records(earlier.content, earlier.checkpoint_end), None) is None
    ):
        return earlier.checkpoint_end  # the rest was never synced
    written_bytes = segment.used_bytes if segment.compacted else _written_bytes(earlier, later, read)
    if not has_items and written_bytes > segment.used_bytes:
        return _end_below(segment, end_id, read)  # this was not, either
    return written_bytes


def _written_bytes(earlier: Beginning, later: Beginning, read: Read) -> int:
    segment = earlier.segment
    said_bytes = later.checkpoint.previous_bytes if later.checkpoint is not None else 0  # 0 also after a repair
    if said_bytes and later.segment.number == segment.number + 1:
        return said_bytes
    if said_bytes == segment.used_bytes:
        return said_bytes  # a number was left free between them
    # The CHECKPOINT that knows was never synced, and is lost.
    return segment.used_bytes if earlier.problem is not None else _end_below(segment, later.segment.first_id, read)


def _end_below(segment: Segment, end_id: int, read: Read) -> int:
    """End of a segment's items with ids below `end_id`.

    Behind them is the rest of a failed commit that could not be cut off: its ids were given out again.
    """
    buffer = read(segment.path)
    at, next_id = segment.records_at, segment.first_id
    while at < len(buffer):
        record_type, end = records.checked_end(buffer, at)
        if not record_type and next_id < end_id:
            return segment.used_bytes  # damage, which is found when it is read
        if not record_type or (record_type == records.Type.PUT and records.PUT.unpack_from(buffer, at)[3] >= end_id):
            break
        if record_type == records.Type.PUT:
            next_id = records.PUT.unpack_from(buffer, at)[3] + 1
        at = end
    return at
