"""The nodes of a cluster as one of them knows them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

NODE_ID_BYTES: Final = 40
BUS_PORT_OFFSET: Final = 10_000  # of a bus from its node's port, unless it says otherwise
PORT_MAX: Final = 65_535


class Flag(IntFlag):
    """What is known of a node. MEET: it has yet to be told that we want to know it."""

    SUSPECT = 1  # `fail?`: it has not answered us
    FAILED = 2  # most nodes have had no answer
    MYSELF = 4
    HANDSHAKE = 8
    NO_ADDRESS = 16
    MEET = 32
    LEAVING = 128


# As CLUSTER NODES shows them, in this order.
FLAG_NAMES: Final = (
    (Flag.MYSELF, b"myself"),
    (Flag.SUSPECT, b"fail?"),
    (Flag.FAILED, b"fail"),
    (Flag.HANDSHAKE, b"handshake"),
    (Flag.NO_ADDRESS, b"noaddr"),
    (Flag.LEAVING, b"leaving"),
)
_DOWN: Final = Flag.SUSPECT | Flag.FAILED
_NOT_A_MEMBER: Final = Flag.HANDSHAKE | Flag.MYSELF
_NO_TARGET: Final = Flag.HANDSHAKE | Flag.MYSELF | Flag.LEAVING | _DOWN


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is: `port` is for clients, `bus_port` for nodes. `host` "" = not known yet."""

    host: str
    port: int
    bus_port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Node:
    """One of them. Instants are on the monotonic clock of this node; 0 = never."""

    __slots__ = ("added_at_ms", "address", "flags", "id", "linked_at_ms", "ping_at_ms", "pong_at_ms", "reports")

    def __init__(self, node_id: bytes, address: NodeAddress, flags: Flag, now_ms: int) -> None:
        self.id = node_id
        self.address = address
        self.flags = flags
        self.added_at_ms = now_ms
        self.linked_at_ms = 0  # since when we have had a link to it
        self.ping_at_ms = 0  # of the first one that it has not answered
        self.pong_at_ms = 0
        self.reports: dict[bytes, int] = {}  # nodes that have had no answer from it either, and when they last said so

    @property
    def is_linked(self) -> bool:
        """Whether what we send reaches it, as far as we know."""
        return self.linked_at_ms > 0

    @property
    def is_member(self) -> bool:
        """Whether it counts as one of the cluster beside this one, be it up or not."""
        return not self.flags & _NOT_A_MEMBER

    @property
    def is_reachable(self) -> bool:
        """Whether it may be given jobs."""
        return not self.flags & _NO_TARGET

    @property
    def priority(self) -> int:
        """How good it is for clients, as HELLO has it: the lower the better."""
        if self.flags & (Flag.FAILED | Flag.LEAVING):
            return 100
        if self.flags & Flag.SUSPECT:
            return 10
        return 1 if self.is_linked or self.flags & Flag.MYSELF else 5

    def flag_words(self) -> bytes:
        """Its flags as CLUSTER NODES shows them."""
        return b",".join([name for flag, name in FLAG_NAMES if self.flags & flag]) or b"noflags"


class NodeTable:
    """All nodes that are known, `myself` included, by their ids; nodes in handshake have provisional ones."""

    def __init__(self, myself: Node) -> None:
        self.myself = myself
        self._nodes: dict[bytes, Node] = {myself.id: myself}
        self._forgotten: dict[bytes, int] = {}  # ids that gossip does not bring back until then

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: bytes) -> Node | None:
        return self._nodes.get(node_id)

    def others(self) -> list[Node]:
        return [node for node in self._nodes.values() if node is not self.myself]

    def members(self) -> list[Node]:
        """The other nodes of the cluster, up or not."""
        return [node for node in self._nodes.values() if node.is_member]

    def reachable(self) -> list[Node]:
        """The other nodes that may be given jobs."""
        return [node for node in self._nodes.values() if node.is_reachable]

    @property
    def size(self) -> int:
        """How many nodes the cluster has, this one included, be they up or not."""
        return 1 + len(self.members())

    def add(self, node: Node) -> None:
        self._nodes[node.id] = node

    def remove(self, node: Node) -> None:
        del self._nodes[node.id]
        for other in self._nodes.values():
            other.reports.pop(node.id, None)

    def rename(self, node: Node, node_id: bytes) -> None:
        """It has said who it is."""
        del self._nodes[node.id]
        node.id = node_id
        self._nodes[node_id] = node

    def at(self, address: NodeAddress) -> Node | None:
        """The other node there, in handshake or not."""
        for node in self._nodes.values():
            if node is not self.myself and node.address.host == address.host and node.address.port == address.port:
                return node
        return None

    def forget(self, node: Node, until_ms: int) -> None:
        """Remove it, and have gossip not bring it back until then."""
        self.remove(node)
        self._forgotten[node.id] = until_ms

    def is_forgotten(self, node_id: bytes, now_ms: int) -> bool:
        for known in [known for known, until_ms in self._forgotten.items() if until_ms <= now_ms]:
            del self._forgotten[known]
        return node_id in self._forgotten

    def remember_again(self, node_id: bytes) -> None:
        """An operator has asked for it."""
        self._forgotten.pop(node_id, None)
