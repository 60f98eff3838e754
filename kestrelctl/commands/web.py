"""kestrelctl web"""

from typing import Annotated

import typer

from kestrelctl.commands import top
from kestrelctl.commands.options import TimeoutOption


def web(
    server: top.ServersOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on: loopback only; port 0 picks a free one.")
    ] = "127.0.0.1:8022",
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Anyone with the address may flush, delete, reload and write files.")
    ] = False,
    interval: top.IntervalOption = "1s",
    filter: top.FilterOption = "",
    sort: top.SortOption = "queue",
    theme: top.ThemeOption = None,
    timeout: TimeoutOption = "",
) -> None:
    """Show the console of `top` in a browser on this machine, until interrupted.

    The address it prints has a secret in it: whoever knows it sees what you may see. Nothing can be changed from the
    browser without --allow-actions. Every window is a console of its own, at most eight at a time. From elsewhere,
    forward the port: ssh -L 8022:127.0.0.1:8022 HOST.
    """
    top.sort_of(sort)
    top.spans_ms(interval, timeout)
    options = ["--interval", interval, "--filter", filter, "--sort", sort, "--timeout", timeout]
    way = top.way_to_all(server)
    for address in way.servers:
        options += ["--server", address]
    if theme is not None:
        options += ["--theme", theme]
    if not allow_actions:
        options.append("--read-only")
    # aiohttp and what draws in browsers: no other verb needs them.
    from tui.web import serve

    serve(listen, options, way.login)
