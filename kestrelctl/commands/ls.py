"""`kestrelctl ls`: print the names of the queues."""

from typing import Annotated, Final

from kestrelctl.commands.declared import argument
from kestrelctl.commands.options import Output, PerServerOption, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import OutputFormat

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

    Exit 1 when there is none, 69 when a server does not answer, 84 when one that is named without * and ? is stopped:
    its journal is damaged.
    """
    fleet = remote.fleet()
    found = fleet.queue_rows(patterns or (), () if output.fields or output.sort else COLUMNS, per_server=per_server)
    columns = ["queue", "server", *COLUMNS[1:]] if per_server else COLUMNS
    rows = [{column: row[column] for column in columns if column in row} for row in found]
    if output.form is None and not output.fields and not per_server:
        output = output._replace(form=OutputFormat.NAME)
    output.write_rows(found if output.fields or output.sort else rows, columns)
    fleet.must_be_running(patterns or ())
    fleet.end()
    if not found:
        raise Failure(ExitCode.NEGATIVE, "no such queue" if patterns else "there are no queues")
