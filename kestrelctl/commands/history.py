"""`kestrelctl history`: print a queue's length and traffic over time."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import (
    ArchiveOption,
    Output,
    QueueArgument,
    SinceOption,
    SpoolOption,
    UntilOption,
    span_ms,
)
from kestrelctl.shell.output import OutputFormat, counted, default_format, encoded, write_data


def history(
    queue: QueueArgument,
    output: Output,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    step: Annotated[
        int | None,
        option(metavar="SPAN", parser=span_ms, help="Time between two rows (default: about 60 rows)."),
    ] = None,
) -> None:
    """Print a queue's length and traffic over time, from its journal on disk.

    A row for each step, with the items of the queue at its end, open reads included; a table has a sparkline above. The
    journal goes back as far as its oldest segment: set archive_path for more. The server may run.

    Exit 1 nothing is known of that time, 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.history import COLUMNS, rows, sparkline
    from kestrelctl.journals.history import history as read_history
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.times import now_ms

    points = read_history(
        JournalLocation.of(spool, archive), queue, since, until if until is not None else now_ms(), step
    )
    if (output.form or default_format()) == OutputFormat.TABLE:
        highest = max(point.items for point in points)
        write_data(encoded(f"{queue}  {sparkline(points)}  up to {counted(highest, 'item')}\n\n"))
    output.write_rows(rows(points), COLUMNS)
