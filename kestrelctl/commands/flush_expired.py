"""kestrelctl flush-expired"""

import os

from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.output import write_data


def flush_expired(queue: QueueArgument, remote: Remote) -> None:
    """Remove the expired items of a queue now, and print how many there were."""
    cluster = remote.cluster()
    removed = cluster.each(lambda client: client.flush_expired(os.fsencode(queue)))
    write_data(b"%d\n" % sum(count for _, count in removed))
    cluster.end()
