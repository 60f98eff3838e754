"""kestrelctl items"""

from itertools import islice
from typing import Annotated

import typer

from kestrelctl.commands.options import GrepOption, Output, QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure


def items(
    queue: QueueArgument,
    output: Output,
    remote: Remote,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Skip the first N items.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of items.")] = 100,
    all_of_them: Annotated[bool, typer.Option("--all", help="List all items.")] = False,
    grep: GrepOption = None,
) -> None:
    """List the items of a queue from its head: id, age, expiry, size, flags and text. Nothing is taken.

    Open reads are among them, marked; so are items that expired and are still there. It is what is in the queue when
    the command starts, less what is taken meanwhile. It is read by the server's admin port, with the right peek.

    Exit 1 when there is none, 77 when the server has no admin port.
    """
    from kestrelctl.items.listing import matching, write_items

    api = remote.reader_api()
    found = matching(islice(api.waiting(queue), offset, None), grep)
    if not write_items(found if all_of_them else islice(found, limit), output.layout):
        raise Failure(ExitCode.NEGATIVE, f"{queue} is empty" if grep is None and not offset else "no such item")
