"""kestrelctl flush-expired"""

import os

from kestrelctl.commands.options import QueueArgument, ServerOption, TimeoutOption, connect
from kestrelctl.output import write_data


def flush_expired(queue: QueueArgument, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Remove the expired items of a queue now, and print how many there were."""
    removed = connect(server, timeout).flush_expired(os.fsencode(queue))
    write_data(b"%d\n" % removed)
