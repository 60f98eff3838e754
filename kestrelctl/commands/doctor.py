"""`kestrelctl doctor`: check a server and its machine."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import Output, Remote, way_to_one
from kestrelctl.shell.exit_codes import Ended


def doctor(
    output: Output,
    remote: Remote,
    config: Annotated[
        str | None,
        option(metavar="FILE", help="The server's configuration file (default: the one it uses).", show_default=False),
    ] = None,
    spool: Annotated[
        str | None,
        option(metavar="DIR", help="The server's queue_path (default: the one it uses).", show_default=False),
    ] = None,
) -> None:
    """Check a server and its machine: a line for each check, with its state and a remedy.

    The server and its queues, clocks, settings in the file against those in force, the admin port, file descriptors,
    the spool's permissions, room and latency of its disk. On another machine, and as another account than the
    server's or root, some of it cannot be seen. Nothing is changed; for the latency a file without a name is written.

    Exit 0 ok, 1 warning, 88 critical, 69 the server cannot be reached.
    """
    from kestrelctl.doctor.results import COLUMNS, exit_code
    from kestrelctl.doctor.rounds import Round

    way = way_to_one(remote.server)
    round_ = Round(remote.client(), way.servers[0], way.login, config, spool)
    results = list(round_.results())
    output.write_rows([result.row() for result in results], COLUMNS)
    if round_.unreachable is not None:
        raise round_.unreachable
    raise Ended(exit_code(results))
