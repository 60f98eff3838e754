"""`kestrelctl check`: check the health of a server and its queues."""

from enum import StrEnum
from typing import Annotated

from kestrelctl.commands.declared import Declared, argument, option
from kestrelctl.commands.options import Remote, duration_ms, way_to
from kestrelctl.shell.exit_codes import Ended, Failure
from kestrelctl.shell.output import write_data


class CheckFormat(StrEnum):
    NAGIOS = "nagios"
    JSON = "json"
    PROMETHEUS = "prometheus"


def _limit(words: str) -> Declared:
    return option(metavar="N", min=0, help=words, show_default=False)


def _oldest_limit(name: str, words: str) -> Declared:
    return option(
        f"--oldest-{name}", f"--age-{name}", metavar="SPAN", parser=duration_ms, help=words, show_default=False
    )


def check(
    remote: Remote,
    queues: Annotated[
        list[str] | None,
        argument(metavar="[QUEUE]...", help="These queues instead of all: * and ? as in a shell.", show_default=False),
    ] = None,
    items_warn: Annotated[int | None, _limit("Warning when a queue has N items or more.")] = None,
    items_crit: Annotated[int | None, _limit("Critical when a queue has N items or more.")] = None,
    oldest_warn: Annotated[
        int | None, _oldest_limit("warn", "Warning when the head item has waited this long.")
    ] = None,
    oldest_crit: Annotated[
        int | None, _oldest_limit("crit", "Critical when the head item has waited this long.")
    ] = None,
    waiters_min: Annotated[int | None, _limit("Critical when fewer than N clients wait for an item.")] = None,
    output: Annotated[CheckFormat, option("--output", "-o", help="Output format.")] = CheckFormat.NAGIOS,
) -> None:
    """Check the health of a server and its queues, for nagios, prometheus or a script.

    A stopped queue, or one whose journal cannot be written, is critical; so is a named queue that does
    not exist, and a server that does not answer. Unless queues are named, jobs are checked, too: more than 75 % of
    maxmemory is a warning, as ADDJOB is refused; more than 95 %, or a log that cannot be written, is critical. Of a
    cluster, other nodes that do not answer or do not know this one, and fewer than three copies of a job without
    REPLICATE are warnings; half of the nodes down, or a copied spool, is critical. `cluster status` asks all nodes.

    An old Kestrel reports how long the last item taken had waited.

    Exit 0 ok, 1 warning, 2 critical, 3 unknown: a wrong command line, or no permission to see the figures.
    """
    from kestrelctl.remote.checking import Limits, as_json, as_nagios, as_prometheus, judge, unanswered

    limits = Limits(items_warn, items_crit, oldest_warn, oldest_crit, waiters_min)
    wanted = queues or []
    fleet, server = remote.fleet(), ",".join(way_to(remote.server).servers)
    try:
        blocks = fleet.queue_stats()
        verdict = judge(server, blocks, wanted, limits, [] if wanted else fleet.server_stats())
    except Failure as failure:
        verdict = unanswered(server, failure)
    match output:
        case CheckFormat.JSON:
            text = as_json(verdict)
        case CheckFormat.PROMETHEUS:
            text = as_prometheus(verdict)
        case CheckFormat.NAGIOS:
            text = as_nagios(verdict, wanted, limits)
    write_data(text.encode("utf-8", "surrogateescape"))
    raise Ended(verdict.state)
