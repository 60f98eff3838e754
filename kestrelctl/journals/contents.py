"""Items of a spool, an archive, a journal's folder or a file, by queue: waiting ones or all on disk."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_128_digest

from kestrelctl.journals.locations import replaying
from kestrelctl.journals.spools import shown
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.config.queue_names import decode_queue_name
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.discovery import JournalFile, discover
from kestreld.journal.kestrel.format import find_queues, queue_of, read_queue
from kestreld.journal.reader_states import undone
from kestreld.journal.record_reader import segment_records
from kestreld.journal.recovery import survey
from kestreld.journal.segment import FOLDER_SUFFIX, parse_segment_name
from kestreld.journal.verify import archived_folders, journal_folders


@dataclass(frozen=True, slots=True)
class Item:
    """An item read from disk. `item_id` is 0 in Kestrel's files, which have no ids."""

    item_id: int
    add_at_ms: int
    expire_at_ms: int
    flags: int
    size_bytes: int
    digest: bytes  # of the data
    data: bytes | None  # if it is wanted


@dataclass(slots=True)
class Queue:
    journal_id: int = 0  # 0: Kestrel's
    items: list[Item] = field(default_factory=list)


class Contents:
    """The queues under a path with their items; `everything`: delivered items, too. Raises Failure."""

    def __init__(self, path: str, *, everything: bool, with_values: bool, now_ms: int) -> None:
        self.queues: dict[str, Queue] = {}
        self._everything = everything
        self._with_values = with_values
        self._now_ms = now_ms
        self._files = FileLayer()
        with replaying(path):
            self._read(path)

    def _read(self, path: str) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        if os.path.isfile(path):
            if parse_segment_name(name) is not None:
                self._put_all(discover([path]).files)
            elif (queue := queue_of(name)) is not None:
                self._add_kestrel(folder, queue)
            else:
                words = f"{path}: neither a segment nor a Kestrel journal file"
                raise Failure(ExitCode.USAGE, words)
        elif not os.path.isdir(path):
            raise Failure(ExitCode.NO_INPUT, f"{path}: no such file or folder")
        elif any(parse_segment_name(entry) for entry in os.listdir(path)):
            self._add_journal(os.path.abspath(path), decode_queue_name(name.removesuffix(FOLDER_SUFFIX)))
        else:
            for family, journal in journal_folders(self._files, path):
                self._add_journal(journal, family)
            for _, journal in archived_folders(self._files, path):
                self._put_all(discover([journal]).files)
            for queue in find_queues(self._files, path)[0]:
                self._add_kestrel(path, queue)

    def _add_journal(self, folder: str, family: str) -> None:
        if self._everything:
            self._put_all(discover([folder]).files)
            return
        found = survey(self._files, folder)
        if found.state is None:
            return
        family = found.queue
        readers = [state for state in found.state.readers if state.kind == records.Kind.QUEUE]
        wanted = {
            (state.number, f"{family}+{state.name}" if state.name else family): undone(state) for state in readers
        }
        puts = list(_puts((segment.path, segment.used_bytes) for segment in found.segments))
        for (number, name), ranges in wanted.items():
            queue = self.queues[shown(name)] = Queue(found.journal_id)
            waiting = _Within(ranges)
            for record in puts:
                if records.item_optional_fields(record)[2] in (0, number) and records.item_id(record) in waiting:
                    queue.items.append(self._item(record))

    def _put_all(self, files: Iterable[JournalFile]) -> None:
        """Add every item that was put on a family, for any of its readers."""
        seen: dict[tuple[str, int], set[int]] = {}
        for file in files:
            queue = self.queues.setdefault(shown(file.queue), Queue(file.journal_id or 0))
            ids = seen.setdefault((file.queue, file.journal_id or 0), set())
            for record in _puts([(file.path, file.end)]):
                if records.item_id(record) not in ids:
                    ids.add(records.item_id(record))
                    queue.items.append(self._item(record))

    def _add_kestrel(self, folder: str, name: str) -> None:
        found = read_queue(self._files, folder, name, self._now_ms)
        queue = self.queues.setdefault(shown(name), Queue())
        for item in found.items:
            data = item.data if self._with_values else None
            digest = xxh3_128_digest(item.data)
            queue.items.append(Item(0, item.add_at_ms, item.expire_at_ms, 0, len(item.data), digest, data))

    def _item(self, record: bytes) -> Item:
        data, (add_at_ms, expire_at_ms) = records.item_data(record), records.item_times_ms(record)
        flags = records.item_optional_fields(record)[1]
        kept = data if self._with_values else None
        return Item(records.item_id(record), add_at_ms, expire_at_ms, flags, len(data), xxh3_128_digest(data), kept)


class _Within:
    """Membership of ids, asked for in ascending order, in sorted ranges."""

    def __init__(self, ranges: list[records.Range]) -> None:
        self._ranges = ranges
        self._at = 0

    def __contains__(self, asked: int) -> bool:
        while self._at < len(self._ranges) and self._ranges[self._at][1] < asked:
            self._at += 1
        return self._at < len(self._ranges) and self._ranges[self._at][0] <= asked


def _puts(segments: Iterable[tuple[str, int | None]]) -> Iterator[bytes]:
    """The PUT records of segments, each read up to the given end."""
    for path, end in segments:
        for found in segment_records(FileLayer(), path, end):
            if found is not None and found[0] == records.Type.PUT:
                yield found[1]
