"""`kestrelctl journal import` and `export`: migrate from and to Kestrel's journal files."""

from enum import StrEnum
from typing import Annotated

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import Output, Remote
from kestrelctl.shell.exit_codes import Ended


class JournalFormat(StrEnum):
    KESTREL = "kestrel"


def journal_import(
    source: Annotated[
        str,
        argument(metavar="SPOOL|FILE", help="Kestrel's spool, or the file of one queue.", show_default=False),
    ],
    output: Output,
    remote: Remote,
    to: Annotated[
        str | None, option(metavar="SPOOL", help="The queue_path of a stopped kestreld.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None, option(metavar="QUEUE", help="Put FILE's items on this queue of a running server.")
    ] = None,
) -> None:
    """Read journal files of Kestrel 1.x or 2.x. Stop that Kestrel first.

    With --to they become journals in the spool of a stopped kestreld, with add times, expiry and order; of a FILE
    its whole family, the queue and its children. Kestrel's own files are left as they are; those that lie in SPOOL
    itself move to its .imported folder. (kestreld does the same for files in its own spool when it starts.)

    With --queue the items of FILE's queue are put on a running server, which dates them anew; expired items are
    left out.

    Exit 65 something could not be read, stderr says where (all whole items are imported), 73 a queue was not
    imported as there is a journal of it already, 75 a kestreld holds the spool, 81 only some items were stored.
    """
    if (to is None) == (queue is None):
        raise BadValue("give either --to SPOOL or --queue QUEUE")
    # The journal's code is of no use to the other verbs.
    from kestrelctl.journals.migrating import IMPORT_COLUMNS, PUT_COLUMNS, import_into_server, import_offline

    if to is not None:
        rows, code = import_offline(source, to)
        output.write_rows(rows, IMPORT_COLUMNS)
    else:
        assert queue is not None
        rows, code = import_into_server(remote.client(), source, queue)
        output.write_rows(rows, PUT_COLUMNS)
    raise Ended(code)


def journal_export(
    spool: Annotated[str, argument(metavar="SPOOL", help="The queue_path of a stopped kestreld.", show_default=False)],
    to: Annotated[str, option(metavar="DIR", help="The output folder.", show_default=False)],
    output: Output,
    queue: Annotated[
        str | None,
        argument(metavar="QUEUE", help="Only this queue and its children, or this child.", show_default=False),
    ] = None,
    format: Annotated[JournalFormat, option(help="The format to write.")] = JournalFormat.KESTREL,
) -> None:
    """Write the queues of a stopped kestreld as journal files of Kestrel 2.x, a file for each queue.

    Add times, expiry and order are kept, flags are not: Kestrel has none. The spool is only read, and nothing in
    DIR is overwritten.

    Exit 65 a journal is damaged and was left out, 66 no such spool or queue, 73 DIR has files of the queue, 75 a
    kestreld holds the spool.
    """
    from kestrelctl.journals.migrating import EXPORT_COLUMNS, export

    rows, code = export(spool, queue, to)
    output.write_rows(rows, EXPORT_COLUMNS)
    raise Ended(code)
