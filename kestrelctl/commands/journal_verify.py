"""kestrelctl journal-verify"""

import time
from enum import StrEnum
from typing import Annotated

import typer

from kestrelctl.commands.options import NoHeadersOption, duration_ms
from kestrelctl.exit_codes import ExitCode, Failure
from kestrelctl.output import OutputFormat, write_data, write_rows
from kestrelctl.repairs import REPAIR_COLUMNS


class VerifyFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    TSV = "tsv"
    NAGIOS = "nagios"


def journal_verify(
    spool: Annotated[
        str,
        typer.Argument(metavar="SPOOL|FILE", help="A spool, an archive, .imported, or one file of Kestrel's."),
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
    state: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Remember there what is whole; do not read it again while it is unchanged."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="SPAN", parser=duration_ms, help="Only files written to within this time: 24h."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what has a finding.")] = False,
    output: Annotated[
        VerifyFormat | None,
        typer.Option("--output", "-o", help="Default: table on a terminal, tsv elsewhere.", show_default=False),
    ] = None,
    no_headers: NoHeadersOption = False,
) -> None:
    """Read journals on disk and check every record, whether or not their server runs.

    Files of Kestrel 1.x and 2.x are read too: they have no checksums, so only what cannot be an operation is found.

    Exit 0 all is well, 1 a truncated tail (a start cuts it off), 65 a corrupt record, 66 no such spool or journal, or
    a segment is missing between others, 74 a file cannot be read; of several the worst. A running server's last
    record may be unfinished: that is no finding. With -o nagios 0, 1 and 2, as nagios has them.

    For cron: --state FILE, for several spools if you like. Unchanged is what has its size, time and inode: go without
    --state now and then to find what has gone bad on the disk itself. live_items are then not counted.

    With --repair each damaged journal is replaced by a new one with every item that can be read, in order; the
    damaged one is kept in the spool's .damaged folder. stderr says what was bad, where, and which items are lost.
    Repair one queue of a running server with `kestrelctl repair`. Kestrel's files need no repair: an import reads on
    behind the damage.

    Exit 0 all journals are whole now and nothing is lost, 1 they are whole but items are lost, 65 a journal could not
    be repaired (with --dry-run: one is damaged), 75 a kestreld holds the spool.
    """
    if dry_run and not repair:
        raise typer.BadParameter("--dry-run goes with --repair")
    if repair and (state is not None or since is not None or output == VerifyFormat.NAGIOS):
        raise typer.BadParameter("--repair reads everything: leave out --state, --since and -o nagios")
    # The journal's code is of no use to the other verbs.
    from kestrelctl.journals.verified import Verified
    from kestrelctl.verifying import (
        COLUMNS,
        as_nagios,
        read_reports,
        repair_journals,
        to_row,
        unknown_to_nagios,
        verdict,
    )

    if repair:
        columns = REPAIR_COLUMNS
        rows, code = repair_journals(spool, queue, dry_run=dry_run)
    else:
        columns = COLUMNS
        is_partial = state is not None or since is not None
        try:
            verified = Verified(state, None if since is None else time.time_ns() // 1_000_000 - since)
            reports = read_reports(spool, queue, verified)
        except Failure as failure:
            if output != VerifyFormat.NAGIOS:
                raise
            write_data(unknown_to_nagios(failure))
            raise typer.Exit(ExitCode.UNKNOWN) from failure
        code = verdict(reports, spool)
        rows = [to_row(report) | ({"live_items": ""} if is_partial else {}) for report in reports]
    if output == VerifyFormat.NAGIOS:
        line, code_of_nagios = as_nagios(rows, code, verified.passed_over)
        write_data(line)
        raise typer.Exit(code_of_nagios)
    if quiet:
        rows = [row for row in rows if (code or repair) and row["finding"]]
    if rows or not quiet:
        write_rows(rows, columns, None if output is None else OutputFormat(output), headers=not no_headers)
    raise typer.Exit(code)
