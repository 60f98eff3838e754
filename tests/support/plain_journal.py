"""A reader of journals written from docs/journal.md alone, a byte at a time: it imports nothing of the project."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

FRAME: Final = 9
PUT, DONE, ABORT, READER, SYNC, IMPORT, CHECKPOINT, DUE, KEY, ORIGIN, FAILURE, LEASE, HOLDER = range(1, 14)
ENDS: Final = ("got", "confirmed", "expired", "moved", "discarded", "flushed")
U64: Final = (1 << 64) - 1
READER_BYTES: Final = 4 + 1 + 8 + 8 + 4 + 8 + 8 + 8 + 48 + 10  # of a CHECKPOINT, besides its name and lists


@dataclass(frozen=True, order=True)
class Event:
    """A row: instants in ms since 1970. `reader` is "" for the queue itself, None for a put for all of them."""

    queue: str
    reader: str | None
    event: str
    id: int
    at_ms: int
    expire_ms: int | None = None
    flags: int | None = None
    due_ms: int | None = None
    attempts: int | None = None
    lease: int | None = None
    holder: str | None = None
    value: bytes | None = None


@dataclass
class Read:
    """What a journal says, and where it is damaged: (segment, offset). `leases`: attempts, by reader and id."""

    events: list[Event] = field(default_factory=list)
    leases: dict[tuple[int, int], int] = field(default_factory=dict)
    damaged: list[tuple[Path, int]] = field(default_factory=list)


@dataclass
class Segment:
    path: Path
    number: int
    first_id: int
    content: bytes
    at: int  # of its first record
    name: str | None  # None: its header is damaged

    @property
    def has_checkpoint(self) -> bool:
        """Whether that is whole."""
        found = whole(self.content, self.at) if self.name is not None else None
        return found is not None and found[0] == CHECKPOINT

    @property
    def held_from(self) -> int:
        """0 = nothing is held back, or that is not known."""
        if not self.has_checkpoint:
            return 0
        end = whole(self.content, self.at)
        assert end is not None
        body = self.content[self.at + FRAME : end[1]]
        at = 44
        for _ in range(struct.unpack_from("<I", body, 40)[0]):
            name_bytes, done, retries = struct.unpack_from("<HII", body, at + READER_BYTES - 10)
            at += READER_BYTES + name_bytes + 16 * done + 10 * retries
        return int.from_bytes(body[at : at + 8], "little")

    def says_nothing(self, later: "Segment") -> bool:
        """Whether the next one's CHECKPOINT says all that this one does."""
        return self.first_id == later.first_id and not later.held_from

    @property
    def previous_bytes(self) -> int | None:
        """What its CHECKPOINT says of the segment before; None where that is damaged."""
        found = whole(self.content, self.at)
        if found is None or found[0] != CHECKPOINT:
            return None
        return int(struct.unpack_from("<Q", self.content, self.at + FRAME + 4)[0])


def read(folder: Path) -> Read:
    """The journal in a folder `<queue>.journal`."""
    segments = [opened(path) for path in sorted(folder.glob("*.seg"))]
    said = Read()
    for segment, later in zip(segments, [*segments[1:], None], strict=True):
        one = OneSegment(segment, later, said, next((one.name for one in segments if one.name is not None), ""))
        one.read()
    return said


def opened(path: Path) -> Segment:
    content = path.read_bytes()
    number, _, first_id = path.stem.partition("-")
    name, at = None, 0
    if len(content) >= 48 and content[:8] == b"KESTRELJ":
        header_bytes, name_bytes = struct.unpack_from("<I", content, 12)[0], struct.unpack_from("<H", content, 44)[0]
        end = header_bytes - 4
        if header_bytes <= len(content) and end >= 48 + name_bytes:
            digest = xxh3_64_intdigest(content[:end]) & 0xFFFFFFFF
            if digest == int.from_bytes(content[end:header_bytes], "little"):
                name, at = content[48 : 48 + name_bytes].decode("latin-1"), header_bytes
    return Segment(path, int(number), int(first_id), content, at, name)


def whole(content: bytes, at: int) -> tuple[int, int] | None:
    """The type of the whole record at `at`, and where it ends."""
    if at + FRAME > len(content):
        return None
    body_bytes, checksum, kind = struct.unpack_from("<IIB", content, at)
    end = at + FRAME + body_bytes
    if not body_bytes or not PUT <= kind <= HOLDER or end > len(content):
        return None
    body = content[at + FRAME : end]
    if kind == PUT:
        if body_bytes < 32:
            return None
        item_id, add_ms, expire_ms, flags, only = struct.unpack_from("<QQQII", body)
        seed = item_id + body_bytes + add_ms * 0x85EBCA77 + expire_ms * 0x9E3779B1
        seed, body = seed + flags * 0xC2B2AE3D + only * 0x27D4EB2F, body[32:]
    else:
        seed = body_bytes + (kind << 56)
    return (kind, end) if xxh3_64_intdigest(body, seed & U64) & 0xFFFFFFFF == checksum else None


class OneSegment:
    """Reads one of them; `later` is the next one, None for the live one."""

    def __init__(self, segment: Segment, later: Segment | None, said: Read, name: str) -> None:
        self.segment = segment
        self.later = later
        self.said = said
        self.queue = name
        self.content = segment.content
        self.names: dict[int, str] = {}
        self.holders: dict[int, str] = {}
        self.due: dict[int, tuple[int, int]] = {}  # of the PUT that follows
        self.due_alone: list[tuple[int, Event]] = []
        self.sync_offsets: list[int] = []
        self.last_id = segment.first_id - 1
        self.id_end = later.first_id if later is not None else 1 << 62
        self.events: list[Event] = []

    def read(self) -> None:
        segment, later = self.segment, self.later
        end = later.previous_bytes if later is not None and later.number == segment.number + 1 else None
        if end is not None:
            self.content = self.content[:end]
        at = segment.at
        if later is not None and segment.says_nothing(later):
            if not segment.has_checkpoint:
                return
            behind = whole(self.content, at)
            assert behind is not None
            if not any(whole(self.content, place) for place in range(behind[1], len(self.content))):
                return
        if segment.name is None:
            at = self._first_checkpoint()
            self.said.damaged.append((segment.path, 0))
        while at < len(self.content):
            found = whole(self.content, at)
            if found is not None:
                self._apply(found[0], self.content[at + FRAME : found[1]])
                at = found[1]
            elif later is None and (self._is_torn(at) or not any(self.content[at:])):
                break
            else:
                self.said.damaged.append((segment.path, at))
                self.holders.clear()
                at = self._next(at)
        if end is not None and len(self.content) < end:
            self.said.damaged.append((segment.path, len(self.content)))
        self.said.events += self.events

    def _is_torn(self, at: int) -> bool:
        if at == self.segment.at and self._is_marked():
            return False  # it was on disk with its CHECKPOINT
        if self.sync_offsets:
            return not any(offset > at for offset in [*self.sync_offsets, *self._syncs_behind(at)])
        return not any(whole(self.content, place) for place in range(at + 1, len(self.content)))

    def _is_marked(self) -> bool:
        """Whether the marker says that the segment was on disk."""
        markers = self.segment.path.parent.glob("*.live")
        return any(int(path.name.partition("-")[0]) >= self.segment.number for path in markers)

    def _syncs_behind(self, at: int) -> Iterator[int]:
        for place in range(at + 1, len(self.content)):
            found = whole(self.content, place)
            if found is not None and found[0] == SYNC:
                yield int.from_bytes(self.content[place + FRAME : place + FRAME + 8], "little")

    def _first_checkpoint(self) -> int:
        """Where the records of a segment begin whose header is damaged."""
        for place in range(len(self.content)):
            found, behind = whole(self.content, place), place + FRAME
            number = int.from_bytes(self.content[behind : behind + 4], "little")
            if found is not None and found[0] == CHECKPOINT and number == self.segment.number:
                return place
        return self._next(0)

    def _next(self, at: int) -> int:
        """Where reading goes on behind a bad record: where its length says, or at the next PUT that can be its own."""
        if at and at + FRAME <= len(self.content):
            behind = at + FRAME + int.from_bytes(self.content[at : at + 4], "little")
            if whole(self.content, behind) is not None:
                return behind
        for place in range(at + 1, len(self.content)):
            found = whole(self.content, place)
            if found is not None and found[0] == PUT and self._fits(place):
                return place
        return len(self.content)

    def _fits(self, at: int) -> bool:
        return self.last_id < int.from_bytes(self.content[at + FRAME : at + FRAME + 8], "little") < self.id_end

    def _name(self, reader: int) -> str:
        return self.names.get(reader, f"#{reader}")

    def _apply(self, kind: int, body: bytes) -> None:
        if kind == PUT:
            item_id, add_ms, expire_ms, flags, only = struct.unpack_from("<QQQII", body)
            due_ms, attempts = self.due.pop(item_id, (None, None))
            self.last_id = item_id
            self._say(
                self._name(only) if only else None, "put", item_id, add_ms, expire_ms or None, flags, due_ms,
                attempts or None, value=body[32:],
            )  # fmt: skip
        elif kind == DONE:
            reader, reason, at_ms, _, _, ranges = struct.unpack_from("<IBQIQI", body)
            for first, last in struct.iter_unpack("<QQ", body[29 : 29 + 16 * ranges]):
                for item_id in range(first, last + 1):
                    self._say(self._name(reader), ENDS[reason], item_id, at_ms)
        elif kind == ABORT:
            reader, at_ms, item_id, times = struct.unpack("<IQQH", body)
            self._say(self._name(reader), "aborted", item_id, at_ms, attempts=times)
        elif kind == READER:
            self.names[struct.unpack_from("<I", body)[0]] = body[22:].decode("latin-1")
        elif kind == SYNC:
            self.sync_offsets.append(int.from_bytes(body, "little"))
        elif kind == CHECKPOINT:
            self._checkpoint(body)
        elif kind == DUE:
            reader, why, item_id, at_ms, due_ms, _, attempts, last = struct.unpack("<IBQQQIHH", body)
            if item_id > self.last_id:
                self.due[item_id] = (due_ms, 0)
            else:
                event = ("delayed", "aborted", "leased")[why]
                lease = last & 0xFFF if last & 0x2000 else None
                name = self._name(reader) if reader else None
                if event == "delayed" and lease is not None and due_ms <= at_ms:
                    self._say(name, "returned", item_id, at_ms, attempts=attempts, lease=lease)
                else:
                    self._say(name, event, item_id, at_ms, None, None, due_ms, attempts, lease)
        elif kind == HOLDER:
            self.holders[int.from_bytes(body[:2], "little")] = body[2:].decode()
        elif kind == LEASE:
            reader, at_ms = int.from_bytes(body[:4], "little"), int.from_bytes(body[4:10], "little")
            for at in range(10, len(body), 22):
                item_id, length_ms = int.from_bytes(body[at : at + 8], "little"), body[at + 8 : at + 14]
                _, lease, holder = struct.unpack_from("<IHH", body, at + 14)
                lease &= 0xFFF
                event = "extended" if self.said.leases.get((reader, item_id)) == lease else "leased"
                self.said.leases[reader, item_id] = lease
                ends_ms = at_ms + int.from_bytes(length_ms, "little")
                who = self.holders.get(holder)
                self._say(self._name(reader), event, item_id, at_ms, due_ms=ends_ms, lease=lease, holder=who)

    def _checkpoint(self, body: bytes) -> None:
        (readers,) = struct.unpack_from("<I", body, 40)
        at = 44
        for _ in range(readers):
            number = struct.unpack_from("<I", body, at)[0]
            name_bytes, done, retries = struct.unpack_from("<HII", body, at + READER_BYTES - 10)
            at += READER_BYTES
            self.names[number] = body[at : at + name_bytes].decode("latin-1")
            at += name_bytes + 16 * done + 10 * retries

    def _say(
        self, reader: str | None, event: str, item_id: int, at_ms: int, expire_ms: int | None = None,
        flags: int | None = None, due_ms: int | None = None, attempts: int | None = None, lease: int | None = None,
        holder: str | None = None, value: bytes | None = None,
    ) -> None:  # fmt: skip
        said = Event(
            self.queue, reader, event, item_id, at_ms, expire_ms, flags, due_ms, attempts, lease, holder, value
        )
        self.events.append(said)
