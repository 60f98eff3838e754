"""kestrelctl stats"""

from typing import Annotated, Final

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.dropping import no_such_queue
from kestrelctl.commands.options import Output, PerServerOption, Remote
from kestrelctl.remote.patterns import alike
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
    per_server: PerServerOption = False,
) -> None:
    """Print a row of counters for each queue.

    oldest_ms is how long the head item has waited; with --wide, age is how long the last taken item had waited,
    both in milliseconds. Sizes are in bytes. Exit 1 when a named queue is not there, 69 when a server does not answer.

    Of a context with several servers, a queue's counters are added up; of oldest_ms and age it is the largest.
    --server-wide has each server for itself.
    """
    cluster = remote.cluster()
    if server_wide:
        counters = cluster.each(lambda client: client.server_stats())
        if cluster.is_one and not per_server:
            output.write_record(counters[0][1])
        else:
            rows = [{"server": address, **one} for address, one in counters]
            output.write_rows(rows, columns_of(rows))
        cluster.end()
        return
    keys = () if wide or not output.has_columns_only else MAIN_COLUMNS
    rows = cluster.queue_rows(queues or (), keys, per_server=per_server)
    main = [MAIN_COLUMNS[0], *(["server"] if per_server else []), *MAIN_COLUMNS[1:]]
    output.write_rows(rows, columns_of(rows) if wide else main)
    cluster.end()
    names = {str(row["queue"]) for row in rows} if queues else ()
    if missing := sorted({pattern for pattern in queues or () if not alike(pattern, names)}):
        raise no_such_queue(", ".join(missing))
