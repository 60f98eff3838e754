"""`kestrelctl cluster status, nodes`: health and members of a cluster of jobs."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import NoHeadersOption, Output, RemoteJobs
from kestrelctl.shell.exit_codes import Ended, Failure
from kestrelctl.shell.output import Layout, OutputFormat, say, write_data, write_rows

if TYPE_CHECKING:
    from kestrelctl.remote.job_cluster import ClusterView, JobCluster, NodeView
    from kestreld.client.blocks import Cell

NODE_COLUMNS = ["id", "address", "flags", "link", "ping_age_ms", "lag_ms", "version"]


class StatusFormat(StrEnum):
    TABLE = "table"
    NAGIOS = "nagios"
    JSON = "json"
    PROMETHEUS = "prometheus"


def cluster_status(
    remote: RemoteJobs,
    form: Annotated[StatusFormat, option("--output", "-o", help="Output format.")] = StatusFormat.TABLE,
    no_headers: NoHeadersOption = False,
) -> None:
    """Check the health of a cluster, asking every node that can be reached.

    Half of the nodes or more that do not answer others, a spool that was copied, a job log that cannot be written, and
    all nodes leaving are critical. Fewer nodes that do not answer others, tables of nodes that disagree, missing links,
    nodes that lag or cannot be asked from here, and fewer than three copies of a job without REPLICATE (two in a
    cluster of two) are warnings. `check` says the same of what one node sees.

    jobs are all that a node holds, copies included; acked those of which not all nodes know that they are acknowledged;
    lag_ms is the longest round trip of a ping from another node.

    Exit 0 ok, 1 warning, 2 critical, 3 unknown: a wrong command line, or no permission to see the figures.
    """
    from kestrelctl.remote import cluster_checking as checking

    nodes = remote.cluster()
    try:
        report = checking.judge(nodes.address, nodes.look())
    except Failure as failure:
        report = checking.unanswered(nodes.address, failure)
    match form:
        case StatusFormat.JSON:
            text = checking.as_json(report)
        case StatusFormat.PROMETHEUS:
            text = checking.as_prometheus(report)
        case StatusFormat.NAGIOS:
            text = checking.as_nagios(report)
        case StatusFormat.TABLE:
            text = checking.as_text(report)
    write_data(text.encode("utf-8", "surrogateescape"))
    if form is StatusFormat.TABLE and report.nodes:
        layout = Layout(OutputFormat.TABLE, not no_headers)
        write_rows([node.row() for node in report.nodes], checking.COLUMNS[:-1], layout)
    raise Ended(report.state)


def cluster_nodes(output: Output, remote: RemoteJobs) -> None:
    """Print a row for each node that a node knows, as it sees them.

    flags are those of CLUSTER NODES: fail? says that it does not answer this node, fail that it does not answer most;
    ping_age_ms is how long ago it has answered this node last, lag_ms the round trip of the latest ping. Versions are
    asked of each node.
    """
    nodes = remote.cluster()
    view = nodes.look()
    first = view.nodes[0]
    output.write_rows(_rows(nodes, view, first), NODE_COLUMNS)
    for failure in view.failures.values():
        say(f"no version: {failure.words}")


def _rows(nodes: "JobCluster", view: "ClusterView", first: "NodeView") -> list[dict[str, "Cell"]]:
    rows: list[dict[str, Cell]] = []
    for member in first.members.values():
        link = first.links.get(member.id, {})
        lag_us, pong_age_ms = int(link.get("lag_usec", -1)), int(link.get("pong_age_ms", -1))
        one = view.view(member.id)
        row: dict[str, Cell] = {
            "id": member.id,
            "address": member.address or (one.address if one is not None else ""),
            "flags": ",".join(member.flags),
            "link": "up" if member.is_linked else "down",
            "ping_age_ms": pong_age_ms if pong_age_ms >= 0 else "",
            "lag_ms": str(round(lag_us / 1000, 2)) if lag_us >= 0 else "",
            "version": _version(one),
        }
        rows.append(row | {name: link[name] for name in ("problem",) if link.get(name)})
    return rows


def _version(one: "NodeView | None") -> str:
    return "" if one is None else one.info.get("kestreld_version") or one.info.get("disque_version", "")
