"""Messages between nodes about nodes, as values: PING, PONG, MEET and failures."""

from dataclasses import dataclass

from kestreld.cluster.nodes import Flag, NodeAddress


@dataclass(frozen=True, slots=True)
class GossipEntry:
    """One node as the sender knows it."""

    node_id: bytes
    address: NodeAddress
    flags: Flag


@dataclass(frozen=True, slots=True)
class Ping:
    """Sign of life, answered with a Pong on the same link. `flags` are the sender's own: LEAVING, LOADING, STRANGER."""

    flags: Flag
    gossip: tuple[GossipEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a Ping or a Meet."""

    flags: Flag
    gossip: tuple[GossipEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Meet:
    """Ping that asks the receiver to add the sender to its table, because an operator wants it."""

    flags: Flag


@dataclass(frozen=True, slots=True)
class Suspected:
    """Report that a node does not answer the sender, or, with `is_down` False, that it answers again."""

    node_id: bytes
    is_down: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that a node does not answer the majority of the cluster."""

    node_id: bytes


NodeMessage = Ping | Pong | Meet | Suspected | Failed
OF_NODES = (Ping, Pong, Meet, Suspected, Failed)
