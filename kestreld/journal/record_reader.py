"""Records of a segment file, read one by one and in steps, for files that no journal has open."""

from collections.abc import Iterator
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.records import checked_end, why_bad
from kestreld.journal.segment import decode_header

READ_BYTES: Final = 256 * 1024
PAUSE_RECORDS: Final = 200  # a millisecond and a half, with the caller's work for each
HEADER_LOOK_BYTES: Final = 8192
CUT_SHORT: Final = -1  # of `checked_end`
Found = tuple[int, bytes]  # type and record


def segment_records(files: FileLayer, path: str, end: int | None = None) -> Iterator[Found | None]:
    """Every record of a segment; None = a pause.

    Up to `end` all must be whole. Without it the last may be torn, and later appends are left out. Raises
    JournalCorrupt or OSError.
    """
    fd = files.open_read(path)
    try:
        start = files.read_at(fd, HEADER_LOOK_BYTES, 0)
        if (header_bytes := int.from_bytes(start[12:16], "little")) > len(start):
            start = files.read_at(fd, min(header_bytes, files.size_bytes(path)), 0)  # it may replace thousands
        yield from _records(files, fd, path, decode_header(start, path)[1], end)
    finally:
        files.close(fd)


def bare_records(files: FileLayer, path: str) -> Iterator[Found | None]:
    """`segment_records` for a file without a header."""
    fd = files.open_read(path)
    try:
        yield from _records(files, fd, path, 0, None)
    finally:
        files.close(fd)


def _records(files: FileLayer, fd: int, path: str, offset: int, end: int | None) -> Iterator[Found | None]:
    buffer = b""
    last = files.size_bytes(path) if end is None else end
    while chunk := files.read_at(fd, _how_much(buffer, last - offset), offset + len(buffer)):
        buffer += chunk
        at = stop = count = 0
        while stop >= 0:
            record_type, stop = checked_end(buffer, at)
            if record_type:
                yield record_type, buffer[at:stop]
                at = stop
                count += 1
                if count % PAUSE_RECORDS == 0:
                    yield None
        if stop != CUT_SHORT:
            raise JournalCorrupt(path, offset + at, why_bad(stop))
        buffer, offset = buffer[at:], offset + at
        yield None
    if end is not None and offset < end:
        raise JournalCorrupt(path, offset, why_bad(CUT_SHORT))


def _how_much(buffer: bytes, left: int) -> int:
    """Bytes to read next: twice as many each time for a record that is not complete yet."""
    return max(min(max(READ_BYTES, len(buffer)), left - len(buffer)), 0)
