"""Figures of the cluster for CLUSTER INFO, INFO, metrics, /stats.json and the console."""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.nodes import DOWN, Flag, Node
from kestreld.cluster.replicating import DEFAULT_COPIES
from kestreld.figures import OF_CLUSTER, OF_NODES, OF_SHARED_JOBS, compiled
from kestreld.server.bus.peers import Peer
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.pending_addjob import Adding
from kestreld.stats import Figures

NODE_COLUMNS: Final = tuple(one.key for one in OF_NODES)  # in the order of a `NodeRow`; None = there is no such figure
_COUNTED_FROM: Final = [one.key for one in OF_CLUSTER].index("jobs_cluster_down")  # in INFO, beside CLUSTER INFO's
_NAMES_IN_INFO: Final = {"jobs_acked": "acked_jobs", "jobs_given": "given_jobs", "jobs_taken": "taken_jobs"}
_NO_COMMA: Final = str.maketrans(",\r\n", ";  ")

NodeRow = tuple[str | int | None, ...]
_read_shared_jobs: Final[Callable[..., tuple[int, ...]]] = compiled(
    "shared, adding, default_copies", (one.read for one in OF_SHARED_JOBS)
)
_read_cluster: Final[Callable[..., tuple[int, ...]]] = compiled(
    "table, members, reachable, copied_spools, is_leaving", (one.read for one in OF_CLUSTER)
)
_read_node: Final[Callable[..., NodeRow]] = compiled(
    "node, address, figures, link, given, taken, now_ms, problem", (one.read for one in OF_NODES)
)


def cluster_figures(node: DisqueNode) -> Figures:
    """Return the lines of CLUSTER INFO, with Disque's names."""
    cluster = node.cluster
    sent, received = cluster.bus.totals() if cluster.bus is not None else (0, 0)
    return [
        ("cluster_state", "ok"),
        ("cluster_known_nodes", len(cluster.table)),
        ("cluster_reachable_nodes", _reachable(node)),
        ("cluster_size", cluster.table.size),
        ("cluster_stats_messages_sent", sent),
        ("cluster_stats_messages_received", received),
    ]


def _reachable(node: DisqueNode) -> int:
    return len([one for one in node.cluster.table.members() if not one.flags & (DOWN | Flag.LEAVING)])


def section(node: DisqueNode) -> Figures:
    """Return the section of INFO: the same figures, copied spools found, and a line for each link."""
    cluster = node.cluster
    has_bus = cluster.bus is not None
    counted = [(name.removeprefix("jobs_"), value) for name, value in _of_cluster(node)[_COUNTED_FROM:]]
    copies = [(f"cluster_copied_spool{number}", words) for number, words in enumerate(cluster.copied_spools())]
    lines = [(f"node{number}", _line(node, peer)) for number, peer in enumerate(_peers(node))]
    return [
        ("cluster_enabled", int(has_bus)),
        ("cluster_bus_port", cluster.table.myself.address.bus_port if has_bus else 0),
        ("cluster_node_timeout", cluster.timeout_ms),
        *cluster_figures(node),
        *counted,
        *copies,
        *lines,
    ]


def of_jobs(node: DisqueNode) -> Figures:
    """Return the lines about other nodes in INFO's section of jobs; none without other nodes."""
    if len(node.cluster.table) == 1:
        return []
    handover_left = node.shared.hand_over.left if node.shared is not None else 0
    return [
        *[(_NAMES_IN_INFO.get(name, name.removeprefix("jobs_")), value) for name, value in _of_shared_jobs(node)],
        ("handover_left", handover_left),
    ]


def totals(node: DisqueNode) -> list[tuple[str, int]]:
    """Return the figures of jobs that the node shares with others, and of the cluster."""
    return [*_of_shared_jobs(node), *_of_cluster(node)]


def _of_shared_jobs(node: DisqueNode) -> list[tuple[str, int]]:
    adding = sum([isinstance(client.waiter, Adding) for client in node.clients.values()])
    values = _read_shared_jobs(node.shared, adding, default_copies(node))
    return [(one.key, value) for one, value in zip(OF_SHARED_JOBS, values, strict=True)]


def _of_cluster(node: DisqueNode) -> list[tuple[str, int]]:
    table, copied_spools = node.cluster.table, node.cluster.copied_spools()
    values = _read_cluster(table, table.members(), _reachable(node), copied_spools, node.is_leaving)
    return [(one.key, value) for one, value in zip(OF_CLUSTER, values, strict=True)]


def default_copies(node: DisqueNode) -> int:
    """Return the number of nodes that hold a job which is added now without REPLICATE."""
    if node.shared is None:
        return 1
    peers = node.shared.peers
    takers = [one for one in peers.table.reachable() if not peers.bus.is_crowded(one)]
    return max(min(DEFAULT_COPIES, len(takers) + peers.keeps_copies), 1)


def _peers(node: DisqueNode) -> list[Peer]:
    bus = node.cluster.bus
    return bus.peers() if bus is not None else []


def node_rows(node: DisqueNode) -> list[NodeRow]:
    """Return the rows of this node and of the others of the cluster, this one first."""
    table = node.cluster.table
    members = [peer for peer in _peers(node) if peer.node.is_member and table.has(peer.node)]
    me = table.myself
    own = {"id": me.id.decode(), "address": _address(me), "flags": me.flag_words().decode()}
    own_row = tuple([node.jobs.table.count if key == "jobs" else own.get(key) for key in NODE_COLUMNS])
    return [own_row, *[_of_peer(node, peer) for peer in members]]


def _address(node: Node) -> str:
    return "" if node.flags & Flag.NO_ADDRESS else str(node.address)


def _of_peer(node: DisqueNode, peer: Peer) -> NodeRow:
    one, federating = peer.node, node.shared.federating if node.shared is not None else None
    given, taken = (federating.jobs_given, federating.jobs_taken) if federating is not None else ({}, {})
    now_ms = node.clock.monotonic_ms
    return _read_node(one, _address(one), peer.figures, peer.ready_link, given, taken, now_ms, peer.problem)


def _line(node: DisqueNode, peer: Peer) -> str:
    """Format a peer's figures as a line of INFO."""
    values = dict(zip(NODE_COLUMNS, _of_peer(node, peer), strict=True))
    del values["jobs"]
    problem = str(values.pop("problem")).translate(_NO_COMMA)
    values |= {"flags": str(values["flags"]).replace(",", "+"), "link": "up" if values["link"] else "down"}
    values |= {"lag_usec": values.pop("lag_us"), "problem": problem}
    return ",".join([f"{key}={-1 if value is None else value}" for key, value in values.items()])
