"""`kestrelctl journal-verify`: check journals on disk and repair them."""

import time
from enum import StrEnum
from typing import Annotated

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import FieldsOption, NoHeadersOption, SortOption, duration_ms, layout_of
from kestrelctl.journals.repairs import REPAIR_COLUMNS
from kestrelctl.shell.exit_codes import Ended
from kestrelctl.shell.output import OutputFormat, say, write_data, write_rows


class VerifyFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    YAML = "yaml"
    TSV = "tsv"
    CSV = "csv"
    NAME = "name"
    NAGIOS = "nagios"


PlaceArgument = Annotated[
    str,
    argument(
        metavar="SPOOL|FILE",
        help="A spool, an archive, a folder of them, .imported, one queue's folder, a segment or a file of Kestrel's.",
    ),
]
OneQueueArgument = Annotated[
    str | None, argument(metavar="QUEUE", help="Only this queue's journal.", show_default=False)
]
RepairOption = Annotated[bool, option("--repair", help="Rebuild damaged journals. The server must be stopped.")]
DryRunOption = Annotated[bool, option("--dry-run", help="With --repair: print what would be repaired; change nothing.")]
StateOption = Annotated[
    str | None,
    option(metavar="FILE", help="State file: skip files that were intact and have not changed since."),
]
WrittenSinceOption = Annotated[
    int | None,
    option(metavar="SPAN", parser=duration_ms, help="Only files written to within this time: 24h."),
]
QuietOption = Annotated[bool, option("--quiet", "-q", help="Print only files with findings.")]
VerifyFormatOption = Annotated[
    VerifyFormat | None,
    option("--output", "-o", help="Default: table on a terminal, tsv elsewhere.", show_default=False),
]


def journal_verify(
    spool: PlaceArgument,
    queue: OneQueueArgument = None,
    repair: RepairOption = False,
    dry_run: DryRunOption = False,
    state: StateOption = None,
    since: WrittenSinceOption = None,
    quiet: QuietOption = False,
    output: VerifyFormatOption = None,
    no_headers: NoHeadersOption = False,
    fields: FieldsOption = "",
    sort: SortOption = "",
) -> None:
    """Read journals on disk and check every record, whether or not their server runs.

    Files of Kestrel 1.x and 2.x are read too: they have no checksums, so only invalid operations are found.

    Exit 0 all is well, 1 a truncated tail (a start cuts it off), 65 a corrupt record, or a segment is missing, 66
    there is nothing to read, 74 a file cannot be read; of several the worst. A running server's last record may be
    unfinished: that is no finding. A spool that has no queues yet is 0. With -o nagios 0 to 3, as nagios has them.

    For cron: --state FILE, for several spools if you like. Unchanged means: same size, time and inode. Go without
    --state now and then to find files that have decayed on the disk itself. live_items are then not counted.

    With --repair each damaged journal is replaced by a new one with every item that can be read, in order; the
    damaged one is kept in the spool's .damaged folder. stderr has the damage, its place, and the lost items.
    Repair one queue of a running server with `kestrelctl repair`. Kestrel's files need no repair: an import reads on
    behind the damage.

    The log of jobs is verified and repaired with the journals; its rows have .jobs for the queue, and jobs for items.
    Which jobs are lost cannot be told. One whose acknowledgement is lost is delivered again, unless its RETRY is 0.

    Exit 0 all journals are whole now and nothing is lost, 1 they are whole but items are lost, 65 a journal could not
    be repaired (with --dry-run: one is damaged), 75 a kestreld holds the spool.
    """
    if dry_run and not repair:
        raise BadValue("--dry-run requires --repair")
    if repair and (state is not None or since is not None or output == VerifyFormat.NAGIOS):
        raise BadValue("--repair reads everything: leave out --state, --since and -o nagios")
    # The journal's code is of no use to the other verbs.
    from kestrelctl.journals import verifying

    since_at_ms = None if since is None else time.time_ns() // 1_000_000 - since
    if output == VerifyFormat.NAGIOS:
        line, code_of_nagios = verifying.tell_nagios(spool, queue, state, since_at_ms)
        write_data(line)
        raise Ended(code_of_nagios)
    if repair:
        columns = REPAIR_COLUMNS
        rows, code = verifying.repair_journals(spool, queue, dry_run=dry_run)
    else:
        columns = verifying.COLUMNS
        rows, code, passed_over = verifying.verify_journals(spool, queue, state, since_at_ms)
        if not rows and not passed_over and not quiet:
            say(f"{spool}: {verifying.NO_QUEUES}")
    if quiet:
        rows = [row for row in rows if (code or repair) and row["finding"]]
    if rows or not quiet:
        form = None if output is None else OutputFormat(output)
        write_rows(rows, columns, layout_of(form, fields, sort, no_headers=no_headers))
    raise Ended(code)
