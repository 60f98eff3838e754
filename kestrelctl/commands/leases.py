"""`kestrelctl leases`: list what a holder has leased, with the tokens."""

import os
from typing import Annotated, Final

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import Output, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.checks import holder_problem

COLUMNS: Final = ["queue", "id", "token", "left_ms", "length_ms"]


def leases(
    output: Output,
    remote: Remote,
    by: Annotated[str, option(metavar="NAME", help="The holder, as get --lease --by named it.")],
    queue: Annotated[
        str | None, argument(metavar="[QUEUE]", help="Only leases from this queue.", show_default=False)
    ] = None,
) -> None:
    """List what a holder has leased: queue, item id, token, the time that is left, and the length of the lease.

    So a worker that starts again learns what it had: also items whose reply it never got, and leases that outlived a
    restart of the server. `kestrelctl lease give-back QUEUE TOKEN` gives one back. Queues that you may not get from are
    left out, and those that are stopped unless QUEUE names one.

    Exit 1 when there is none, 77 when the server does not know the command, 84 when QUEUE is stopped, as its journal is
    damaged.
    """
    if problem := holder_problem(by):
        raise Failure(ExitCode.USAGE, f"--by needs a name that {problem}")
    fleet = remote.fleet()
    found = fleet.each(lambda client: client.leases(by, os.fsencode(queue or "")))
    at = [{} if fleet.is_one else {"server": address} for address, _ in found]
    rows = [beside | lease._asdict() for beside, (_, listed) in zip(at, found, strict=True) for lease in listed]
    output.write_rows(rows, COLUMNS if fleet.is_one else ["server", *COLUMNS])
    fleet.end()
    if not rows:
        raise Failure(ExitCode.NEGATIVE, f"{by} has no leases" + (f" from {queue}" if queue else ""))
