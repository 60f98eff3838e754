"""Nodes of a cluster on a network that a test cuts: no sockets, and time passes when a test says so."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

from kestreld.cluster.codec import Message, pack, read
from kestreld.cluster.frames import Hello
from kestreld.cluster.membership import TICK_MS_MAX, Membership
from kestreld.cluster.messages import OF_NODES, Pong
from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable
from tests.support.clock import FakeClock

TIMEOUT_MS: Final = 1000
RETRY_MS: Final = 100  # between attempts to have a link


class Net:
    """Nodes and the links between them. `cut` has the pairs, sender first, between which nothing gets through."""

    def __init__(self, count: int, seed: int = 1, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.now_ms = 5000
        self.timeout_ms = timeout_ms
        self.random = Random(seed)
        self.cut: set[tuple[int, int]] = set()
        self.delay_ms: Callable[[], int] = lambda: 1
        self.sent = 0  # messages
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes: list[Member] = []
        for _ in range(count):
            self.add()

    def make(self, number: int) -> "Member":
        """For subclasses, whose nodes have more to them."""
        return Member(self, number)

    def add(self) -> "Member":
        """One more node, which knows no other."""
        member = self.make(len(self.nodes))
        self.nodes.append(member)
        self.after(self.random.randrange(TICK_MS_MAX), member.tick)
        return member

    def after(self, span_ms: int, do: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now_ms + span_ms, self._count, do))

    def run(self, span_ms: int) -> None:
        """Let this much time pass."""
        until_ms = self.now_ms + span_ms
        while True:
            due = [at_ms for node in self.nodes if node.is_up and (at_ms := node.next_at_ms()) is not None]
            next_ms = min([*due, self._events[0][0] if self._events else until_ms + 1])
            if next_ms > until_ms:
                break
            self._move_to(max(next_ms, self.now_ms))
            for node in self.nodes:
                if node.is_up:
                    node.fall_due()
            while self._events and self._events[0][0] <= self.now_ms:
                heappop(self._events)[2]()
        self._move_to(until_ms)

    def _move_to(self, now_ms: int) -> None:
        for node in self.nodes:
            node.clock.advance(now_ms - self.now_ms)
        self.now_ms = now_ms

    def gets_through(self, sender: "Member", receiver: "Member") -> bool:
        return sender.is_up and receiver.is_up and (sender.number, receiver.number) not in self.cut

    def form(self) -> None:
        """All meet the first one."""
        for node in self.nodes[1:]:
            node.membership.meet(self.nodes[0].address, node.clock.monotonic_ms)
        self.run(500)

    def stop(self, node: "Member") -> None:
        """As kill -9: its links break."""
        node.is_up = False
        for other in self.nodes:
            other.break_links_to(node)
        node.links.clear()

    def restart(self, node: "Member") -> None:
        """The same node again, as its nodes file has it."""
        node.is_up = True
        node.begin(node.membership.table.others())

    def partition(self, *numbers: int) -> None:
        """Cut these off from the others. Nobody notices but by silence."""
        inside = set(numbers)
        for one in self.nodes:
            for other in self.nodes:
                if (one.number in inside) != (other.number in inside):
                    self.cut.add((one.number, other.number))

    def heal(self) -> None:
        self.cut.clear()


class Member:
    """A node, the links that it has opened, and what it was told."""

    def __init__(self, net: Net, number: int) -> None:
        self.net = net
        self.number = number
        self.is_up = True
        self.address = NodeAddress(f"10.0.0.{number + 1}", 7711, 17711)
        self.id = Random(number).randbytes(20).hex().encode()
        self.clock = FakeClock()
        self.links: dict[int, Member] = {}  # by id() of the node's entry in the table
        self.came: list[bytes] = []
        self.went: list[bytes] = []
        self.broken: list[bytes] = []
        self.gone: list[bytes] = []
        self.complaints: list[str] = []
        self.saved: list[list[bytes]] = []  # the members that a nodes file would have
        self.random_bytes = Random(f"{number} {net.random.random()}").randbytes
        self.begin([])

    def begin(self, known: list[Node]) -> None:
        """A process of this node starts, and knows these nodes from before."""
        myself = Node(self.id, self.address, Flag.MYSELF, 0)
        myself.run_id = self.random_bytes(20).hex().encode()
        table = NodeTable(myself)
        for node in known:
            if node.is_member:
                table.add(Node(node.id, node.address, node.flags & (Flag.FAILED | Flag.LEAVING), 0))
        self.links.clear()
        self.wanted: dict[int, Node] = {}  # nodes that a link is wanted to
        self.refused: set[tuple[bytes, bytes]] = set()  # by id and run id
        self.membership = Membership(table, self, self, self.random_bytes, timeout_ms=self.net.timeout_ms)
        self.membership.start(self.clock.monotonic_ms)

    # For subclasses: what else of it falls due, and messages that are not about nodes

    def next_at_ms(self) -> int | None:
        """When something falls due, by the net's clock; None = nothing does."""
        return None

    def fall_due(self) -> None:
        """Do what is due by now."""

    def receive_other(self, sender: Node, message: Message) -> None:
        """A message about jobs from a member."""

    # Time

    def tick(self) -> None:
        if self.is_up:
            self.membership.tick(self.clock.monotonic_ms)
        self.net.after(TICK_MS_MAX, self.tick)

    # What it knows

    @property
    def hello(self) -> Hello:
        return Hello(self.id, self.membership.table.myself.run_id, self.address)

    def table(self) -> dict[bytes, Flag]:
        return {node.id: node.flags & ~Flag.MYSELF for node in self.membership.table}

    def flags_of(self, other: "Member") -> Flag:
        return self.table()[other.id]

    def entry(self, other: "Member") -> Node:
        node = self.membership.table.get(other.id)
        assert node is not None
        return node

    # The bus

    def connect(self, node: Node) -> None:
        self.wanted[id(node)] = node
        if id(node) not in self.links:
            self.net.after(2, lambda: self._attempt(node, self.membership))

    def _attempt(self, node: Node, membership: Membership) -> None:
        if membership is not self.membership or self.wanted.get(id(node)) is not node or id(node) in self.links:
            return
        there = next((one for one in self.net.nodes if one.address == node.address and one.is_up), None)
        is_through = there is not None and self.net.gets_through(self, there) and self.net.gets_through(there, self)
        if there is not None and is_through and there.lets_in(self):
            self.links[id(node)] = there
            membership.linked(node, there.hello, self.clock.monotonic_ms)
            return
        membership.unlinked(node, self.clock.monotonic_ms)
        self.net.after(RETRY_MS, lambda: self._attempt(node, membership))

    def lets_in(self, caller: "Member") -> bool:
        """Whether a link from another process is accepted."""
        reason = self.membership.arrived(caller.hello, caller.address, self.clock.monotonic_ms)
        if reason:
            caller.complaints.append(reason)
        return not reason

    def disconnect(self, node: Node) -> None:
        self.wanted.pop(id(node), None)
        self.links.pop(id(node), None)

    def refuse(self, node_id: bytes, run_id: bytes, reason: str) -> None:
        for other in self.net.nodes:
            if other.hello.node_id == node_id and other.hello.run_id == run_id:
                other.complaints.append(reason)
                other.break_links_to(self)

    def break_links_to(self, there: "Member") -> None:
        for node in list(self.wanted.values()):
            if self.links.get(id(node)) is there:
                del self.links[id(node)]
                if self.is_up:
                    self.membership.unlinked(node, self.clock.monotonic_ms)
                    self.connect(node)

    def send(self, node: Node, message: Message) -> None:
        there = self.links.get(id(node))
        if there is None:
            return
        message = read(*pack(message))  # type: ignore[assignment]
        self.net.sent += 1
        sent_at_ms, hello, membership = self.clock.monotonic_ms, self.hello, self.membership

        def is_link_there() -> bool:
            return self.membership is membership and self.links.get(id(node)) is there

        def arrive() -> None:
            if self.net.gets_through(self, there) and is_link_there():
                answer = there.receive(hello, self.address, message, sent_at_ms)
                if answer is not None:
                    answered_at_ms, by = there.clock.monotonic_ms, there.hello
                    self.net.after(self.net.delay_ms(), lambda: come_back(answer, by, answered_at_ms))

        def come_back(answer: Pong, by: Hello, answered_at_ms: int) -> None:
            if self.net.gets_through(there, self) and is_link_there():
                self.receive(by, there.address, answer, answered_at_ms)

        self.net.after(self.net.delay_ms(), arrive)

    def receive(self, sender: Hello, address: NodeAddress, message: Message, sent_at_ms: int) -> Pong | None:
        if isinstance(message, OF_NODES):
            return self.membership.received(sender, address, message, sent_at_ms, self.clock.monotonic_ms)
        node = self.membership.takes_jobs_of(sender)
        if node is not None:
            self.receive_other(node, message)
        return None

    # What it is told

    def table_changed(self) -> None:
        self.saved.append([node.id for node in self.membership.table.members()])

    def came_up(self, node: Node) -> None:
        self.came.append(node.id)

    def went_down(self, node: Node) -> None:
        self.went.append(node.id)

    def link_broken(self, node: Node) -> None:
        self.broken.append(node.id)

    def forgotten(self, node: Node) -> None:
        self.gone.append(node.id)

    def complain(self, reason: str) -> None:
        self.complaints.append(reason)
