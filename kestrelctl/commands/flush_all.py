"""kestrelctl flush-all"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, YesOption, connect_all
from kestrelctl.shell.output import confirm, remark


def flush_all(yes: YesOption = False, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Discard all items of all queues. The queues stay. `kestrelctl undo` can bring back each queue's."""
    cluster = connect_all(server, timeout)
    confirm("discard all items of all queues?", yes=yes)
    cluster.each(lambda client: client.flush_all_queues())
    cluster.end()
    remark("flushed all queues")
