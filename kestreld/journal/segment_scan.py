"""Segment files of a damaged journal: headers, names, and readable bytes."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, naming
from kestreld.journal.records import (
    FRAME_BYTES,
    TYPE_OFFSET,
    Checkpoint,
    Range,
    Type,
    checked_end,
    find_whole_records,
    read_checkpoint,
    record_end,
)
from kestreld.journal.resync import one_bit_off
from kestreld.journal.segment import Header, decode_header, encode_header, parse_segment_name

READ_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
HEADER_LOOK_BYTES: Final = 512
CHECKPOINT_LOOK_BYTES: Final = 4096  # a longer one is not corrected
UNREAD: Final = "the disk cannot read the whole file"


@dataclass(slots=True)
class FoundSegment:
    """A segment file. `end` is how many of its bytes count, `missing_bytes` how many it lacks.

    Both are guesses unless `is_end_said`. `header` and `checkpoint` are None if they are not whole; `problem` says what
    is wrong with the header, or is "". `unread` are the ranges that the disk could not read the last time, as offsets
    from and to before.
    """

    path: str
    number: int
    first_id: int
    end: int
    header: Header | None = None
    records_at: int = 0
    checkpoint: Checkpoint | None = None
    missing_bytes: int = 0
    is_end_said: bool = False
    problem: str = ""
    unread: list[Range] = field(default_factory=list)

    @property
    def is_compacted(self) -> bool:
        return self.header is not None and bool(self.header.replaced)

    def count_only(self, used_bytes: int) -> None:
        """Set how much was written: further bytes are not part of the segment, and bytes that it lacks are missing."""
        self.missing_bytes = max(used_bytes - self.end, 0)
        self.end = min(self.end, used_bytes)
        self.is_end_said = True


def find_segments(files: FileLayer, folder: str, queue: str) -> Iterator[FoundSegment]:
    """All segments in a folder, by name. Raises JournalCorrupt if a newer kestreld wrote one; OSError."""
    for name in files.list_dir(folder):
        if (parsed := parse_segment_name(name)) is not None:
            segment = FoundSegment(f"{folder}/{name}", *parsed, files.size_bytes(f"{folder}/{name}"))
            _look_at(files, segment, queue)
            yield segment


def records_in(path: str, content: bytes, queue: str) -> int:
    """Offset of the first record of a segment whose header is not whole.

    Raises JournalCorrupt if a newer kestreld wrote it.
    """
    segment = FoundSegment(path, *(parse_segment_name(path.rpartition("/")[2]) or (0, 0)), len(content))
    _read_header(segment, content, queue)
    return segment.records_at


def read_segment(files: FileLayer, segment: FoundSegment) -> Generator[None, None, bytes]:
    """Read the bytes of a segment that count, in steps. Raises OSError."""
    segment.unread.clear()
    return (yield from read_readable(files, segment.path, segment.end, segment.unread))


def read_readable(files: FileLayer, path: str, end: int, unread: list[Range]) -> Generator[None, None, bytes]:
    """Read a file up to `end`, in steps. Raises OSError.

    Pages that the disk can no longer read are zeros; their ranges are added to `unread`.
    """
    fd = files.open_read(path)
    try:
        chunks = []
        for offset in range(0, end, READ_BYTES):
            with naming(path):
                chunks.append(_read_at(files, fd, min(READ_BYTES, end - offset), offset, unread))
            yield
    finally:
        files.close(fd)
    return b"".join(chunks)


def is_unread(unread: list[Range], start: int, end: int) -> bool:
    """True if the disk could not read some of the bytes from `start` to before `end`."""
    return any(first < end and start < behind for first, behind in unread)


def _read_at(files: FileLayer, fd: int, size_bytes: int, offset: int, unread: list[Range]) -> bytes:
    """Read bytes; pages that the disk can no longer read are zeros."""
    try:
        return files.read_at(fd, size_bytes, offset)
    except OSError as error:
        if not files.is_bad_block(error):
            raise
    if size_bytes <= PAGE_BYTES:
        unread.append((offset, offset + size_bytes))
        return bytes(size_bytes)
    half = -(-size_bytes // PAGE_BYTES // 2) * PAGE_BYTES
    return _read_at(files, fd, half, offset, unread) + _read_at(files, fd, size_bytes - half, offset + half, unread)


def _look_at(files: FileLayer, segment: FoundSegment, queue: str) -> None:
    fd = files.open_read(segment.path)
    try:
        with naming(segment.path):
            start = _read_at(files, fd, min(segment.end, READ_BYTES), 0, segment.unread)
            _read_header(segment, start, queue)
            needed = record_end(start, segment.records_at)
            if len(start) < needed <= segment.end:
                start = _read_at(files, fd, needed, 0, segment.unread)
    finally:
        files.close(fd)
    record_type, end = checked_end(start, segment.records_at)
    if record_type == Type.CHECKPOINT:
        checkpoint = read_checkpoint(start[segment.records_at + FRAME_BYTES : end])
    elif (corrected := _corrected_checkpoint(start, segment.records_at)) is not None:
        checkpoint = corrected
    else:
        return
    if checkpoint.segment == segment.number:
        segment.checkpoint = checkpoint


def _corrected_checkpoint(start: bytes, at: int) -> Checkpoint | None:
    """The CHECKPOINT at `at` if only one bit of it is wrong: it may be the only record of a reader's name."""
    look = start[at : at + CHECKPOINT_LOOK_BYTES]
    if len(look) < FRAME_BYTES or (look[TYPE_OFFSET] ^ Type.CHECKPOINT).bit_count() > 1:
        return None
    size_bytes = record_end(look, 0)
    for corrected in one_bit_off(look, range(min(size_bytes, len(look)) * 8)):
        record_type, end = checked_end(corrected, 0)
        if record_type == Type.CHECKPOINT:
            return read_checkpoint(corrected[FRAME_BYTES:end])
    return None


def _read_header(segment: FoundSegment, start: bytes, queue: str) -> None:
    try:
        segment.header, segment.records_at = decode_header(start, segment.path)
    except JournalCorrupt as problem:
        if "version" in problem.reason:
            raise
        segment.problem = problem.reason
        if is_unread(segment.unread, 0, HEADER_LOOK_BYTES):
            segment.problem = "the disk cannot read the segment header"
        segment.header, segment.records_at = _corrected_header(start, segment.path)
    if segment.header is None:
        guess = len(encode_header(Header(0, segment.number, segment.first_id, 0, queue)))
        segment.records_at = _first_record(start, guess, segment.number)
    elif segment.header.segment != segment.number:
        segment.problem = f"the header says segment {segment.header.segment}: was the file renamed?"
        segment.number, segment.first_id = segment.header.segment, segment.header.first_id


def _corrected_header(start: bytes, path: str) -> tuple[Header | None, int]:
    """The header if only one bit of it is wrong."""
    look = start[:HEADER_LOOK_BYTES]
    for corrected in one_bit_off(look, range(len(look) * 8)):
        try:
            return decode_header(corrected, path)
        except JournalCorrupt:
            continue
    return None, 0


def _first_record(start: bytes, guess: int, number: int) -> int:
    """Offset of the first record of a segment whose header is gone."""
    if checked_end(start, guess)[0]:
        return guess
    for record_type, at, end in find_whole_records(start, 0):
        if record_type == Type.CHECKPOINT and read_checkpoint(start[at + FRAME_BYTES : end]).segment == number:
            return at
    return min(guess, len(start))
