"""`kestrelctl items`: list the items of a queue."""

from enum import StrEnum
from itertools import islice
from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import GrepOption, Output, QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure


class ItemState(StrEnum):
    """State of an item."""

    WAITING = "waiting"
    DELAYED = "delayed"
    LEASED = "leased"
    RETRYING = "retrying"


def items(
    queue: QueueArgument,
    output: Output,
    remote: Remote,
    offset: Annotated[int, option(min=0, metavar="N", help="Skip the first N items.")] = 0,
    limit: Annotated[int, option(min=1, metavar="N", help="Maximum number of items.")] = 100,
    all_of_them: Annotated[bool, option("--all", help="List all items.")] = False,
    grep: GrepOption = None,
    state: Annotated[
        ItemState | None, option(help="Only items in this state.", show_default=False, case_sensitive=False)
    ] = None,
) -> None:
    """List the items of a queue from its head: id, age, expiry, size, flags, state and text. Nothing is taken.

    Items that do not wait for delivery are among them, and their state says why: delayed, retrying, leased, or open,
    which is an open read. So are items that expired and are still there. It is what is in the queue when the command
    starts, less what is taken meanwhile. It is read by the server's admin port, with the right peek.

    --state lists those that are waiting for delivery, delayed, leased, or retrying after a failure, with what there
    is to say: when they are due, how often they have failed, who has leased them (by the name it gave, or its address)
    and until when, how often that was extended, whether the holder was seen since the server restarted, and where a
    dead letter comes from. Those that are due first come first. Clients are named to those with the right admin.

    Exit 1 when there is none, 77 when the server has no admin port.
    """
    from kestrelctl.items.listing import COLUMNS, COLUMNS_OF, matching, write_items

    api = remote.reader_api()
    if state is None:
        found = api.waiting(queue)
    else:
        found = api.in_state(queue, state.value, None if all_of_them or grep is not None else offset + limit)
    chosen = matching(islice(found, offset, None), grep)
    columns = COLUMNS if state is None else COLUMNS_OF[state]
    if not write_items(chosen if all_of_them else islice(chosen, limit), output.layout, columns):
        is_all = grep is None and not offset and state is None
        raise Failure(ExitCode.NEGATIVE, f"{queue} is empty" if is_all else f"no matching item in {queue}")
