"""kestrelctl delete"""

import os
from typing import Annotated

import typer

from kestrelctl.commands.options import QueueArgument, Remote, YesOption
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, remark


def delete(
    queue: QueueArgument,
    remote: Remote,
    yes: YesOption = False,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="Exit 0 instead of 1 when there is no such queue.")
    ] = False,
) -> None:
    """Delete a queue, its items and its journal. Where trash_seconds is set, `kestrelctl undo` brings the items back.

    Exit 1 when there is no such queue (an old Kestrel does not say).
    """
    cluster = remote.cluster()
    confirm(f"delete {queue} and all its items?", yes=yes)
    deleted = cluster.each(lambda client: client.delete_queue(os.fsencode(queue)))
    cluster.end()
    if any(was_there for _, was_there in deleted):
        remark(f"deleted {queue}")
    elif not missing_ok:
        raise Failure(ExitCode.NEGATIVE, f"no such queue: {queue}")
