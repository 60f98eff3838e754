"""`kestrelctl wait`: wait until a queue has a given number of items."""

from typing import Annotated

import typer

from kestrelctl.commands.options import QueueArgument, Remote, ServerOption, duration_ms
from kestrelctl.shell.output import remark


def wait(
    context: typer.Context,
    queue: QueueArgument,
    empty: Annotated[bool, typer.Option("--empty", help="Wait until it has no items and no open reads.")] = False,
    items: Annotated[
        str | None,
        typer.Option("--items", metavar="N", help="Wait until it has N items or more; or '<N', '<=N', '=N', '>N'."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--timeout", metavar="SPAN", parser=duration_ms, help="Give up after this (default: never)."),
    ] = None,
    interval: Annotated[str, typer.Option("--interval", "-i", metavar="SPAN", help="Refresh interval.")] = "500ms",
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="Treat a missing queue as empty instead of exit 1.")
    ] = False,
    server: ServerOption = "",
) -> None:
    """Wait until a queue is empty, or has a given number of items. Nothing is taken.

    --timeout here is how long to wait in all; before the verb it is how long the server may take to answer.

    Exit 124 when --timeout is over, 1 when there is no such queue, 84 when it is stopped: its journal is damaged.
    """
    from kestrelctl.items.waiting import EMPTY, Awaited, wait_for

    if empty == (items is not None):
        raise typer.BadParameter("give either --empty or --items N")
    try:
        awaited = EMPTY if items is None else Awaited.parse(items)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    interval_ms = duration_ms(interval)
    if interval_ms == 0:
        raise typer.BadParameter("--interval must be greater than 0")
    fleet = Remote(server, str(context.find_root().params["timeout"])).fleet()
    count = wait_for(fleet, queue, awaited, limit_ms=limit, interval_ms=interval_ms, missing_ok=missing_ok)
    remark(f"{queue} has items={count}")
