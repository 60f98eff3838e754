"""kestrelctl flush-all"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, YesOption, connect
from kestrelctl.output import confirm, remark


def flush_all(yes: YesOption = False, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Discard all items of all queues. The queues stay. `kestrelctl undo` can bring back each queue's."""
    client = connect(server, timeout)
    confirm("discard all items of all queues?", yes=yes)
    client.flush_all_queues()
    remark("flushed all queues")
