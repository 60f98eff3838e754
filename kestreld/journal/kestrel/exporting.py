"""Export of journals as Kestrel 2.x files, one for each queue; the spool itself is only read.

Add times, expiry and order are kept. Flags and due times are not: Kestrel has none. Open reads are not journaled here,
so their items are exported as waiting.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kestreld.clock import Clock
from kestreld.config.queue_names import decode_queue_name, encode_queue_name, queue_name_problem
from kestreld.errors import JournalCorrupt, KestrelError
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.journal import Journal
from kestreld.journal.kestrel.format import KestrelItem, export_ops, find_queues
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.reader_states import undone
from kestreld.journal.recovery import survey
from kestreld.journal.segment import FOLDER_SUFFIX

READ_BYTES: Final = 1 << 20
WRITE_BYTES: Final = 1 << 20
I64_MAX: Final = (1 << 63) - 1
KESTREL_DATA_BYTES_MAX: Final = (1 << 31) - 1 - 16  # an op's length is an i32 and counts two times of 8 bytes


@dataclass(slots=True)
class ExportedQueue:
    """One queue's file. `problem` says why there is none.

    `flags_lost` counts items whose flags were not 0, `due_lost` those that were not due yet.
    """

    name: str
    items: int = 0
    data_bytes: int = 0
    flags_lost: int = 0
    due_lost: int = 0
    problem: KestrelError | None = None


def export_spool(files: FileLayer, clock: Clock, spool: str, queue: str | None, folder: str) -> Iterator[ExportedQueue]:
    """Write the waiting items of a stopped server's spool into `folder`, one queue per step.

    `queue` is one queue with its children, or one child; None = all. Raises FileNotFoundError if there is no such
    queue, FileExistsError before it writes a queue of which `folder` has files, and other OSErrors. A queue whose
    journal is damaged has a `problem` and no file.
    """
    files.make_dir(folder)
    there = find_queues(files, folder)[0]
    found = False
    for family in _families(files, spool, queue):
        for exported in _export_family(files, clock, spool, family, queue, folder, there):
            found = True
            yield exported
    if queue is not None and not found:
        raise FileNotFoundError(f"{spool}: no queue {queue}")


def _families(files: FileLayer, spool: str, queue: str | None) -> list[str]:
    if queue is not None:
        family = queue.partition("+")[0]
        return [family] if files.is_dir(_journal_folder(spool, family)) else []
    families = []
    for name in files.list_dir(spool):
        family = decode_queue_name(name.removesuffix(FOLDER_SUFFIX))
        if queue_name_problem(family) is None and _journal_folder(spool, family) == f"{spool}/{name}":
            families.append(family)
    return [family for family in families if files.is_dir(_journal_folder(spool, family))]


def _journal_folder(spool: str, family: str) -> str:
    return f"{spool}/{encode_queue_name(family)}{FOLDER_SUFFIX}"


def _export_family(
    files: FileLayer,
    clock: Clock,
    spool: str,
    family: str,
    queue: str | None,
    folder: str,
    there: dict[str, list[str]],
) -> Iterator[ExportedQueue]:
    journal_folder = _journal_folder(spool, family)
    try:
        state = survey(files, journal_folder)
    except JournalCorrupt as problem:
        yield ExportedQueue(family, problem=problem)
        return
    if state.state is None:
        return
    readers = {
        f"{family}+{reader.name}" if reader.name else family: reader
        for reader in state.state.readers
        if reader.kind == records.Kind.QUEUE
    }
    wanted = {name: reader for name, reader in sorted(readers.items()) if queue in (None, family, name)}
    for name in wanted:
        if name in there:
            raise FileExistsError(f"{folder}/{there[name][0]}: already exists; nothing is overwritten")
    journal = state.journal(files, clock, OpenFiles(), journal_folder)
    try:
        for name, reader in wanted.items():
            exported = _export_queue(files, clock, journal, reader, name, folder)
            exported.due_lost = sum(due.due_at_ms > clock.wall_ms for due in reader.due.values())
            yield exported
    finally:
        journal.close()


def _export_queue(
    files: FileLayer, clock: Clock, journal: Journal, reader: records.ReaderState, name: str, folder: str
) -> ExportedQueue:
    """Write a queue's file under a name that Kestrel takes for an unfinished one, then rename it."""
    exported = ExportedQueue(name)
    building = f"{folder}/{name}~~{clock.wall_ms}"
    fd = files.create(building)
    finished = False
    try:
        _write_items(files, fd, journal, reader, exported)
        files.sync(fd)
        finished = True
    except KestrelError as problem:
        exported.problem = problem
    finally:
        files.close(fd)
        if not finished:
            files.unlink(building)
    if finished:
        files.rename(building, f"{folder}/{name}")
        files.sync_dir(folder)
    return exported


def _write_items(
    files: FileLayer, fd: int, journal: Journal, reader: records.ReaderState, exported: ExportedQueue
) -> None:
    ops, ops_bytes = [], 0
    for op in export_ops(_items(journal, reader, exported)):
        ops.append(op)
        ops_bytes += len(op)
        if ops_bytes >= WRITE_BYTES:
            _write(files, fd, b"".join(ops))
            ops, ops_bytes = [], 0
    _write(files, fd, b"".join(ops))


def _write(files: FileLayer, fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += files.write(fd, data[written:])


def _items(journal: Journal, reader: records.ReaderState, exported: ExportedQueue) -> Iterator[KestrelItem]:
    for record in waiting_records(journal, reader):
        data = records.item_data(record)
        if len(data) > KESTREL_DATA_BYTES_MAX:
            raise KestrelError(f"item {records.item_id(record)} has {len(data)} bytes, more than Kestrel supports")
        add_at_ms, expire_at_ms = records.item_times_ms(record)
        exported.items += 1
        exported.data_bytes += len(data)
        exported.flags_lost += records.item_optional_fields(record)[1] != 0
        yield KestrelItem(data, min(add_at_ms, I64_MAX), min(expire_at_ms, I64_MAX))


def waiting_records(journal: Journal, reader: records.ReaderState) -> Iterator[bytes]:
    """PUT records of the items that a reader has not done, in order, held ones included. Raises JournalCorrupt."""
    wanted = undone(reader)
    at = 0
    for found, record in journal.puts(wanted[0][0], READ_BYTES):
        while wanted[at][1] < found:
            at += 1
        if wanted[at][0] <= found and records.item_optional_fields(record)[2] in (0, reader.number):
            yield record
