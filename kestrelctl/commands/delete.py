"""`kestrelctl delete`: delete a queue."""

import os

from kestrelctl.commands.dropping import DryRunOption, MissingOkOption, figures_of, no_such_queue, tell
from kestrelctl.commands.options import QueueArgument, Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def delete(
    queue: QueueArgument,
    remote: Remote,
    yes: YesOption = False,
    missing_ok: MissingOkOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a queue, its items and its journal. Where trash_seconds is set, `kestrelctl undo` brings the items back.

    Exit 1 when there is no such queue, 84 when it is stopped, as its journal is damaged: repair it first.
    """
    fleet = remote.fleet()
    rows = figures_of(fleet, queue, missing_ok=missing_ok)
    if dry_run:
        tell(rows)
    elif rows:
        confirm(f"delete {queue} and all its items?", yes=yes)
        deleted = fleet.each(lambda client: client.delete_queue(os.fsencode(queue)))
        if any(was_there for _, was_there in deleted):
            remark(f"deleted {queue}")
        elif not missing_ok:  # another client was faster
            raise no_such_queue(queue)
    fleet.end()
