"""`kestrelctl wait`: wait until a queue has a given number of items."""

from typing import Annotated

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import (
    TIMEOUT_DEFAULT,
    QueueArgument,
    Remote,
    ServerOption,
    duration_ms,
    line_options,
)
from kestrelctl.shell.output import remark


def wait(
    queue: QueueArgument,
    empty: Annotated[bool, option("--empty", help="Wait until it has no items and no open reads.")] = False,
    items: Annotated[
        str | None,
        option("--items", metavar="N", help="Wait until it has N items or more; or '<N', '<=N', '=N', '>N'."),
    ] = None,
    limit: Annotated[
        int | None,
        option("--timeout", metavar="SPAN", parser=duration_ms, help="Give up after this (default: never)."),
    ] = None,
    interval: Annotated[str, option("--interval", "-i", metavar="SPAN", help="Refresh interval.")] = "500ms",
    missing_ok: Annotated[
        bool, option("--missing-ok", help="Treat a missing queue as empty instead of exit 1.")
    ] = False,
    server: ServerOption = "",
) -> None:
    """Wait until a queue is empty, or has a given number of items. Nothing is taken.

    --timeout here is how long to wait in all; before the verb it is how long the server may take to answer.

    Exit 124 when --timeout is over, 1 when there is no such queue, 84 when it is stopped: its journal is damaged.
    """
    from kestrelctl.items.waiting import EMPTY, Awaited, wait_for

    if empty == (items is not None):
        raise BadValue("give either --empty or --items N")
    try:
        awaited = EMPTY if items is None else Awaited.parse(items)
    except ValueError as error:
        raise BadValue(str(error)) from error
    interval_ms = duration_ms(interval)
    if interval_ms == 0:
        raise BadValue("--interval must be greater than 0")
    fleet = Remote(server, str(line_options.get("timeout", TIMEOUT_DEFAULT))).fleet()
    count = wait_for(fleet, queue, awaited, limit_ms=limit, interval_ms=interval_ms, missing_ok=missing_ok)
    remark(f"{queue} has items={count}")
