"""kestrelctl history"""

from typing import Annotated

import typer

from kestrelctl.commands.options import (
    ArchiveOption,
    FormatOption,
    NoHeadersOption,
    QueueArgument,
    SinceOption,
    SpoolOption,
    UntilOption,
    duration_ms,
)
from kestrelctl.shell.output import OutputFormat, default_format, encoded, write_data, write_rows


def history(
    queue: QueueArgument,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="SPAN", parser=duration_ms, help="Time between two rows (default: about 60 rows)."),
    ] = None,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
) -> None:
    """Print a queue's length and traffic over time, from its journal on disk.

    A row for each step, with what the queue held at its end, open reads included; a table has a sparkline above. The
    journal goes back as far as its oldest segment: set archive_path for more. The server may run.

    Exit 1 nothing is known of that time, 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.history import COLUMNS, rows, sparkline
    from kestrelctl.journals.history import history as read_history
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.times import now_ms

    if step == 0:
        raise typer.BadParameter("--step must be greater than 0")
    points = read_history(
        JournalLocation.of(spool, archive), queue, since, until if until is not None else now_ms(), step
    )
    if (output or default_format()) == OutputFormat.TABLE:
        highest = max(point.items for point in points)
        write_data(encoded(f"{queue}  {sparkline(points)}  up to {highest} items\n\n"))
    write_rows(rows(points), COLUMNS, output, headers=not no_headers)
