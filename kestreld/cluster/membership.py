"""Failure detection of the cluster's nodes: which of them are up, by PINGs and gossip.

`joining` has which nodes are members. A node has one link to each other node that it knows. It sends its messages on
that link, and PONGs come back on it. Nothing here knows sockets or reads a clock: events are method calls with the
time, and messages leave by a `Bus`.

A node that does not answer a PING within the node timeout is suspected (`fail?`), and all others are told. Once the
majority suspects it, it has failed (`fail`). A PONG ends both. PINGs are sent so often that a node is suspected one and
a half timeouts after its last sign of life at the latest.
"""

from typing import Final

from kestreld.cluster.chance import RandomBytes, sample
from kestreld.cluster.frames import Hello
from kestreld.cluster.joining import Bus, Joining, Watcher
from kestreld.cluster.messages import Failed, GossipEntry, Meet, NodeMessage, Ping, Pong, Suspected
from kestreld.cluster.nodes import DOWN, Flag, Node, NodeAddress, NodeTable

TICK_MS_MAX: Final = 100
TICK_MS_MIN: Final = 10
TIMEOUT_MS_MIN: Final = 100
HANDSHAKE_MS_MIN: Final = 1_000
STRANGER_PING_MS: Final = 1_000  # between PINGs to a member for which this node is none
GOSSIP_MIN: Final = 3  # entries in a message, besides those of nodes that are down
REPORTS_TIMEOUTS: Final = 2  # how long another node's suspicion counts, in node timeouts
_OWN_FLAGS: Final = Flag.LEAVING | Flag.LOADING
_SAID_OF_OTHERS: Final = ~Flag.MEET


class Membership(Joining):
    """One node's knowledge of the cluster, and the PINGs that keep it up to date. `timeout_ms` may change any time."""

    def __init__(
        self, table: NodeTable, bus: Bus, watcher: Watcher, random_bytes: RandomBytes, *, timeout_ms: int
    ) -> None:
        super().__init__(table, bus, watcher, random_bytes)
        self.timeout_ms = timeout_ms

    @property
    def tick_ms(self) -> int:
        """Interval at which `tick` has to be called while other nodes are known, ms."""
        return min(max(self.timeout_ms // 20, TICK_MS_MIN), TICK_MS_MAX)

    # State of this node

    def set_leaving(self, *, leaving: bool, now_ms: int) -> None:
        """Tell the others whether this node may be given jobs."""
        self._set_own(Flag.LEAVING, now_ms, wanted=leaving)

    def set_loading(self, *, loading: bool, now_ms: int) -> None:
        """Tell the others whether this node takes messages about jobs."""
        self._set_own(Flag.LOADING, now_ms, wanted=loading)

    def _set_own(self, flag: Flag, now_ms: int, *, wanted: bool) -> None:
        myself = self.table.myself
        flags = myself.flags | flag if wanted else myself.flags & ~flag
        if flags != myself.flags:
            myself.flags = flags
            for node in self.table.members():
                self._ask(node, now_ms)
            if flag is Flag.LEAVING:
                self._watcher.table_changed()

    def start(self, now_ms: int) -> None:
        """Connect to all nodes that were known before."""
        others = self.table.others()
        self._ticked_at_ms = now_ms if others else None
        for node in others:
            node.ping_at_ms = now_ms
            self._bus.connect(node)

    # Messages of other nodes

    def received(
        self,
        peer: Hello,
        address: NodeAddress,
        message: NodeMessage,
        sent_at_ms: int,
        now_ms: int,
    ) -> Pong | None:
        """Handle a message on a link that its sender has opened, or a PONG on ours. Return the answer on that link.

        `address` is where the sender listens; `sent_at_ms` is on its clock.
        """
        node = self.table.get(peer.node_id)
        sender = None if node is None or node is self.table.myself or node.run_id != peer.run_id else node
        if isinstance(message, Pong):
            if sender is not None and sender.is_linked:
                self._answered(sender, message, sent_at_ms, now_ms)
            return None
        if isinstance(message, Meet) and node is None:
            self._met(peer.node_id, address, now_ms)
        if sender is not None and sender.is_member:
            if isinstance(message, (Suspected, Failed)):
                self._told(sender, message, now_ms)
                return None
            self._pinged(sender, message, sent_at_ms, now_ms)
        if isinstance(message, (Suspected, Failed)):
            return None
        return Pong(self._flags_for(sender), self._gossip(sender))

    def takes_jobs_of(self, peer: Hello) -> Node | None:
        """Return the member that this process is, None if its messages about jobs do not count now."""
        node = self.table.get(peer.node_id)
        if node is None or not node.is_member or node.run_id != peer.run_id:
            return None
        return None if self.table.myself.flags & Flag.LOADING else node

    def _pinged(self, sender: Node, message: Ping | Meet, sent_at_ms: int, now_ms: int) -> None:
        self._take_flags(sender, message, sent_at_ms)
        if not sender.is_linked:
            self._bus.connect(sender)
        elif sender.is_down:
            self._ask(sender, now_ms)
        self._review(sender)
        if isinstance(message, Ping):
            self._believe(sender, message.gossip, now_ms)

    def _answered(self, sender: Node, message: Pong, sent_at_ms: int, now_ms: int) -> None:
        sender.ping_at_ms, sender.pong_at_ms, sender.has_answered = 0, now_ms, True
        self._take_flags(sender, message, sent_at_ms)
        before = sender.flags
        sender.flags &= ~(DOWN | Flag.HANDSHAKE)
        sender.reports.clear()
        if before & DOWN:
            self._tell_all(Suspected(sender.id, is_down=False), about=sender)
        if before & Flag.HANDSHAKE:
            self._ask(sender, now_ms)  # this PING says that it is a member now
            self._introduce(sender, now_ms)
        if before & (Flag.HANDSHAKE | Flag.FAILED):
            self._watcher.table_changed()
        self._settle_rival(sender)
        self._review(sender)
        self._believe(sender, message.gossip, now_ms)

    def _take_flags(self, node: Node, message: Ping | Pong | Meet, sent_at_ms: int) -> None:
        """Take over a node's flags. Messages on two links may overtake each other: the last one sent counts."""
        if sent_at_ms < node.told_at_ms or (sent_at_ms == node.told_at_ms and isinstance(message, Pong)):
            return
        node.told_at_ms = sent_at_ms
        node.knows_us = not message.flags & Flag.STRANGER
        was_leaving = node.flags & Flag.LEAVING
        node.flags = (node.flags & ~_OWN_FLAGS) | (message.flags & _OWN_FLAGS)
        if node.knows_us:
            node.flags &= ~Flag.MEET
        if node.flags & Flag.LEAVING != was_leaving:
            self._watcher.table_changed()

    def _review(self, node: Node) -> None:
        """Report that the node is up or down, if that has changed."""
        if not node.is_member or node.flags & (DOWN | Flag.LOADING) or not node.knows_us:
            node.is_up = False
            self._lost(node)
        elif node.is_linked and node.has_answered and not node.is_up:
            node.is_up = node.is_told_up = True
            self._watcher.came_up(node)

    def _told(self, sender: Node, message: Suspected | Failed, now_ms: int) -> None:
        """Note a member's report that a node does not answer, or answers again."""
        about = self.table.get(message.node_id)
        if about is None or not about.is_member:
            return
        if isinstance(message, Suspected) and not message.is_down:
            about.reports.pop(sender.id, None)
            return
        about.reports[sender.id] = now_ms
        if not about.ping_at_ms:
            self._ask(about, now_ms)  # it may well answer this node
        elif isinstance(message, Failed) and now_ms - about.ping_at_ms > self.timeout_ms // 2:
            self._fail(about)
        self._count(about, now_ms)

    def _believe(self, sender: Node, gossip: tuple[GossipEntry, ...], now_ms: int) -> None:
        """Take over gossip: count suspicions, and shake hands with nodes that only the sender knows."""
        for entry in gossip:
            known = self.table.get(entry.node_id)
            if known is not None:
                if entry.flags & DOWN:
                    known.reports[sender.id] = now_ms
                    self._count(known, now_ms)
                else:
                    known.reports.pop(sender.id, None)
            elif (
                not entry.flags & (Flag.NO_ADDRESS | Flag.HANDSHAKE)
                and entry.address.host
                and not self.table.is_forgotten(entry.node_id, now_ms)
                and self.table.at(entry.address) is None
            ):
                self._shake_hands(entry.address, Flag.HANDSHAKE, now_ms)

    # Time

    def tick(self, now_ms: int) -> None:
        """Every `tick_ms`: send due PINGs, give up links and handshakes, suspect nodes that do not answer."""
        others = self.table.others()
        if self._ticked_at_ms is not None and now_ms - self._ticked_at_ms > self.timeout_ms // 2:
            self._was_stopped(others, now_ms, now_ms - self._ticked_at_ms)
        self._ticked_at_ms = now_ms if others else None
        for node in others:
            if node.flags & Flag.HANDSHAKE and now_ms - node.added_at_ms > max(self.timeout_ms, HANDSHAKE_MS_MIN):
                self._drop(node)
                continue
            self._ping_if_due(node, now_ms)
            if node.is_member and node.ping_at_ms and now_ms - node.ping_at_ms > self.timeout_ms:
                self._suspect(node, now_ms)

    def _was_stopped(self, others: list[Node], now_ms: int, span_ms: int) -> None:
        """Restart the waits for answers: this process did not run for a while, which is not the fault of other nodes.

        After a node timeout the others have suspected this node, and its knowledge of them is out of date.
        """
        for node in others:
            if node.ping_at_ms:
                node.ping_at_ms = now_ms
            if span_ms > self.timeout_ms and node.is_linked:
                node.is_up = node.has_answered = False
                self._lost(node)
                self._ask(node, now_ms)

    def _ping_if_due(self, node: Node, now_ms: int) -> None:
        timeout_ms = self.timeout_ms
        if node.linked_at_ms is None:
            node.ping_at_ms = node.ping_at_ms or now_ms
        elif not node.ping_at_ms:
            after_ms = timeout_ms // 4 if node.knows_us else min(timeout_ms // 4, STRANGER_PING_MS)
            if now_ms - node.pong_at_ms >= after_ms:
                self._ask(node, now_ms)
        elif now_ms - max(node.ping_at_ms, node.linked_at_ms) > timeout_ms // 2:
            # The link may be at fault.
            self._cut(node)
            self._bus.connect(node)

    def _suspect(self, node: Node, now_ms: int) -> None:
        if not node.is_down:
            node.flags |= Flag.SUSPECT
            self._tell_all(Suspected(node.id, is_down=True), about=node)
            self._review(node)
        self._count(node, now_ms)

    def _count(self, node: Node, now_ms: int) -> None:
        """Mark the node as failed if the majority, this node included, suspects it."""
        if not node.flags & Flag.SUSPECT:
            return
        valid_ms = REPORTS_TIMEOUTS * self.timeout_ms
        node.reports = {by: at_ms for by, at_ms in node.reports.items() if now_ms - at_ms <= valid_ms}
        if len(node.reports) + 1 >= self.table.size // 2 + 1:
            self._fail(node)
            self._tell_all(Failed(node.id), about=node)

    def _fail(self, node: Node) -> None:
        if node.flags & Flag.FAILED:
            return
        node.flags = (node.flags & ~Flag.SUSPECT) | Flag.FAILED
        self._watcher.table_changed()
        self._review(node)

    # Sending

    def _ask(self, node: Node, now_ms: int) -> None:
        """Send a PING. Without a link it counts as due from now on."""
        node.ping_at_ms = node.ping_at_ms or now_ms
        flags = self._flags_for(node)
        self._bus.send(node, Meet(flags) if node.flags & Flag.MEET else Ping(flags, self._gossip(node)))

    def _introduce(self, newcomer: Node, now_ms: int) -> None:
        """Tell the others of a new member at once: gossip might take long to reach them."""
        gossip = (self._entry(newcomer),)
        for node in self.table.members():
            if node is not newcomer and node.is_up:
                node.ping_at_ms = node.ping_at_ms or now_ms
                self._bus.send(node, Ping(self._flags_for(node), gossip))

    def _tell_all(self, message: Suspected | Failed, *, about: Node) -> None:
        for node in self.table.members():
            if node is not about:
                self._bus.send(node, message)

    def _flags_for(self, node: Node | None) -> Flag:
        own = self.table.myself.flags & _OWN_FLAGS
        return own if node is not None and node.is_member else own | Flag.STRANGER

    def _gossip(self, receiver: Node | None) -> tuple[GossipEntry, ...]:
        """Return entries of nodes that are down, and of some others at random. Strangers are told nothing."""
        if receiver is None:
            return ()
        members = [node for node in self.table.members() if node is not receiver]
        down = [node for node in members if node.is_down]
        others = [node for node in members if not node.is_down]
        chosen = down + sample(others, max(GOSSIP_MIN, len(members) // 10), self._random_bytes)
        return tuple(map(self._entry, chosen))

    @staticmethod
    def _entry(node: Node) -> GossipEntry:
        return GossipEntry(node.id, node.address, node.flags & _SAID_OF_OTHERS)
