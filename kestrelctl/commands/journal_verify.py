"""kestrelctl journal-verify"""

from typing import Annotated

import typer

from kestrelctl.commands.options import FormatOption, NoHeadersOption
from kestrelctl.output import write_rows


def journal_verify(
    spool: Annotated[str, typer.Argument(metavar="SPOOL", help="The server's queue_path.", show_default=False)],
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Only this queue's journal.", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only segments with a finding.")] = False,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
) -> None:
    """Read journals on disk and check every record, whether or not their server runs.

    Exit 0 all is well, 1 a truncated tail (recovery cuts it off), 65 a corrupt record, 66 no such spool or
    journal, 74 a file cannot be read. A running server's last record may be unfinished: that is no finding.
    """
    # The journal's code is of no use to the other verbs.
    from kestrelctl.verifying import COLUMNS, read_reports, to_row, verdict

    reports = read_reports(spool, queue)
    code = verdict(reports, spool)
    rows = [to_row(report) for report in reports]
    if quiet:
        rows = [row for row in rows if code and row["finding"]]
    if rows or not quiet:
        write_rows(rows, COLUMNS, output, headers=not no_headers)
    raise typer.Exit(code)
