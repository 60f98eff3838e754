"""kestrelctl peek"""

import os

from kestrelctl.commands.options import (
    EmptyOkOption,
    JsonOption,
    LengthOption,
    LinesOption,
    NullOption,
    QueueArgument,
    RawOption,
    ServerOption,
    TimeoutOption,
    WaitOption,
    connect_all,
)
from kestrelctl.items.delivering import give_to_stdout, no_item
from kestrelctl.items.framing import Framing, choose
from kestrelctl.shell.output import remark


def peek(
    queue: QueueArgument,
    wait: WaitOption = None,
    raw: RawOption = False,
    lines: LinesOption = False,
    null: NullOption = False,
    length_prefixed: LengthOption = False,
    json: JsonOption = False,
    empty_ok: EmptyOkOption = False,
    server: ServerOption = "",
    timeout: TimeoutOption = "",
) -> None:
    """Print the item at the head of a queue without taking it.

    Of a context with several servers it is the head of any that has one; --json and a remark say which.

    Exit 1 when there is no item, 124 when --wait is over without one.
    """
    framing = choose(Framing.RAW, raw=raw, lines=lines, null=null, length_prefixed=length_prefixed, json=json)
    cluster = connect_all(server, timeout)
    found = cluster.first(lambda client, wait_ms: client.peek(os.fsencode(queue), wait_ms), wait or 0)
    if found is not None:
        address, item = found
        give_to_stdout(framing, several=False, server="" if cluster.is_one else address)(item)
        if not cluster.is_one:
            remark(f"at {address}")
    elif not empty_ok:
        raise no_item(queue, waited=bool(wait))
