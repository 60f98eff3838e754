"""kestrelctl flush-all"""

from kestrelctl.commands.options import Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def flush_all(remote: Remote, yes: YesOption = False) -> None:
    """Discard all items of all queues. The queues stay. `kestrelctl undo` can bring back each queue's."""
    cluster = remote.cluster()
    confirm("discard all items of all queues?", yes=yes)
    cluster.each(lambda client: client.flush_all_queues())
    cluster.end()
    remark("flushed all queues")
