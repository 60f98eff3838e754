"""Nodes of a cluster on a network that a test cuts: no sockets, and time passes when a test says so."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

from kestreld.cluster.codec import Message, pack, read
from kestreld.cluster.membership import TICK_MS, Membership
from kestreld.cluster.messages import Failed, Meet, Ping, Pong, Suspected
from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.copied_jobs import CopiedJobs
from kestreld.queues.agenda import Agenda
from tests.support.clock import FakeClock

TIMEOUT_MS: Final = 1000
OF_NODES: Final = (Ping, Pong, Meet, Suspected, Failed)


class Net:
    """Nodes and the links between them; `cut` has the pairs, sender first, between which nothing gets through."""

    def __init__(self, count: int, seed: int = 1, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.now_ms = 5000
        self.timeout_ms = timeout_ms
        self.random = Random(seed)
        self.cut: set[tuple[int, int]] = set()
        self.delay_ms: Callable[[], int] = lambda: 1
        self.sent = 0  # messages
        self.log: list[tuple[int, int, Message]] = []  # messages about jobs: sender, receiver
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = [Member(self, number) for number in range(count)]
        for node in self.nodes:
            self.after(self.random.randrange(TICK_MS), node.tick)

    def after(self, span_ms: int, do: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now_ms + span_ms, self._count, do))

    def run(self, span_ms: int) -> None:
        until_ms = self.now_ms + span_ms
        while True:
            due = [at_ms for node in self.nodes if node.is_up and (at_ms := node.next_at_ms()) is not None]
            next_ms = min([*due, self._events[0][0] if self._events else until_ms + 1])
            if next_ms > until_ms:
                break
            self._move_to(max(next_ms, self.now_ms))
            for node in self.nodes:
                if node.is_up:
                    node.agenda.fall_due(node.clock.monotonic_ms)
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
        for node in self.nodes[1:]:
            node.membership.meet(self.nodes[0].address, self.now_ms)
        self.run(3000)

    def stop(self, node: "Member") -> None:
        """As kill -9: its links break."""
        node.is_up = False
        for other in self.nodes:
            other.break_link_to(node)
        node.links.clear()

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
    """A node, its bus, its jobs, and what it was told."""

    def __init__(self, net: Net, number: int) -> None:
        self.net = net
        self.number = number
        self.is_up = True
        self.address = NodeAddress(f"10.0.0.{number + 1}", 7711, 17711)
        self.id = Random(number).randbytes(20).hex().encode()
        self.links: dict[int, Member] = {}  # by id() of the node's entry in the table
        self.came: list[bytes] = []
        self.went: list[bytes] = []
        self.clock = FakeClock()
        self.agenda = Agenda()
        self.chance = chance = Random(f"{number} {net.random.random()}").randbytes
        table = NodeTable(Node(self.id, self.address, Flag.MYSELF, 0))
        self.membership = Membership(table, self, self, chance, timeout_ms=net.timeout_ms)
        self.lose_jobs()

    def lose_jobs(self) -> None:
        """It begins without any."""
        self.agenda = Agenda()
        self.jobs = CopiedJobs(self.clock, self.agenda, self.chance, self.id)
        self.shared = SharedJobs(self.jobs, self.membership.table, self, self.chance)
        self.jobs.share(self.shared)

    def next_at_ms(self) -> int | None:
        at_ms = self.agenda.next_at_ms()
        return None if at_ms is None else at_ms - self.clock.monotonic_ms + self.net.now_ms

    def tick(self) -> None:
        if self.is_up:
            self.membership.tick(self.clock.monotonic_ms)
        self.net.after(TICK_MS, self.tick)

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
        if id(node) in self.links:
            return
        there = next((one for one in self.net.nodes if one.address == node.address), None)

        def arrive() -> None:
            is_wanted = self.membership.table.get(node.id) is node and id(node) not in self.links
            if there is not None and is_wanted and self.net.gets_through(self, there):
                self.links[id(node)] = there
                self.membership.linked(node, there.id, self.clock.monotonic_ms)

        self.net.after(2, arrive)

    def disconnect(self, node: Node) -> None:
        self.links.pop(id(node), None)

    def break_link_to(self, there: "Member") -> None:
        for node in self.membership.table.others():
            if self.links.get(id(node)) is there:
                del self.links[id(node)]
                self.membership.unlinked(node, self.clock.monotonic_ms)

    def send(self, node: Node, message: Message) -> None:
        there = self.links.get(id(node))
        if there is None:
            return
        message = read(*pack(message))  # type: ignore[assignment]
        self.net.sent += 1
        if not isinstance(message, OF_NODES):
            self.net.log.append((self.number, there.number, message))

        def arrive() -> None:
            if self.net.gets_through(self, there) and self.links.get(id(node)) is there:
                answer = there.receive(self, message)
                if answer is not None:
                    self.net.after(self.net.delay_ms(), lambda: come_back(answer))

        def come_back(answer: Message) -> None:
            if self.net.gets_through(there, self) and self.links.get(id(node)) is there:
                self.receive(there, answer)

        self.net.after(self.net.delay_ms(), arrive)

    def send_once_written(self, node: Node, message: Message) -> None:
        self.send(node, message)

    def receive(self, sender: "Member", message: Message) -> Message | None:
        if isinstance(message, OF_NODES):
            return self.membership.received(sender.id, sender.address, message, self.clock.monotonic_ms)
        node = self.membership.table.get(sender.id)
        if node is not None and node.is_member:
            self.shared.receive(node, message)
        return None

    # What it is told

    def table_changed(self) -> None:
        pass

    def came_up(self, node: Node) -> None:
        self.came.append(node.id)
        self.shared.came_up(node)

    def went_down(self, node: Node) -> None:
        self.went.append(node.id)
        self.shared.went_down(node)
