"""`kestrelctl tail`: show the last items put on a queue."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import Frames, QueueArgument, Remote
from kestrelctl.items.framing import Framing


def tail(
    queue: QueueArgument,
    frames: Frames,
    remote: Remote,
    follow: Annotated[bool, option("--follow", "-f", help="Keep showing items as they are put.")] = False,
    number: Annotated[
        int | None,
        option(
            "-n", min=0, metavar="N", help="Start with the last N items (default 10, with -f 0).", show_default=False
        ),
    ] = None,
) -> None:
    """Show the last items put on a queue, and with -f each new one. Nothing is taken.

    It sees items that workers have taken, too, as long as they are in the journal; with -f it says on stderr if some
    were gone before it could read them. --json has the id, add time, size and flags of each. It reads by the server's
    admin port, with the right peek, and needs no reader.

    Exit 1 when there is no such queue or it is deleted, 77 when the server has no admin port.
    """
    from kestrelctl.items import listing

    framing = frames.framing(Framing.LINES)
    api = remote.reader_api()
    number = number if number is not None else 0 if follow else 10
    journal_id, next_id, last = listing.last_of(api, queue, number)
    listing.write_framed(last, framing)
    if follow:
        for page in listing.follow(api, queue, journal_id, next_id):
            listing.write_framed(page, framing)
