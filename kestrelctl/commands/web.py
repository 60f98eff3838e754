"""`kestrelctl web`: show the console of `top` in a browser."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.watched import Watched


def web(
    watched: Watched,
    listen: Annotated[
        str, option(metavar="HOST:PORT", help="Address to listen on: loopback only; port 0 picks a free one.")
    ] = "127.0.0.1:8022",
    allow_actions: Annotated[
        bool, option("--allow-actions", help="Anyone with the address may flush, delete, reload and write files.")
    ] = False,
) -> None:
    """Show the console of `top` in a browser on this machine, until interrupted.

    The address it prints contains a secret: with it, anyone sees all that you may see. Nothing can be changed from the
    browser without --allow-actions. Every window is a console of its own, at most eight at a time. From elsewhere,
    forward the port: ssh -L 8022:127.0.0.1:8022 HOST.
    """
    watched.order()
    watched.spans_ms()
    named = {"interval": watched.interval, "filter": watched.filter, "sort": watched.sort, "timeout": watched.timeout}
    options = [word for name, value in named.items() if value for word in (f"--{name}", value)]
    way = watched.way()
    for address in way.servers:
        options += ["--server", address]
    if watched.theme is not None:
        options += ["--theme", watched.theme]
    if not allow_actions:
        options.append("--read-only")
    # aiohttp and the browser driver: no other verb needs them.
    from tui.web import serve

    serve(listen, options, way.login)
