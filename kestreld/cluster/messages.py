"""What nodes tell each other about nodes. `job_messages` has what they tell each other about jobs."""

from dataclasses import dataclass

from kestreld.cluster.nodes import Flag, NodeAddress


@dataclass(frozen=True, slots=True)
class GossipEntry:
    """What the sender knows of another node."""

    node_id: bytes
    address: NodeAddress
    flags: Flag


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered with a Pong on the same link. `flags` are the sender's own: LEAVING, LOADING, STRANGER."""

    flags: Flag
    gossip: tuple[GossipEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping or a Meet."""

    flags: Flag
    gossip: tuple[GossipEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Meet:
    """A Ping whose receiver is to add the sender to its table: an operator has asked for that."""

    flags: Flag


@dataclass(frozen=True, slots=True)
class Suspected:
    """That node does not answer the sender; with `is_down` False, it does again."""

    node_id: bytes
    is_down: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """That node does not answer the majority of the cluster."""

    node_id: bytes


NodeMessage = Ping | Pong | Meet | Suspected | Failed
OF_NODES = (Ping, Pong, Meet, Suspected, Failed)
