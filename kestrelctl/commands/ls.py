"""kestrelctl ls"""

from fnmatch import fnmatchcase
from typing import Annotated, Final

from kestrelctl.commands.declared import argument
from kestrelctl.commands.options import Output, PerServerOption, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import write_data

COLUMNS: Final = ["queue", "items", "bytes", "waiters", "open_transactions"]


def ls(
    output: Output,
    remote: Remote,
    patterns: Annotated[
        list[str] | None,
        argument(metavar="[PATTERN]...", help="Only names like one of these: * and ? as in a shell."),
    ] = None,
    per_server: PerServerOption = False,
) -> None:
    """Print the names of the queues and their children, one on a line, sorted.

    With -o, a row for each with its items, bytes, waiters and open reads, which of several servers are added up.

    Exit 1 when there is none, 69 when a server does not answer.
    """
    cluster = remote.cluster()
    blocks = cluster.queue_rows(per_server=per_server)
    found = [row for row in blocks if any(fnmatchcase(str(row["queue"]), pattern) for pattern in patterns or ("*",))]
    found.sort(key=lambda row: str(row["queue"]))
    columns = ["queue", "server", *COLUMNS[1:]] if per_server else COLUMNS
    if output.form is None and not per_server:
        write_data("".join(f"{row['queue']}\n" for row in found).encode("utf-8", "surrogateescape"))
    else:
        rows = [{column: row[column] for column in columns if column in row} for row in found]
        output.write_rows(rows, columns)
    cluster.end()
    if not found:
        raise Failure(ExitCode.NEGATIVE, "no such queue" if patterns else "there are no queues")
