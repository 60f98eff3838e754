"""What nodes tell each other about themselves. See `job_messages` for what they tell about jobs."""

from dataclasses import dataclass

from kestreld.cluster.nodes import Flag, NodeAddress


@dataclass(frozen=True, slots=True)
class Rumour:
    """What one node says of another that it knows."""

    node_id: bytes
    address: NodeAddress
    flags: Flag


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Answered with a Pong on the same link. `flags` are those that its sender has given itself."""

    flags: Flag
    rumours: tuple[Rumour, ...] = ()


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping or a Meet."""

    flags: Flag
    rumours: tuple[Rumour, ...] = ()


@dataclass(frozen=True, slots=True)
class Meet:
    """As Ping, and: an operator wants us to know each other."""

    flags: Flag


@dataclass(frozen=True, slots=True)
class Suspected:
    """That node does not answer the sender; `is_down` False: it does again."""

    node_id: bytes
    is_down: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Most nodes have had no answer from that node."""

    node_id: bytes
