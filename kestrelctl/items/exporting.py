"""Export of a queue as lines of JSON; docs/kestrelctl.md describes the format."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any, Final

from kestrelctl.items.framing import data_fields
from kestrelctl.items.item_lines import HEADER, VERSION, failing_to, fields_in, line_of
from kestrelctl.remote.reader_api import Item, ReaderApi
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import write_data
from kestrelctl.shell.progress import Advance, progress

LINES_AT_A_TIME: Final = 200
ATTRIBUTES: Final = ("due_at_ms", "attempts", "origin", "reason", "origin_attempts", "put_at_ms", "failure_reason")
LOOK_BACK_BYTES: Final = 64 * 1024


def export(api: ReaderApi, queue: str, path: str, *, resume: bool) -> int:
    """Write the items of a queue to a file, "-" = stdout, and return their number. Raises Failure."""
    family = api.describe(queue)
    total = sum(one["items"] + one["open"] for one in family["readers"] if one.get("queue") == queue)
    header = {HEADER: VERSION, "queue": queue, "journal_id": family["journal_id"]}
    if path == "-":
        written = 0
        write_data(line_of(header))
        with progress(f"export {queue}", lambda: total) as advance:
            for data, count in _pieces(api.waiting(queue, family), advance):
                write_data(data)
                written += count
        return written
    with failing_to(f"write {path}"), _open_export(path, resume=resume) as file:
        last_id = _continue(file, path, header) if resume else 0
        if not last_id:
            file.write(line_of(header))
        written = 0
        with progress(f"export {queue}", lambda: None if last_id else total) as advance:
            for data, count in _pieces(api.waiting(queue, family, after=last_id), advance):
                file.write(data)
                written += count
        file.flush()
        os.fsync(file.fileno())
    return written


def _open_export(path: str, *, resume: bool) -> IO[bytes]:
    try:
        return open(path, "xb")
    except FileExistsError as error:
        if not resume:
            raise Failure(ExitCode.CANNOT_CREATE, f"{path} already exists; use --resume to continue it") from error
        return open(path, "r+b")


def _continue(file: IO[bytes], path: str, header: dict[str, Any]) -> int:
    """Cut off an unfinished line and go to the end; return the id of the last item, 0 = none yet."""
    if not file.readable():  # new
        return 0
    first = file.readline()
    if not first.endswith(b"\n"):
        file.seek(0)
        file.truncate()
        return 0
    if fields_in(first, path, 1) != header:
        words = f"{path} belongs to another queue, or the queue was deleted since"
        raise Failure(ExitCode.CANNOT_CREATE, words)
    line, end = _last_line(file)
    file.seek(end)
    file.truncate()
    return int(fields_in(line, path, 0).get("id", 0))


def _last_line(file: IO[bytes]) -> tuple[bytes, int]:
    """The last complete line and the offset of its end."""
    size = file.seek(0, os.SEEK_END)
    look_back, tail = LOOK_BACK_BYTES, b""
    while tail.count(b"\n") < 2 and len(tail) < size:
        file.seek(max(0, size - look_back))
        tail = file.read()
        look_back *= 4
    whole = tail[: tail.rindex(b"\n")]
    return whole[whole.rfind(b"\n") + 1 :], size - len(tail) + len(whole) + 1


def _pieces(items: Iterator[Item], advance: Advance) -> Iterator[tuple[bytes, int]]:
    while some := list(islice(items, LINES_AT_A_TIME)):
        yield b"".join(map(_item_line, some)), len(some)
        advance(len(some))


def _item_line(item: Item) -> bytes:
    fields: dict[str, Any] = {"id": item.id, "add_ms": item.add_ms}
    if item.expire_ms:
        fields["expire_ms"] = item.expire_ms
    if item.flags:
        fields["flags"] = item.flags
    known = {name: item.known[name] for name in ATTRIBUTES if name in item.known}
    return line_of(fields | known | data_fields(item.data))
