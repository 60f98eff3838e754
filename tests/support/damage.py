"""A small spool with something of everything in it, copies of it with something wrong, and what they deliver."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    Done,
    Kind,
    Origin,
    ReaderChange,
    Reason,
    Type,
    done_record,
    item_id,
    put_record,
    reader_record,
    whole_records,
)
from kestreld.journal.segment import decode_header
from kestreld.queues.held import Lease
from kestreld.queues.leases import extend, lease
from tests.support.engine import Engine
from tests.support.memory_files import MemoryFiles

EVERY_CHANGE: Final = int(os.environ.get("EVERY_CHANGE", "3"))  # the longest tests try one in so many
BITS_OF_EACH_BYTE: Final = int(os.environ.get("BITS_OF_EACH_BYTE", "1"))  # how many the longest tests flip, of 8
SPOOL: Final = Path("/spool")
FAMILY: Final = "work"
OTHER: Final = "idle"
FOLDER: Final = f"{SPOOL}/{FAMILY}.journal"
RECORDS: Final = b"".join(  # an item may hold records, as a copy of a journal does
    [
        put_record(13, 1, 0, 0, 0, b"phantom"),
        done_record(Done(1, Reason.GOT, 1, 20, 20, [(1, 20)])),
        reader_record(ReaderChange(9, False, Kind.QUEUE, 1, 1, "phantom")),
        put_record(1000, 1, 0, 0, 0, b"phantom"),
    ]
)
KEYS: Final = (b"order-17", b"order-18")
HOUR_MS: Final = 3_600_000
WEEK_MS: Final = 7 * 24 * HOUR_MS
LEASES: Final = ((HOUR_MS, "10.0.0.1:4001"), (2 * HOUR_MS, "10.0.0.2:4002"))
Contents = Mapping[str, bytes]  # of files, by path


@dataclass(frozen=True, slots=True)
class Place:
    """A whole record of the sound journal."""

    path: str
    start: int
    end: int
    record_type: int
    record: bytes


def some_of(changes: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """One in `EVERY_CHANGE` of flipped bits or cuts."""
    return islice(changes, 0, None, EVERY_CHANGE)


def of_each_byte(bits: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """`BITS_OF_EACH_BYTE` bits of each byte, others in each."""
    return ((path, bit) for path, bit in bits if (bit + bit // 8 * 3) % 8 < BITS_OF_EACH_BYTE)


class Sample:
    """A spool with the readers `work`, `work+audit` and the stream `spark` on a journal of a few segments, and with a
    queue `idle` that holds one item. The process that made it has died, with an item open; or was `stopped` in good
    order.

    `undone` are the ids that each queue has yet to deliver, in order: what is `held_back` last, which it delivers at
    those times. `holders` have what is leased. `keys` are the ids of the items that were put with them on `work`.
    """

    def __init__(self, segment_bytes_max: int = 600, *, stopped: bool = False) -> None:
        disk = MemoryFiles()
        engine = Engine(SPOOL, disk, max_journal_size_bytes=segment_bytes_max, max_retries=2, move_failed_to="failed")
        _fill(engine)
        if stopped:
            engine.collection.close()
        self.files: Contents = {path: bytes(content) for path, content in disk.files.items()}
        self.segments = sorted(path for path in self.files if path.startswith(FOLDER) and path.endswith(".seg"))
        self.places = [place for path in self.segments for place in _places(path, self.files[path])]
        self.puts = {item_id(place.record): place for place in self.places if place.record_type == Type.PUT}
        self.undone = {name: list(map(item_id, records)) for name, records in drained(self.disk()).items()}
        started = Engine(SPOOL, self.disk())
        self.held_back = held_back(started)
        self.holders = holders(started)
        self.keys = {key: known_key(started, key) for key in KEYS}

    def disk(self, changes: Mapping[str, bytes | None] | None = None) -> MemoryFiles:
        """A copy with other contents for some files; None = that file is missing."""
        disk = MemoryFiles()
        for path, content in {**self.files, **(changes or {})}.items():
            if content is not None:
                disk.make_dir(path.rpartition("/")[0])
                disk.files[path] = bytearray(content)
        return disk

    @cached_property
    def bits(self) -> list[tuple[str, int]]:
        """Every bit of the journal."""
        return [(path, bit) for path in self.segments for bit in range(len(self.files[path]) * 8)]

    @cached_property
    def cuts(self) -> list[tuple[str, int]]:
        """Every length that a segment can be cut to."""
        return [(path, size) for path in self.segments for size in range(len(self.files[path]))]

    def flipped(self, path: str, bit: int) -> bytes:
        content = bytearray(self.files[path])
        content[bit // 8] ^= 1 << bit % 8
        return bytes(content)

    def place_at(self, path: str, offset: int) -> Place | None:
        """The record that the byte is in; None for a header."""
        return next((place for place in self.places if place.path == path and place.start <= offset < place.end), None)


def _fill(engine: Engine) -> None:
    engine.put(OTHER, b"sound")
    engine.reader("work+audit")
    engine.put(FAMILY, b"one", b"two", b"three" * 5)
    engine.queue(FAMILY).add_stream("spark", 1)
    engine.end_turn()
    engine.put("work+audit", b"for the audit only")
    engine.put(FAMILY, b"with flags", flags=7)
    engine.put(FAMILY, b"with expiry", expire_at_ms=1 << 42)
    engine.take(FAMILY)
    engine.end_turn()
    journal = engine.queue(FAMILY).journal
    assert journal is not None
    journal.sync()
    reader = engine.reader(FAMILY)
    reader.queue.use_version(3)
    assert reader.queue.put_later(b"in an hour, for both", 0, 5, None, 3_600_000)
    engine.take(FAMILY)
    put_with_key(engine, b"with a key", KEYS[0])
    engine.end_turn()
    engine.put(FAMILY, RECORDS)
    for number in range(10):
        engine.put(FAMILY, b"item %d" % number, b"x" * 23)  # records of 64 bytes, and others
        if number % 4 == 1:
            engine.take(FAMILY)
            engine.take("work+audit")
            opened = engine.reader(FAMILY).open_read(engine.clock.wall_ms)
            assert opened is not None
            engine.reader(FAMILY).abort(opened[0], engine.clock.wall_ms)
        if number == 8:
            engine.put("work+audit", b"for the audit only, too")
        if number == 5:
            engine.reader(FAMILY).open_read(engine.clock.wall_ms)
            engine.take(FAMILY)
        engine.end_turn()
    reader.give_back(next(iter(reader.open)), engine.clock.wall_ms, 60_000)
    reader.queue.note_failure(reader.number, next(iter(reader.open), 1), "why")
    engine.end_turn()
    tokens = [lease(reader, engine.clock.wall_ms, lease_ms, holder) for lease_ms, holder in LEASES]
    engine.end_turn()
    assert tokens[0] is not None
    assert extend(reader, tokens[0][0], 2 * HOUR_MS)
    assert reader.queue.put_moved(b"from elsewhere", 0, None, Origin(0, Reason.EXPIRED, 2, 1, "elsewhere", "why"))
    assert reader.queue.put_later(b"cancelled", 0, 0, reader, 1000)
    assert reader.queue.put_later(b"in a second", 0, 0, reader, 1000)
    reader.remember_key(KEYS[1], reader.queue.next_id - 1, 1000)
    engine.end_turn()
    reader.withdraw(reader.queue.next_id - 2, Reason.DISCARDED)
    reader.open_read(engine.clock.wall_ms)
    engine.queue(FAMILY).advance_stream("spark", 3)
    engine.take("work+audit")
    engine.end_turn()
    journal.sync()
    engine.put(FAMILY, b"last but one", b"last")
    engine.take(FAMILY)
    engine.end_turn()


def put_with_key(engine: Engine, data: bytes, key: bytes) -> None:
    reader = engine.reader(FAMILY)
    reader.queue.use_version(2)
    engine.put(FAMILY, data)
    reader.remember_key(key, reader.queue.next_id - 1, 0)


def _places(path: str, content: bytes) -> list[Place]:
    _, start = decode_header(content, path)
    return [
        Place(path, at, end, record_type, content[at:end])
        for record_type, at, end in whole_records(content, start, path)
    ]


def drained(disk: MemoryFiles) -> dict[str, list[bytes]]:
    """Every item that a start on the disk delivers, as PUT records; a queue that is stopped ends early or is missing.

    `idle` has to be, whatever has become of the others.
    """
    engine = Engine(SPOOL, disk)
    found: dict[str, list[bytes]] = {}
    for _ in range(2):  # what waits, and what is held back
        for name in dict.fromkeys([OTHER, *engine.collection.readers]):
            records = found.setdefault(name, [])
            with suppress(JournalCorrupt):
                while (record := engine.reader(name).take(engine.clock.wall_ms)) is not None:
                    records.append(record)
            engine.end_turn()
        engine.clock.advance(WEEK_MS)
        while engine.collection.agenda.next_at_ms() is not None:
            engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    return found


def held_back(engine: Engine) -> dict[str, dict[int, int]]:
    """When what a start holds back, or leaves leased, is delivered, by queue and id."""
    found: dict[str, dict[int, int]] = {}
    from_now = engine.clock.wall_ms - engine.clock.monotonic_ms
    for name in engine.collection.readers:
        held = engine.reader(name).held
        later = held.later if held is not None else ()
        found[name] = {one: from_now + held.due_of(held.later[one]) for one in later} if held is not None else {}
        found[name] |= {one: from_now + leased.ends_at_ms for one, leased in _leases(engine, name).items()}
    return found


def holders(engine: Engine) -> dict[str, dict[int, tuple[str, int]]]:
    """Who has what is leased after a start, and by which attempt, by queue and id."""
    return {
        name: {one: (leased.holder, leased.attempt) for one, leased in _leases(engine, name).items()}
        for name in engine.collection.readers
    }


def _leases(engine: Engine, name: str) -> dict[int, Lease]:
    held = engine.reader(name).held
    return {} if held is None else held.leases


def known_key(engine: Engine, key: bytes) -> int:
    """The id of the item that a start knows to have been put on `work` with a key; 0 = none."""
    return engine.reader(FAMILY).find_key(key)
