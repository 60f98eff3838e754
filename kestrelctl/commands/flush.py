"""kestrelctl flush"""

import os

from kestrelctl.commands.options import QueueArgument, Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def flush(queue: QueueArgument, remote: Remote, yes: YesOption = False) -> None:
    """Discard all items of a queue. The queue stays. Where trash_seconds is set, `kestrelctl undo` brings them back."""
    cluster = remote.cluster()
    confirm(f"discard all items of {queue}?", yes=yes)
    cluster.each(lambda client: client.flush(os.fsencode(queue)))
    cluster.end()
    remark(f"flushed {queue}")
