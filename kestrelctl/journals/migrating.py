"""Migration: Kestrel's files into a stopped spool or a running server, and a stopped spool to Kestrel's files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from kestrelctl.items.putting import expiry_at_s, explain
from kestrelctl.journals.spools import held, kept_still, on_disk, shown
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import say
from kestreld.client.blocks import Cell
from kestreld.client.items import PutItem
from kestreld.clock import Clock
from kestreld.config.config import Config
from kestreld.errors import NotImported
from kestreld.files import FileLayer
from kestreld.journal.kestrel.exporting import export_spool
from kestreld.journal.kestrel.format import KestrelItem, Unread, queue_of, read_queue
from kestreld.journal.kestrel.importing import KestrelImport, unread_words

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient

IMPORT_COLUMNS: Final = ["queue", "items", "bytes", "unread_bytes"]
PUT_COLUMNS: Final = ["queue", "items", "expired", "unread_bytes"]
EXPORT_COLUMNS: Final = ["queue", "items", "bytes", "flags_lost"]
BATCH_ITEMS: Final = 512

Rows = list[dict[str, Cell]]


def import_offline(path: str, spool: str) -> tuple[Rows, ExitCode]:
    """Import a Kestrel spool, or the family of one file, into the spool of a stopped server; a row for each queue."""
    source, queue = _locate(path)
    rows: Rows = []
    code = ExitCode.OK
    with _failing_to(f"import {path}"), held(spool, "kestrelctl journal import"):
        config = Config(queue_path=os.path.realpath(spool))
        wanted = None if queue is None else queue.partition("+")[0]
        importing = KestrelImport(FileLayer(), Clock(), config, source, say, wanted)
        if wanted is not None and not importing.families:
            raise Failure(ExitCode.USAGE, f"{path}: not a file that can be imported")
        for family in importing.families:
            try:
                imported = importing.bring_in(family)
            except NotImported as problem:
                say(f"{family}: not imported: {problem}")
                code = ExitCode.CANNOT_CREATE
                continue
            for one in imported:
                row: dict[str, Cell] = {"queue": shown(one.name), "items": one.items, "bytes": one.data_bytes}
                rows.append(row | _unread(one.unread))
    if code == ExitCode.OK and any(row["unread_bytes"] for row in rows):
        code = ExitCode.CORRUPT
    return rows, code


def import_into_server(client: "KestrelClient", path: str, queue: str) -> tuple[Rows, ExitCode]:
    """SET the items of one Kestrel queue, each with its expiry; expired ones are left out. Raises Failure."""
    source, name = _locate(path)
    if name is None:
        raise Failure(ExitCode.USAGE, f"{path} is a folder: --queue takes the file of one queue")
    clock = Clock()
    with _failing_to(f"read {path}"):
        found = read_queue(FileLayer(), source, name, clock.wall_ms)
    items = [item for item in found.items if item.expire_at_ms == 0 or item.expire_at_ms >= clock.wall_ms]
    row: dict[str, Cell] = {"queue": queue, "items": len(items), "expired": len(found.items) - len(items)}
    row |= _unread(found.unread)
    report = client.put_items(os.fsencode(queue), _batches(items))
    if report.failure is not None:
        raise explain(report, report.failure)
    return [row], ExitCode.CORRUPT if found.unread else ExitCode.OK


def _batches(items: list[KestrelItem]) -> Iterator[list[PutItem]]:
    dated = (PutItem(item.data, expiry_at_s(item.expire_at_ms)) for item in items)
    while batch := list(islice(dated, BATCH_ITEMS)):
        yield batch


def export(spool: str, queue: str | None, folder: str) -> tuple[Rows, ExitCode]:
    """Write the queues of a stopped server's spool as Kestrel's files; a row for each queue."""
    if not os.path.isdir(spool):
        raise Failure(ExitCode.NO_INPUT, f"{spool}: no such folder")
    if os.path.realpath(spool) == os.path.realpath(folder):
        raise Failure(ExitCode.USAGE, f"{folder} is the spool itself: choose another folder")
    rows: Rows = []
    code = ExitCode.OK
    name = None if queue is None else on_disk(queue)
    with _failing_to(f"export {spool}"), kept_still(spool):
        for one in export_spool(FileLayer(), Clock(), spool, name, folder):
            if one.problem is not None:
                say(f"{shown(one.name)}: not exported: {one.problem}")
                code = ExitCode.CORRUPT
                continue
            if one.flags_lost:
                say(f"{shown(one.name)}: Kestrel keeps no flags: items={one.flags_lost} lose theirs")
            if one.due_lost:
                say(f"{shown(one.name)}: Kestrel keeps no due times: items={one.due_lost} wait there at once")
            rows.append(
                {
                    "queue": shown(one.name),
                    "items": one.items,
                    "bytes": one.data_bytes,
                    "flags_lost": one.flags_lost,
                    "due_lost": one.due_lost,
                }
            )
    return rows, code


def _unread(unread: list[Unread]) -> dict[str, Cell]:
    """The cell with the number of unreadable bytes, whose positions go to stderr."""
    for one in unread:
        say(unread_words(one))
    return {"unread_bytes": sum(one.size_bytes for one in unread)}


def _locate(path: str) -> tuple[str, str | None]:
    """The folder to read, and the queue if `path` is the file of one. Raises Failure."""
    if os.path.isdir(path):
        return os.path.realpath(path), None
    if not os.path.exists(path):
        raise Failure(ExitCode.NO_INPUT, f"{path}: no such file or folder")
    folder, name = os.path.split(path)
    queue = queue_of(name)
    if queue is None:
        raise Failure(ExitCode.USAGE, f"{path}: Kestrel names its files QUEUE or QUEUE.MILLISECONDS")
    return os.path.realpath(folder or "."), queue


@contextmanager
def _failing_to(do: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        match error:
            case FileExistsError():
                code = ExitCode.CANNOT_CREATE
            case FileNotFoundError():
                code = ExitCode.NO_INPUT
            case _:
                code = ExitCode.IO
        # OSErrors that kestreld raises itself have a message, but no errno.
        reason = f"{error.filename or ''}: {(error.strerror or '').lower()}" if error.errno else str(error)
        raise Failure(code, f"cannot {do}: {reason.removeprefix(': ')}") from error
