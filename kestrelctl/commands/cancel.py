"""`kestrelctl cancel`: drop an item that is not due yet."""

import os
from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark


def cancel(
    queue: QueueArgument,
    key: Annotated[str, argument(metavar="KEY|ID", help="The key that the item was put with, or its id.")],
    remote: Remote,
    is_id: Annotated[bool, option("--id", help="It is an id, not a key.")] = False,
    is_key: Annotated[bool, option("--key", help="It is a key, although it is a number.")] = False,
) -> None:
    """Drop an item that is not due yet. A number is an id, unless --key says otherwise.

    By key: in the queue and in its children, wherever it is delayed or retrying; the key may be used again. Of a
    context with several servers all are asked. It requires the right put.

    By id: in this queue alone, by the server's admin port, with the right get. `kestrelctl items QUEUE --state delayed`
    shows the ids. It cannot be undone.

    Exit 1 when no such item is delayed or retrying, 77 when somebody has leased it.
    """
    if is_id and is_key:
        raise Failure(ExitCode.USAGE, "--id and --key are mutually exclusive")
    is_number = key.isascii() and key.isdecimal() and len(key) <= 19
    if is_id and not is_number:
        raise Failure(ExitCode.USAGE, f"{key!r} is not an item id")
    if is_number and not is_key:
        was = remote.reader_api().act(queue, int(key), "cancel")
        remark(f"cancelled item {key} of {queue}, which was {was}")
        return
    fleet = remote.fleet()
    found = fleet.each(lambda client: client.cancel(os.fsencode(queue), os.fsencode(key)))
    fleet.end()
    if not any(is_cancelled for _, is_cancelled in found):
        raise Failure(ExitCode.NEGATIVE, f"no item of {queue} with the key {key} is delayed or retrying")
    remark(f"cancelled {key} of {queue}")
