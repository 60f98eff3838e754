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
    connect,
)
from kestrelctl.framing import Framing, choose
from kestrelctl.taking import give_to_stdout, no_item


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
    """Write the item at the head of a queue to stdout and leave it there.

    Exit 1 when there is no item, 124 when --wait is over without one.
    """
    framing = choose(Framing.RAW, raw=raw, lines=lines, null=null, length_prefixed=length_prefixed, json=json)
    item = connect(server, timeout).peek(os.fsencode(queue), wait or 0)
    if item is not None:
        give_to_stdout(framing, several=False)(item)
    elif not empty_ok:
        raise no_item(queue, waited=bool(wait))
