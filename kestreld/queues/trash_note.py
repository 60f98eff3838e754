"""What the trash writes down of a reader's items that were dropped: which they are, and how far undo has come."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kestreld.files import FileLayer
from kestreld.journal.journal import Journal
from kestreld.journal.records import Range, item_id, item_optional_fields, merged
from kestreld.queues.reader import Reader

DELETE: Final = "delete"
FLUSH: Final = "flush"
NOTE: Final = "note.json"
UNWRITTEN: Final = "unwritten"  # PUT records that were in no segment yet


@dataclass(slots=True)
class Putting:
    """Items that are being put back: by the ids they had, and the first of those they get in that journal."""

    journal_id: int
    first_id: int
    ids: list[int]


@dataclass(slots=True)
class Note:
    """Which items of a journal were dropped, and by what command. `ranges` are those that undo has yet to put back."""

    queue: str
    reader: int
    journal_id: int
    what: str
    at_ms: int
    items: int
    ranges: list[Range]
    putting: Putting | None = None
    unwritten: list[bytes] = field(default_factory=list)


def note_of(reader: Reader, journal: Journal, what: str, now_ms: int) -> Note:
    """What a reader holds now: what waits, and with a `delete` what is open too."""
    queue = reader.queue
    queue.flush_counters()
    ids = [item_id(reader.window[index]) for index in range(reader.returned)]
    items = reader.items
    if what == DELETE:
        ids += reader.open
        items += len(reader.open)
    fresh = reader.fresh_id()
    ranges = [(one, one) for one in ids]
    for first, last in reader.skip:
        if first >= fresh:
            ranges.append((fresh, first - 1))
            fresh = last + 1
    ranges.append((fresh, queue.next_id - 1))
    ranges = merged([(first, last) for first, last in ranges if first <= last])
    unwritten = [record for record in queue.pending if item_optional_fields(record)[2] in (0, reader.number)]
    return Note(reader.name, reader.number, journal.journal_id, what, now_ms, items, ranges, unwritten=unwritten)


def write_first_note(files: FileLayer, folder: str, note: Note) -> None:
    """The note, and before it the records that are in no segment. Raises OSError."""
    _write(files, f"{folder}/{UNWRITTEN}", b"".join(note.unwritten))
    write_note(files, folder, note)


def write_note(files: FileLayer, folder: str, note: Note) -> None:
    """The note in place of the one there is, in one step. Raises OSError."""
    words = asdict(note)
    del words["unwritten"]
    _write(files, f"{folder}/{NOTE}", json.dumps(words).encode())


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
    """The note in a folder; None where there is none that can be read: a crash came before it was written."""
    try:
        words: Any = json.loads(files.read_file(f"{folder}/{NOTE}"))
        words["ranges"] = [(first, last) for first, last in words["ranges"]]
        putting = words["putting"]
        words["putting"] = None if putting is None else Putting(**putting)
        return Note(**words)
    except (OSError, ValueError, KeyError, TypeError):
        return None
