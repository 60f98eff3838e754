"""`kestrelctl stats`: print a row of counters for each queue."""

from typing import Annotated, Final

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.dropping import no_such_queue
from kestrelctl.commands.options import Output, PerServerOption, Remote
from kestrelctl.remote.patterns import alike
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import columns_of

MAIN_COLUMNS: Final = [
    "queue",
    "items",
    "bytes",
    "oldest_ms",
    "waiters",
    "open_transactions",
    "total_items",
    "expired_items",
    "discarded",
    "logsize",
    "mem_items",
    "mem_bytes",
]

JOB_COLUMNS: Final = [
    "job_queue",
    "queued",
    "active",
    "delayed",
    "blocked_clients",
    "jobs_in",
    "jobs_out",
    "import_rate",
    "pause",
    "oldest_ms",
]


def stats(
    output: Output,
    remote: Remote,
    queues: Annotated[
        list[str] | None,
        argument(metavar="[QUEUE]...", help="Only these queues: * and ? as in a shell.", show_default=False),
    ] = None,
    wide: Annotated[bool, option("--wide", "-w", help="Every counter in table and tsv, as in json.")] = False,
    server_wide: Annotated[
        bool,
        option("--server-wide", help="The server's own counters instead: uptime, connections, commands."),
    ] = False,
    jobs: Annotated[bool, option("--jobs", help="The queues of jobs instead.")] = False,
    per_server: PerServerOption = False,
) -> None:
    """Print a row of counters for each queue.

    oldest_ms is how long the head item has waited; with --wide, age is how long the last taken item had waited,
    both in milliseconds. Sizes are in bytes. Exit 1 when a named queue is not there, 69 when a server does not answer,
    84 when a named queue is stopped, as its journal is damaged; with --jobs, when their log is.

    Of a context with several servers, a queue's counters are added up; of oldest_ms and age it is the largest.
    --server-wide has each server for itself.

    Queues of jobs are shown with --jobs: jobs_in and jobs_out count jobs queued, again too, and handed out; oldest_ms
    is the age of the oldest that is queued. In JSON and YAML they come behind the queues, as job_queue, unless some
    are named.
    """
    fleet = remote.fleet()
    if server_wide:
        counters = fleet.each(lambda client: client.server_stats())
        if fleet.is_one and not per_server:
            output.write_record(counters[0][1])
        else:
            rows = [{"server": address, **one} for address, one in counters]
            output.write_rows(rows, columns_of(rows))
        fleet.end()
        return
    if jobs:
        if queues:
            raise Failure(ExitCode.USAGE, "--jobs shows all queues of jobs: leave out the names")
        rows = fleet.job_queue_rows(per_server=per_server)
        output.write_rows(rows, [JOB_COLUMNS[0], *(["server"] if per_server else []), *JOB_COLUMNS[1:]])
        fleet.jobs_must_be_served()
        fleet.end()
        return
    keys = () if wide or not output.has_columns_only else MAIN_COLUMNS
    rows = fleet.queue_rows(queues or (), keys, per_server=per_server)
    if not (queues or output.has_columns_only or output.fields or output.sort):
        rows += fleet.job_queue_rows(per_server=per_server)
    main = [MAIN_COLUMNS[0], *(["server"] if per_server else []), *MAIN_COLUMNS[1:]]
    output.write_rows(rows, columns_of(rows) if wide else main)
    fleet.must_be_running(queues or ())
    fleet.end()
    names = {str(row["queue"]) for row in rows} if queues else ()
    if missing := sorted({pattern for pattern in queues or () if not alike(pattern, names)}):
        raise no_such_queue(", ".join(missing))
