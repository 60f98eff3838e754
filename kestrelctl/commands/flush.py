"""kestrelctl flush"""

import os

from kestrelctl.commands.options import QueueArgument, ServerOption, TimeoutOption, YesOption, connect
from kestrelctl.output import confirm, remark


def flush(queue: QueueArgument, yes: YesOption = False, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Discard all items of a queue. The queue stays. Where trash_seconds is set, `kestrelctl undo` brings them back."""
    client = connect(server, timeout)
    confirm(f"discard all items of {queue}?", yes=yes)
    client.flush(os.fsencode(queue))
    remark(f"flushed {queue}")
