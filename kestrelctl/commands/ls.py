"""kestrelctl ls"""

from fnmatch import fnmatchcase
from typing import Annotated, Final

import typer

from kestrelctl.commands.options import FormatOption, NoHeadersOption, ServerOption, TimeoutOption, connect
from kestrelctl.exit_codes import ExitCode, Failure
from kestrelctl.output import write_data, write_rows

COLUMNS: Final = ["queue", "items", "bytes", "waiters", "open_transactions"]


def ls(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATTERN]...", help="Only names like one of these: * and ? as in a shell."),
    ] = None,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
    server: ServerOption = "",
    timeout: TimeoutOption = "",
) -> None:
    """Print the names of the queues and their children, one on a line, sorted.

    With -o, a row for each with its items, bytes, waiters and open reads. Exit 1 when there is none.
    """
    blocks = connect(server, timeout).queue_stats()
    found = [row for row in blocks if any(fnmatchcase(str(row["queue"]), pattern) for pattern in patterns or ("*",))]
    found.sort(key=lambda row: str(row["queue"]))
    if output is None:
        write_data("".join(f"{row['queue']}\n" for row in found).encode("utf-8", "surrogateescape"))
    else:
        rows = [{column: row[column] for column in COLUMNS if column in row} for row in found]
        write_rows(rows, COLUMNS, output, headers=not no_headers)
    if not found:
        raise Failure(ExitCode.NEGATIVE, "no such queue" if patterns else "there are no queues")
