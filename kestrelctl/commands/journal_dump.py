"""`kestrelctl journal dump`: print every record of a journal."""

from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import ArchiveOption, Output, SpoolOption
from kestrelctl.shell.exit_codes import Ended, ExitCode
from kestrelctl.shell.output import OBJECTS, default_format


def journal_dump(
    source: Annotated[
        str,
        argument(
            metavar="FILE|QUEUE", help="A segment, a file of Kestrel's, or a queue in --spool.", show_default=False
        ),
    ],
    output: Output,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    values: Annotated[bool, option("--values", help="Include the items' data.")] = False,
) -> None:
    """Print every record of a journal with its position, type and checksum state.

    A stretch that holds no whole record is a row without a type, and reading goes on behind it. Nothing is changed,
    and the server may run.

    Exit 65 something is damaged, 66 no such file, spool or queue.
    """
    from kestrelctl.journals.dumping import COLUMNS, Dump, for_people
    from kestrelctl.journals.locations import JournalLocation

    dump = Dump(with_values=values)
    place = JournalLocation.of(spool, archive) if spool is not None or archive is not None else None
    rows = dump.of(source, place)
    if (output.form or default_format()) not in OBJECTS:
        rows = for_people(rows)
    output.write_rows(rows, COLUMNS)
    raise Ended(ExitCode.CORRUPT if dump.is_damaged else ExitCode.OK)
