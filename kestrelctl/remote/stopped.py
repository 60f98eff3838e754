"""Messages on queues that a server has stopped because their journals are damaged, with the repair command."""

from collections.abc import Mapping, Sequence
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

NAMES_SHOWN_MAX: Final = 5
JOBS_REMEDY: Final = "stop the server and run: kestrelctl journal-verify --repair"


def repair_command(queue: str, server: str = "") -> str:
    """The command that repairs and reopens the queue; `server` "" = the default server."""
    from shlex import quote  # few commands need it

    return f"kestrelctl {f'-s {quote(server)} ' if server else ''}repair {quote(queue)}"


def stopped_queue(queue: str, server: str = "") -> Failure:
    """The Failure for a stopped queue. `server` "" = there is only one."""
    where = f" at {server}" if server else ""
    words = f"{queue} is stopped{where}: its journal is damaged, and may hold items; run: "
    return Failure(ExitCode.QUEUE_STOPPED, words + repair_command(queue, server))


def stopped_queues(names: Mapping[str, Sequence[str]]) -> Failure:
    """The Failure for several stopped queues, each with the servers that have stopped it."""
    (name, (server, *_)), *others = names.items()
    if not others:
        return stopped_queue(name, server)
    shown = ", ".join([*names][:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
    words = f"{len(names)} queues are stopped, as their journals are damaged: {shown}; run for each: "
    return Failure(ExitCode.QUEUE_STOPPED, words + repair_command(name, server))
