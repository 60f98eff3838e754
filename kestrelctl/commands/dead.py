"""`kestrelctl dead`: list the dead letters of a queue."""

from itertools import islice
from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import GrepOption, Output, QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure


def dead(
    queue: QueueArgument,
    output: Output,
    remote: Remote,
    limit: Annotated[int, option(min=1, metavar="N", help="Maximum number of dead letters.")] = 100,
    all_of_them: Annotated[bool, option("--all", help="List all dead letters.")] = False,
    grep: GrepOption = None,
) -> None:
    """List the dead letters of a queue: where each comes from and why, how often it failed, when it was put first.

    They come from the head of the queue, and nothing is taken. `reason` is failed or expired, `origin_attempts` how
    often it failed, `failure_reason` the last reason given, `put_at_ms` when it was put on the first queue,
    `add_ms` when it came here. Other items of the queue are left out. It is read by the server's admin port, with the
    right peek.

    Exit 1 when there is none, 77 when the server has no admin port.
    """
    from kestrelctl.items.listing import DEAD_COLUMNS, matching, write_items

    letters = (item for item in remote.reader_api().waiting(queue) if "origin" in item.known)
    chosen = matching(letters, grep)
    if not write_items(chosen if all_of_them else islice(chosen, limit), output.layout, DEAD_COLUMNS):
        raise Failure(ExitCode.NEGATIVE, f"{queue} has no {'such' if grep is not None else 'dead'} letters")
