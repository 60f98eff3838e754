"""`kestrelctl journal diff`: compare the items of two spools, archives or files."""

from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import Output
from kestrelctl.shell.exit_codes import Ended, ExitCode

_PLACE = "SPOOL|FILE"


def journal_diff(
    a: Annotated[str, argument(metavar=_PLACE, help="A spool, archive, journal or file.", show_default=False)],
    b: Annotated[str, argument(metavar=_PLACE, help="Another.", show_default=False)],
    output: Output,
    queue: Annotated[str | None, option(metavar="QUEUE", help="Only this queue.", show_default=False)] = None,
    everything: Annotated[bool, option("--all", help="Include delivered items.")] = False,
    values: Annotated[bool, option("--values", help="Include the items' data.")] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print nothing; only set the exit code.")] = False,
) -> None:
    """Compare the items of two spools, archives or files: only in A, only in B, changed, or reordered.

    Of a spool, and of a journal's folder, those that wait for some reader count; --all compares all that is there,
    as it does in archives and files anyway. Two copies of one journal are compared by item id, others by data: as a
    Kestrel spool and the spool imported from it.

    Exit 0 no difference, 1 they differ, 65 one is damaged, 66 no such path or queue.
    """
    from kestrelctl.journals.contents import Contents, Queue
    from kestrelctl.journals.differing import COLUMNS, differences
    from kestrelctl.journals.differing import rows as rows_of
    from kestrelctl.journals.locations import checked_name, no_journal
    from kestrelctl.journals.times import now_ms

    here, there = (Contents(path, everything=everything, with_values=values, now_ms=now_ms()).queues for path in (a, b))
    names = sorted(here.keys() | there.keys())
    if queue is not None:
        checked_name(queue)
        names = [name for name in names if name == queue]
        if not names:
            raise no_journal(f"{a} and {b}", queue)
    rows = [
        row for name in names for row in rows_of(name, differences(here.get(name, Queue()), there.get(name, Queue())))
    ]
    if not quiet:
        columns = [*COLUMNS, *(["data", "data_base64"] if values else [])]
        output.write_rows(rows, columns)
    raise Ended(ExitCode.NEGATIVE if rows else ExitCode.OK)
