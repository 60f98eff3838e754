"""`kestrelctl flush-all`: discard all items of all queues."""

from kestrelctl.commands.dropping import DryRunOption, tell
from kestrelctl.commands.options import Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def flush_all(remote: Remote, yes: YesOption = False, dry_run: DryRunOption = False) -> None:
    """Discard all items of all queues. The queues stay. `kestrelctl undo` can bring back each queue's."""
    cluster = remote.cluster()
    if dry_run:
        tell(cluster.queue_rows())
    else:
        confirm("discard all items of all queues?", yes=yes)
        cluster.each(lambda client: client.flush_all_queues())
        remark("flushed all queues")
    cluster.end()
