"""Records about items beside their PUTs that the next commit writes: DUE times, KEYs and ORIGINs.

Each is written before its item's PUT: a torn tail may lose the item, but never only its notes.
"""

from collections.abc import Sequence
from dataclasses import replace

from kestreld.journal.records import Due, due_record
from kestreld.queues.held import Held
from kestreld.queues.waiters import Awaited, Source


class Holder(Source):
    """A reader as notes about its items see it. Its bases form one line, like those of a family."""

    __slots__ = ("deleted", "held", "number")

    def __init__(self, family: Awaited, number: int) -> None:
        super().__init__(family)
        self.number = number
        self.deleted = False
        self.held: Held | None = None  # items with a time or an owner of their own; None = never any


class Note:
    """A DUE record to write about an item of these readers. `is_first`: no DUE record is about it yet."""

    __slots__ = ("due", "due_at_ms", "is_first", "item_id", "readers", "record")

    def __init__(self, readers: Sequence[Holder], due: Due, due_at_ms: int, *, is_first: bool) -> None:
        self.readers = readers
        self.due = due
        self.due_at_ms = due_at_ms  # on the monotonic clock
        self.is_first = is_first
        self.item_id = due.item_id
        self.record = due_record(due)

    def still_holds(self, reader: Holder) -> bool:
        """True if the note is still true of a reader: the item may have gone on, or the reader been deleted."""
        held = reader.held
        if held is None or reader.deleted:
            return False
        value = held.later.get(self.item_id) or held.ready.get(self.item_id)
        return held.due_of(value) == self.due_at_ms if value is not None else self.item_id in held.out

    def for_one(self, reader: Holder) -> "Note":
        return Note([reader], replace(self.due, reader=reader.number), self.due_at_ms, is_first=self.is_first)

    def repeat_lease(self) -> None:
        """Have the lease of an item written behind this note, which was true before somebody leased it."""
        for reader in self.readers:
            if reader.held is not None:
                reader.held.write_lease(self.item_id)

    def was_written(self) -> None:
        for reader in self.readers:
            if reader.held is not None:
                reader.held.unnoted.discard(self.item_id)

    def was_not_written(self) -> None:
        for reader in self.readers:
            if self.is_first and reader.held is not None and self.still_holds(reader):
                reader.held.unnoted.add(self.item_id)


class Notes:
    """Records for the next commit, each written before the PUT it is about, and those not on disk yet."""

    __slots__ = ("_in_flight", "due", "of_puts")

    def __init__(self) -> None:
        self.due: list[Note] = []
        self.of_puts: list[tuple[int, bytes]] = []  # KEYs and ORIGINs, with the ids of the pending PUTs
        self._in_flight: list[Note] = []  # of a commit that is not on disk yet

    def add_due(self, note: Note) -> None:
        self.due.append(note)

    def add_of_put(self, one: int, record: bytes) -> None:
        """Add a KEY or ORIGIN record of an item that was put since the last commit."""
        self.of_puts.append((one, record))

    def take_due(self, *, is_stopped: bool) -> list[Note]:
        """Remove and return the notes for a commit; none for a stopped queue, whose readers hold nothing any more."""
        notes, self.due = self.due, []
        return notes if is_stopped else _still_true(notes)

    def written_before(self, notes: Sequence[Note], puts: list[bytes], first_id: int) -> list[bytes]:
        """PUTs from id `first_id` on, each after the records about it: a torn tail never loses only those."""
        before: dict[int, list[bytes]] = {}
        for one, record in [*((note.item_id, note.record) for note in notes), *self.of_puts]:
            before.setdefault(max(one, first_id - 1), []).append(record)
        parts = before.get(first_id - 1, [])
        for one, put in enumerate(puts, first_id):
            parts += [*before.get(one, ()), put]
        return parts

    def wrote(self, notes: list[Note], *, is_synced: bool) -> None:
        """Record that a commit has written these notes. With `is_synced` it may be undone until it is on disk."""
        for note in notes:
            note.was_written()
        if is_synced:
            self._in_flight = notes

    def committed(self) -> None:
        """Clear the records of pending PUTs: they are written."""
        self.of_puts = []

    def none_in_flight(self) -> None:
        """Clear the notes of the commit being synced: it is on disk, or gets there in another way."""
        self._in_flight = []

    def undo_syncing(self) -> None:
        """Write the notes of a commit again, as its sync failed."""
        for note in self._in_flight:
            note.was_not_written()
        self.due, self._in_flight = self._in_flight + self.due, []

    def undo_from(self, first_id: int) -> None:
        """Remove the records about items from `first_id` on, whose puts were undone."""
        self.of_puts = []
        self.due = [note for note in self.due if note.item_id < first_id]

    def drop_untrue(self) -> None:
        """Remove notes that are no longer true, before the readers forget what they hold."""
        self.due = _still_true(self.due)

    def clear(self) -> None:
        """Remove all notes: nothing is written any more."""
        self.due, self.of_puts, self._in_flight = [], [], []


def _still_true(notes: Sequence[Note]) -> list[Note]:
    """Notes that are still true, reduced to the readers of which they are."""
    true: list[Note] = []
    for note in notes:
        holders = [reader for reader in note.readers if note.still_holds(reader)]
        if len(holders) == len(note.readers):
            true.append(note)
        else:
            true += [note.for_one(reader) for reader in holders]
    return true
