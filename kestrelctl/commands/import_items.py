"""`kestrelctl import`: import items from an export."""

from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.output import remark


def import_items(
    queue: QueueArgument,
    remote: Remote,
    file: Annotated[
        str,
        argument(metavar="FILE", help="An export, also as .gz or .zst; - is stdin."),
    ] = "-",
    resume: Annotated[
        bool, option("--resume", help="Continue after the last item that an earlier import of FILE stored.")
    ] = False,
) -> None:
    """Import items from an export, in order, with flags, expiry and due times; expired items are skipped.

    The server gives them new ids and add times, and counts attempts anew: those in FILE cannot be put back, nor where
    dead letters come from. Expiry is kept to the second.

    How far it is is noted in FILE.importing until it is done. If it ends before, --resume goes on there; items
    whose answer did not come, 512 at most, are put again then. Lines need no more than data or data_base64.

    Exit 65 a line is not an item, 66 no such file, 73 an import of FILE is unfinished, 80 or 81 the queue refused one.
    """
    from kestrelctl.items.importing import Import

    importing = Import(file, queue)
    importing.run(remote.client(), resume=resume)
    remark(f"imported items={importing.stored}, expired={importing.expired}")
