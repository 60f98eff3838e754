"""`kestrelctl undo`: restore the items of a flush or delete."""

import os

from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark


def undo(queue: QueueArgument, remote: Remote) -> None:
    """Restore the items dropped by the last flush or delete of a queue, behind its current items.

    The server keeps it for the queue's trash_seconds; by default that is 0, and nothing is kept. A second undo goes
    one flush or delete further back. Items keep flags and expiry; max_age begins anew.

    Exit 1 when there is nothing to undo, 80 or 81 when the queue has no room for any or all of it: the rest can be
    undone later.
    """
    fleet = remote.fleet()
    undone = [counts for _, counts in fleet.each(lambda client: client.undo(os.fsencode(queue))) if counts is not None]
    fleet.end()
    if not undone:
        words = f"nothing to undo for {queue}: trash_seconds is 0, or has expired"
        raise Failure(ExitCode.NEGATIVE, words, is_quiet=False)
    back, left = map(sum, zip(*undone, strict=True))
    if left:
        code = ExitCode.PARTLY_STORED if back else ExitCode.FULL
        raise Failure(code, f"{queue} is full: items={back} are back, items={left} can be undone later")
    remark(f"put back items={back} of {queue}")
