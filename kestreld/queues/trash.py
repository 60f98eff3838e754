"""What was deleted or flushed and can still be had back: folders of segments, each with a note of the items it is for.

A deleted journal's folder moves here whole. Of a journal that lives on, the segments are linked: their files stay as
long as either side needs them.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kestreld.clock import Clock
from kestreld.config import decode_queue_name, encode_queue_name
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    Range,
    Type,
    checked_end,
    item_id,
    item_oddities,
    merged,
    why_bad,
)
from kestreld.journal.segment import decode_header, parse_segment_name
from kestreld.queues.reader import Reader

TRASH: Final = ".trash"
NOTE: Final = "note.json"
UNWRITTEN: Final = "unwritten"  # PUT records that were in no segment yet
READ_BYTES: Final = 256 * 1024
HEADER_LOOK_BYTES: Final = 8192
CUT_SHORT: Final = -1  # of `checked_end`


@dataclass(slots=True)
class Note:
    """Which items of a journal were dropped, and how: by a `delete` or a `flush`."""

    queue: str
    reader: int
    journal_id: int
    what: str
    at_ms: int
    items: int
    ranges: list[Range] = field(default_factory=list)
    unwritten: list[bytes] = field(default_factory=list)


def note_of(reader: Reader, journal: Journal, what: str, now_ms: int) -> Note:
    """What a reader holds now: what waits, and with a `delete` what is open too."""
    queue = reader.queue
    queue.fold()
    ids = [item_id(reader.window[index]) for index in range(reader.returned)]
    items = reader.items
    if what == "delete":
        ids += reader.open
        items += len(reader.open)
    returned = merged([(one, one) for one in ids])
    fresh, ranges = reader.fresh_id(), []
    for first, last in reader.skip:
        if first >= fresh:
            ranges.append((fresh, first - 1))
            fresh = last + 1
    ranges.append((fresh, queue.next_id - 1))
    ranges = merged([*returned, *((first, last) for first, last in ranges if first <= last)])
    unwritten = [record for record in queue.pending if item_oddities(record)[2] in (0, reader.number)]
    return Note(reader.name, reader.number, journal.journal_id, what, now_ms, items, ranges, unwritten)


@dataclass(slots=True)
class Entry:
    """A folder of the trash, of a queue by its full name. `busy` while its items are being put back."""

    path: str
    queue: str
    at_ms: int
    busy: bool = False


class Trash:
    """The trash of one spool. `keep_ms` says how long that of a queue is kept."""

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
        """Take up what is there at start. Raises OSError."""
        if self._files.is_dir(self._folder):
            for name in self._files.list_dir(self._folder):
                encoded, _, at_ms = name.rpartition(".")
                queue = decode_queue_name(encoded.rpartition(".")[0])
                self.entries.append(Entry(f"{self._folder}/{name}", queue, int(at_ms) if at_ms.isdecimal() else 0))
            self.entries.sort(key=lambda entry: entry.at_ms)
        for _ in self.expire():
            pass

    def expire(self) -> Iterator[None]:
        """Remove what is too old, one folder a step."""
        for entry in list(self.entries):
            if not entry.busy and self._clock.wall_ms - entry.at_ms >= self._keep_ms(entry.queue):
                self.remove(entry)
                yield

    def remove(self, entry: Entry) -> None:
        """Remove a folder for good; what will not go is reported and tried again at the next start."""
        if entry in self.entries:
            self.entries.remove(entry)
        try:
            self._files.remove_folder(entry.path)
        except OSError as error:
            self._report(f"{entry.path}: cannot be removed: {error.strerror}")

    def drop_all(self) -> bool:
        """The disk is full: let go of everything; whether there was anything."""
        dropped = [entry for entry in self.entries if not entry.busy]
        for entry in dropped:
            self._report(f"{entry.path}: removed early, the disk is full")
            self.remove(entry)
        return bool(dropped)

    # Putting in

    def throw_away(self, journal: Journal, queue: str, note: Note | None, *, sync: bool) -> None:
        """Take a journal's folder out of sight in one step: for good, unless `note` says what it is kept for.

        A crash between leaves only trash. Raises OSError.
        """
        entry = self._entry(queue, journal.journal_id)
        self._files.make_dir(self._folder)
        self._files.rename(journal.folder, entry.path)
        if sync:
            self._files.sync_dir(self._spool)
        if note is None:
            self._files.remove_folder(entry.path)
            return
        self.entries.append(entry)
        self._write_note(entry, note)

    def keep(self, reader: Reader, what: str) -> None:
        """Link what a reader is about to lose, if its queue is kept at all. That it cannot be is no reason to fail."""
        note = self.note(reader, what)
        journal = reader.queue.journal
        if note is None or journal is None or not note.items:
            return
        entry = self._entry(reader.name, journal.journal_id)
        self.entries.append(entry)
        try:
            self._files.make_dir(entry.path)
            if journal.segments and note.ranges:
                first = journal.position_before(note.ranges[0][0])[0]
                for segment in journal.segments:
                    if segment.number >= first:
                        self._files.link(segment.path, f"{entry.path}/{segment.path.rpartition('/')[2]}")
        except OSError as error:
            self._report(f"{reader.name}: cannot be kept for undo: {error.strerror}")
            self.remove(entry)
            return
        self._write_note(entry, note)

    def note(self, reader: Reader, what: str) -> Note | None:
        """What to write down of a reader; None where nothing is kept, or its journal cannot be trusted."""
        journal = reader.queue.journal
        if journal is None or reader.queue.stopped is not None or self._keep_ms(reader.name) <= 0:
            return None
        return note_of(reader, journal, what, self._clock.wall_ms)

    def _entry(self, queue: str, journal_id: int) -> Entry:
        at_ms = self._clock.wall_ms
        while self._files.exists(path := f"{self._folder}/{encode_queue_name(queue)}.{journal_id}.{at_ms}"):
            at_ms += 1
        return Entry(path, queue, at_ms)

    def _write_note(self, entry: Entry, note: Note) -> None:
        words = {
            name: getattr(note, name) for name in ("queue", "reader", "journal_id", "what", "at_ms", "items", "ranges")
        }
        try:
            self._write(f"{entry.path}/{UNWRITTEN}", b"".join(note.unwritten))
            self._write(f"{entry.path}/{NOTE}", json.dumps(words).encode())
        except OSError as error:
            self._report(f"{note.queue}: cannot be kept for undo: {error.strerror}")
            self.remove(entry)

    def _write(self, path: str, data: bytes) -> None:
        if self._files.exists(path):
            self._files.unlink(path)
        fd = self._files.create(path)
        try:
            while data:
                data = data[self._files.write(fd, data) :]
        finally:
            self._files.close(fd)

    # Taking out

    def of(self, queue: str) -> list[tuple[Entry, Note]]:
        """What can be had back of a queue, the latest first."""
        found = []
        for entry in reversed(self.entries):
            if entry.queue == queue and (note := self._read_note(entry)) is not None:
                found.append((entry, note))
        return found

    def _read_note(self, entry: Entry) -> Note | None:
        try:
            words: Any = json.loads(self._files.read_file(f"{entry.path}/{NOTE}"))
            words["ranges"] = [(first, last) for first, last in words["ranges"]]
            return Note(**words)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a power cut came between

    def records(self, entry: Entry, note: Note) -> Iterator[bytes | None]:
        """The PUT records that a note is about, in order; None now and then. Raises OSError."""
        last = 0
        for record in self._all_records(entry):
            if record is None:
                yield None
                continue
            found = item_id(record)
            while note.ranges and note.ranges[0][1] < found:
                del note.ranges[0]
            is_its = item_oddities(record)[2] in (0, note.reader)
            if found > last and note.ranges and note.ranges[0][0] <= found and is_its:
                last = found
                yield record

    def _all_records(self, entry: Entry) -> Iterator[bytes | None]:
        names = self._files.list_dir(entry.path)
        for name in [*(name for name in names if parse_segment_name(name)), UNWRITTEN]:
            path = f"{entry.path}/{name}"
            fd = self._files.open_read(path)
            try:
                at = 0
                if name != UNWRITTEN:
                    at = decode_header(self._files.read_at(fd, HEADER_LOOK_BYTES, 0), path)[1]
                yield from self._puts(fd, path, at)
            except JournalCorrupt as problem:
                self._report(f"{entry.queue}: undo: {problem}; what follows there is not put back")
            finally:
                self._files.close(fd)

    def _puts(self, fd: int, path: str, offset: int) -> Iterator[bytes | None]:
        buffer = b""
        while chunk := self._files.read_at(fd, READ_BYTES, offset + len(buffer)):
            buffer += chunk
            at, end = 0, 0
            while end >= 0:
                record_type, end = checked_end(buffer, at)
                if record_type == Type.PUT:
                    yield buffer[at:end]
                at = max(at, end)
            if end != CUT_SHORT:
                raise JournalCorrupt(path, offset + at, why_bad(end))
            buffer, offset = buffer[at:], offset + at
            yield None
