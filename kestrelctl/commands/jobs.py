"""`kestrelctl jobs add, get, ack, fastack, nack, enqueue, dequeue, delete, working, show, wait`: single jobs."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import (
    Answer,
    EmptyOkOption,
    JobQueueArgument,
    LengthOption,
    NullOption,
    Output,
    RemoteJobs,
    WaitOption,
    data_is_literal,
    duration_ms,
    some_seconds,
    whole_seconds,
)
from kestrelctl.items.framing import Framing, choose
from kestrelctl.items.job_rows import JOB_COLUMNS, fetched_row, shown_record
from kestrelctl.items.putting import open_source, to_batches
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import STDIN, counted, read_chunks, remark, wait_until_read, write_data
from kestreld.client import job_commands as commands
from kestreld.client.job_commands import Job, JobCommand

if TYPE_CHECKING:
    from kestrelctl.remote.jobs import JobsClient

IdArgument = Annotated[str, argument(metavar="ID", help="The id of the job.", show_default=False)]
IdsArgument = Annotated[
    list[str],
    argument(metavar="ID...|-", help="The ids of the jobs. -: those on stdin, one a line.", show_default=False),
]


def jobs_add(
    name: JobQueueArgument,
    remote: RemoteJobs,
    data: Annotated[
        str | None,
        argument(metavar="DATA|-|@FILE", help="The body. - or nothing: stdin. @FILE: the contents of FILE."),
    ] = None,
    lines: Annotated[bool, option("--lines", help="Each line is a job; an empty line is an empty body.")] = False,
    null: NullOption = False,
    length_prefixed: LengthOption = False,
    delay: Annotated[
        int | None,
        option(metavar="SPAN", parser=whole_seconds, help="Queue it after this: 5s, 10m.", show_default=False),
    ] = None,
    ttl: Annotated[
        int | None, option(metavar="SPAN", parser=some_seconds, help="Delete it after this, whatever its state: 1d.")
    ] = None,
    retry: Annotated[
        int | None,
        option(metavar="SPAN", parser=whole_seconds, help="Queue it again after this unless acknowledged; 0 = never."),
    ] = None,
    retries: Annotated[
        int | None, option(metavar="N", min=0, help="Number of retries before it becomes a dead letter.")
    ] = None,
    maxlen: Annotated[int | None, option(metavar="N", min=1, help="Refuse it if the queue has N jobs or more.")] = None,
    replicate: Annotated[
        int | None,
        option(metavar="N", min=1, help="Number of nodes that must hold it before its id is printed."),
    ] = None,
    own_id: Annotated[
        str, option("--id", metavar="KEY", help="Add it once, even if it is added again with this key.")
    ] = "",
) -> None:
    """Add a job to a queue, or many with --lines, and print their ids.

    DATA alone behind -- is the body, whatever it begins with.

    In a cluster a job is on three nodes, or as many as there are; --retry 0 needs --replicate 1.

    Exit 80 when the queue has --maxlen jobs, the node is out of memory or not enough nodes take a copy, 75 when the
    queue is paused, 81 when some were added before that.
    """
    if own_id and (lines or null or length_prefixed):
        raise Failure(ExitCode.USAGE, "--id is for one job: it cannot be used with --lines or another framing")
    framing = choose(Framing.RAW, lines=lines, null=null, length_prefixed=length_prefixed)
    client, added = remote.client(), 0
    try:
        for body in (
            body for batch in to_batches(open_source(data, is_literal=data_is_literal()), framing) for body in batch
        ):
            command = commands.add(
                os.fsencode(name),
                body,
                client.answer_ms,
                delay=delay or 0,
                ttl=ttl,
                retry=retry,
                maxlen=maxlen,
                retries=retries,
                replicate=replicate,
                key=os.fsencode(own_id) or None,
            )
            write_data(client.ask(command).encode() + b"\n")
            added += 1
    except Failure as failure:
        if added and failure.words:
            raise Failure(ExitCode.PARTLY_STORED, f"{failure.words}; added {counted(added, 'job')}") from failure
        raise


def jobs_get(
    names: Annotated[
        list[str],
        argument(
            metavar="NAME...", help="The queues of jobs, by priority: the first is emptied first.", show_default=False
        ),
    ],
    output: Output,
    remote: RemoteJobs,
    number: Annotated[int, option("-n", min=1, metavar="N", help="Fetch up to N jobs.")] = 1,
    wait: WaitOption = None,
    match: Annotated[bool, option("--match", help="Treat the names as patterns: mail.*")] = False,
    is_acknowledged: Annotated[bool, option("--ack", help="Acknowledge the jobs once they are written.")] = False,
    raw: Annotated[bool, option("--raw", help="Write the bodies and nothing else; requires --ack.")] = False,
    command: Annotated[
        str | None,
        option(
            "--exec",
            metavar="CMD",
            help="Run CMD in /bin/sh with each body on its stdin; acknowledge the job if it exits 0.",
        ),
    ] = None,
    empty_ok: EmptyOkOption = False,
) -> None:
    """Fetch a job, or several, and print id, queue and body. -o json prints the body as it is, or in base64.

    A job that is not acknowledged is delivered again after its retry time. Of several queues each gives a job in turn.
    If there is none, --wait waits for one job, even with a larger -n.

    --exec fetches one job after the other, up to -n, and runs CMD for each. While CMD runs, WORKING keeps the job. If
    it fails, the job is given back, which counts as a failure, and the run ends.

    Exit 1 when there was no job, 124 when --wait is over without one, 85 when CMD failed.
    """
    if raw and not is_acknowledged:
        raise Failure(ExitCode.USAGE, "--raw requires --ack: without its id nobody can acknowledge a job")
    if command is not None and (is_acknowledged or output != Output()):
        raise Failure(ExitCode.USAGE, "--exec and options of the output are mutually exclusive")
    client = remote.client()
    queues = [os.fsencode(name) for name in names]
    if command is not None:
        fetch = commands.get(queues, 1, wait or 0, is_pattern=match)
        _work(client, queues, fetch, command, number, empty_ok=empty_ok)
        return
    found = client.ask(commands.get(queues, number, wait or 0, is_pattern=match))
    if not found:
        if empty_ok:
            return
        raise _no_job(queues, waited=bool(wait))
    if raw:
        for job in found:
            write_data(job.body)
    else:
        output.write_rows([fetched_row(job, output.layout) for job in found], JOB_COLUMNS)
    if is_acknowledged:
        wait_until_read()
        client.ask(commands.ack(found))


def _work(
    client: "JobsClient",
    queues: list[bytes],
    fetch: JobCommand[list[Job]],
    command: str,
    number: int,
    *,
    empty_ok: bool,
) -> None:
    from kestrelctl.items.job_work import work_on

    for done in range(number):
        found = client.ask_on_any(fetch)
        if not found:
            if done or empty_ok:
                return
            raise _no_job(queues, waited=bool(fetch.wait_ms))
        work_on(client, found[0], command)


def _no_job(queues: list[bytes], *, waited: bool) -> Failure:
    shown = ", ".join(map(os.fsdecode, queues))
    return Failure(ExitCode.WAIT_EXPIRED if waited else ExitCode.NEGATIVE, f"no job in {shown}")


def jobs_ack(ids: IdsArgument, remote: RemoteJobs) -> None:
    """Acknowledge jobs: they are done.

    Exit 1 when one of them was not there.
    """
    _end_each(remote, ids, commands.ack, "acknowledged")


def jobs_fastack(ids: IdsArgument, remote: RemoteJobs) -> None:
    """Acknowledge jobs without the nodes of a cluster making sure of it.

    Exit 1 when one of them was not there.
    """
    _end_each(remote, ids, commands.fastack, "acknowledged")


def jobs_nack(
    ids: IdsArgument,
    remote: RemoteJobs,
    delay: Annotated[
        int | None, option(metavar="SPAN", parser=whole_seconds, help="Queue them after this: 5s, 10m.")
    ] = None,
) -> None:
    """Give jobs back, which counts as a failure: they are queued again, or are dead letters.

    Exit 1 when one of them was not there.
    """
    _end_each(remote, ids, lambda some: commands.nack(some, delay), "given back")


def jobs_enqueue(ids: IdsArgument, remote: RemoteJobs) -> None:
    """Queue jobs now, which does not count as a failure.

    Exit 1 when one of them was not there, or was queued already.
    """
    _end_each(remote, ids, commands.enqueue, "queued", "do not exist, or were already queued")


def jobs_dequeue(ids: IdsArgument, remote: RemoteJobs) -> None:
    """Take jobs out of their queues. Those with a retry time are queued again after it.

    Exit 1 when one of them was not there, or was not queued.
    """
    _end_each(remote, ids, commands.dequeue, "taken out", "do not exist, or were not queued")


def jobs_delete(ids: IdsArgument, remote: RemoteJobs) -> None:
    """Delete jobs, whatever their states.

    Exit 1 when one of them was not there.
    """
    _end_each(remote, ids, commands.delete, "deleted")


def _end_each(
    remote: RemoteJobs,
    words: Sequence[str],
    command: Callable[[Sequence[str]], JobCommand[int]],
    what: str,
    why_not: str = "do not exist",
) -> None:
    ids = _ids(words)
    count = remote.client().ask(command(ids))
    if count < len(ids):
        raise Failure(ExitCode.NEGATIVE, f"{len(ids) - count} of {len(ids)} jobs {why_not}")
    remark(f"{what}: {count}")


def _ids(words: Sequence[str]) -> list[str]:
    if "-" not in words:
        return list(words)
    if len(words) > 1:
        raise BadValue("give ids, or - alone for those on stdin")
    found = b"".join(read_chunks(STDIN, "standard input")).split()
    if not found:
        raise Failure(ExitCode.NEGATIVE, "no job ids on stdin")
    return [os.fsdecode(job_id) for job_id in found]


def jobs_working(job_id: IdArgument, answer: Answer, remote: RemoteJobs) -> None:
    """Say that a job takes longer: its retry time begins again, whose seconds are printed.

    Exit 1 when there is no such job, 77 when half of its TTL is over.
    """
    answer.write({"seconds": remote.client().ask(commands.working(job_id)), "id": job_id})


def jobs_show(job_id: IdArgument, output: Output, remote: RemoteJobs) -> None:
    """Print all that is known of a job, and where a dead letter comes from.

    Exit 1 when there is no such job.
    """
    client = remote.client()
    shown = client.ask(commands.show(job_id))
    if shown is None:
        raise Failure(ExitCode.NEGATIVE, f"no such job: {job_id}")
    (dead,) = client.dead_letters([job_id])
    output.write_record(shown_record(shown | dead, output.layout))


def jobs_wait(
    job_id: IdArgument,
    answer: Answer,
    remote: RemoteJobs,
    wait: Annotated[
        int | None, option("--wait", metavar="SPAN", parser=duration_ms, help="Give up after this (default: never).")
    ] = None,
) -> None:
    """Wait until a job is acknowledged, deleted or expired, and print which.

    Exit 1 when there is no such job, 124 when --wait is over.
    """
    from kestreld.client.job_nodes import turns

    client = remote.client()
    for wait_ms in turns(None if wait is None else wait / 1000):
        if (end := client.ask(commands.wait(job_id, wait_ms))) is not None:
            answer.write({"end": end, "id": job_id})
            return
    raise Failure(ExitCode.WAIT_EXPIRED, f"{job_id} still exists")
