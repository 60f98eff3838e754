"""Figures of the cluster for CLUSTER INFO, INFO, metrics, /stats.json and the console."""

from typing import Final

from kestreld.cluster.nodes import DOWN, Flag, Node
from kestreld.cluster.replicating import DEFAULT_COPIES
from kestreld.figures import OF_NODES
from kestreld.server.bus.peers import Peer
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.pending_addjob import Adding
from kestreld.stats import Figures

NODE_COLUMNS: Final = tuple(one.key for one in OF_NODES)  # in the order of a `NodeRow`; None = there is no such figure
_NAMES_IN_INFO: Final = {"jobs_acked": "acked_jobs", "jobs_given": "given_jobs", "jobs_taken": "taken_jobs"}
_NO_COMMA: Final = str.maketrans(",\r\n", ";  ")

NodeRow = tuple[str | int | None, ...]


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
    counted = [(f"cluster_{name.removeprefix('jobs_cluster_')}", value) for name, value in _counted_nodes(node)]
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
        *[(_NAMES_IN_INFO.get(name, name.removeprefix("jobs_")), value) for name, value in _counted_jobs(node)],
        ("handover_left", handover_left),
    ]


def totals(node: DisqueNode) -> list[tuple[str, int]]:
    """Return the node's figures, by the names used in statistics."""
    table = node.cluster.table
    return [
        *_counted_jobs(node),
        ("jobs_cluster_size", table.size),
        ("jobs_cluster_known", len(table)),
        ("jobs_cluster_reachable", _reachable(node)),
        *_counted_nodes(node),
    ]


def _counted_jobs(node: DisqueNode) -> list[tuple[str, int]]:
    shared = node.shared
    adding = sum([isinstance(client.waiter, Adding) for client in node.clients.values()])
    federating = shared.federating if shared is not None else None
    return [
        ("jobs_acked", shared.acks.count if shared is not None else 0),
        ("jobs_being_added", adding),
        ("jobs_default_copies", default_copies(node)),
        ("jobs_default_copies_below_three", shared.replicating.default_below_three if shared is not None else 0),
        ("jobs_async_copies_missed", shared.replicating.async_copies_missed if shared is not None else 0),
        ("jobs_given", sum(federating.jobs_given.values()) if federating is not None else 0),
        ("jobs_taken", sum(federating.jobs_taken.values()) if federating is not None else 0),
    ]


def _counted_nodes(node: DisqueNode) -> list[tuple[str, int]]:
    cluster = node.cluster
    members = cluster.table.members()
    return [
        ("jobs_cluster_down", len([one for one in members if one.is_down])),
        ("jobs_cluster_strangers", len([one for one in members if is_stranger(one)])),
        ("jobs_cluster_copied_spools", len(cluster.copied_spools())),
        ("jobs_cluster_leaving", int(node.is_leaving)),
    ]


def default_copies(node: DisqueNode) -> int:
    """Return the number of nodes that hold a job which is added now without REPLICATE."""
    if node.shared is None:
        return 1
    peers = node.shared.peers
    takers = [one for one in peers.table.reachable() if not peers.bus.is_crowded(one)]
    return max(min(DEFAULT_COPIES, len(takers) + peers.keeps_copies), 1)


def is_stranger(node: Node) -> bool:
    """Return True if a node that answers does not count this one as a member: their tables disagree."""
    return node.has_answered and not node.knows_us and not node.is_down


def _peers(node: DisqueNode) -> list[Peer]:
    bus = node.cluster.bus
    return bus.peers() if bus is not None else []


def node_rows(node: DisqueNode) -> list[NodeRow]:
    """Return the rows of this node and of the others of the cluster, this one first."""
    table = node.cluster.table
    members = [peer for peer in _peers(node) if peer.node.is_member and table.has(peer.node)]
    found = [{**_named(table.myself), "jobs": node.jobs.table.count}, *[_of_peer(node, peer) for peer in members]]
    return [tuple(map(values.get, NODE_COLUMNS)) for values in found]


def _named(node: Node) -> dict[str, str | int | None]:
    address = "" if node.flags & Flag.NO_ADDRESS else str(node.address)
    return {"id": node.id.decode(), "address": address, "flags": node.flag_words().decode()}


def _of_peer(node: DisqueNode, peer: Peer) -> dict[str, str | int | None]:
    one, figures, link = peer.node, peer.figures, peer.ready_link
    federating = node.shared.federating if node.shared is not None else None
    return {
        **_named(one),
        "link": int(link is not None),
        "up": int(one.is_up),
        "knows_us": int(not is_stranger(one)),
        "lag_us": figures.lag_us if figures.lag_us >= 0 else None,
        "queued_bytes": link.queued_bytes if link is not None else 0,
        "messages_out": figures.messages_out,
        "messages_in": figures.messages_in,
        "messages_lost": figures.messages_lost,
        "bytes_out": figures.bytes_out,
        "bytes_in": figures.bytes_in,
        "links": figures.reconnects,
        "refused": figures.refused,
        "jobs_given": federating.jobs_given.get(one.id, 0) if federating is not None else 0,
        "jobs_taken": federating.jobs_taken.get(one.id, 0) if federating is not None else 0,
        "pong_age_ms": node.clock.monotonic_ms - one.pong_at_ms if one.pong_at_ms else None,
        "problem": peer.problem if link is None else "",
    }


def _line(node: DisqueNode, peer: Peer) -> str:
    """Format a peer's figures as a line of INFO."""
    values = _of_peer(node, peer)
    problem = str(values.pop("problem")).translate(_NO_COMMA)
    values |= {"flags": str(values["flags"]).replace(",", "+"), "link": "up" if values["link"] else "down"}
    values |= {"lag_usec": values.pop("lag_us"), "problem": problem}
    return ",".join([f"{key}={-1 if value is None else value}" for key, value in values.items()])
