"""Nodes of a cluster as one of them knows them: addresses, flags, clock offsets, and the table."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

NODE_ID_BYTES: Final = 40
RUN_ID_BYTES: Final = 40
BUS_PORT_OFFSET: Final = 10_000  # from a node's client port to its bus port, unless it announces another one
PORT_MAX: Final = 65_535
OFFSET_WINDOW_MS: Final = 60_000
_NODE_ID: Final = re.compile(rb"[0-9a-f]{%d}" % NODE_ID_BYTES)
_HOST: Final = re.compile(rb"[A-Za-z0-9._:%-]{0,253}")  # a name, or an address of IPv4 or IPv6


class Flag(IntFlag):
    """State of a node. The values are those of the messages on the bus; 1 to 128 are Disque's."""

    SUSPECT = 1  # `fail?`: it does not answer this node
    FAILED = 2  # `fail`: it does not answer the majority
    MYSELF = 4
    HANDSHAKE = 8  # it has not answered yet, and is no member
    NO_ADDRESS = 16  # another node is at its address
    MEET = 32  # the operator asked for it: it is asked to add this node, too
    LEAVING = 128
    LOADING = 256  # it is reading its job log, and takes no messages about jobs
    STRANGER = 512  # only in a PING or PONG: its receiver is no member for its sender, which drops messages about jobs


# As CLUSTER NODES shows them, in this order.
FLAG_NAMES: Final = (
    (Flag.MYSELF, b"myself"),
    (Flag.SUSPECT, b"fail?"),
    (Flag.FAILED, b"fail"),
    (Flag.HANDSHAKE, b"handshake"),
    (Flag.NO_ADDRESS, b"noaddr"),
    (Flag.LEAVING, b"leaving"),
)
DOWN: Final = Flag.SUSPECT | Flag.FAILED
# Plain integers: each message has all nodes looked at, and with an IntFlag that takes eight times as long.
_NOT_A_MEMBER: Final = int(Flag.HANDSHAKE | Flag.MYSELF)
_DOWN: Final = int(DOWN)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Address of a node: `port` for clients, `bus_port` for other nodes. `host` "" = not known yet."""

    host: str
    port: int
    bus_port: int

    def __str__(self) -> str:
        return f"{self._shown_host}:{self.port}"

    @property
    def bus(self) -> str:
        """Host and bus port, for messages to operators."""
        return f"{self._shown_host}:{self.bus_port}"

    @property
    def _shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def checked_address(host: bytes, port: int, bus_port: int) -> NodeAddress | None:
    """Return the address, None if it is invalid. Addresses from other nodes end up in replies and logs."""
    if _HOST.fullmatch(host) and 0 < port <= PORT_MAX and 0 < bus_port <= PORT_MAX:
        return NodeAddress(host.decode(), port, bus_port)
    return None


def is_node_id(text: bytes) -> bool:
    """Return True for 40 hexadecimal digits."""
    return _NODE_ID.fullmatch(text) is not None


class ClockOffset:
    """Offset of this node's clock from another node's: a time of that clock plus the offset is a time of this one.

    A frame gives the difference between its arrival and its sending, which is the offset plus the time on the way, so
    the fastest frame gives it best. The offset is the minimum over the last one to two minutes; an all-time minimum
    would not follow two clocks that drift apart.
    """

    __slots__ = ("_before_ms", "_lowest_ms", "_since_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self._lowest_ms: int | None = None  # of the frames since `_since_ms`
        self._before_ms: int | None = None  # of the frames in the window before

    def note(self, sent_at_ms: int, now_ms: int) -> None:
        """Note the times of a frame."""
        offset_ms = now_ms - sent_at_ms
        if self._lowest_ms is None or now_ms - self._since_ms >= OFFSET_WINDOW_MS or now_ms < self._since_ms:
            self._before_ms, self._lowest_ms, self._since_ms = self._lowest_ms, offset_ms, now_ms
        elif offset_ms < self._lowest_ms:
            self._lowest_ms = offset_ms

    @property
    def offset_ms(self) -> int:
        """Offset in ms; 0 before the first frame."""
        if self._lowest_ms is None:
            return 0
        return self._lowest_ms if self._before_ms is None else min(self._lowest_ms, self._before_ms)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another process with the id of a node that is known to run elsewhere: a restart of that node, or a copy."""

    run_id: bytes
    address: NodeAddress


class Node:
    """Another node, or this one. Instants are on this node's monotonic clock; 0 = never."""

    __slots__ = (
        "_clock", "added_at_ms", "address", "flags", "has_answered", "id", "is_told_up", "is_up", "knows_us",
        "linked_at_ms", "ping_at_ms", "pong_at_ms", "reports", "rival", "run_id", "told_at_ms",
    )  # fmt: skip

    def __init__(self, node_id: bytes, address: NodeAddress, flags: Flag, now_ms: int) -> None:
        self.id = node_id
        self.address = address
        self.flags = flags
        self.added_at_ms = now_ms
        self.run_id = b""  # of the process at the other end of our latest link to it; changes with each start
        self._clock = ClockOffset()
        self.linked_at_ms: int | None = None  # opening time of the link to it, None = no link
        self.has_answered = False  # a PING on this link
        self.ping_at_ms = 0  # time at which the first unanswered PING was sent, or due
        self.pong_at_ms = 0
        self.knows_us = False  # this node is a member for it, too,
        self.told_at_ms = 0  # time of that, by its own clock
        self.is_up = False  # see `Watcher.came_up`;
        self.is_told_up = False  # and `went_down` has not been told since
        self.reports: dict[bytes, int] = {}  # nodes that suspect it, too -> time of their last report
        self.rival: Rival | None = None

    @property
    def clock_offset_ms(self) -> int:
        """Difference to add to a time on that node's steady clock to get one on this node's, ms."""
        return self._clock.offset_ms

    def note_frame(self, sent_at_ms: int, now_ms: int) -> None:
        """Note a frame of the node: its time of sending on its clock, and of arrival on this node's."""
        self._clock.note(sent_at_ms, now_ms)

    def restart_clock(self) -> None:
        """Discard the clock offset."""
        self._clock = ClockOffset()

    @property
    def is_linked(self) -> bool:
        """True if there is a link to the node: messages reach it unless the link breaks."""
        return self.linked_at_ms is not None

    @property
    def is_member(self) -> bool:
        """True if the node counts as another node of the cluster, up or not."""
        return not int(self.flags) & _NOT_A_MEMBER

    @property
    def is_down(self) -> bool:
        """True if the node is suspected or has failed."""
        return bool(int(self.flags) & _DOWN)

    @property
    def is_stranger(self) -> bool:
        """True if the node answers and does not count this one as a member: their tables disagree."""
        return self.has_answered and not self.knows_us and not self.is_down

    @property
    def is_reachable(self) -> bool:
        """True if the node can take jobs now."""
        return self.is_up and not self.flags & Flag.LEAVING

    @property
    def priority(self) -> int:
        """Priority in HELLO's reply to clients: lower is better."""
        if self.flags & (Flag.FAILED | Flag.LEAVING):
            return 100
        if self.flags & Flag.SUSPECT:
            return 10
        return 1 if self.is_linked or self.flags & Flag.MYSELF else 5

    def flag_words(self) -> bytes:
        """Return the flags as CLUSTER NODES shows them."""
        return b",".join([name for flag, name in FLAG_NAMES if self.flags & flag]) or b"noflags"

    def note_run(self, run_id: bytes) -> None:
        """Note which process is at the other end of a link."""
        if run_id != self.run_id:
            self.run_id = run_id
            self.restart_clock()
            self.knows_us, self.told_at_ms = False, 0


class NodeTable:
    """All known nodes by id, `myself` among them. Nodes in handshake have provisional ids."""

    def __init__(self, myself: Node) -> None:
        self.myself = myself
        self._nodes: dict[bytes, Node] = {myself.id: myself}
        self._forgotten: dict[bytes, int] = {}  # ids that gossip must not bring back, and until when

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: bytes) -> Node | None:
        return self._nodes.get(node_id)

    def has(self, node: Node) -> bool:
        """Return True if this entry is still in the table."""
        return self._nodes.get(node.id) is node

    def others(self) -> list[Node]:
        return [node for node in self._nodes.values() if node is not self.myself]

    def members(self) -> list[Node]:
        """Return the other nodes of the cluster, up or not."""
        return [node for node in self._nodes.values() if node.is_member]

    def reachable(self) -> list[Node]:
        """Return the other nodes that can take jobs now."""
        return [node for node in self._nodes.values() if node.is_reachable]

    @property
    def size(self) -> int:
        """Number of nodes in the cluster, up or not, this one included."""
        return 1 + len(self.members())

    def add(self, node: Node) -> None:
        self._nodes[node.id] = node

    def remove(self, node: Node) -> None:
        del self._nodes[node.id]
        for other in self._nodes.values():
            other.reports.pop(node.id, None)

    def rename(self, node: Node, node_id: bytes) -> None:
        """Change a node's id: the real one came with the handshake, or this node was reset."""
        del self._nodes[node.id]
        node.id = node_id
        self._nodes[node_id] = node

    def at(self, address: NodeAddress) -> Node | None:
        """Return the other node with that host and client port, in handshake or not."""
        for node in self._nodes.values():
            is_there = node.address.host == address.host and node.address.port == address.port
            if is_there and node is not self.myself and not node.flags & Flag.NO_ADDRESS:
                return node
        return None

    def forget(self, node: Node, until_ms: int) -> None:
        """Remove a node, and keep gossip from bringing it back until then."""
        self.remove(node)
        self._forgotten[node.id] = until_ms

    def is_forgotten(self, node_id: bytes, now_ms: int) -> bool:
        for known in [known for known, until_ms in self._forgotten.items() if until_ms <= now_ms]:
            del self._forgotten[known]
        return node_id in self._forgotten

    def lift_ban(self, node_id: bytes) -> None:
        """Let a forgotten node come back."""
        self._forgotten.pop(node_id, None)

    def lift_bans(self) -> None:
        self._forgotten.clear()

    def restart_clocks(self) -> None:
        """Discard all clock offsets: this node's steady clock has jumped ahead to match a job log."""
        for node in self._nodes.values():
            node.restart_clock()
