"""How the segments of a journal begin, and what that says: which of them count, and how much of the one before each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, naming
from kestreld.journal import records
from kestreld.journal.marker import Marker
from kestreld.journal.segment import Header, Segment, decode_header, parse_segment_name

HEAD_BYTES: Final = 8192  # of a segment: most have header and CHECKPOINT in them, small ones all they have
Read = Callable[[str], bytes]  # all of a file. Raises OSError


@dataclass(slots=True)
class Beginning:
    """Header and CHECKPOINT of a segment, None where they are not whole; then `problem` says why.

    The segment's `used_bytes` are the file's length, as long as nobody knows better.
    """

    segment: Segment
    header: Header | None
    checkpoint: records.Checkpoint | None
    checkpoint_end: int
    problem: JournalCorrupt | None
    content: bytes = b""  # all of it, where it is small

    @property
    def replaced(self) -> tuple[int, ...]:
        return self.header.replaced if self.header is not None else ()

    def read(self, files: FileLayer) -> bytes:
        return self.content or files.read_file(self.segment.path)


@dataclass(slots=True, frozen=True)
class Gap:
    """Numbers that no segment has, `first` to `last`. They were left free for compacted segments, unless fewer items
    were put before them than `put_items`, as the CHECKPOINT behind them says.
    """

    first: int
    last: int
    put_items: int

    def problem(self, put_items: int) -> str:
        """What to say where so many items were put before it; "" where nothing is missing."""
        return missing_words(self.first, self.last) if put_items < self.put_items else ""


def missing_words(first: int, last: int) -> str:
    """What to say of segments that have gone."""
    return f"segment {first} is missing" if first == last else f"segments {first} to {last} are missing"


def look(files: FileLayer, folder: str, names: Sequence[str]) -> list[Beginning]:
    """The beginnings of the segments among the `names` in a folder, in order. Raises OSError."""
    return [open_segment(files, f"{folder}/{name}") for name in names if parse_segment_name(name) is not None]


def open_segment(files: FileLayer, path: str) -> Beginning:
    """The beginning of the segment at `path`. Raises OSError."""
    size_bytes = files.size_bytes(path)
    fd = files.open_read(path)
    try:
        with naming(path):
            return read_beginning(path, size_bytes, lambda most: files.read_at(fd, most, 0))
    finally:
        files.close(fd)


def read_beginning(path: str, size_bytes: int, read_start: Callable[[int], bytes]) -> Beginning:
    """The beginning of a segment that is `size_bytes` long. `read_start` gives its first bytes, so many at most."""
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
    """The newest segments, as long as they have no CHECKPOINT: they were being made, and are taken out of `found`.

    Raises JournalCorrupt where one has lost it instead; that one has been taken out, too. OSError.
    """
    while found and found[-1].problem is not None:
        last = found.pop()
        number, problem = last.segment.number, last.problem
        assert problem is not None
        # It is a cut-short roll only if nothing whole stands in it.
        if (
            "version" in problem.reason
            or next(records.find_whole_records(read(last.segment.path), 1), None) is not None
        ):
            raise problem
        if marker is not None and number <= marker.number:
            raise JournalCorrupt(last.segment.path, problem.offset, f"{problem.reason}: {marker}")
        if found and found[-1].segment.compacted:
            raise problem  # a compacted segment goes into place only behind a CHECKPOINT on disk
        if not found and number > 1:
            raise problem  # what stood before it went only once its CHECKPOINT was on disk
        yield last


def is_empty(earlier: Beginning, later: Beginning) -> bool:
    """Whether nothing was put in a segment that has lost its CHECKPOINT: that was never synced, and says nothing."""
    return earlier.problem is not None and _says_nothing(earlier, later)


def _says_nothing(earlier: Beginning, later: Beginning) -> bool:
    """Whether the CHECKPOINT behind a segment says all that it does, which is more than DONE records only where items
    are held back.
    """
    is_all_said = later.checkpoint is None or not later.checkpoint.held_from
    return is_all_said and earlier.segment.first_id == later.segment.first_id


def counted_bytes(earlier: Beginning, later: Beginning, read: Read) -> int:
    """How much was written to a segment that counts, as far as what stands behind it tells. What is there of it is
    shorter where some has been lost. Raises OSError.
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
        return earlier.checkpoint_end  # what was written behind it was never synced
    written_bytes = segment.used_bytes if segment.compacted else _written_bytes(earlier, later, read)
    if not has_items and written_bytes > segment.used_bytes:
        return _end_below(segment, end_id, read)  # nor was this
    return written_bytes


def _written_bytes(earlier: Beginning, later: Beginning, read: Read) -> int:
    segment = earlier.segment
    said_bytes = later.checkpoint.previous_bytes if later.checkpoint is not None else 0  # 0 also where a repair began
    if said_bytes and later.segment.number == segment.number + 1:
        return said_bytes
    if said_bytes == segment.used_bytes:
        return said_bytes  # a number was left free between them
    # The CHECKPOINT that knows was never synced, and is lost.
    return segment.used_bytes if earlier.problem is not None else _end_below(segment, later.segment.first_id, read)


def _end_below(segment: Segment, end_id: int, read: Read) -> int:
    """Where the items of a segment with ids below `end_id` end. Behind them stands what a commit left that failed and
    could not be cut off: its ids were given out again.
    """
    buffer = read(segment.path)
    at, next_id = segment.records_at, segment.first_id
    while at < len(buffer):
        record_type, end = records.checked_end(buffer, at)
        if not record_type and next_id < end_id:
            return segment.used_bytes  # damage, to be found when it is read
        if not record_type or (record_type == records.Type.PUT and records.PUT.unpack_from(buffer, at)[3] >= end_id):
            break
        if record_type == records.Type.PUT:
            next_id = records.PUT.unpack_from(buffer, at)[3] + 1
        at = end
    return at
