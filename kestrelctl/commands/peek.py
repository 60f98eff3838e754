"""kestrelctl peek"""

import os

from kestrelctl.commands.options import EmptyOkOption, Frames, QueueArgument, Remote, WaitOption
from kestrelctl.items.delivering import give_to_stdout, no_item
from kestrelctl.items.framing import Framing
from kestrelctl.shell.output import remark


def peek(
    queue: QueueArgument,
    frames: Frames,
    remote: Remote,
    wait: WaitOption = None,
    empty_ok: EmptyOkOption = False,
) -> None:
    """Print the item at the head of a queue without taking it.

    Of a context with several servers it is the head of any that has one; --json and a remark say which.

    Exit 1 when there is no item, 124 when --wait is over without one.
    """
    framing = frames.framing(Framing.RAW)
    cluster = remote.cluster()
    found = cluster.first(lambda client, wait_ms: client.peek(os.fsencode(queue), wait_ms), wait or 0)
    if found is not None:
        address, item = found
        give_to_stdout(framing, several=False, server="" if cluster.is_one else address)(item)
        if not cluster.is_one:
            remark(f"at {address}")
    elif not empty_ok:
        raise no_item(queue, waited=bool(wait))
