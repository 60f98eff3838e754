"""kestrelctl doctor"""

from typing import Annotated

import typer

from kestrelctl.commands.options import (
    FormatOption,
    NoHeadersOption,
    ServerOption,
    TimeoutOption,
    answer_ms,
    way_to_one,
)
from kestrelctl.shell.output import write_rows


def doctor(
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The server's configuration file (default: the one it uses).", show_default=False
        ),
    ] = None,
    spool: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The server's queue_path (default: the one it uses).", show_default=False),
    ] = None,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
    server: ServerOption = "",
    timeout: TimeoutOption = "",
) -> None:
    """Check a server and its machine: a line for each check, with its state and what to do.

    The server and its queues, clocks, settings in the file against those in force, the admin port, file descriptors,
    the spool's permissions, room and latency of its disk. On another machine, and as another account than the
    server's or root, some of it cannot be seen. Nothing is changed; for the latency a file without a name is written.

    Exit 0 ok, 1 warning, 88 critical, 69 the server cannot be reached.
    """
    from kestrelctl.doctor.results import COLUMNS, exit_code
    from kestrelctl.doctor.rounds import Round
    from kestrelctl.remote.client import KestrelClient

    way = way_to_one(server)
    client = KestrelClient(way.servers[0], answer_ms(timeout), way.login)
    round_ = Round(client, way.servers[0], way.login, config, spool)
    results = list(round_.results())
    write_rows([result.row() for result in results], COLUMNS, output, headers=not no_headers)
    if round_.unreachable is not None:
        raise round_.unreachable
    raise typer.Exit(exit_code(results))
