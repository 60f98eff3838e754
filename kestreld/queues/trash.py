"""Deleted or flushed items that undo can restore: folders of segments, each with a note of its items.

A deleted journal's folder moves here as a whole. From a journal that stays in use segments are hard-linked, and their
files stay as long as either side needs them. A note is true after a kill at any moment, provided that `settle` is
called at startup.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from kestreld.clock import Clock
from kestreld.config.queue_names import decode_queue_name, encode_queue_name
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.record_reader import Found, bare_records, segment_records
from kestreld.journal.records import (
    FRAME_BYTES,
    Origin,
    Type,
    Why,
    item_id,
    item_optional_fields,
    read_done,
    read_due,
    read_leases,
    read_origin,
)
from kestreld.journal.segment import parse_segment_name
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.sharded import ShardedDict
from kestreld.queues.slices import WAITS, Work
from kestreld.queues.trash_note import (
    DELETE,
    NOTE,
    UNWRITTEN,
    Note,
    Putting,
    note_of,
    read_note,
    write_note,
    write_progress,
)

TRASH: Final = ".trash"
AT_ONCE: Final = 1000  # items forgotten in one step
Put = tuple[bytes, Origin | None]  # PUT record and origin


class Dropped(NamedTuple):
    """An item to restore: its PUT record, ms for which it is still held back, its origin and its failure reason."""

    record: bytes
    left_ms: int
    origin: Origin | None
    failure: str


@dataclass(slots=True)
class Entry:
    """A folder of the trash, of a queue by its full name. `busy` while its items are being put back.

    `note` is set once it was read, and counts from then on rather than the file, which a full disk may keep out of
    date. Until the folder `is_moved` on disk, too, a power cut may undo the rename: nothing may be removed from it
    before.
    """

    path: str
    queue: str
    at_ms: int
    busy: bool = False
    note: Note | None = None
    is_moved: bool = True


class Trash:
    """The trash of one spool. `keep_ms` returns how long a queue's is kept."""

    def __init__(
        self, files: FileLayer, clock: Clock, spool: str, keep_ms: Callable[[str], int], report: Callable[[str], None]
    ) -> None:
        self._files = files
        self._clock = clock
        self._spool = spool
        self._folder = f"{spool}/{TRASH}"
        self._keep_ms = keep_ms
        self._report = report
        self.entries: list[Entry] = []  # oldest first

    def find(self) -> None:
        """Find the entries at startup. Raises OSError."""
        if self._files.is_dir(self._folder):
            try:
                names = self._files.list_dir(self._folder)
            except OSError as error:
                must_be_the_systems(error)
                self._report(f"{self._folder}: cannot be read: {error.strerror}; nothing in it can be undone")
                names = []
            for name in names:
                encoded, _, at_ms = name.rpartition(".")
                queue = decode_queue_name(encoded.rpartition(".")[0])
                self.entries.append(Entry(f"{self._folder}/{name}", queue, int(at_ms) if at_ms.isdecimal() else 0))
            self.entries.sort(key=lambda entry: entry.at_ms)
        if self.entries:
            self._files.sync_dir(self._spool)

    def settle(self, family: str, queue: Queue | None) -> None:
        """Finish work interrupted by a crash for a family that was recovered or is gone, before anything is put on it.

        An entry of items that the journal still has is removed: the delete or flush never happened.
        """
        for entry in [one for one in self.entries if one.queue.partition("+")[0] == family]:
            note = read_note(self._files, entry.path)
            if note is None:
                continue  # of no use; removed when it expires
            if queue is not None and _never_was(note, queue):
                self._remove(entry)
            elif note.putting is not None:
                journal = queue.journal if queue is not None else None
                is_same = journal is not None and journal.journal_id == note.putting.journal_id
                written = max(queue.next_id - note.putting.first_id, 0) if queue is not None and is_same else 0
                try:
                    self.put_back(entry, note, written)
                    if note.is_empty:
                        self._remove(entry)
                except OSError as error:
                    must_be_the_systems(error)
                    self._report(f"{note.queue}: cannot keep for undo: {error.strerror}")
                    self._remove(entry)

    def expire(self) -> Work:
        """Remove entries that are too old, one file a step."""
        for entry in list(self.entries):
            if not entry.busy and self._clock.wall_ms - entry.at_ms >= self._keep_ms(entry.queue):
                yield from self.removal(entry)

    def removal(self, entry: Entry) -> Work:
        """Remove a folder for good, one file a step. Failures are reported and will be retried at the next start."""
        if entry not in self.entries:
            return
        self.entries.remove(entry)
        outcome: list[OSError | None] = []
        if not entry.is_moved:
            self._files.in_background(self._sync_spool, outcome.append)
            while not outcome:
                yield WAITS
            if outcome[0] is not None:
                self._cannot_remove(entry.path, outcome[0])
                return
        yield from self._unlink_all(entry)

    def _remove(self, entry: Entry) -> None:
        """`removal`, without steps."""
        self.entries.remove(entry)
        try:
            if not entry.is_moved:
                self._sync_spool()
        except OSError as error:
            must_be_the_systems(error)
            self._cannot_remove(entry.path, error)
            return
        for _ in self._unlink_all(entry):
            pass

    def _unlink_all(self, entry: Entry) -> Iterator[None]:
        try:
            # The note first: what a crash leaves of the rest must not be put back.
            for name in sorted(self._files.list_dir(entry.path), key=lambda name: name != NOTE):
                self._files.unlink(f"{entry.path}/{name}")
                yield
            self._files.remove_dir(entry.path)
        except OSError as error:
            must_be_the_systems(error)
            self._cannot_remove(entry.path, error)

    def _sync_spool(self) -> None:
        self._files.sync_dir(self._spool)

    def _cannot_remove(self, path: str, error: OSError) -> None:
        self._report(f"{path}: cannot remove: {error.strerror}")

    def drop_all(self) -> bool:
        """Remove every entry that is not busy, because the disk is full; False if there was none."""
        dropped = [entry for entry in self.entries if not entry.busy]
        for entry in dropped:
            self._report(f"{entry.path}: removed early because the disk is full")
            self._remove(entry)
        return bool(dropped)

    # Putting in

    def throw_away(self, journal: Journal, queue: str, note: Note | None, *, sync: bool) -> None:
        """Move a journal's folder away in one step: for good, or to be kept if there is a `note` of its items.

        A crash in between leaves only trash. Raises OSError.
        """
        entry = self._entry(queue, journal.journal_id)
        self._files.make_dir(self._folder)
        if note is not None and (not note.items or not self._wrote_first(note, journal.folder)):
            note = None
        self._files.rename(journal.folder, entry.path)
        if sync:
            self._sync_spool()
        if note is None and sync:
            self._files.remove_folder(entry.path)
        elif note is None:
            self._files.in_background(partial(self._remove_once_moved, entry.path), partial(self._removed, entry.path))
        else:
            entry.is_moved = sync
            self.entries.append(entry)

    def _remove_once_moved(self, path: str) -> None:
        self._sync_spool()
        self._files.remove_folder(path)

    def _removed(self, path: str, error: OSError | None) -> None:
        if error is not None:
            self._cannot_remove(path, error)

    def keep(self, reader: Reader, what: str) -> None:
        """Link the segments of items that a reader is about to lose, if its trash is kept. Errors are only reported."""
        note = self.note(reader, what)
        journal = reader.queue.journal
        if note is None or journal is None or not note.items or note.is_empty:
            return
        entry = self._entry(reader.name, journal.journal_id)
        self.entries.append(entry)
        try:
            self._files.make_dir(entry.path)
            if journal.segments:
                first = journal.position_before(note.first_id)[0]
                for segment in journal.segments:
                    if segment.number >= first:
                        self._files.link(segment.path, f"{entry.path}/{segment.path.rpartition('/')[2]}")
        except OSError as error:
            must_be_the_systems(error)
            self._report(f"{reader.name}: cannot keep for undo: {error.strerror}")
            self._remove(entry)
            return
        if not self._wrote_first(note, entry.path):
            self._remove(entry)

    def note(self, reader: Reader, what: str) -> Note | None:
        """Note of a reader's items; None if nothing is kept, or its journal cannot be trusted."""
        journal = reader.queue.journal
        if journal is None or reader.queue.stopped is not None or self._keep_ms(reader.name) <= 0:
            return None
        return note_of(reader, journal, what, self._clock.wall_ms)

    def _entry(self, queue: str, journal_id: int) -> Entry:
        at_ms = self._clock.wall_ms
        while self._files.exists(path := f"{self._folder}/{encode_queue_name(queue)}.{journal_id}.{at_ms}"):
            at_ms += 1
        return Entry(path, queue, at_ms)

    def _wrote_first(self, note: Note, folder: str) -> bool:
        try:
            write_note(self._files, folder, note)
        except OSError as error:
            must_be_the_systems(error)
            self._report(f"{note.queue}: cannot keep for undo: {error.strerror}")
            return False
        return True

    # Taking out

    def latest(self, queue: str) -> tuple[Entry, Note] | None:
        """The latest entry of a queue that can be restored, or None."""
        for entry in reversed(self.entries):
            if entry.queue == queue:
                entry.note = entry.note or read_note(self._files, entry.path)
                if entry.note is not None:
                    return entry, entry.note
        return None

    def putting(self, entry: Entry, note: Note, journal_id: int, first_id: int, ids: list[int]) -> None:
        """Write that the items `ids` are about to be put, with new ids from `first_id` on. Raises OSError."""
        note.putting = Putting(journal_id, first_id, ids)
        write_progress(self._files, entry.path, note)

    def put_back(self, entry: Entry, note: Note, count: int) -> None:
        """Write that the first `count` of those are in the journal. An empty note's entry may go. Raises OSError."""
        assert note.putting is not None
        ids, note.putting = note.putting.ids[:count], None
        if ids:
            note.items = max(note.items - len(ids), 0)
            note.pass_over(ids[-1])
        if not note.is_empty:
            write_progress(self._files, entry.path, note)

    def records(self, entry: Entry, note: Note) -> Iterator[Dropped | None]:
        """The items of a note, in order; None = a pause. Raises OSError."""
        due: ShardedDict[int, int] = ShardedDict()  # ms for which each is still held back
        # If the clock was set back: no longer than was left when it was dropped.
        now_ms = max(self._clock.wall_ms, note.at_ms)
        if note.held is not None:
            yield from self._find_due(entry, note, due, now_ms)
        ranges, last = list(note.ranges), 0
        failures = dict(note.failures)
        for put in self._all_puts(entry):
            if put is None:
                yield None
                continue
            record, origin = put
            found = item_id(record)
            while ranges and ranges[0][1] < found:
                del ranges[0]
            if not ranges and note.held is None:
                return  # the rest was put later
            is_its = item_optional_fields(record)[2] in (0, note.reader)
            is_due = note.held is not None and note.held[0] <= found <= note.held[1] and found in due
            if found > last and is_its and (is_due or bool(ranges and ranges[0][0] <= found)):
                last = found
                yield Dropped(record, due.pop(found) or 0, origin, failures.get(found, ""))

    def _find_due(self, entry: Entry, note: Note, due: ShardedDict[int, int], now_ms: int) -> Iterator[None]:
        """Fill `due` with the items that were held back when dropped, and the time for which each still is."""
        number, used_bytes = note.held_until
        names = [
            name
            for name in self._files.list_dir(entry.path)
            if (parsed := parse_segment_name(name)) is not None and parsed[0] <= number
        ]
        sources = [
            segment_records(self._files, f"{entry.path}/{name}", used_bytes if name == names[-1] else None)
            for name in names
        ]
        try:
            for found in chain(*sources, bare_records(self._files, f"{entry.path}/{UNWRITTEN}")):
                if found is None:
                    yield None
                elif found[0] == Type.DUE:
                    said = read_due(found[1][FRAME_BYTES:])
                    if said.reader in (0, note.reader):
                        due[said.item_id] = said.left_ms(now_ms) if said.why != Why.LEASED else 0
                elif found[0] == Type.LEASE:
                    said_of_all = read_leases(found[1][FRAME_BYTES:])
                    for said in said_of_all if said_of_all[0].reader == note.reader else ():
                        due[said.item_id] = 0
                elif found[0] == Type.DONE:
                    done = read_done(found[1][FRAME_BYTES:])
                    for first, last in done.ranges if done.reader == note.reader else ():
                        yield from _forget(due, first, last)
        except JournalCorrupt as problem:
            self._report(f"{entry.queue}: undo: {problem}; its delayed and retrying items are not restored")
        for one in note.ended:
            due.pop(one)

    def _all_puts(self, entry: Entry) -> Iterator[Put | None]:
        names = [name for name in self._files.list_dir(entry.path) if parse_segment_name(name)]
        first_ids = [int(name[11:31]) for name in names]
        for at, name in enumerate(names):
            # Items from there on were of a commit that failed.
            end_id = min([first for first in first_ids[at + 1 :] if first >= first_ids[at]], default=None)
            yield from self._puts(entry, segment_records(self._files, f"{entry.path}/{name}"), end_id)
        yield from self._puts(entry, bare_records(self._files, f"{entry.path}/{UNWRITTEN}"), None)

    def _puts(self, entry: Entry, records: Iterator[Found | None], end_id: int | None) -> Iterator[Put | None]:
        """PUTs with their ORIGIN, which precedes its PUT, but follows it where items were copied."""
        before: Origin | None = None
        put: bytes | None = None  # an ORIGIN may follow it
        try:
            for found in records:
                if found is None:
                    yield None
                elif found[0] == Type.ORIGIN:
                    before = read_origin(found[1][FRAME_BYTES:])
                    if put is not None and item_id(put) == before.item_id:
                        yield put, before
                        put = before = None
                elif found[0] == Type.PUT:
                    if put is not None:
                        yield put, None
                        put = None
                    one = item_id(found[1])
                    if end_id is not None and one >= end_id:
                        return
                    if before is not None and before.item_id == one:
                        yield found[1], before
                    else:
                        put = found[1]
                    before = None
        except JournalCorrupt as problem:
            self._report(f"{entry.queue}: undo: {problem}; the remaining items are not restored")
        if put is not None:
            yield put, None


def _forget(due: ShardedDict[int, int], first: int, last: int) -> Iterator[None]:
    """Remove a range of items that are done."""
    if last - first < len(due):
        for one in range(first, last + 1):
            due.pop(one)
            if one % AT_ONCE == 0:
                yield None
        return
    for part in due.parts():
        for one in [one for one in part if first <= one <= last]:
            due.pop(one)
        yield None


def _never_was(note: Note, queue: Queue) -> bool:
    """True if a crash came before the queue's journal said that the items are gone."""
    if queue.journal is None or queue.journal.journal_id != note.journal_id:
        return False
    reader = next((reader for reader in queue.readers.values() if reader.number == note.reader), None)
    if reader is None or reader.name != note.queue or note.is_empty:
        return False
    if note.what == DELETE:
        return True
    if not note.ranges:
        held = reader.held
        return held is not None and any(note.first_id <= one for one in (*held.later, *held.ready))
    first = note.ranges[0][0]
    return not (first < reader.fresh_id() or any(start <= first <= last for start, last in reader.skip))
