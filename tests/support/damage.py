"""A small journal with something of everything in it, copies of it with something wrong, and what is left of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import Type, item_data, item_id, item_oddities, whole_records
from kestreld.journal.segment import decode_header
from tests.support.engine import Engine, QuickFiles

FAMILY = "work"
OTHER = "idle"


@dataclass(frozen=True, slots=True)
class Place:
    """A whole record of the sound journal; of a PUT also its bytes."""

    segment: str
    start: int
    end: int
    record_type: int
    record: bytes


class Sample:
    """The spool in `folder` with two readers, `work` and `work+audit`, in a few segments, and a queue that is sound."""

    def __init__(self, folder: Path, segment_bytes_max: int = 600) -> None:
        self.spool = folder
        self._fill(segment_bytes_max)
        self.places = [place for path in self.segments() for place in _places(path)]
        self.puts = {item_id(place.record): place for place in self.places if place.record_type == Type.PUT}
        self.undone = {name: [item_id(record) for record in records] for name, records in drained(folder).items()}

    def segments(self) -> list[Path]:
        return sorted((self.spool / f"{FAMILY}.journal").glob("*.seg"))

    def _fill(self, segment_bytes_max: int) -> None:
        engine = Engine(self.spool, QuickFiles(), max_journal_size_bytes=segment_bytes_max, max_retries=2)
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
        for number in range(12):
            engine.put(FAMILY, b"item %d" % number, b"x" * 23)  # records of 64 bytes, and others
            if number % 4 == 1:
                engine.take(FAMILY)
                engine.take("work+audit")
                opened = engine.reader(FAMILY).open_read(engine.clock.wall_ms)
                assert opened is not None
                engine.reader(FAMILY).abort(opened[0], engine.clock.wall_ms)
            if number == 5:
                held = engine.reader(FAMILY).open_read(engine.clock.wall_ms)
                assert held is not None
                engine.take(FAMILY)
            engine.end_turn()
        engine.queue(FAMILY).advance_stream("spark", 3)
        engine.take("work+audit")
        engine.end_turn()
        journal.sync()
        engine.put(FAMILY, b"last but one", b"last")
        engine.take(FAMILY)
        engine.end_turn()
        engine.abandon()

    def damaged_at(self, segment: str, offset: int) -> Place | None:
        """The record that the byte is in; None for a header."""
        for place in self.places:
            if place.segment == segment and place.start <= offset < place.end:
                return place
        return None

    def copy(self, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.spool, target)
        return target


def _places(path: Path) -> list[Place]:
    content = path.read_bytes()
    _, start = decode_header(content, str(path))
    return [
        Place(path.name, at, end, record_type, content[at:end])
        for record_type, at, end in whole_records(content, start, str(path))
    ]


def drained(spool: Path) -> dict[str, list[bytes]]:
    """Every item that a start on a copy of the spool delivers, as PUT records; a queue that is stopped ends early."""
    copy = spool.with_name(spool.name + "-drained")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(spool, copy)
    engine = Engine(copy, QuickFiles())
    found: dict[str, list[bytes]] = {}
    for name in [OTHER, *(name for name in engine.collection.readers if name != OTHER)]:
        records = found[name] = []
        try:
            while (record := engine.reader(name).take(engine.clock.wall_ms)) is not None:
                records.append(record)
        except JournalCorrupt:
            continue
        finally:
            engine.end_turn()
    engine.abandon()
    shutil.rmtree(copy)
    return found


def is_for(record: bytes, number: int) -> bool:
    return item_oddities(record)[2] in (0, number)


__all__ = ["FAMILY", "OTHER", "Place", "Sample", "drained", "is_for", "item_data"]
