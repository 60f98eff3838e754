"""One segment file of a journal: its name, its header, and the offsets from which to read.

<queue>.journal/<segment number, 10 digits>-<first id, 20 digits>.seg
header = "KESTRELJ" | version u16 | flags u16 | header_bytes u32 | journal_id u64 | segment u32 | first_id u64
         | created_ms u64 | name_bytes u16 | replaced u16 | name | replaced * (segment u32) | checksum u32
"""

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import ID_MAX

MAGIC: Final = b"KESTRELJ"
VERSION: Final = 4  # the newest that is read; 1 is written unless more is needed
SUFFIX: Final = ".seg"
FOLDER_SUFFIX: Final = ".journal"  # of the folder with a queue's segments
TORN_MARK: Final = ".torn-"
UNSYNCED_MARK: Final = ".unsynced"  # beside a segment: a sync of it has failed
MARK_EVERY_BYTES: Final = 256 * 1024
REPLACED_MAX: Final = 0xFFFF
NUMBER_MAX: Final = (1 << 32) - (1 << 20)  # a repair or a compaction needs several after it

_FIXED: Final = struct.Struct("<8sHHIQIQQHH")
_NUMBER: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"(\d{10})-(\d{20})\.seg")


@dataclass(slots=True, frozen=True)
class Header:
    journal_id: int
    segment: int
    first_id: int
    created_at_ms: int
    queue: str
    replaced: tuple[int, ...] = ()
    version: int = 1


def encode_header(header: Header) -> bytes:
    name = header.queue.encode("latin-1")
    size = _FIXED.size + len(name) + 4 * len(header.replaced) + 4
    fixed = _FIXED.pack(
        MAGIC,
        header.version,
        0,
        size,
        header.journal_id,
        header.segment,
        header.first_id,
        header.created_at_ms,
        len(name),
        len(header.replaced),
    )
    body = fixed + name + b"".join([_NUMBER.pack(number) for number in header.replaced])
    return body + _NUMBER.pack(xxh3_64_intdigest(body) & 0xFFFFFFFF)


def decode_header(buffer: bytes, path: str) -> tuple[Header, int]:
    """Header at the start of `buffer`, and its length. Raises JournalCorrupt if it is not whole and correct."""
    if len(buffer) < _FIXED.size:
        raise JournalCorrupt(path, 0, "the segment header is cut short")
    magic, version, _, size, journal_id, segment, first_id, created_at_ms, name_bytes, count = _FIXED.unpack_from(
        buffer
    )
    if magic != MAGIC:
        raise JournalCorrupt(path, 0, "not a kestreld segment")
    if size != _FIXED.size + name_bytes + 4 * count + 4 or size > len(buffer):
        raise JournalCorrupt(path, 0, "the segment header is cut short")
    (checksum,) = _NUMBER.unpack_from(buffer, size - 4)
    if xxh3_64_intdigest(buffer[: size - 4]) & 0xFFFFFFFF != checksum:
        raise JournalCorrupt(path, 0, "the segment header's checksum does not match")
    if not 1 <= version <= VERSION:
        raise JournalCorrupt(path, 8, f"journal version {version}; this kestreld reads versions 1 to {VERSION}")
    name_end = _FIXED.size + name_bytes
    replaced = tuple(number for (number,) in _NUMBER.iter_unpack(buffer[name_end : size - 4]))
    queue = buffer[_FIXED.size : name_end].decode("latin-1")
    return Header(journal_id, segment, first_id, created_at_ms, queue, replaced, version), size


def segment_name(number: int, first_id: int) -> str:
    return f"{number:010d}-{first_id:020d}{SUFFIX}"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Segment number and first id, or None if `name` is not a segment's."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) >= NUMBER_MAX or int(found[2]) >= ID_MAX:
        return None
    return int(found[1]), int(found[2])


@dataclass(slots=True)
class Segment:
    """A segment in use. `used_bytes` of the file count; records start at `records_at`.

    A `compacted` one stands in for others. `seek_points` are (item id, offset) now and then, so that reading from an id
    need not start at the beginning; no further one is needed before offset `mark_at`.
    """

    number: int
    first_id: int
    path: str
    used_bytes: int
    records_at: int
    seek_points: list[tuple[int, int]] = field(default_factory=list)
    compacted: bool = False
    mark_at: int = 0
    version: int = 1

    def mark(self, next_put_id: int, offset: int) -> None:
        """Remember that the PUT of `next_put_id`, if in this segment, is at `offset` or later."""
        last = self.seek_points[-1][1] if self.seek_points else self.records_at
        if offset - last >= MARK_EVERY_BYTES:
            self.seek_points.append((next_put_id, offset))
            last = offset
        self.mark_at = last + MARK_EVERY_BYTES

    def mark_read(self, put_id: int, offset: int) -> None:
        """Remember where a PUT was read, if that is after all seek points: the next search begins there."""
        if offset > (self.seek_points[-1][1] if self.seek_points else 0):
            self.mark(put_id, offset)

    def offset_before(self, item_id: int) -> int:
        """Offset of a record from which reading soon meets `item_id`."""
        at = bisect_right(self.seek_points, (item_id, 1 << 63))
        return self.seek_points[at - 1][1] if at else self.records_at
