"""kestrelctl flush"""

import os

from kestrelctl.commands.options import QueueArgument, ServerOption, TimeoutOption, YesOption, connect_all
from kestrelctl.shell.output import confirm, remark


def flush(queue: QueueArgument, yes: YesOption = False, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Discard all items of a queue. The queue stays. Where trash_seconds is set, `kestrelctl undo` brings them back."""
    cluster = connect_all(server, timeout)
    confirm(f"discard all items of {queue}?", yes=yes)
    cluster.each(lambda client: client.flush(os.fsencode(queue)))
    cluster.end()
    remark(f"flushed {queue}")
