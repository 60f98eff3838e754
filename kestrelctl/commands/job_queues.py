"""`kestrelctl jobs ls, scan, peek, stat, count, pause, dead, redrive, qdel, restart`: queues of jobs."""

import os
from contextlib import suppress
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice, repeat
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import Answer, JobQueueArgument, Output, RemoteJobs, YesOption, duration_ms
from kestrelctl.items.job_rows import (
    DEAD_COLUMNS,
    LETTER_COLUMNS,
    PEEK_COLUMNS,
    QUEUE_COLUMNS,
    SCAN_COLUMNS,
    peeked_row,
    queue_row,
    shown_record,
)
from kestrelctl.remote.jobs import SAVE_MS
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, remark, say
from kestreld.client import job_commands as commands
from kestreld.client.blocks import text

if TYPE_CHECKING:
    from kestreld.client.job_commands import JobCommand

T = TypeVar("T")
ROUND_S: Final = 0.1

AllNodesOption = Annotated[
    bool, option("--all-nodes", help="Run on every node of the cluster; exit 69 if one cannot be reached.")
]


class JobState(StrEnum):
    """States of jobs, named as in Disque."""

    ACTIVE = "active"
    QUEUED = "queued"
    ACKED = "acked"
    WAIT_REPL = "wait-repl"


class Pause(StrEnum):
    """Argument of PAUSE: the direction to pause, NONE to resume, STATE to ask."""

    IN = "in"
    OUT = "out"
    ALL = "all"
    NONE = "none"
    STATE = "state"


def jobs_ls(
    output: Output,
    remote: RemoteJobs,
    patterns: Annotated[
        list[str] | None,
        argument(metavar="[PATTERN]...", help="Only names like one of these: * and ? as in a shell."),
    ] = None,
) -> None:
    """Print a row for each queue of jobs: counts of queued, active and delayed jobs and of waiting clients.

    Exit 1 when there is none.
    """
    client = remote.client()
    names = sorted(
        name
        for name in client.scan(commands.qscan)
        if not patterns or any(fnmatchcase(text(name), pattern) for pattern in patterns)
    )
    rows = [queue_row(figures, output.layout) for figures in client.figures(names)]
    output.write_rows(rows, QUEUE_COLUMNS)
    if not rows:
        raise Failure(ExitCode.NEGATIVE, "there are no queues")


def jobs_scan(
    output: Output,
    remote: RemoteJobs,
    queues: Annotated[
        list[str] | None,
        option("--in", metavar="NAME", help="Only of this queue; may be repeated.", show_default=False),
    ] = None,
    states: Annotated[
        list[JobState] | None, option("--state", help="Only in this state; may be repeated.", show_default=False)
    ] = None,
    limit: Annotated[int | None, option(metavar="N", min=1, help="Maximum number of jobs.", show_default=False)] = None,
) -> None:
    """Print a row for each job, whatever its state. Jobs that come or go meanwhile may be missed.

    Exit 1 when there is none.
    """
    client = remote.client()
    names = [os.fsencode(name) for name in queues or ()]
    chosen = [state.value for state in states or ()]
    found = client.scan(lambda cursor: commands.jscan(cursor, names, chosen))
    rows = (shown_record(shown, output.layout) for shown in islice(found, limit))
    if not output.write_rows(rows, SCAN_COLUMNS):
        raise Failure(ExitCode.NEGATIVE, "no matching jobs")


def jobs_peek(
    name: JobQueueArgument,
    output: Output,
    remote: RemoteJobs,
    number: Annotated[int, option("-n", min=1, metavar="N", help="Print up to N jobs.")] = 10,
    newest: Annotated[bool, option("--newest", help="Print the newest first instead of the oldest.")] = False,
    origin: Annotated[bool, option("--origin", help="For dead letters: print their origin and reason, too.")] = False,
) -> None:
    """Print the jobs of a queue that are to be delivered next. They stay where they are.

    Exit 1 when there is none.
    """
    client = remote.client()
    found = client.ask(commands.qpeek(os.fsencode(name), -number if newest else number))
    known = client.dead_letters(found) if origin else repeat({})
    rows = [peeked_row(job, output.layout, more) for job, more in zip(found, known, strict=False)]
    if not output.write_rows(rows, DEAD_COLUMNS if origin else PEEK_COLUMNS):
        raise Failure(ExitCode.NEGATIVE, f"{name} is empty")


def jobs_dead(
    name: JobQueueArgument,
    output: Output,
    remote: RemoteJobs,
    number: Annotated[int, option("-n", min=1, metavar="N", help="Show up to N jobs, oldest first.")] = 100,
) -> None:
    """List the dead letters of a queue: where each comes from and why, how often it failed, when it was put first.

    They stay where they are. `reason` is retries or asked (by DEADJOB), `nacks` how often workers gave it back,
    `additional_deliveries` how often it was queued again for other reasons, `put_at_ms` when it was added, `dead_at_ms`
    since when it is a dead letter. Other jobs of the queue are left out, and those that workers have.

    Exit 1 when there is none.
    """
    client = remote.client()
    found = client.ask(commands.qpeek(os.fsencode(name), number))
    rows = [peeked_row(job, output.layout, letter) for job, letter in client.letters(found)]
    if not output.write_rows(rows, LETTER_COLUMNS):
        raise Failure(ExitCode.NEGATIVE, f"{name} has no dead letters")


def jobs_stat(name: JobQueueArgument, output: Output, remote: RemoteJobs) -> None:
    """Print the figures of a queue of jobs.

    Exit 1 when there is none of that name.
    """
    figures = next(remote.client().figures([os.fsencode(name)]), None)
    if figures is None:
        raise Failure(ExitCode.NEGATIVE, f"no such queue: {name}")
    output.write_record(queue_row(figures, output.layout))


def jobs_count(name: JobQueueArgument, output: Output, remote: RemoteJobs) -> None:
    """Print how many jobs of a queue are queued, with workers, and delayed."""
    counts = remote.client().ask(commands.qcount(os.fsencode(name)))
    output.write_record(shown_record(counts or {}, output.layout))


def jobs_pause(
    name: JobQueueArgument,
    what: Annotated[
        Pause,
        argument(
            metavar="in|out|all|none|state",
            help="in: take no jobs; out: hand none out; all: both; none: resume; state: only print it.",
            show_default=False,
        ),
    ],
    answer: Answer,
    remote: RemoteJobs,
    all_nodes: AllNodesOption = False,
) -> None:
    """Pause or resume a queue of jobs, and print its state.

    The state is in, out, all or none; with --all-nodes each that a node has is printed once.
    """
    states, failure = _ask(remote, commands.pause(os.fsencode(name), what.value), all_nodes=all_nodes)
    answer.write(*[{"state": state, "queue": name} for state in dict.fromkeys(states)])
    if failure:
        raise failure


def jobs_redrive(
    name: JobQueueArgument,
    answer: Answer,
    remote: RemoteJobs,
    most: Annotated[
        int | None, option("--max", metavar="N", min=1, help="Send back at most this many, oldest first.")
    ] = None,
    yes: YesOption = False,
    all_nodes: AllNodesOption = False,
) -> None:
    """Send the dead letters of a queue back to the queues they come from, and print how many.

    Their counters begin anew. Jobs that were added to this queue itself stay. In a cluster each node sends those back
    that are queued there.

    Exit 1 when there was none.
    """
    if all_nodes and most is not None:
        raise Failure(ExitCode.USAGE, "--max is for one node: it cannot be used with --all-nodes")
    confirm(f"send the dead letters of {name} back where they come from?", yes=yes)
    sent, failure = _ask(remote, commands.redrive(os.fsencode(name), most), all_nodes=all_nodes)
    answer.write({"jobs": sum(sent), "queue": name})
    if failure:
        raise failure
    if not sum(sent):
        raise Failure(ExitCode.NEGATIVE, f"{name} has no dead letters")


def jobs_qdel(
    name: JobQueueArgument,
    answer: Answer,
    remote: RemoteJobs,
    yes: YesOption = False,
    all_nodes: AllNodesOption = False,
) -> None:
    """Delete all jobs of a queue, whatever their states, and print how many.

    In a cluster those that the node holds: copies elsewhere stay, and are delivered. --all-nodes deletes these, too,
    and counts each copy.

    Exit 1 when there was none.
    """
    confirm(f"delete all jobs of {name}{' at all nodes' if all_nodes else ''}?", yes=yes)
    deleted, failure = _ask(remote, commands.qdel(os.fsencode(name)), all_nodes=all_nodes)
    answer.write({"jobs": sum(deleted), "queue": name})
    if failure:
        raise failure
    if not sum(deleted):
        raise Failure(ExitCode.NEGATIVE, f"{name} has no jobs")


def _ask(remote: RemoteJobs, command: "JobCommand[T]", *, all_nodes: bool) -> tuple[list[T], Failure | None]:
    """Replies of the node, or of all nodes of its cluster, and the Failure to end with if some could not be asked."""
    if not all_nodes:
        return [remote.client().ask(command)], None
    nodes = remote.cluster()
    view = nodes.look()
    answers = nodes.ask_each([one.address for one in view.nodes], lambda client: client.ask(command)).values()
    failures = [*view.failures.values(), *[answer for answer in answers if isinstance(answer, Failure)]]
    for failure in failures:
        say(f"node left out: {failure.words}")
    found = [answer for answer in answers if not isinstance(answer, Failure)]
    return found, Failure(ExitCode.UNREACHABLE, "") if failures else None


def jobs_restart(
    remote: RemoteJobs,
    wait: Annotated[
        int | None,
        option("--wait", metavar="SPAN", parser=duration_ms, help="Wait up to this long until it serves jobs again."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Stop the server so that its next start restores the queues of jobs as they are now.

    Disque's controlled restart: CONFIG SET aof-enqueue-jobs-once yes, CONFIG REWRITE, SHUTDOWN REWRITE-AOF. After any
    other stop jobs are active, and are queued at their retry time. It returns once the connection is closed; who
    starts the server again is systemd or you. Where one of the three fails the server goes on, and the exit code is 77.

    Exit 124 when --wait is over, and the server does not serve jobs again.
    """
    confirm("stop the server, and restore its queues of jobs at the next start?", yes=yes)
    client = remote.client()
    client.ask(commands.done(["CONFIG", "SET", "aof-enqueue-jobs-once", "yes"]))
    try:
        client.ask(commands.done(["CONFIG", "REWRITE"]))
        client.until_closed(commands.done(["SHUTDOWN", "REWRITE-AOF"], SAVE_MS))
    except Failure:
        with suppress(Failure):
            again = remote.client()
            again.ask(commands.done(["CONFIG", "SET", "aof-enqueue-jobs-once", "no"]))
            again.ask(commands.done(["CONFIG", "REWRITE"]))
        raise
    remark("stopped; the next start restores the queues")
    if wait is not None:
        _until_back(remote, wait / 1000)
        remark("the server is back")


def _until_back(remote: RemoteJobs, wait_s: float) -> None:
    until_s = monotonic() + wait_s
    while True:
        try:
            remote.client().ask(commands.qlen(b""))
        except Failure as failure:
            if monotonic() >= until_s:
                raise Failure(ExitCode.WAIT_EXPIRED, f"the server has not come back: {failure.words}") from failure
            sleep(ROUND_S)
        else:
            return
