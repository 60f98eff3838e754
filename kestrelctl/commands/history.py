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
    holders: Annotated[
        bool, option("--holders", help="A row for each holder of leases instead, with its time in work.")
    ] = False,
) -> None:
    """Print a queue's length and traffic over time, from its journal on disk.

    A row for each step, with the items of the queue at its end, open reads included; a table has a sparkline above. The
    journal goes back as far as its oldest segment: set archive_path for more. The server may run.

    Where items are leased, a row says how many leases were granted, and how they ended, and how long the time in work
    was, from the lease to the confirm: half of them, 95 %, 99 % and the longest. An extension does not begin it anew.

    Exit 1 nothing is known of that time, 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.history import columns, rows, sparkline
    from kestrelctl.journals.history import history as read_history
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.times import now_ms
    from kestrelctl.journals.working import COLUMNS, by_holder

    place, until_ms = JournalLocation.of(spool, archive), until if until is not None else now_ms()
    if holders:
        output.write_rows(by_holder(place, queue, since, until_ms), COLUMNS)
        return
    points = read_history(place, queue, since, until_ms, step)
    if (output.form or default_format()) == OutputFormat.TABLE:
        highest = max(point.items for point in points)
        write_data(encoded(f"{queue}  {sparkline(points)}  up to {counted(highest, 'item')}\n\n"))
    output.write_rows(rows(points), columns(points))
