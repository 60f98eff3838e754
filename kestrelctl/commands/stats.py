"""kestrelctl stats"""

from typing import Annotated, Final

import typer

from kestrelctl.blocks import columns_of
from kestrelctl.commands.options import FormatOption, NoHeadersOption, ServerOption, TimeoutOption, connect
from kestrelctl.exit_codes import ExitCode, Failure
from kestrelctl.output import write_record, write_rows

MAIN_COLUMNS: Final = [
    "queue",
    "items",
    "bytes",
    "age",
    "waiters",
    "open_transactions",
    "total_items",
    "expired_items",
    "discarded",
    "logsize",
    "mem_items",
    "mem_bytes",
]


def stats(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Only these queues.", show_default=False)
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", "-w", help="Every counter in table and tsv, as in json.")] = False,
    server_wide: Annotated[
        bool,
        typer.Option("--server-wide", help="The server's own counters instead: uptime, connections, commands."),
    ] = False,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
    server: ServerOption = "",
    timeout: TimeoutOption = "",
) -> None:
    """Print a row of counters for each queue.

    age is how long the last taken item had waited, in milliseconds; sizes are in bytes. Exit 1 when a named
    queue is not there.
    """
    client = connect(server, timeout)
    if server_wide:
        write_record(client.server_stats(), output, headers=not no_headers)
        return
    rows = sorted(client.queue_stats(), key=lambda row: str(row["queue"]))
    if queues:
        rows = [row for row in rows if row["queue"] in queues and len(row) > 1]
    write_rows(rows, columns_of(rows) if wide else MAIN_COLUMNS, output, headers=not no_headers)
    if missing := set(queues or ()) - {str(row["queue"]) for row in rows}:
        raise Failure(ExitCode.NEGATIVE, f"no such queue: {', '.join(sorted(missing))}")
