"""Nodes that join and leave the cluster: handshakes, links, addresses, restarts and copies.

A member is identified by its id, and a process by its run id. The process that counts as a member is the one that this
node has reached itself, at the address where it knows the member: from any other process with that id, messages about
jobs are dropped. So a restarted node is heard as soon as there is a link to it, and the copy of a node never is.
"""

from typing import Final, Protocol

from kestreld.cluster.chance import RandomBytes
from kestreld.cluster.frames import Hello
from kestreld.cluster.messages import NodeMessage
from kestreld.cluster.nodes import DOWN, NODE_ID_BYTES, Flag, Node, NodeAddress, NodeTable, Rival

FORGOTTEN_MS: Final = 60_000
NODES_MAX: Final = 1_000  # that may be known


class Bus(Protocol):
    """Links to other nodes, as `Membership` uses them."""

    def connect(self, node: Node) -> None:
        """Keep a link to the node from now on: connect at once, and retry until it succeeds.

        `Membership.linked` is called for each link, `Membership.unlinked` for its end and for each failed attempt.
        """

    def disconnect(self, node: Node) -> None:
        """Close the link to the node and do not connect again. Membership is not told."""

    def send(self, node: Node, message: NodeMessage) -> None:
        """Send a message on our link to the node; dropped if there is none."""

    def refuse(self, node_id: bytes, run_id: bytes, reason: str) -> None:
        """Close the links that have come from that process, with the reason."""


class Watcher(Protocol):
    """Receiver of changes of membership."""

    def table_changed(self) -> None:
        """Called if something that belongs on disk has changed."""

    def came_up(self, node: Node) -> None:
        """Called when a member takes messages: it is linked, has answered on that link and knows this node, and is
        neither suspected nor loading. Called again after `link_broken`.
        """

    def went_down(self, node: Node) -> None:
        """Called when a member that was up is suspected, failed, loading or forgotten, or has forgotten this node."""

    def link_broken(self, node: Node) -> None:
        """Called when the link to a member is gone: messages may be lost, and none is sent until it has come up."""

    def forgotten(self, node: Node) -> None:
        """Called when a node is no longer a member: CLUSTER FORGET, CLUSTER RESET."""

    def complain(self, reason: str) -> None:
        """Called if two nodes have the same id."""


class Joining:
    """The part of a `Membership` that knows nothing of PINGs except that they are sent."""

    def __init__(self, table: NodeTable, bus: Bus, watcher: Watcher, random_bytes: RandomBytes) -> None:
        self.table = table
        self._bus = bus
        self._watcher = watcher
        self._random_bytes = random_bytes
        self._ticked_at_ms: int | None = None  # None = no other node is known, and nothing ticks

    def _ask(self, node: Node, now_ms: int) -> None:
        """Send a PING. Without a link it counts as due from now on."""
        raise NotImplementedError

    # Commands of operators

    def meet(self, address: NodeAddress, now_ms: int) -> None:
        """Make the node at that address a member, and this node one for it."""
        known = self.table.at(address)
        if known is None:
            self._shake_hands(address, Flag.HANDSHAKE | Flag.MEET, now_ms)
        elif known.is_member:
            known.flags |= Flag.MEET
            self._ask(known, now_ms)

    def forget(self, node: Node, now_ms: int) -> None:
        """Remove a node. The other nodes keep it until they are told the same."""
        self.table.forget(node, now_ms + FORGOTTEN_MS)
        self._removed(node)
        self._watcher.table_changed()

    def forget_all(self) -> None:
        """Remove all other nodes."""
        others = self.table.others()
        for node in others:
            self.table.remove(node)
        self.table.lift_bans()
        self._watcher.table_changed()  # with none of them in it
        for node in others:
            self._removed(node)

    def _shake_hands(self, address: NodeAddress, flags: Flag, now_ms: int) -> None:
        if len(self.table) >= NODES_MAX:
            return
        provisional_id = self._random_bytes(NODE_ID_BYTES // 2).hex().encode()
        node = Node(provisional_id, address, flags, now_ms)
        node.ping_at_ms = now_ms
        self.table.add(node)
        self._ticked_at_ms = now_ms if self._ticked_at_ms is None else self._ticked_at_ms
        self._bus.connect(node)

    # Nodes and links that come and go

    def _removed(self, node: Node) -> None:
        self._bus.disconnect(node)
        node.linked_at_ms, node.is_up = None, False
        if node.is_member:
            self._lost(node)
            self._watcher.forgotten(node)

    def _drop(self, node: Node) -> None:
        """Remove a node whose handshake has failed."""
        self._bus.disconnect(node)
        self.table.remove(node)

    def _cut(self, node: Node) -> None:
        """Give up the link to a node."""
        self._bus.disconnect(node)
        self._link_is_gone(node)

    def _link_is_gone(self, node: Node) -> None:
        was_linked, node.linked_at_ms = node.is_linked, None
        node.is_up = node.has_answered = False
        if was_linked and node.is_member:
            self._watcher.link_broken(node)

    def _relink(self, node: Node, address: NodeAddress) -> None:
        """Connect to a node at another address."""
        self._cut(node)
        node.rival = None
        node.flags &= ~Flag.NO_ADDRESS
        if node.address != address:
            node.address = address
            self._watcher.table_changed()
        self._bus.connect(node)

    def linked(self, node: Node, peer: Hello, now_ms: int) -> None:
        """Note that there is a link to a node; `peer` has proved to be at its other end."""
        if peer.node_id == self.table.myself.id:
            if peer.run_id != self.table.myself.run_id:
                self._complain(peer.node_id, self.table.myself.address, node.address)
            self._is_elsewhere(node)
            return
        if node.flags & Flag.HANDSHAKE:
            known = self.table.get(peer.node_id)
            if known is not None and known is not node:
                self._already_known(node, known, peer, now_ms)
                return
            if not node.flags & Flag.MEET and self.table.is_forgotten(peer.node_id, now_ms):
                self._drop(node)
                return
            self.table.lift_ban(peer.node_id)
            self.table.rename(node, peer.node_id)
        elif peer.node_id != node.id:
            self._is_elsewhere(node)
            return
        node.note_run(peer.run_id)
        node.linked_at_ms, node.has_answered = now_ms, False
        self._settle_rival(node)
        self._ask(node, now_ms)

    def _is_elsewhere(self, node: Node) -> None:
        """Mark a node whose address another node has now. Its new address is known once it connects to this node."""
        if node.flags & Flag.HANDSHAKE:
            self._drop(node)
        else:
            self._cut(node)
            node.flags |= Flag.NO_ADDRESS
            self._watcher.table_changed()

    def _already_known(self, node: Node, known: Node, peer: Hello, now_ms: int) -> None:
        """End a handshake that has led to a node which is known at another address."""
        self._drop(node)
        if known.is_linked and known.run_id != peer.run_id:
            self._complain(known.id, known.address, node.address)
            return
        known.flags |= node.flags & Flag.MEET
        if not known.is_linked:
            self._relink(known, node.address)
        elif known.flags & Flag.MEET:
            self._ask(known, now_ms)

    def unlinked(self, node: Node, now_ms: int) -> None:
        """Note that the link is broken, or that an attempt to connect has failed."""
        was_linked = node.is_linked
        self._link_is_gone(node)
        node.ping_at_ms = node.ping_at_ms or now_ms
        if node.rival is not None and not was_linked:
            self._relink(node, node.rival.address)

    def arrived(self, peer: Hello, address: NodeAddress, now_ms: int) -> str:
        """Check a link from a process that listens at `address`. Return why it is refused, "" = it is not."""
        myself = self.table.myself
        if peer.node_id == myself.id:
            if peer.run_id == myself.run_id:
                return ""  # this node has called itself, and finds that out at the other end
            return self._complain(peer.node_id, myself.address, address)
        node = self.table.get(peer.node_id)
        if node is None or not node.is_member:
            return ""
        if peer.run_id != node.run_id or (node.address != address and not node.is_linked):
            # A restart, a move or a copy: that depends on which process is at the known address.
            node.rival = Rival(peer.run_id, address)
        if node.is_linked:
            if node.rival is not None:
                self._ask(node, now_ms)
        elif node.flags & (DOWN | Flag.NO_ADDRESS) and node.address != address:
            self._relink(node, address)
        else:
            self._bus.connect(node)
        return ""

    def _settle_rival(self, node: Node) -> None:
        """Refuse a rival process as a copy, now that it is known which process is at the node's address."""
        rival, node.rival = node.rival, None
        if rival is not None and rival.run_id != node.run_id:
            self._bus.refuse(node.id, rival.run_id, self._complain(node.id, node.address, rival.address))

    def _complain(self, node_id: bytes, one: NodeAddress, other: NodeAddress) -> str:
        reason = (
            f"two nodes have the id {node_id.decode()}, one at {one}, the other at {other}: the spool of one is a copy "
            "of the other's; run CLUSTER RESET HARD on the copy"
        )
        self._watcher.complain(reason)
        return reason

    def _met(self, node_id: bytes, address: NodeAddress, now_ms: int) -> None:
        there = self.table.at(address)
        if there is None and address.host:
            self.table.lift_ban(node_id)
            self._shake_hands(address, Flag.HANDSHAKE, now_ms)
        elif there is not None and not there.is_linked:
            self._bus.connect(there)  # that node has moved: connecting shows it, and the next MEET succeeds

    def _lost(self, node: Node) -> None:
        if node.is_told_up:
            node.is_told_up = False
            self._watcher.went_down(node)
