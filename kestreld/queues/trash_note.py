"""Notes of the trash about dropped items of a reader: their ids, and the progress of an undo."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kestreld.files import FileLayer
from kestreld.journal.journal import Journal
from kestreld.journal.records import Range, item_id, item_optional_fields, merged, origin_record
from kestreld.queues.reader import Reader

DELETE: Final = "delete"
FLUSH: Final = "flush"
NOTE: Final = "note.json"
PROGRESS: Final = "progress"  # lines of JSON: how far undo has come, the last one counts
UNWRITTEN: Final = "unwritten"  # PUT records that were in no segment yet


@dataclass(slots=True)
class Putting:
    """Items that are being put back: their old ids, and the first of their new ids in that journal."""

    journal_id: int
    first_id: int
    ids: list[int]


@dataclass(slots=True)
class Note:
    """Items of a journal that a command dropped. `ranges` are those that undo has yet to put back.

    The journal, up to `held_until`, says which items were held back and when they are due. `held` is the range of ids
    in which undo has yet to look for them, None if nothing was held; `ended` are ids that were done, though not in the
    journal. `failures` are ids with the reason of their last failure.
    """

    queue: str
    reader: int
    journal_id: int
    what: str
    at_ms: int
    items: int
    ranges: list[Range]
    putting: Putting | None = None
    unwritten: list[bytes] = field(default_factory=list)
    held: Range | None = None
    held_until: tuple[int, int] = (0, 0)  # segment number, bytes of it
    ended: list[int] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    undone_to: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.ranges and self.held is None

    @property
    def first_id(self) -> int:
        """An id that no item of the note is below."""
        return min([first for first, _ in self.ranges[:1]] + ([self.held[0]] if self.held is not None else []))

    def pass_over(self, last_id: int) -> None:
        """Record that undo has come to `last_id`."""
        self.undone_to = last_id
        self.ranges = [(max(first, last_id + 1), last) for first, last in self.ranges if last > last_id]
        if self.held is not None:
            self.held = (max(self.held[0], last_id + 1), self.held[1]) if self.held[1] > last_id else None


def note_of(reader: Reader, journal: Journal, what: str, now_ms: int) -> Note:
    """Note of a reader's items: those that wait, and with `delete` open ones, too."""
    queue = reader.queue
    queue.flush_counters()
    dropped = [item_id(reader.window[index]) for index in range(reader.returned)]
    ended = [*map(item_id, reader.ended_in_memory()), *(item_id(move.record) for move in reader.moving)]
    if reader.held is not None:  # returned items without a DUE record
        dropped += [one for one in reader.held.unnoted if one in reader.held.ready]
    items = reader.items
    if what == DELETE:
        dropped += reader.open
        items += len(reader.open)
    else:
        ended += reader.open
    fresh = reader.fresh_id()
    ranges = [(one, one) for one in dropped]
    # Held items may have been taken before fresh ones.
    kept = merged([*reader.skip, *((one, one) for one in ended if one >= fresh)])
    for first, last in kept:
        if last >= fresh:
            ranges.append((fresh, first - 1))
            fresh = last + 1
    ranges.append((fresh, queue.next_id - 1))
    ranges = merged([(first, last) for first, last in ranges if first <= last])
    unwritten: list[bytes] = []
    for record in queue.pending:
        if item_optional_fields(record)[2] in (0, reader.number):
            origin = queue.origins.get(item_id(record))
            unwritten += [record] if origin is None else [origin_record(origin), record]
    note = Note(reader.name, reader.number, journal.journal_id, what, now_ms, items, ranges, unwritten=unwritten)
    note.failures = [(one, text) for (number, one), text in queue.failures.items() if number == reader.number]
    held = reader.held
    if held is not None and (lowest := held.lowest()):
        note.items += len(held.later)
        note.held = (lowest, queue.next_id - 1)
        note.held_until = (journal.live.number, journal.live.used_bytes) if journal.segments else (0, 0)
        note.ended = ended
        note.unwritten[:0] = [one.record for one in queue.notes.due if reader in one.readers]
    return note


def write_note(files: FileLayer, folder: str, note: Note) -> None:
    """Write the note, after the records that are in no segment. Raises OSError."""
    _write(files, f"{folder}/{UNWRITTEN}", b"".join(note.unwritten))
    words = asdict(note)
    del words["unwritten"], words["undone_to"]
    if not note.failures:
        del words["failures"]  # older versions do not know the key
    _write(files, f"{folder}/{NOTE}", json.dumps(words).encode())


def write_progress(files: FileLayer, folder: str, note: Note) -> None:
    """Write how far undo has come, and the items that it puts next. Raises OSError.

    A line is appended, since replacing a file may cost a wait for the disk and hundreds of these come in a second. A
    line that is cut short is not read, and does not join another.
    """
    putting = None if note.putting is None else asdict(note.putting)
    words = {"undone_to": note.undone_to, "items": note.items, "putting": putting}
    line = b"\n" + json.dumps(words).encode() + b"\n"
    path = f"{folder}/{PROGRESS}"
    fd = files.open_append(path) if files.exists(path) else files.create(path)
    try:
        while line:
            line = line[files.write(fd, line) :]
    finally:
        files.close(fd)


def _write(files: FileLayer, path: str, data: bytes) -> None:
    making = path + ".new"
    if files.exists(making):
        files.unlink(making)
    fd = files.create(making)
    try:
        while data:
            data = data[files.write(fd, data) :]
    finally:
        files.close(fd)
    files.rename(making, path)


def read_note(files: FileLayer, folder: str) -> Note | None:
    """The note in a folder; None if there is none that can be read, as after a crash before it was written."""
    try:
        words: Any = json.loads(files.read_file(f"{folder}/{NOTE}"))
        words["ranges"] = [(first, last) for first, last in words["ranges"]]
        held = words.get("held")
        words["held"] = None if held is None else (held[0], held[1])
        number, used_bytes = words.get("held_until", (0, 0))
        words["held_until"] = (number, used_bytes)
        words["putting"] = _putting(words["putting"])
        note = Note(**words)
        if files.exists(path := f"{folder}/{PROGRESS}"):
            _apply(note, files.read_file(path))
        return note
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _apply(note: Note, lines: bytes) -> None:
    for line in reversed(lines.splitlines()):
        try:
            words: Any = json.loads(line)
        except ValueError:
            continue  # cut short, or empty
        note.pass_over(words["undone_to"])
        note.items, note.putting = words["items"], _putting(words["putting"])
        return


def _putting(words: Any) -> Putting | None:
    return None if words is None else Putting(**words)
