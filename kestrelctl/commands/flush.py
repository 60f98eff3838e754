"""`kestrelctl flush`: discard all items of a queue."""

import os
from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.dropping import DryRunOption, MissingOkOption, figures_of, tell
from kestrelctl.commands.options import Answer, QueueArgument, Remote, YesOption
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, remark


def flush(
    queue: QueueArgument,
    answer: Answer,
    remote: Remote,
    yes: YesOption = False,
    missing_ok: MissingOkOption = False,
    dry_run: DryRunOption = False,
    count: Annotated[bool, option("--count", help="Print how many items were discarded.")] = False,
) -> None:
    """Discard all items of a queue. The queue stays. Where trash_seconds is set, `kestrelctl undo` brings them back.

    With --count it prints how many items that were, those delayed and retrying among them; of several servers the sum.

    Exit 1 when there is no such queue, 77 when the server cannot count, and nothing is discarded then, 84 when it is
    stopped, as its journal is damaged: repair it first.
    """
    if answer.form is not None and not count:
        raise Failure(ExitCode.USAGE, "--output is the format of --count")
    fleet = remote.fleet()
    rows = figures_of(fleet, queue, missing_ok=missing_ok)
    if dry_run:
        tell(rows)
    elif rows:
        confirm(f"discard all items of {queue}?", yes=yes)
        if not count:
            fleet.each(lambda client: client.flush(os.fsencode(queue)))
        else:
            flushed = fleet.each(lambda client: client.flush_counted(os.fsencode(queue)))
            answer.write({"items": sum(items for _, items in flushed), "queue": queue})
        remark(f"flushed {queue}")
    elif count:
        answer.write({"items": 0, "queue": queue})
    fleet.end()
