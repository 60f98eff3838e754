"""`kestrelctl get`: take items from a queue."""

import os
from typing import TYPE_CHECKING, Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import EmptyOkOption, Frames, QueueArgument, Remote, WaitOption, span_ms
from kestrelctl.items.delivering import give_to_command, give_to_stdout, no_item, take_from_any
from kestrelctl.items.framing import Framing
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.checks import holder_problem

if TYPE_CHECKING:
    from kestrelctl.remote.fleet import Fleet


def get(
    queue: QueueArgument,
    frames: Frames,
    remote: Remote,
    number: Annotated[int | None, option("-n", min=1, metavar="N", help="Take up to N items.")] = None,
    take_all: Annotated[bool, option("--all", help="Take items until the queue is empty.")] = False,
    wait: WaitOption = None,
    command: Annotated[
        str | None,
        option(
            "--exec",
            metavar="CMD",
            help="Run CMD in /bin/sh with the item on its stdin; take the item if it exits 0.",
        ),
    ] = None,
    lease: Annotated[
        int | None,
        option(
            metavar="SPAN",
            parser=span_ms,
            help="Lease the item for this long; with --exec the lease is extended while CMD runs.",
        ),
    ] = None,
    by: Annotated[
        str, option(metavar="NAME", help="With --lease: the holder's name, shown by `items` and `consumers`.")
    ] = "",
    empty_ok: EmptyOkOption = False,
    no_create: Annotated[
        bool, option("--no-create", help="Exit 1 when there is no such queue, instead of creating it.")
    ] = False,
) -> None:
    """Take one item, or several, and write them to stdout.

    An item leaves the queue once it is written, or once --exec's CMD exited 0. If that fails, it goes back to
    the head of the queue; with -n or --all the first failure ends the run. Of several items that go into a
    pipe, each leaves the queue once the reader has it: `| head` loses nothing. --wait counts for each item, and goes
    on over a restart of the server.

    With --lease an item belongs to no connection. If CMD exits 0 it is confirmed; otherwise it has failed, and waits
    or is moved as retry_delays and max_retries of the queue say. If kestrelctl dies, the item is delivered again once
    the lease is over. If the server is restarted, the lease goes on, and the confirmation is repeated until the lease
    is over; "done, or lost" says that its outcome is unknown, exit 85 or 69. Without --exec the item stays leased, and
    --json prints its token, which `kestrelctl lease` takes to confirm it. Servers that know no leases refuse them, exit
    77, and nothing is taken. Older ones that know no names of holders are not told that of --by.

    Of a context with several servers one is asked at random, then the others while there is none.

    A queue that is not there is created and stays, as consumers may come before producers do; --no-create refuses it.

    Exit 1 when there was no item, 124 when --wait is over without one.
    """
    if number is not None and take_all:
        raise Failure(ExitCode.USAGE, "-n and --all are mutually exclusive")
    if command is not None and frames.is_given:
        raise Failure(
            ExitCode.USAGE, "--exec and framing options are mutually exclusive: the command gets the raw bytes"
        )
    if lease is not None and command is None and not frames.json:
        raise Failure(
            ExitCode.USAGE, "--lease requires --exec or --json, since the token is needed to confirm the item"
        )
    if by and lease is None:
        raise Failure(ExitCode.USAGE, "--by is the name of a lease's holder: it requires --lease")
    if by and (problem := holder_problem(by)):
        raise Failure(ExitCode.USAGE, f"--by needs a name that {problem}")
    several = take_all or (number or 1) > 1
    framing = frames.framing(Framing.LINES if several else Framing.RAW)
    fleet = remote.fleet()
    if no_create:
        _leave_out_those_without(fleet, queue)
    give = give_to_stdout(framing, several=several)
    limit = None if take_all else number or 1
    if lease is not None:
        from kestrelctl.items.leasing import take_leases

        taken = take_leases(fleet, os.fsencode(queue), lease, command, limit=limit, wait_ms=wait or 0, by=by)
    else:
        taken = take_from_any(
            fleet,
            os.fsencode(queue),
            lambda client: give if command is None else give_to_command(command, client),
            limit=limit,
            wait_ms=wait or 0,
        )
    if not taken and not empty_ok:
        raise no_item(queue, waited=bool(wait))


def _leave_out_those_without(fleet: "Fleet", queue: str) -> None:
    """Drop servers without the queue from the fleet. Raises Failure if no server has it."""
    from kestrelctl.commands.dropping import no_such_queue

    having = {address for address, figures in fleet.each(lambda one: one.queue_stats(os.fsencode(queue))) if figures}
    for client in [one for one in fleet.clients if one.address not in having]:
        client.close()
        fleet.clients.remove(client)
    if not fleet.clients:
        fleet.end()
        raise no_such_queue(queue)
