"""Record of the bytes read by earlier runs, so that each run reads only new ones.

A live segment is read up to its last whole record, and from there by the next run. Kestrel's own files are not tracked,
because they are rewritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kestreld.errors import JournalCorrupt
from kestreld.journal.discovery import JournalFile
from kestreld.journal.segment import decode_header
from kestrelspark.scanning import blocks
from kestrelspark.storage import ENVIRONMENT


@dataclass(slots=True)
class JournalProgress:
    """The part of a journal that has been read: all items with ids before `next_id`.

    `numbers`: ranges (first, last) of segments read completely; `ends`: bytes read of other segments.
    """

    next_id: int = 0
    numbers: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def is_read(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.numbers)

    def close(self, number: int) -> None:
        self.ends.pop(number, None)
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self.numbers, (number, number)]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(joined[-1][1], last)
            else:
                joined.append((first, last))
        self.numbers = joined


@dataclass(slots=True, frozen=True)
class Reached:
    """The end of the last whole record of a live segment, and the next id."""

    end: int
    next_id: int


class Seen:
    """The parts that have been read, by journal."""

    def __init__(self, saved: Iterable[dict[str, Any]] = ()) -> None:
        """`saved`: a result of `as_json`."""
        self._journals: dict[tuple[str, str, int], JournalProgress] = {}
        for one in saved:
            numbers = [(first, last) for first, last in one["segments"]]
            ends = {int(number): end for number, end in one["ends"].items()}
            self._journals[one["server"], one["queue"], one["journal_id"]] = JournalProgress(
                one["next_id"], numbers, ends
            )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "server": server,
                "queue": queue,
                "journal_id": journal_id,
                "next_id": one.next_id,
                "segments": one.numbers,
                "ends": one.ends,
            }
            for (server, queue, journal_id), one in sorted(self._journals.items())
        ]

    def fresh(self, spark: Any, files: Sequence[JournalFile]) -> list[JournalFile]:
        """The files to read now, live ones up to their last whole record; they then count as read. Raises OSError."""
        known = {file.path: self._of(file) for file in files if not file.is_kestrel}
        unread = [file for file in files if not file.is_kestrel and not known[file.path].is_read(file.number)]
        live = [file for file in unread if file.is_live]
        reached = dict(zip([file.path for file in live], _reached(spark, live), strict=True))
        from_ids = {path: journal.next_id for path, journal in known.items()}
        found = []
        for file in unread:
            journal = known[file.path]
            start = journal.ends.get(file.number, 0)
            file = replace(file, start=start, from_id=from_ids[file.path] if file.is_compacted else 0)
            if file.is_live:
                file = replace(file, end=reached[file.path].end)
                journal.next_id = max(journal.next_id, reached[file.path].next_id)
                journal.ends[file.number] = max(reached[file.path].end, start)
                if reached[file.path].end > start:
                    found.append(file)
            else:
                journal.close(file.number)
                found.append(file)
        return found

    def _of(self, file: JournalFile) -> JournalProgress:
        return self._journals.setdefault((file.server, file.queue, file.journal_id or 0), JournalProgress())


def _reached(spark: Any, files: Sequence[JournalFile]) -> list[Reached]:
    if not files:
        return []
    found: list[Reached] = spark.sparkContext.parallelize(files, min(len(files), 64)).map(_reached_in).collect()
    return found


def _reached_in(file: JournalFile) -> Reached:
    buffer = ENVIRONMENT.content(file)
    try:
        header, at = decode_header(buffer, file.path)
    except JournalCorrupt:
        return Reached(0, 0)
    next_id = header.first_id
    for block in blocks(buffer, at, len(buffer)):
        at = block.end
        if len(block.puts):
            next_id = max(next_id, int(block.puts["id"].max()) + 1)
    return Reached(at, next_id)
