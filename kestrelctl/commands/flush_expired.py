"""kestrelctl flush-expired"""

import os

from kestrelctl.commands.options import QueueArgument, ServerOption, TimeoutOption, connect_all
from kestrelctl.shell.output import write_data


def flush_expired(queue: QueueArgument, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Remove the expired items of a queue now, and print how many there were."""
    cluster = connect_all(server, timeout)
    removed = cluster.each(lambda client: client.flush_expired(os.fsencode(queue)))
    write_data(b"%d\n" % sum(count for _, count in removed))
    cluster.end()
