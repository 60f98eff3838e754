"""`kestrelctl export`: export the items of a queue to a file."""

from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark


def export_items(
    queue: QueueArgument,
    remote: Remote,
    file: Annotated[str, argument(metavar="FILE", help="A new file; - is stdout.")] = "-",
    resume: Annotated[
        bool, option("--resume", help="Continue after the last complete line of FILE, if it exists.")
    ] = False,
) -> None:
    """Export the items of a queue to a file, one JSON line each. Nothing is taken.

    A line has the item's id, add time, expiry, flags and bytes: as text, or in base64 where they are not UTF-8. Where
    there is one it has the due time, the attempts, and where a dead letter comes from. It is what is in the queue
    when the command starts, open reads, leased and delayed items too, less what is taken meanwhile, read by the
    server's admin port. `kestrelctl import` puts it on a queue. With --resume, a whole export is followed by what is
    new.

    Exit 1 when there is no such queue, 73 when FILE is there, or is of another queue, 77 when the server has no
    admin port.
    """
    from kestrelctl.items.exporting import export

    if resume and file == "-":
        raise Failure(ExitCode.USAGE, "--resume requires a file")
    count = export(remote.reader_api(), queue, file, resume=resume)
    remark(f"exported items={count}")
