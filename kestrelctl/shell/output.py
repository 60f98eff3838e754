"""stdout is data, stderr is words. Both go straight to their descriptors.

Python's own buffers would be flushed at exit, too late to say that the disk is full or nobody reads.
"""

import array
import errno
import fcntl
import json
import os
import select
import stat
import termios
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell, columns_of, parse_blocks

STDIN, STDOUT, STDERR = 0, 1, 2
READ_CHUNK_BYTES: Final = 256 * 1024
# How often to look at a pipe at once, as most readers are quick, and then how long to look away, at first and at most.
PIPE_LOOKS: Final = 100
PIPE_LOOK_AWAY_MS_MIN: Final = 1
PIPE_LOOK_AWAY_MS_MAX: Final = 64
STREAM_ROWS: Final = 512


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    TSV = "tsv"


# Data


def write_data(data: bytes) -> None:
    """All of it, to standard output. Raises Failure when it cannot be written whole."""
    rest = memoryview(data)
    try:
        while rest:
            try:
                rest = rest[os.write(STDOUT, rest) :]
            except BlockingIOError:
                select.select([], [STDOUT], [])
    except OSError as error:
        raise output_failure(error) from error


def output_failure(error: OSError) -> Failure:
    """What it means that standard output cannot be written."""
    if error.errno == errno.EPIPE:
        return Failure(ExitCode.OUTPUT_CLOSED, "")
    if error.errno == errno.EBADF:
        return Failure(ExitCode.OUTPUT_CLOSED, "standard output is closed")
    return Failure(ExitCode.IO, f"cannot write to standard output: {(error.strerror or str(error)).lower()}")


def wait_until_read() -> None:
    """Where standard output is a pipe: return when its reader has taken everything out of it.

    What lies in a pipe when the reader leaves is lost, and `| head` leaves early. Raises Failure if it does.
    """
    if not stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
        return
    reader_gone = select.poll()
    reader_gone.register(STDOUT, 0)
    for _ in range(PIPE_LOOKS):
        if _unread_bytes() == 0:
            return
        os.sched_yield()
    look_away_ms = PIPE_LOOK_AWAY_MS_MIN
    while _unread_bytes() > 0:
        if reader_gone.poll(look_away_ms) and _unread_bytes() > 0:
            raise Failure(ExitCode.OUTPUT_CLOSED, "")
        look_away_ms = min(look_away_ms * 2, PIPE_LOOK_AWAY_MS_MAX)


def reader_has_gone() -> bool:
    """Whether standard output is a pipe that nobody will read from any more."""
    if not stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
        return False
    pipe = select.poll()
    pipe.register(STDOUT, 0)
    return bool(pipe.poll(0))


def _unread_bytes() -> int:
    """How much lies in the pipe that is standard output."""
    count = array.array("i", [0])
    fcntl.ioctl(STDOUT, termios.FIONREAD, count)
    return count[0]


def is_terminal(descriptor: int) -> bool:
    return os.isatty(descriptor)


# Rows


def write_rows(
    rows: Sequence[Mapping[str, Cell]],
    columns: Sequence[str],
    form: OutputFormat | None,
    *,
    headers: bool = True,
) -> None:
    """Rows of cells. JSON has every cell, the others the `columns`. `form` None: see `default_format`."""
    match form or default_format():
        case OutputFormat.JSON:
            write_data(json.dumps(rows, indent=2).encode() + b"\n")
        case OutputFormat.NDJSON:
            write_data("".join(json.dumps(row) + "\n" for row in rows).encode())
        case OutputFormat.TSV:
            write_data(encoded("".join("\t".join(line) + "\n" for line in _lines(rows, columns, headers))))
        case OutputFormat.TABLE:
            write_data(encoded(_table(_lines(rows, columns, headers), rows, columns)))


def write_row_stream(
    rows: Iterable[Mapping[str, Cell]],
    columns: Sequence[str],
    form: OutputFormat | None,
    *,
    headers: bool = True,
) -> None:
    """As `write_rows`, of more rows than memory should hold. A table's columns are as wide as so far needed."""
    form = form or default_format()
    rows, widths = iter(rows), [0] * len(columns)
    chunk = list(islice(rows, STREAM_ROWS))
    is_first = True
    if form == OutputFormat.JSON:
        write_data(b"[")
    while chunk or is_first:
        if form == OutputFormat.JSON:
            data = "".join(f"{'' if is_first and not at else ','}\n  {json.dumps(row)}" for at, row in enumerate(chunk))
            write_data(data.encode())
        elif form == OutputFormat.TABLE:
            lines = _lines(chunk, columns, headers and is_first)
            if not is_first:
                lines.insert(0, [" " * width for width in widths])
            widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)] if lines else widths
            table = _table(lines, chunk, columns)
            write_data(encoded(table if is_first else table.partition("\n")[2]))
        else:
            write_rows(chunk, columns, form, headers=headers and is_first)
        is_first = False
        chunk = list(islice(rows, STREAM_ROWS))
    if form == OutputFormat.JSON:
        write_data(b"\n]\n")


def write_record(record: Mapping[str, Cell], form: OutputFormat | None, *, headers: bool = True) -> None:
    """One thing with many named values: an object in JSON, a row for each value elsewhere."""
    form = form or default_format()
    if form in (OutputFormat.JSON, OutputFormat.NDJSON):
        indent = 2 if form == OutputFormat.JSON else None
        write_data(json.dumps(record, indent=indent).encode() + b"\n")
    else:
        rows: list[dict[str, Cell]] = [{"name": name, "value": value} for name, value in record.items()]
        write_rows(rows, ["name", "value"], form, headers=headers)


def write_blocks(answer: bytes, form: OutputFormat | None) -> None:
    """The server's blocks, one for each queue. None = as the server sent them."""
    if form is None:
        write_data(answer)
    else:
        rows = parse_blocks(answer)
        write_rows(rows, columns_of(rows), form)


def default_format() -> OutputFormat:
    return OutputFormat.TABLE if is_terminal(STDOUT) else OutputFormat.TSV


def _lines(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], headers: bool) -> list[list[str]]:
    head = [list(columns)] if headers else []
    return head + [[_one_line(str(row.get(column, ""))) for column in columns] for row in rows]


def _one_line(cell: str) -> str:
    """A cell cannot end its line or its field."""
    return cell.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _table(lines: list[list[str]], rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> str:
    """Columns two blanks apart, numbers to the right."""
    if not lines:
        return ""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    is_number = [all(isinstance(row.get(column, 0), int) for row in rows) for column in columns]
    return "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def encoded(words: str) -> bytes:
    """Bytes of the wire and of paths that had become text are the same bytes again."""
    return words.encode("utf-8", "surrogateescape")


# Words


def say(words: str) -> None:
    """One line on stderr. That nobody reads it is no reason to fail."""
    with suppress(OSError):
        os.write(STDERR, encoded(f"kestrelctl: {words}\n"))


def remark(words: str) -> None:
    """Words that only a person wants to see: nothing unless stderr is a terminal."""
    if is_terminal(STDERR):
        say(words)


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person; where nobody can be asked the answer is yes. Raises Failure when it is no."""
    if yes or not (is_terminal(STDIN) and is_terminal(STDERR)):
        return
    os.write(STDERR, encoded(f"kestrelctl: {question} [y/N] "))
    if os.read(STDIN, 100).strip().lower() not in (b"y", b"yes"):
        raise Failure(ExitCode.NEGATIVE, "nothing done")


# Standard input


def read_chunks(descriptor: int, name: str) -> Iterable[bytes]:
    """What can be read, as it comes. Raises Failure when it cannot."""
    try:
        while chunk := os.read(descriptor, READ_CHUNK_BYTES):
            yield chunk
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
        raise Failure(ExitCode.IO, f"cannot read {name}: {reason}") from error
