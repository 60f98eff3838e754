"""Output: data and rows on stdout in all formats, messages on stderr, written without Python's buffers.

Those buffers are flushed at exit, too late to report that the disk is full or the reader has gone.
"""

import array
import errno
import fcntl
import json
import os
import re
import select
import stat
import termios
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell, columns_of, parse_blocks

STDIN, STDOUT, STDERR = 0, 1, 2
READ_CHUNK_BYTES: Final = 256 * 1024
# Polls of a pipe without a pause, because most readers are quick, then the first and the longest pause.
PIPE_LOOKS: Final = 100
PIPE_LOOK_AWAY_MS_MIN: Final = 1
PIPE_LOOK_AWAY_MS_MAX: Final = 64
STREAM_ROWS: Final = 512
INSTANTS: Final = frozenset({"at_ms", "add_ms", "expire_ms"})  # these and all that end with _at_ms: since 1970
LINE_MAX: Final = 1_000_000  # characters, in YAML
# A cell must not end its line or field.
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_TO_ESCAPE: Final = re.compile(r"[\\\t\n\r]")


# Data


def write_data(data: bytes) -> None:
    """Write all of the data to standard output. Raises Failure if that fails."""
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
    """The Failure for an error in writing to standard output."""
    if error.errno == errno.EPIPE:
        return Failure(ExitCode.OUTPUT_CLOSED, "")
    if error.errno == errno.EBADF:
        return Failure(ExitCode.OUTPUT_CLOSED, "standard output is closed")
    return Failure(ExitCode.IO, f"cannot write to standard output: {(error.strerror or str(error)).lower()}")


def wait_until_read() -> None:
    """If standard output is a pipe, wait until its reader has read everything.

    Data in a pipe is lost if the reader exits, and `| head` exits early. Raises Failure if it does.
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
    """True if standard output is a pipe without a reader."""
    if not stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
        return False
    pipe = select.poll()
    pipe.register(STDOUT, 0)
    return bool(pipe.poll(0))


def _unread_bytes() -> int:
    """Bytes in the pipe that is standard output."""
    count = array.array("i", [0])
    fcntl.ioctl(STDOUT, termios.FIONREAD, count)
    return count[0]


def is_terminal(descriptor: int) -> bool:
    return os.isatty(descriptor)


# Rows


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    YAML = "yaml"
    TSV = "tsv"
    CSV = "csv"
    NAME = "name"  # the first column alone


OBJECTS: Final = frozenset({OutputFormat.JSON, OutputFormat.NDJSON, OutputFormat.YAML})


class Layout(NamedTuple):
    """Format of rows. `form` None: see `default_format`."""

    form: OutputFormat | None = None
    headers: bool = True
    fields: tuple[str, ...] = ()  # none = all in JSON and YAML, the verb's columns elsewhere
    sort: str = ""  # by this field, with a - before it the largest first; "" = in the given order


PLAIN: Final = Layout()


def write_rows(rows: Iterable[Mapping[str, Cell]], columns: Sequence[str], layout: Layout = PLAIN) -> int:
    """Write rows of cells and return their number.

    An iterator is written in chunks unless it has to be sorted, so that it need not fit in memory; a table's columns
    then widen as needed. Without a requested format, a terminal gets times and durations in readable form. Raises
    Failure for unknown fields.
    """
    form = layout.form or default_format()
    if layout.sort:
        rows = _sorted(list(rows), columns, layout.sort)
    rest, at_a_time = iter(rows), None if isinstance(rows, Sequence) else STREAM_ROWS
    chunk = list(islice(rest, at_a_time))
    for name in layout.fields:
        _check_field(name, chunk, columns)
    columns, widths, count = layout.fields or columns, [0] * len(layout.fields or columns), 0
    while chunk or not count:
        if layout.fields and form in OBJECTS:
            chunk = [{name: row[name] for name in columns if name in row} for row in chunk]
        if form == OutputFormat.TABLE:
            shown, names = (chunk, columns) if layout.form is not None else _with_human_times(chunk, columns)
            lines = _visible(_lines(shown, names, layout.headers and not count))
            data, widths = _table(lines, shown, names, widths)
        else:
            data = _written(chunk, columns, form, layout.headers and not count)
            if form == OutputFormat.JSON:
                data = f"{',' if count else '['}{data}"
        write_data(encoded(data))
        count += len(chunk)
        if not (chunk := list(islice(rest, at_a_time))):
            break
    if form == OutputFormat.JSON:
        write_data(b"\n]\n" if count else b"]\n")
    return count


def write_record(record: Mapping[str, Cell], layout: Layout = PLAIN) -> None:
    """Write named values: one object in JSON and YAML, else a row for each value."""
    form = layout.form or default_format()
    for name in layout.fields:
        _check_field(name, [record], [])
    rows: list[Mapping[str, Cell]] = [{"name": name, "value": record[name]} for name in layout.fields or record]
    if layout.sort:
        rows = _sorted(rows, ["name", "value"], layout.sort)
    found = {str(row["name"]): row["value"] for row in rows}
    match form:
        case OutputFormat.JSON | OutputFormat.NDJSON:
            indent = 2 if form == OutputFormat.JSON else None
            write_data(json.dumps(found, indent=indent).encode() + b"\n")
        case OutputFormat.YAML:
            write_data(encoded(_yaml(found)))
        case _:
            write_rows(rows, ["name", "value"], Layout(form, layout.headers))


def write_blocks(answer: bytes, layout: Layout) -> None:
    """Write the server's blocks, one for each queue: unchanged, unless a format is requested."""
    if layout == PLAIN:
        write_data(answer)
    else:
        rows = parse_blocks(answer)
        write_rows(rows, columns_of(rows), layout)


def default_format() -> OutputFormat:
    return OutputFormat.TABLE if is_terminal(STDOUT) else OutputFormat.TSV


def _check_field(name: str, rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> None:
    """Raise Failure for an unknown field. Without rows any field passes."""
    known = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    if rows and name not in known:
        raise Failure(ExitCode.USAGE, f"no field {name!r}; fields are {', '.join(known)}")


def _sorted(rows: list[Mapping[str, Cell]], columns: Sequence[str], sort: str) -> list[Mapping[str, Cell]]:
    """Sort by numbers, then by text. Rows without the field come last."""
    name = sort.removeprefix("-")
    _check_field(name, rows, columns)
    having = [row for row in rows if row.get(name, "") != ""]
    having.sort(key=lambda row: (isinstance(row[name], str), row[name]), reverse=sort.startswith("-"))
    return having + [row for row in rows if row.get(name, "") == ""]


def _written(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], form: OutputFormat, headers: bool) -> str:
    """Rows in any format but a table; JSON without the enclosing array."""
    match form:
        case OutputFormat.JSON:
            return _json_objects(rows)
        case OutputFormat.NDJSON:
            return "".join(json.dumps(row) + "\n" for row in rows)
        case OutputFormat.YAML:
            return _yaml([dict(row) for row in rows])
        case OutputFormat.CSV:
            return _csv([*([columns] if headers else []), *([row.get(one, "") for one in columns] for row in rows)])
        case OutputFormat.NAME:
            return "".join(f"{cell}\n" for (cell,) in _lines(rows, columns[:1], False))
        case _:
            return "".join("\t".join(line) + "\n" for line in _lines(rows, columns, headers))


def _with_human_times(
    rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]
) -> tuple[Sequence[Mapping[str, Cell]], list[str]]:
    """Rows and columns with milliseconds as time of day (UTC) or duration, and names without the unit."""
    if not any(name.endswith("_ms") for name in columns):
        return rows, list(columns)
    from kestrelctl.journals.times import written_instant, written_span

    def written(name: str, cell: Cell) -> Cell:
        if not isinstance(cell, int) or not name.endswith("_ms"):
            return cell
        return written_instant(cell) if name in INSTANTS or name.endswith("_at_ms") else written_span(cell)

    found = [{name.removesuffix("_ms"): written(name, row[name]) for name in columns if name in row} for row in rows]
    return found, [name.removesuffix("_ms") for name in columns]


def _json_objects(rows: Sequence[Mapping[str, Cell]]) -> str:
    """JSON as with indent=2, for which `json` takes ten times as long. Only blanks outside of strings differ."""
    inner = json.dumps(rows, separators=(",\n    ", ": "))[2:-2].replace("},\n    {", "\n  },\n  {\n    ")
    return f"\n  {{\n    {inner}\n  }}" if rows else ""


def _yaml(data: object) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumped: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=LINE_MAX)
    return dumped


def _csv(lines: Iterable[Sequence[Cell]]) -> str:
    import csv
    import io

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _lines(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], headers: bool) -> list[list[str]]:
    lines = _cells(rows, columns)
    if _TO_ESCAPE.search("".join(map("".join, lines))):
        lines = [[cell.translate(_ESCAPED) for cell in line] for line in lines]
    return [list(columns), *lines] if headers else lines


def _cells(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> list[list[str]]:
    if len(columns) > 1:
        of_row = itemgetter(*columns)
        with suppress(KeyError):  # one call for each row, because rows rarely lack a column
            return [list(map(str, of_row(row))) for row in rows]
    return [[str(row.get(column, "")) for column in columns] for row in rows]


def _visible(lines: list[list[str]]) -> list[list[str]]:
    """Lines with non-printable characters, which a terminal might interpret or hide, replaced by their codes."""
    if "".join(map("".join, lines)).isprintable():
        return lines
    return [["".join([one if one.isprintable() else _code(one) for one in cell]) for cell in line] for line in lines]


def _code(letter: str) -> str:
    return (
        "".join([f"\\x{byte:02x}" for byte in encoded(letter)])
        if "\udc80" <= letter <= "\udcff"
        else ascii(letter)[1:-1]
    )


def _table(
    lines: list[list[str]], rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], widths: list[int]
) -> tuple[str, list[int]]:
    """Columns two blanks apart and at least `widths` wide, numbers right-aligned; and their new widths."""
    widths = [max(width, *map(len, cells)) for width, cells in zip(widths, zip(*lines, strict=True), strict=False)]
    is_number = [all(not isinstance(row.get(column, 0), str) for row in rows) for column in columns]
    text = "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )
    return text, widths


def encoded(words: str) -> bytes:
    """Text as UTF-8; bytes that were not UTF-8 when decoded, of the wire or of paths, are restored."""
    return words.encode("utf-8", "surrogateescape")


# Words


def counted(number: int, what: str) -> str:
    """A number with its noun: 1 item, 2 items."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def say(words: str) -> None:
    """Print a line on stderr. Errors are ignored: the run need not fail if nobody reads it."""
    show(f"kestrelctl: {words}")


def show(line: str) -> None:
    """Print another program's line on stderr unchanged."""
    with suppress(OSError):
        os.write(STDERR, encoded(f"{line}\n"))


def remark(words: str) -> None:
    """Print a message meant for a person: only if stderr is a terminal."""
    if is_terminal(STDERR):
        say(words)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user; without a terminal the answer is yes. Raises Failure if it is no."""
    if yes or not (is_terminal(STDIN) and is_terminal(STDERR)):
        return
    os.write(STDERR, encoded(f"kestrelctl: {question} [y/N] "))
    if os.read(STDIN, 100).strip().lower() not in (b"y", b"yes"):
        raise Failure(ExitCode.NEGATIVE, "nothing done")


# Standard input


def read_chunks(descriptor: int, name: str) -> Iterable[bytes]:
    """Yield data as it arrives. Raises Failure if reading fails."""
    try:
        while chunk := os.read(descriptor, READ_CHUNK_BYTES):
            yield chunk
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
        raise Failure(ExitCode.IO, f"cannot read {name}: {reason}") from error
