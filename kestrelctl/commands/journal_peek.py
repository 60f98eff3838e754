"""`kestrelctl journal peek`: print the items that waited at a time in the past."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import ArchiveOption, EmptyOkOption, Frames, QueueArgument, SpoolOption, instant_ms
from kestrelctl.items.framing import Framing
from kestrelctl.shell.exit_codes import Ended


def journal_peek(
    queue: QueueArgument,
    at: Annotated[
        int,
        option(metavar="TIME", parser=instant_ms, help="Time: 2025-01-31T12:00 (UTC), 10:32, 24h (ago)."),
    ],
    frames: Frames,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    number: Annotated[int | None, option("-n", min=1, metavar="N", help="Only the first N items.")] = None,
    empty_ok: EmptyOkOption = False,
) -> None:
    """Print the items that waited in a queue at a time in the past, by replaying its journal.

    Items that were in an open read then waited, too, and so did delayed ones, leased ones and those that had failed:
    with --json a line says so, when they were due or who had them until when, beside the id and the times of the item.
    Nothing is changed, and the server may run.

    Exit 1 none waited, or some are not on the disk any more (stderr says how many), 65 the journal is damaged, 66 it
    does not go back so far, or there is no such spool or queue.
    """
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.peeking import write_waiting

    framing = frames.framing(Framing.LINES)
    raise Ended(write_waiting(JournalLocation.of(spool, archive), queue, at, framing, number, empty_ok=empty_ok))
