"""The cluster bus: all links to and from other nodes, polled in the same turn as everything else.

A node has one link to each other node that it knows; all its messages to that node leave on it, in order. They are
gathered during the turn and leave at its end, after the commit; messages that rely on the job log wait as replies do,
for the write or for the sync. A peer that does not read delays nobody else: beyond a limit its link is closed, and the
messages that wait for it are lost.
"""

from collections import deque
from functools import partial
from typing import Final

from kestreld.cluster.codec import Message, Unreadable, pack, read
from kestreld.cluster.frames import MESSAGE_BYTES_MAX, LinkRefused
from kestreld.cluster.messages import Meet, Ping, Pong
from kestreld.cluster.nodes import Node, NodeAddress
from kestreld.net import Connection, ListeningSocket, Network
from kestreld.queues.agenda import Agenda, Alarm
from kestreld.server.bus.ends import IncomingLink, OutgoingLink
from kestreld.server.bus.host_names import HostNames, numeric
from kestreld.server.bus.link import CROWDED_BYTES, BusLink, LinkFigures, LinkHost
from kestreld.server.bus.listener import BusListener
from kestreld.server.bus.peers import RETRY_MS_MAX, RETRY_MS_MIN, BusEvents, Identity, Peer
from kestreld.server.rate_limited_log import RateLimitedLog
from kestreld.server.turn import Turn

RESTART_MS: Final = 100  # a call of the node replaces an older attempt by a new one
CONNECT_MS: Final = 1000
HANDSHAKE_MS: Final = 3000
STRANGER_IDLE_MS: Final = 60_000
HANDSHAKES_MAX: Final = 128  # links of nodes that are not authenticated yet,
LINKS_MAX: Final = 1000  # and of those that have
TURN_US: Final = 2000  # for messages of all links; the rest waits for another turn


class ClusterBus(LinkHost):
    """All links of this node: the `Bus` of a Membership and the `JobBus` of jobs."""

    def __init__(
        self,
        events: BusEvents,
        identity: Identity,
        turn: Turn,
        network: Network,
        agenda: Agenda,
        names: HostNames,
        complaints: RateLimitedLog,
    ) -> None:
        self.identity = identity
        self.complaints = complaints
        self._others = LinkFigures()  # of links of nodes that are not known, or no longer known
        self._events = events
        self._turn = turn
        self._network = network
        self._agenda = agenda
        self._names = names
        self._clock = turn.clock
        self._peers: dict[Node, Peer] = {}
        self._links: dict[int, BusLink] = {}  # all of them, by their descriptors
        self._incoming: dict[tuple[bytes, bytes], IncomingLink] = {}  # by id and run id; those that are ready
        self._touched: list[BusLink] = []
        self._behind: deque[BusLink] = deque()  # with messages that have not been taken,
        self._catching_up = Alarm(agenda, self._catch_up)
        self._busy_since_us = 0  # time at which this turn took its first message; 0 = none so far
        self._due: list[Peer] = []  # to be connected to at the end of the turn
        self._packed: tuple[Message, int, bytes] | None = None  # the last message sent, which may go to many nodes
        self._is_listening = False
        self._has_stopped = False
        self._is_awake = False  # True while the turn calls `end_turn`: not without peers

    # Listeners and figures

    def listen(self, bound: ListeningSocket) -> BusListener:
        """Accept links of other nodes on a bound port."""
        counts = (lambda: 0) if self._is_listening else self.connections
        self._is_listening = True
        is_tls = self.identity.contexts is not None
        return BusListener(bound, self._turn, self.accept, counts, self.complaints, is_tls=is_tls)

    def connections(self) -> int:
        """Number of connections."""
        return len(self._links)

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._turn.senders.append(self.end_turn)

    def _sleep(self) -> None:
        if self._is_awake:
            self._is_awake = False
            self._turn.senders.remove(self.end_turn)

    @property
    def is_in_use(self) -> bool:
        """True if there are peers or links, so that `look_after` must be called."""
        return bool(self._peers or self._links)

    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    def totals(self) -> tuple[int, int]:
        """Return the numbers of messages sent and received."""
        figures = [self._others, *[peer.figures for peer in self._peers.values()]]
        return sum([one.messages_out for one in figures]), sum([one.messages_in for one in figures])

    # Calls of Membership

    def connect(self, node: Node) -> None:
        """Keep a link to a node from now on; the first attempt is at the end of this turn."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(node)
        peer.is_wanted = True
        self._wake()
        link = peer.link
        if link is not None and not link.is_ready and self._clock.monotonic_ms - link.since_ms >= RESTART_MS:
            link.close()
            link = peer.link = None
        if link is None and peer not in self._due:
            peer.retry_ms = RETRY_MS_MIN
            self._due.append(peer)
            self._turn.again()

    def disconnect(self, node: Node) -> None:
        """Close the link to a node and open none; `events` is not told."""
        peer = self._peers.get(node)
        if peer is not None:
            peer.is_wanted = False
            if peer.link is not None:
                peer.link.close()
                peer.link = None

    def refuse(self, node_id: bytes, run_id: bytes, reason: str) -> None:
        """Close the incoming link of a process, and tell it the reason."""
        link = self._incoming.get((node_id, run_id))
        if link is not None:
            link.refuse(reason)

    def close_incoming(self) -> None:
        """Close all incoming links: this node has another id, so that others must connect again."""
        for link in list(self._links.values()):
            if isinstance(link, IncomingLink):
                link.close()

    def forget(self, node: Node) -> None:
        """Drop a node that is no longer known."""
        self.disconnect(node)
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._others.messages_out += peer.figures.messages_out
            self._others.messages_in += peer.figures.messages_in

    # Messages to other nodes

    def send(self, node: Node, message: Message) -> None:
        """Send a message at the end of the turn; it is dropped if there is no link."""
        link = self._writable(node)
        if link is not None:
            if isinstance(message, (Ping, Meet)):
                link.pinged_at_us.append(self._clock.stopwatch_us())
            message_type, body = self._pack(message)
            if self._is_possible(link, body):
                link.put(message_type, body)

    def send_once_written(self, node: Node, message: Message) -> None:
        """Send a message once all changes so far are in the job log, and synced if replies wait for syncs."""
        link = self._writable(node)
        if link is not None:
            message_type, body = self._pack(message)
            if self._is_possible(link, body):
                link.put_once_written(message_type, body)

    def is_crowded(self, node: Node) -> bool:
        """Return True if so much waits to be sent to a node that messages which can wait should."""
        peer = self._peers.get(node)
        return peer is not None and peer.link is not None and peer.link.queued_bytes > CROWDED_BYTES

    def _writable(self, node: Node) -> OutgoingLink | None:
        peer = self._peers.get(node)
        if peer is None:
            return None
        link = peer.ready_link
        if link is None or link.is_full:
            peer.figures.messages_lost += 1
            return None
        return link

    def _pack(self, message: Message) -> tuple[int, bytes]:
        packed = self._packed
        if packed is None or packed[0] is not message:
            message_type, body = pack(message)
            packed = self._packed = (message, message_type, body)
        return packed[1], packed[2]

    def _is_possible(self, link: OutgoingLink, body: bytes) -> bool:
        if len(body) <= MESSAGE_BYTES_MAX:
            return True
        link.figures.messages_lost += 1
        self.complaints.complain(
            f"message to {link.name}", f"cluster bus: message of {len(body)} bytes to {link.name} not sent: too large"
        )
        return False

    def end_turn(self) -> None:
        """Send the messages of this turn, whose commit is over, and begin attempts to connect."""
        self._busy_since_us = 0
        if self._touched:
            self._packed = None
            is_refused, pending = self._events.log_state()
            touched, self._touched = self._touched, []
            for link in touched:
                if isinstance(link, OutgoingLink):
                    link.commit_is_over(pending, is_refused=is_refused)
                link.end_turn()
                if link.is_full:
                    reason = f"the node has stopped reading: {link.queued_bytes} unsent bytes dropped"
                    link.end(reason, is_refusal=True)
        if self._due:
            due, self._due = self._due, []
            for peer in due:
                self._attempt(peer)
        if self._touched or self._due:
            self._turn.again()  # the handling of broken links has caused more

    # Attempts to connect

    def _attempt(self, peer: Peer) -> None:
        if not peer.is_wanted or peer.link is not None or peer.is_resolving or self._has_stopped:
            return
        peer.retry_at_ms = self._clock.monotonic_ms + peer.retry_ms
        peer.retry_ms = min(2 * peer.retry_ms, RETRY_MS_MAX)
        peer.is_resolving = True
        self._names.resolve(peer.node.address.host, partial(self._resolved, peer, peer.node.address))

    def _resolved(self, peer: Peer, address: NodeAddress, host: str) -> None:
        peer.is_resolving = False
        if not peer.is_wanted or peer.link is not None or self._has_stopped or peer.node.address != address:
            return
        if not host:
            self._not_reached(peer, f"cannot resolve {address.host}")
            return
        try:
            connection = self._network.connect(host, address.bus_port)
        except OSError as error:
            self._not_reached(peer, error.strerror or str(error))
            return
        identity = self.identity
        peer.link = link = OutgoingLink(
            self, connection, identity.protocol(is_caller=True), identity.context(is_caller=True),
            self._clock.monotonic_ms, peer.node,
        )  # fmt: skip
        link.figures = peer.figures
        link.begin()

    def _not_reached(self, peer: Peer, reason: str) -> None:
        peer.problem = reason
        self._events.unlinked(peer.node)
        self._turn.again()  # a resolver calls outside of turns

    def look_after(self) -> None:
        """Retry connections, and give up those that take too long; called at intervals."""
        now_ms = self._clock.monotonic_ms
        for peer in list(self._peers.values()):
            if peer.is_wanted and peer.link is None and peer.retry_at_ms <= now_ms and peer not in self._due:
                self._due.append(peer)
        for link in list(self._links.values()):
            age_ms = now_ms - link.since_ms
            if not link.is_ready and age_ms >= (CONNECT_MS if link.is_connecting else HANDSHAKE_MS):
                link.end("no connection within a second" if link.is_connecting else "no handshake within 3 seconds")
            elif now_ms - link.heard_at_ms >= STRANGER_IDLE_MS and self._is_of_stranger(link):
                link.end("idle")
        if not self.is_in_use:
            self._sleep()

    def _is_of_stranger(self, link: BusLink) -> bool:
        return isinstance(link, IncomingLink) and self._events.known_process(link.peer) is None

    def accept(self, connection: Connection, peer_host: str, local_host: str) -> None:
        """Begin an incoming link, of a node not identified yet."""
        waiting = sum([not link.is_ready for link in self._links.values() if isinstance(link, IncomingLink)])
        if self._has_stopped or waiting >= HANDSHAKES_MAX or len(self._incoming) >= LINKS_MAX:
            connection.close()
            self.complaints.complain("links", "cluster bus: too many connections; closing the newest")
            return
        identity = self.identity
        link = IncomingLink(
            self, connection, identity.protocol(is_caller=False), identity.context(is_caller=False),
            self._clock.monotonic_ms, peer_host=numeric(peer_host), local_host=numeric(local_host),
        )  # fmt: skip
        link.figures = self._others
        link.begin()

    # Calls of links

    def opened(self, link: BusLink, interest: int) -> None:
        self._links[link.fd] = self._turn.acceptors[link.fd] = link
        self._turn.poller.register(link.fd, interest)
        self._wake()
        self._events.has_links()

    def watch(self, link: BusLink, interest: int) -> None:
        self._turn.poller.modify(link.fd, interest)

    def closed(self, link: BusLink) -> None:
        if self._links.get(link.fd) is link:
            del self._links[link.fd]
            del self._turn.acceptors[link.fd]
            self._turn.poller.unregister(link.fd)
        if isinstance(link, IncomingLink) and link.protocol.peer is not None:
            key = (link.peer.node_id, link.peer.run_id)
            if self._incoming.get(key) is link:
                del self._incoming[key]

    def touched(self, link: BusLink) -> None:
        self._touched.append(link)

    def has_time(self) -> bool:
        now_us = self._clock.stopwatch_us()
        if not self._busy_since_us:
            self._busy_since_us = now_us
        return now_us - self._busy_since_us < TURN_US

    def later(self, link: BusLink) -> None:
        self._behind.append(link)
        self._catching_up.set(self._clock.monotonic_ms)

    def _catch_up(self) -> None:
        """Take messages of the links that are behind, one link after the other."""
        behind = self._behind
        for _ in range(len(behind)):
            if not self.has_time():
                break
            behind.popleft().work_off()
        if behind:
            self._catching_up.set(self._clock.monotonic_ms)

    def is_connected(self, link: BusLink) -> bool:
        return self._network.is_connected(link.connection)

    def ready(self, link: BusLink) -> None:
        if isinstance(link, OutgoingLink):
            peer = self._peers[link.node]
            peer.retry_ms, peer.problem = RETRY_MS_MIN, ""
            peer.figures.reconnects += 1
            self._events.linked(link.node, link.peer)
        elif isinstance(link, IncomingLink):
            reason = self._events.arrived(link.peer, link.address, link.local_host)
            if reason:
                link.refuse(reason)
                return
            key = (link.peer.node_id, link.peer.run_id)
            if before := self._incoming.get(key):
                before.end("replaced by a new one")  # its messages were read, or are lost with the connection
            self._incoming[key] = link

    def received_frame(self, link: BusLink, sent_at_ms: int) -> None:
        link.heard_at_ms = self._clock.monotonic_ms
        node = self._events.known_process(link.peer)
        if node is not None:
            node.note_frame(sent_at_ms, self.identity.steady_ms())
            peer = self._peers.get(node)
            if peer is not None and link.figures is not peer.figures:
                link.figures = peer.figures

    def take(self, link: BusLink, sent_at_ms: int, message_type: int, body: bytes) -> None:
        try:
            message = read(message_type, body)
        except Unreadable as unreadable:
            raise LinkRefused(f"a message of type {message_type} is invalid: {unreadable}") from None
        if message is None or isinstance(message, Pong) != link.is_caller:
            return  # of a later version; or one that has no meaning in this direction
        if isinstance(link, OutgoingLink):
            if link.pinged_at_us:
                link.figures.lag_us = self._clock.stopwatch_us() - link.pinged_at_us.popleft()
            self._events.received(link.peer, link.node.address, message, sent_at_ms)
        elif isinstance(link, IncomingLink):
            answer = self._events.received(link.peer, link.address, message, sent_at_ms)
            if answer is not None and link.is_open:
                link.put(*pack(answer))

    def ended(self, link: BusLink, reason: str, *, is_refusal: bool) -> None:
        if isinstance(link, OutgoingLink):
            peer = self._peers.get(link.node)
            if peer is None or peer.link is not link:
                return
            peer.link, peer.problem = None, reason
            now_ms = self._clock.monotonic_ms
            peer.retry_at_ms = now_ms + (RETRY_MS_MAX if is_refusal else peer.retry_ms)
            has_lasted = link.protocol.is_ready and now_ms - link.since_ms >= RETRY_MS_MAX
            if has_lasted and not is_refusal and peer not in self._due:
                self._due.append(peer)
            self._events.unlinked(link.node)
            self._turn.again()  # the end of a sync comes outside of turns
        if is_refusal:
            link.figures.refused += 1
            direction = "to" if link.is_caller else "from"
            self.complaints.complain(f"{direction} {link.name}", f"cluster bus: link {direction} {link.name}: {reason}")

    # The end

    def stop(self) -> None:
        """Send as much as possible without waiting, and close all links."""
        self.end_turn()
        self._has_stopped = True
        for link in list(self._links.values()):
            link.close()
        self._sleep()
