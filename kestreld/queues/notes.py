"""What the next commit says of items beside their PUT records: when they are due, their keys, where they come from."""

from collections.abc import Sequence
from dataclasses import replace

from kestreld.journal.records import Due, due_record
from kestreld.queues.held import Held
from kestreld.queues.waiters import Awaited, Source


class Holder(Source):
    """A reader, as far as notes about its items know it. Its bases are in one line, as those of a family are."""

    __slots__ = ("deleted", "held", "number")

    def __init__(self, family: Awaited, number: int) -> None:
        super().__init__(family)
        self.number = number
        self.deleted = False
        self.held: Held | None = None  # what has a time of its own; None = nothing ever had


class Note:
    """A DUE record that is to be written, about an item of these readers. `is_first`: there is none about it yet."""

    __slots__ = ("due", "due_at_ms", "is_first", "item_id", "readers", "record")

    def __init__(self, readers: Sequence[Holder], due: Due, due_at_ms: int, *, is_first: bool) -> None:
        self.readers = readers
        self.due = due
        self.due_at_ms = due_at_ms  # on the monotonic clock
        self.is_first = is_first
        self.item_id = due.item_id
        self.record = due_record(due)

    def still_holds(self, reader: Holder) -> bool:
        """Whether it is still true: the item may have gone on, or its reader be no more."""
        held = reader.held
        if held is None or reader.deleted:
            return False
        value = held.later.get(self.item_id) or held.ready.get(self.item_id)
        return held.due_of(value) == self.due_at_ms if value is not None else self.item_id in held.out

    def for_one(self, reader: Holder) -> "Note":
        return Note([reader], replace(self.due, reader=reader.number), self.due_at_ms, is_first=self.is_first)

    def was_written(self) -> None:
        for reader in self.readers:
            if reader.held is not None:
                reader.held.unnoted.discard(self.item_id)

    def was_not_written(self) -> None:
        for reader in self.readers:
            if self.is_first and reader.held is not None and self.still_holds(reader):
                reader.held.unnoted.add(self.item_id)


class Notes:
    """The records that the next commit writes before the PUTs they are about, and those that are not on disk yet."""

    __slots__ = ("_in_flight", "due", "of_puts")

    def __init__(self) -> None:
        self.due: list[Note] = []
        self.of_puts: list[tuple[int, bytes]] = []  # KEYs and ORIGINs, with the ids of the pending PUTs
        self._in_flight: list[Note] = []  # of a commit that is not on disk yet

    def add_due(self, note: Note) -> None:
        self.due.append(note)

    def add_of_put(self, one: int, record: bytes) -> None:
        """A KEY or ORIGIN record of an item that was put since the last commit."""
        self.of_puts.append((one, record))

    def take_due(self, *, is_stopped: bool) -> list[Note]:
        """Those that a commit is about to write. Readers of a stopped queue have forgotten what they held."""
        notes, self.due = self.due, []
        return notes if is_stopped else _still_true(notes)

    def written_before(self, notes: Sequence[Note], puts: list[bytes], first_id: int) -> list[bytes]:
        """PUTs from an id on, and before each what is said of it: a tail that is torn off never takes only that."""
        before: dict[int, list[bytes]] = {}
        for one, record in [*((note.item_id, note.record) for note in notes), *self.of_puts]:
            before.setdefault(max(one, first_id - 1), []).append(record)
        parts = before.get(first_id - 1, [])
        for one, put in enumerate(puts, first_id):
            parts += [*before.get(one, ()), put]
        return parts

    def wrote(self, notes: list[Note], *, is_synced: bool) -> None:
        """A commit has written these. `is_synced`: it may yet be undone, for it is to get to the disk first."""
        for note in notes:
            note.was_written()
        if is_synced:
            self._in_flight = notes

    def committed(self) -> None:
        """The pending PUTs are written, and what goes before each."""
        self.of_puts = []

    def none_in_flight(self) -> None:
        """What was written is on disk, or goes there in another way."""
        self._in_flight = []

    def undo_syncing(self) -> None:
        """What was written did not get to the disk."""
        for note in self._in_flight:
            note.was_not_written()
        self.due, self._in_flight = self._in_flight + self.due, []

    def undo_from(self, first_id: int) -> None:
        """Items from that id on were never put."""
        self.of_puts = []
        self.due = [note for note in self.due if note.item_id < first_id]

    def drop_untrue(self) -> None:
        """Forget what the readers, which are about to forget what they hold, would not say any more."""
        self.due = _still_true(self.due)

    def clear(self) -> None:
        """Nothing is written any more."""
        self.due, self.of_puts, self._in_flight = [], [], []


def _still_true(notes: Sequence[Note]) -> list[Note]:
    """Notes for those of their readers of which they are still true."""
    true: list[Note] = []
    for note in notes:
        holders = [reader for reader in note.readers if note.still_holds(reader)]
        if len(holders) == len(note.readers):
            true.append(note)
        else:
            true += [note.for_one(reader) for reader in holders]
    return true
