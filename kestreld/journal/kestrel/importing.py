"""Import of Kestrel's files as journals: those in the server's own spool at startup, or another spool's offline.

The unit is the family, a queue and its children: they are one journal. It is built under .tmp, names the files it was
made from, and is renamed into the spool as a whole; only then are Kestrel's files moved to .imported. So a crash leaves
the files, or the journal, or both together with the means to tell that they have the same items.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.clock import Clock
from kestreld.config.config import Config
from kestreld.config.queue_names import encode_queue_name, queue_name_problem
from kestreld.errors import JournalCorrupt, JournalFailed, NotImported
from kestreld.files import FileLayer, must_be_the_systems, why_unread
from kestreld.journal import records
from kestreld.journal.builder import JournalBuilder
from kestreld.journal.disque_aof import AOF_NAME
from kestreld.journal.kestrel.format import KestrelItem, Unread, find_queues, read_queue
from kestreld.journal.kestrel.ops import Unreadable, op_end
from kestreld.journal.replacement import BUILDING, remove_abandoned, remove_all
from kestreld.journal.segment import FOLDER_SUFFIX, decode_header, parse_segment_name

IMPORTED: Final = ".imported"
HEADER_LOOK_BYTES: Final = 8192
LONG_PAST_MS: Final = 1  # 0 would be never

Report = Callable[[str], None]


@dataclass(slots=True)
class ImportedQueue:
    """Outcome of importing one queue. `unread` are the stretches of its files that could not be read."""

    name: str
    items: int = 0
    data_bytes: int = 0
    unread: list[Unread] = field(default_factory=list)


@dataclass(slots=True)
class _Look:
    """A file as it is now."""

    file: records.ImportedFile
    reads_as_kestrels: bool  # it is empty, or begins with a whole op


def import_at_start(files: FileLayer, clock: Clock, config: Config, report: Report) -> dict[str, NotImported]:
    """Import all Kestrel files in the server's spool; returns the families that must stop, and why."""
    try:
        remove_abandoned(files, config.queue_path)
    except OSError as error:
        must_be_the_systems(error)
        path = error.filename or f"{config.queue_path}/{BUILDING}"
        report(f"{path}: cannot be removed: {why_unread(error, path)}; left alone")
    stopped: dict[str, NotImported] = {}
    importing = KestrelImport(files, clock, config, config.queue_path, report)
    for family in importing.families:
        if not config.for_queue(family).journal:
            report(f"{family}: Kestrel files found, but journal is off in the configuration; not imported")
            continue
        try:
            imported = importing.bring_in(family)
        except NotImported as problem:
            stopped[family] = problem
            report(f"{family}: stopped: {problem}; other queues are not affected")
        else:
            for queue in imported:
                report(f"{queue.name}: imported from Kestrel's files: items={queue.items} bytes={queue.data_bytes}")
                for unread in queue.unread:
                    report(f"{queue.name}: {unread_words(unread)}")
    return stopped


def unread_words(unread: Unread) -> str:
    """Message for a stretch that could not be read."""
    return f"{unread.path}: byte {unread.offset}: {unread.reason}; unread_bytes={unread.size_bytes}"


class KestrelImport:
    """Imports the Kestrel families in the folder `source`, or the one `wanted`, into the spool of `config`."""

    def __init__(
        self, files: FileLayer, clock: Clock, config: Config, source: str, report: Report, wanted: str | None = None
    ) -> None:
        self._files = files
        self._clock = clock
        self._config = config
        self._spool = config.queue_path
        self._source = source
        self._report = report
        self._moved_to = ""
        # Family -> full name of each of its queues, the parent first -> names of its files.
        self.families: dict[str, dict[str, list[str]]] = {}
        self._find(wanted)

    def _find(self, wanted: str | None) -> None:
        queues, foreign = find_queues(self._files, self._source)
        for queue, names in sorted(queues.items()):
            if wanted not in (None, queue.partition("+")[0]):
                continue
            problem = queue_name_problem(queue)
            if problem is None and not all(self._files.is_file(f"{self._source}/{name}") for name in names):
                problem = "not a plain file"
            if problem is None:
                self.families.setdefault(queue.partition("+")[0], {})[queue] = names
            else:
                self._leave_alone(names, problem)
        if wanted is None:
            self._leave_alone([name for name in foreign if name != AOF_NAME], "not a file of Kestrel or kestreld")
            if AOF_NAME in foreign and self._config.disque is None:
                self._leave_alone([AOF_NAME], "jobs of Disque's, which are imported where listen.disque is set")

    def _leave_alone(self, names: list[str], reason: str) -> None:
        for name in names:
            self._report(f"{self._source}/{name}: {reason}; left alone")

    def bring_in(self, family: str) -> list[ImportedQueue]:
        """Import a family; an empty list if it was imported before. Raises NotImported.

        Files in the spool itself are moved to .imported once their journal is there; those of another folder stay.
        """
        folder = f"{self._spool}/{encode_queue_name(family)}{FOLDER_SUFFIX}"
        try:
            looks = {name: self._look(name) for file_names in self.families[family].values() for name in file_names}
            if self._files.is_dir(folder) and self._files.list_dir(folder):
                self._finish(family, folder, looks)
                return []
            return self._make(family, folder, looks)
        except JournalFailed as failure:
            raise NotImported(failure.path, failure.reason) from failure
        except OSError as error:
            path = error.filename or f"{self._source}/{family}"
            raise NotImported(path, f"cannot be imported: {error.strerror}") from error

    def _look(self, name: str) -> _Look:
        content = self._files.read_file(f"{self._source}/{name}")
        try:
            reads_as_kestrels = not content or op_end(content, 0) > 0
        except Unreadable:
            reads_as_kestrels = False
        return _Look(records.ImportedFile(name, len(content), xxh3_64_intdigest(content)), reads_as_kestrels)

    def _is_kestrels(self, queue: str, names: list[str], looks: dict[str, _Look]) -> bool:
        """True if anything in the files is Kestrel's: other files may have names like those of queues."""
        if any(looks[name].reads_as_kestrels for name in names):
            return True
        found = read_queue(self._files, self._source, queue, self._clock.wall_ms, names)
        if not found.items:
            self._leave_alone(names, "not a Kestrel journal: nothing in it is readable")
        return bool(found.items)

    # Existing journals

    def _finish(self, family: str, folder: str, looks: dict[str, _Look]) -> None:
        """Move away the files that the journal was made from. Raises NotImported if there are others."""
        known = {file.name: file for file in files_imported(self._files, folder)}
        # A damaged file of Kestrel's may not look like one by itself: ask the journal first.
        matching = [name for name, look in looks.items() if known.get(name) == look.file]
        if matching:
            self._report(f"{family}: already imported from Kestrel's files")
        self._move_away(family, matching)
        for queue, names in self.families[family].items():
            others = [name for name in names if name not in matching]
            if others and self._is_kestrels(queue, others, looks):
                raise NotImported(
                    f"{self._source}/{others[0]}",
                    f"the journal {folder} was not imported from this Kestrel file; move one of them away",
                )

    # New journals

    def _make(self, family: str, folder: str, looks: dict[str, _Look]) -> list[ImportedQueue]:
        queues = {
            queue: names for queue, names in self.families[family].items() if self._is_kestrels(queue, names, looks)
        }
        if not queues:
            return []
        file_names = [name for names in queues.values() for name in names]
        building = f"{self._spool}/{BUILDING}/{encode_queue_name(family)}{FOLDER_SUFFIX}"
        if self._files.exists(building):
            remove_all(self._files, building)
        imported = self._build(family, building, queues, [looks[name].file for name in file_names])
        self._files.rename(building, folder)
        self._files.sync_dir(self._spool)
        self._move_away(family, file_names)
        return imported

    def _build(
        self, family: str, folder: str, queues: dict[str, list[str]], made_from: list[records.ImportedFile]
    ) -> list[ImportedQueue]:
        readers = [
            records.ReaderState(number, records.Kind.QUEUE, queue.partition("+")[2])
            for number, queue in enumerate(queues, start=1)
        ]
        builder = JournalBuilder(
            self._files,
            self._clock,
            folder,
            family,
            self._clock.wall_ms,
            readers,
            segment_bytes_max=self._config.for_queue(family).max_journal_size_bytes,
            next_reader=len(readers) + 1,
        )
        try:
            builder.note(records.import_record(made_from))
            imported = self._add_items(builder, readers, queues)
            builder.finish()
        finally:
            builder.abandon()
        return imported

    def _add_items(
        self, builder: JournalBuilder, readers: list[records.ReaderState], queues: dict[str, list[str]]
    ) -> list[ImportedQueue]:
        # In Kestrel's files an item of the parent, and each child's copy of it, are separate items.
        is_parent_alone = [reader.name for reader in readers] == [""]
        imported = []
        next_id = 1
        for reader, (name, file_names) in zip(readers, queues.items(), strict=True):
            found = read_queue(self._files, self._source, name, self._clock.wall_ms, file_names)
            only_reader = 0 if is_parent_alone else reader.number
            reader.head = next_id
            queue = ImportedQueue(name, unread=found.unread)
            for item in found.items:
                builder.add(_record(next_id, only_reader, item))
                next_id += 1
                queue.data_bytes += len(item.data)
            queue.items = len(found.items)
            imported.append(queue)
        return imported

    # Imported files

    def _move_away(self, family: str, names: list[str]) -> None:
        """Move files to .imported, all of this run into one folder there. Files of another folder stay."""
        if self._source != self._spool or not names:
            return
        if not self._moved_to:
            at_ms = self._clock.wall_ms
            while self._files.exists(f"{self._spool}/{IMPORTED}/{at_ms}"):
                at_ms += 1
            self._moved_to = f"{self._spool}/{IMPORTED}/{at_ms}"
            self._files.make_dir(self._moved_to)
        # Unfinished ones first: alone, after a crash, they would not be known for the queue's.
        for name in sorted(names, key=lambda name: "~~" not in name):
            self._files.rename(f"{self._source}/{name}", f"{self._moved_to}/{name}")
        for folder in (self._moved_to, f"{self._spool}/{IMPORTED}", self._spool):
            self._files.sync_dir(folder)
        self._report(f"{family}: Kestrel's files moved to {self._moved_to}: files={len(names)}")


def _record(item_id: int, only_reader: int, item: KestrelItem) -> bytes:
    # A client's negative expiry can leave a time before 1970.
    expire_at_ms = item.expire_at_ms if item.expire_at_ms >= 0 else LONG_PAST_MS
    return records.put_record(item_id, max(item.add_at_ms, 0), expire_at_ms, 0, only_reader, item.data)


def files_imported(files: FileLayer, folder: str) -> list[records.ImportedFile]:
    """Files that the journal in `folder` was made from; an empty list if it does not say, or is damaged or gone."""
    first = next((name for name in files.list_dir(folder) if parse_segment_name(name)), None)
    if first is None:
        return []
    path = f"{folder}/{first}"
    fd = files.open_read(path)
    try:
        _, at = decode_header(files.read_at(fd, HEADER_LOOK_BYTES, 0), path)
        for expected in (records.Type.CHECKPOINT, records.Type.IMPORT):
            body_bytes = int.from_bytes(files.read_at(fd, records.FRAME_BYTES, at)[:4], "little")
            record = files.read_at(fd, records.FRAME_BYTES + body_bytes, at)
            record_type, end = records.checked_end(record, 0)
            if record_type != expected:
                return []
            at += end
    except JournalCorrupt:
        return []
    finally:
        files.close(fd)
    return records.read_import(record[records.FRAME_BYTES : end])
