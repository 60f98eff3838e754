"""`kestrelctl copy`: copy the items of a queue to another queue."""

from kestrelctl.commands.options import Remote
from kestrelctl.commands.transfers import Transfers


def copy(transfers: Transfers, remote: Remote) -> None:
    """Copy the items of a queue to another queue, with flags, expiry and due times. Nothing is taken.

    The items are those in SRC when the command starts, open reads, leased and delayed items too, less those taken
    or expired meanwhile. Ids and add times are new. SRC is read by its server's admin port, with the
    right peek.

    Exit 1 when there was nothing to copy, 77 when the server has no admin port, 80 or 81 when DST refused one.
    """
    from kestrelctl.items.transfers import copy_all

    transfers.tell("copy", "copied", copy_all(transfers.of(remote)))
