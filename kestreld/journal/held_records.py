"""Held items, keys and origins that recovery finds in DUE, KEY and ORIGIN records; an item's last record counts."""

from collections.abc import Iterable

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    FRAME_BYTES,
    PUT_HEADER_BYTES,
    TYPE_OFFSET,
    Done,
    Due,
    Key,
    Kind,
    Origin,
    ReaderState,
    Reason,
    Type,
    checked_end,
    item_id,
    read_done,
    read_due,
    read_key,
    read_origin,
    record_end,
    why_bad,
)
from kestreld.journal.segment import Segment


class HeldRecords:
    """Held items and keys by reader number and id. Pass in the records in the order in which they were written."""

    def __init__(self, readers: Iterable[ReaderState]) -> None:
        self._at_ids: dict[int, int] = {}
        self.of: dict[int, dict[int, Due]] = {}
        self.keys: dict[int, dict[bytes, Key]] = {}
        self.origins: dict[int, Origin] = {}
        self.first_id = 0  # items below it were done, if only in memory, and are gone
        for reader in readers:
            self.join(reader.number, reader.kind, reader.at_id)

    def join(self, number: int, kind: Kind, at_id: int) -> None:
        """Add a reader that receives items from `at_id` on."""
        if kind == Kind.QUEUE:
            self._at_ids[number] = at_id
            self.of[number] = {}
            self.keys[number] = {}

    def leave(self, number: int) -> None:
        """Remove a reader that was dropped."""
        for known in (self._at_ids, self.of, self.keys):
            known.pop(number, None)

    def note_key(self, key: Key) -> None:
        if key.reader in self.keys:
            self.keys[key.reader][key.digest] = key

    def note_origin(self, origin: Origin) -> None:
        self.origins[origin.item_id] = origin

    def note(self, due: Due) -> list[int]:
        """Take in a DUE record; returns the readers for which its item was not due before."""
        if due.reader:
            numbers = [due.reader] if due.reader in self.of else []
        else:
            numbers = [number for number, at_id in self._at_ids.items() if at_id <= due.item_id]
        new = [number for number in numbers if due.item_id not in self.of[number]]
        for number in numbers:
            self.of[number][due.item_id] = due
        return new

    def is_ahead_of(self, next_id: int) -> bool:
        """True if an item is due that was never put."""
        return any(one >= next_id for known in self.of.values() for one in known)

    def left(self, reader: int) -> dict[int, Due]:
        """Due items of a reader that the journal still has."""
        return {one: due for one, due in self.of.get(reader, {}).items() if one >= self.first_id}

    def done(self, done: Done) -> None:
        """Take in a DONE record. A flush also forgets the reader's keys."""
        known = self.of.get(done.reader)
        if known is not None and done.reason == Reason.FLUSHED:
            self.keys[done.reader] = {}
        for first, last in done.ranges if known else ():
            assert known is not None
            if last - first < len(known):
                found = [one for one in range(first, last + 1) if one in known]
            else:
                found = [one for one in known if first <= one <= last]
            for one in found:
                del known[one]

    def read(self, buffer: bytes, segment: Segment) -> None:
        """Take in a whole segment. Other records are skipped by their length; seek points are added.

        Raises JournalCorrupt.
        """
        at, size, path = segment.records_at, len(buffer), segment.path
        while at < size:
            if size - at >= PUT_HEADER_BYTES and buffer[at + TYPE_OFFSET] == Type.PUT:
                end = record_end(buffer, at)
                if not at + PUT_HEADER_BYTES <= end <= size:
                    raise JournalCorrupt(path, at, why_bad(-1))
                if at >= segment.mark_at:
                    segment.mark(item_id(buffer[at : at + PUT_HEADER_BYTES]), at)
                at = end
                continue
            record_type, end = checked_end(buffer, at)
            if not record_type:
                raise JournalCorrupt(path, at, why_bad(end))
            if record_type == Type.DUE:
                self.note(read_due(buffer[at + FRAME_BYTES : end]))
            elif record_type == Type.ORIGIN:
                self.note_origin(read_origin(buffer[at + FRAME_BYTES : end]))
            elif record_type == Type.KEY:
                self.note_key(read_key(buffer[at + FRAME_BYTES : end]))
            elif record_type == Type.DONE:
                self.done(read_done(buffer[at + FRAME_BYTES : end]))
            at = end
