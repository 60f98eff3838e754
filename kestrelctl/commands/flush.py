"""`kestrelctl flush`: discard all items of a queue."""

import os

from kestrelctl.commands.dropping import DryRunOption, MissingOkOption, figures_of, tell
from kestrelctl.commands.options import QueueArgument, Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def flush(
    queue: QueueArgument,
    remote: Remote,
    yes: YesOption = False,
    missing_ok: MissingOkOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Discard all items of a queue. The queue stays. Where trash_seconds is set, `kestrelctl undo` brings them back.

    Exit 1 when there is no such queue, 84 when it is stopped, as its journal is damaged: repair it first.
    """
    fleet = remote.fleet()
    rows = figures_of(fleet, queue, missing_ok=missing_ok)
    if dry_run:
        tell(rows)
    elif rows:
        confirm(f"discard all items of {queue}?", yes=yes)
        fleet.each(lambda client: client.flush(os.fsencode(queue)))
        remark(f"flushed {queue}")
    fleet.end()
