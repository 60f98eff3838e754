"""`kestrelctl run-now`: deliver a delayed or retrying item now."""

from kestrelctl.commands.options import IdArgument, QueueArgument, Remote
from kestrelctl.shell.output import remark


def run_now(queue: QueueArgument, item: IdArgument, remote: Remote) -> None:
    """Deliver a delayed or retrying item now, before the waiting items of its queue.

    `kestrelctl items QUEUE --state delayed` shows the ids. It is done by the server's admin port, with the right get.

    Exit 1 when there is no such item or it waits already, 77 when somebody has leased it or there is no admin port.
    """
    was = remote.reader_api().act(queue, item, "run-now")
    remark(f"item {item} of {queue} was {was} and is due now")
