"""`kestrelctl peek`: print the item at the head of a queue."""

import os
from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import EmptyOkOption, Frames, QueueArgument, Remote, WaitOption
from kestrelctl.items.delivering import give_to_stdout, no_item
from kestrelctl.items.framing import Framing, frame
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark, write_data


def peek(
    queue: QueueArgument,
    frames: Frames,
    remote: Remote,
    wait: WaitOption = None,
    empty_ok: EmptyOkOption = False,
    origin: Annotated[
        bool, option("--origin", help="With --json: also its id, its attempts, and where a dead letter comes from.")
    ] = False,
) -> None:
    """Print the item at the head of a queue without taking it.

    Of a context with several servers it is the head of any that has one; --json and a remark say which.

    --origin asks the server's admin port, and is for one server.

    Exit 1 when there is no item, 124 when --wait is over without one.
    """
    framing = frames.framing(Framing.RAW)
    if origin:
        if framing != Framing.JSON:
            raise Failure(ExitCode.USAGE, "--origin requires --json")
        if not _show_known(queue, remote, wait or 0) and not empty_ok:
            raise no_item(queue, waited=bool(wait))
        return
    fleet = remote.fleet()
    found = fleet.first(lambda client, wait_ms: client.peek(os.fsencode(queue), wait_ms), wait or 0)
    if found is not None:
        address, item = found
        give_to_stdout(framing, several=False, server="" if fleet.is_one else address)(item)
        if not fleet.is_one:
            remark(f"at {address}")
    elif not empty_ok:
        raise no_item(queue, waited=bool(wait))


def _show_known(queue: str, remote: Remote, wait_ms: int) -> bool:
    """Print the head item and its attributes; return False if there is none."""
    from kestrelctl.items.listing import details

    api = remote.reader_api()
    name = os.fsencode(queue)
    item = remote.client().over_restarts(
        lambda client, left_ms: client.fetch_item(name, b"/peek", left_ms, with_id=True), wait_ms
    )
    if item is None:
        return False
    found = [one for one in api.page(queue, {"first": item.id, "limit": 1}).items if one.id == item.id]
    write_data(frame(item.data, Framing.JSON, details(found[0]) if found else {"id": item.id}))
    return True
