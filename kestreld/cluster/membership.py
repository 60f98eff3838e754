"""Who is in the cluster, and who of them is up: meeting, pings and what nodes say of others.

A node has one link to each other that it knows, on which it asks; answers come back on it. Nothing here knows sockets
or reads a clock: what happens comes in as calls with the time, and goes out through a `Bus`.

A node that has not answered a ping for the node timeout is suspected, which all others are told; once most nodes
suspect it, it has failed. Any answer ends both. A node is pinged soon enough for that to take one and a half timeouts
at most.
"""

from typing import Final, Protocol

from kestreld.cluster.chance import RandomBytes, sample
from kestreld.cluster.messages import Failed, Meet, Ping, Pong, Rumour, Suspected
from kestreld.cluster.nodes import NODE_ID_BYTES, Flag, Node, NodeAddress, NodeTable

Message = Ping | Pong | Meet | Suspected | Failed

TICK_MS: Final = 100
FORGOTTEN_MS: Final = 60_000
HANDSHAKE_MS_MIN: Final = 1_000
RUMOURS_MIN: Final = 3
REPORTS_TIMEOUTS: Final = 2  # how long what a node says of another counts, in node timeouts
_OWN_FLAGS: Final = Flag.LEAVING


class Bus(Protocol):
    """The links to other nodes."""

    def connect(self, node: Node) -> None:
        """Have a link to it, and tell `Membership.linked` once there is one."""

    def disconnect(self, node: Node) -> None:
        """Have none any more. Nobody is told."""

    def send(self, node: Node, message: Message) -> None:
        """On our link to it; nothing happens where there is none."""


class Watcher(Protocol):
    """Who wants to know of changes."""

    def table_changed(self) -> None:
        """What has to be on disk is different."""

    def came_up(self, node: Node) -> None:
        """It can be reached (again)."""

    def went_down(self, node: Node) -> None:
        """It cannot be reached any more: it is suspected, has failed, or is forgotten."""


class Membership:
    """What one node knows of the cluster, and what it does to know it."""

    def __init__(
        self, table: NodeTable, bus: Bus, watcher: Watcher, random_bytes: RandomBytes, *, timeout_ms: int
    ) -> None:
        self.table = table
        self.timeout_ms = timeout_ms
        self._bus = bus
        self._watcher = watcher
        self._random_bytes = random_bytes

    # What an operator asks for

    def meet(self, address: NodeAddress, now_ms: int) -> None:
        """Get to know the node there."""
        known = self.table.at(address)
        if known is None:
            self._shake_hands(address, Flag.HANDSHAKE | Flag.MEET, now_ms)
        elif known.is_member:
            self._bus.send(known, Meet(self._own_flags()))

    def forget(self, node: Node, now_ms: int) -> None:
        """Know it no more. The others do until they are told the same."""
        self._bus.disconnect(node)
        self.table.forget(node, now_ms + FORGOTTEN_MS)
        self._watcher.went_down(node)
        self._watcher.table_changed()

    def forget_all(self) -> None:
        """Know nobody any more."""
        for node in self.table.others():
            self._bus.disconnect(node)
            self.table.remove(node)
            self._watcher.went_down(node)
        self._watcher.table_changed()

    def set_leaving(self, *, leaving: bool) -> None:
        """Have the others know that jobs are not to be given to us; they are told at once."""
        myself = self.table.myself
        flags = myself.flags | Flag.LEAVING if leaving else myself.flags & ~Flag.LEAVING
        if flags != myself.flags:
            myself.flags = flags
            for node in self.table.members():
                self._bus.send(node, self._ping())
            self._watcher.table_changed()

    def start(self, now_ms: int) -> None:
        """Look for all nodes that were known before."""
        for node in self.table.others():
            node.ping_at_ms = now_ms
            self._bus.connect(node)

    def _shake_hands(self, address: NodeAddress, flags: Flag, now_ms: int) -> None:
        provisional_id = self._random_bytes(NODE_ID_BYTES // 2).hex().encode()
        node = Node(provisional_id, address, flags, now_ms)
        node.ping_at_ms = now_ms
        self.table.add(node)
        self._bus.connect(node)

    # Links

    def linked(self, node: Node, node_id: bytes, now_ms: int) -> None:
        """There is a link, and the node at its other end has shown that this is its id."""
        if node.flags & Flag.HANDSHAKE:
            known = self.table.get(node_id)
            if known is not None and known is not node:
                self._already_known(node, known)
                return
        elif node_id != node.id:
            node.flags |= Flag.NO_ADDRESS  # another one is there now
            self._bus.disconnect(node)
            return
        node.linked_at_ms = now_ms
        self._bus.send(node, Meet(self._own_flags()) if node.flags & Flag.MEET else self._ping())
        node.ping_at_ms = node.ping_at_ms or now_ms
        if node.flags & Flag.HANDSHAKE:
            self.table.rename(node, node_id)

    def _already_known(self, node: Node, known: Node) -> None:
        """The node at an address that we have tried is one that we know: it may have moved."""
        if known.address != node.address and known is not self.table.myself and not known.is_linked:
            self._bus.disconnect(known)
            known.address = node.address
            known.flags &= ~Flag.NO_ADDRESS
            self._bus.connect(known)
            self._watcher.table_changed()
        self._drop(node)

    def unlinked(self, node: Node, now_ms: int) -> None:
        """The link is broken, or there could be none: the next tick tries again."""
        node.linked_at_ms = 0
        node.ping_at_ms = node.ping_at_ms or now_ms

    def _drop(self, node: Node) -> None:
        self._bus.disconnect(node)
        self.table.remove(node)

    # What others say

    def received(self, sender_id: bytes, address: NodeAddress, message: Message, now_ms: int) -> Pong | None:
        """A message that came on a link of its sender to us, or as an answer on ours; what to answer on the same link.

        `address` is where the sender says that it is.
        """
        sender = self.table.get(sender_id)
        if sender is self.table.myself or not (sender is None or sender.is_member or isinstance(message, Pong)):
            sender = None
        if isinstance(message, Meet):
            return self._met(sender, sender_id, address, message, now_ms)
        if isinstance(message, Ping):
            if sender is not None:
                self._is_there(sender, address, message, now_ms)
                self._believe(message.rumours, now_ms)
            return self._pong()
        if isinstance(message, Pong):
            if sender is not None:
                self._answered(sender, message, now_ms)
        elif sender is not None:
            about = self.table.get(message.node_id)
            if about is not None and about is not self.table.myself:
                self._told(sender, about, message, now_ms)
        return None

    def _met(self, sender: Node | None, sender_id: bytes, address: NodeAddress, message: Meet, now_ms: int) -> Pong:
        if sender is not None:
            self._is_there(sender, address, message, now_ms)
        elif self.table.get(sender_id) is None and self.table.at(address) is None and address.host:
            self.table.remember_again(sender_id)
            self._shake_hands(address, Flag.HANDSHAKE, now_ms)
        return self._pong()

    def _is_there(self, sender: Node, address: NodeAddress, message: Ping | Meet, now_ms: int) -> None:
        """It has sent something to us: it may be somewhere else, and may be there again."""
        if address.host and address != sender.address:
            self._bus.disconnect(sender)
            sender.linked_at_ms = 0
            sender.address = address
            sender.flags &= ~Flag.NO_ADDRESS
            self._bus.connect(sender)
            self._watcher.table_changed()
        self._take_flags(sender, message.flags)
        if sender.flags & (Flag.SUSPECT | Flag.FAILED):
            if sender.is_linked:
                self._bus.send(sender, self._ping())
            else:
                self._bus.connect(sender)

    def _answered(self, sender: Node, message: Pong, now_ms: int) -> None:
        sender.ping_at_ms, sender.pong_at_ms = 0, now_ms
        self._take_flags(sender, message.flags)
        was_up = sender.is_member and not sender.flags & (Flag.SUSPECT | Flag.FAILED)
        was_failed = sender.flags & (Flag.SUSPECT | Flag.FAILED)
        was_handshake = sender.flags & Flag.HANDSHAKE
        sender.flags &= ~(Flag.SUSPECT | Flag.FAILED | Flag.HANDSHAKE | Flag.MEET)
        sender.reports.clear()
        if was_failed:
            self._tell_all(Suspected(sender.id, is_down=False), about=sender)
        if was_handshake or was_failed & Flag.FAILED:
            self._watcher.table_changed()
        if not was_up:
            self._watcher.came_up(sender)
        self._believe(message.rumours, now_ms)

    def _take_flags(self, node: Node, flags: Flag) -> None:
        """What a node says of itself."""
        node.flags = (node.flags & ~_OWN_FLAGS) | (flags & _OWN_FLAGS)

    def _told(self, sender: Node, about: Node, message: Suspected | Failed, now_ms: int) -> None:
        if isinstance(message, Failed):
            if not about.flags & Flag.FAILED and about.is_member:
                self._fail(about)
        elif message.is_down:
            about.reports[sender.id] = now_ms
            self._count(about, now_ms)
        else:
            about.reports.pop(sender.id, None)

    def _believe(self, rumours: tuple[Rumour, ...], now_ms: int) -> None:
        """Nodes that a member of the cluster knows and we do not: get to know them."""
        for rumour in rumours:
            if (
                self.table.get(rumour.node_id) is None
                and not rumour.flags & (Flag.NO_ADDRESS | Flag.HANDSHAKE)
                and rumour.address.host
                and not self.table.is_forgotten(rumour.node_id, now_ms)
                and self.table.at(rumour.address) is None
            ):
                self._shake_hands(rumour.address, Flag.HANDSHAKE, now_ms)

    # Time

    def tick(self, now_ms: int) -> None:
        """Every TICK_MS: ping who has not answered for long, try links again, suspect who does not answer."""
        ping_after_ms = self.timeout_ms // 4
        for node in self.table.others():
            if node.flags & Flag.HANDSHAKE and now_ms - node.added_at_ms > max(self.timeout_ms, HANDSHAKE_MS_MIN):
                self._drop(node)
                continue
            if not node.is_linked:
                self._bus.connect(node)
                node.ping_at_ms = node.ping_at_ms or now_ms
            elif not node.ping_at_ms and now_ms - node.pong_at_ms >= ping_after_ms:
                node.ping_at_ms = now_ms
                self._bus.send(node, self._ping())
            elif node.ping_at_ms and now_ms - max(node.ping_at_ms, node.linked_at_ms) > self.timeout_ms // 2:
                # It may be the link that is at fault.
                self._bus.disconnect(node)
                node.linked_at_ms = 0
                self._bus.connect(node)
            if node.is_member and node.ping_at_ms and now_ms - node.ping_at_ms > self.timeout_ms:
                self._suspect(node, now_ms)

    def _suspect(self, node: Node, now_ms: int) -> None:
        if not node.flags & (Flag.SUSPECT | Flag.FAILED):
            node.flags |= Flag.SUSPECT
            self._watcher.went_down(node)
            self._tell_all(Suspected(node.id, is_down=True), about=node)
        self._count(node, now_ms)

    def _count(self, node: Node, now_ms: int) -> None:
        """Whether most nodes have had no answer from it, and neither have we."""
        if not node.flags & Flag.SUSPECT:
            return
        valid_ms = REPORTS_TIMEOUTS * self.timeout_ms
        node.reports = {by: at_ms for by, at_ms in node.reports.items() if now_ms - at_ms <= valid_ms}
        if len(node.reports) + 1 >= self.table.size // 2 + 1:
            self._fail(node)
            self._tell_all(Failed(node.id), about=node)

    def _fail(self, node: Node) -> None:
        was_up = not node.flags & Flag.SUSPECT
        node.flags = (node.flags & ~Flag.SUSPECT) | Flag.FAILED
        if was_up:
            self._watcher.went_down(node)
        self._watcher.table_changed()

    # What is sent

    def _tell_all(self, message: Suspected | Failed, *, about: Node) -> None:
        for node in self.table.members():
            if node is not about:
                self._bus.send(node, message)

    def _own_flags(self) -> Flag:
        return self.table.myself.flags & _OWN_FLAGS

    def _rumours(self) -> tuple[Rumour, ...]:
        members = self.table.members()
        some = sample(members, max(RUMOURS_MIN, len(members) // 10), self._random_bytes)
        return tuple([Rumour(node.id, node.address, node.flags) for node in some])

    def _ping(self) -> Ping:
        return Ping(self._own_flags(), self._rumours())

    def _pong(self) -> Pong:
        return Pong(self._own_flags(), self._rumours())
