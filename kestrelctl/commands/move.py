"""`kestrelctl move`: move the items of a queue to another queue."""

from kestrelctl.commands.options import Remote
from kestrelctl.commands.transfers import Transfers


def move(transfers: Transfers, remote: Remote) -> None:
    """Move the items of a queue to another queue, until it is empty. They keep flags and expiry.

    Those that are not due yet, and leased ones, stay. Each is opened, put and closed, so none is lost whenever the
    command or a server is killed; the one under way may then be in both queues. Expiry is read by the server's
    admin port; of a server that has none items come without.

    With --match the others stay in order: each is held open until the end, which counts as one of max_retries, and
    100 of them can be. If more are in front of one that matches, it stops there; `copy --match` has no such limit. If
    it is killed, those that it held may come back in another order.

    Exit 1 when there was nothing to move, 77 when too many do not match, 80 or 81 when DST refused one.
    """
    from kestrelctl.items.transfers import move_all

    transfers.tell("move", "moved", move_all(transfers.of(remote)))
