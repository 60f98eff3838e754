"""`kestrelctl flush-all`: discard all items of all queues."""

from kestrelctl.commands.dropping import DryRunOption, tell
from kestrelctl.commands.options import Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def flush_all(remote: Remote, yes: YesOption = False, dry_run: DryRunOption = False) -> None:
    """Discard all items of all queues. The queues stay. `kestrelctl undo` can bring back each queue's."""
    fleet = remote.fleet()
    if dry_run:
        tell(fleet.queue_rows())
    else:
        confirm("discard all items of all queues?", yes=yes)
        fleet.each(lambda client: client.flush_all_queues())
        remark("flushed all queues")
    fleet.end()
