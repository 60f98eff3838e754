"""kestrelctl journal-verify"""

from typing import Annotated

import typer

from kestrelctl.commands.options import FormatOption, NoHeadersOption
from kestrelctl.output import write_rows
from kestrelctl.repairs import REPAIR_COLUMNS


def journal_verify(
    spool: Annotated[
        str,
        typer.Argument(metavar="SPOOL|FILE", help="A spool, an archive, or one file of Kestrel's.", show_default=False),
    ],
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Only this queue's journal.", show_default=False)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Build damaged journals anew. The server must be stopped.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: say what it would find, and change nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what has a finding.")] = False,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
) -> None:
    """Read journals on disk and check every record, whether or not their server runs.

    Files of Kestrel 1.x and 2.x are read too: they have no checksums, so only what cannot be an operation is found.

    Exit 0 all is well, 1 a truncated tail (a start cuts it off), 65 a corrupt record, 66 no such spool or journal,
    74 a file cannot be read. A running server's last record may be unfinished: that is no finding.

    With --repair each damaged journal is replaced by a new one with every item that can be read, in order; the
    damaged one is kept in the spool's .damaged folder. stderr says what was bad, where, and which items are lost.
    Repair one queue of a running server with `kestrelctl repair`. Kestrel's files need no repair: an import reads on
    behind the damage.

    Exit 0 all journals are whole now and nothing is lost, 1 they are whole but items are lost, 65 a journal could not
    be repaired (with --dry-run: one is damaged), 75 a kestreld holds the spool.
    """
    if dry_run and not repair:
        raise typer.BadParameter("--dry-run goes with --repair")
    # The journal's code is of no use to the other verbs.
    from kestrelctl.verifying import COLUMNS, read_reports, repair_journals, to_row, verdict

    if repair:
        columns = REPAIR_COLUMNS
        rows, code = repair_journals(spool, queue, dry_run=dry_run)
    else:
        columns = COLUMNS
        reports = read_reports(spool, queue)
        code = verdict(reports, spool)
        rows = [to_row(report) for report in reports]
    if quiet:
        rows = [row for row in rows if (code or repair) and row["finding"]]
    if rows or not quiet:
        write_rows(rows, columns, output, headers=not no_headers)
    raise typer.Exit(code)
