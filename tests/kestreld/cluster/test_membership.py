"""Who is in a cluster and who is up, of several nodes on a network that a test cuts, without sockets."""

from heapq import heappop, heappush
from random import Random
from typing import Final

import pytest

from kestreld.cluster.membership import TICK_MS, Membership, Message
from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable

TIMEOUT_MS: Final = 1000


class Net:
    """Nodes and the links between them; `cut` has the pairs, sender first, between which nothing gets through."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.now_ms = 1000
        self.random = Random(seed)
        self.cut: set[tuple[int, int]] = set()
        self.sent = 0
        self._events: list[tuple[int, int, object]] = []
        self._count = 0
        self.nodes = [Member(self, number) for number in range(count)]
        for node in self.nodes:
            self.after(self.random.randrange(TICK_MS), node.tick)

    def after(self, span_ms: int, do: object) -> None:
        self._count += 1
        heappush(self._events, (self.now_ms + span_ms, self._count, do))

    def run(self, span_ms: int) -> None:
        until_ms = self.now_ms + span_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, do = heappop(self._events)
            do()  # type: ignore[operator]
        self.now_ms = until_ms

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
    """A node, its bus, and what it was told."""

    def __init__(self, net: Net, number: int) -> None:
        self.net = net
        self.number = number
        self.is_up = True
        self.address = NodeAddress(f"10.0.0.{number + 1}", 7711, 17711)
        self.id = Random(number).randbytes(20).hex().encode()
        self.links: dict[int, Member] = {}  # by id() of the node's entry in the table
        self.came: list[bytes] = []
        self.went: list[bytes] = []
        table = NodeTable(Node(self.id, self.address, Flag.MYSELF, 0))
        self.membership = Membership(
            table, self, self, Random(f"{number} {net.random.random()}").randbytes, timeout_ms=TIMEOUT_MS
        )

    def tick(self) -> None:
        if self.is_up:
            self.membership.tick(self.net.now_ms)
        self.net.after(TICK_MS, self.tick)

    def table(self) -> dict[bytes, Flag]:
        return {node.id: node.flags & ~Flag.MYSELF for node in self.membership.table}

    def flags_of(self, other: "Member") -> Flag:
        return self.table()[other.id]

    # The bus

    def connect(self, node: Node) -> None:
        if id(node) in self.links:
            return
        there = next((one for one in self.net.nodes if one.address == node.address), None)

        def arrive() -> None:
            is_wanted = self.membership.table.get(node.id) is node and id(node) not in self.links
            if there is not None and is_wanted and self.net.gets_through(self, there):
                self.links[id(node)] = there
                self.membership.linked(node, there.id, self.net.now_ms)

        self.net.after(2, arrive)

    def disconnect(self, node: Node) -> None:
        self.links.pop(id(node), None)

    def break_link_to(self, there: "Member") -> None:
        for node in self.membership.table.others():
            if self.links.get(id(node)) is there:
                del self.links[id(node)]
                self.membership.unlinked(node, self.net.now_ms)

    def send(self, node: Node, message: Message) -> None:
        there = self.links.get(id(node))
        if there is None:
            return
        self.net.sent += 1

        def arrive() -> None:
            if not self.net.gets_through(self, there):
                return
            answer = there.membership.received(self.id, self.address, message, self.net.now_ms)
            if answer is not None:
                self.net.after(1, lambda: come_back(answer))

        def come_back(answer: Message) -> None:
            if self.net.gets_through(there, self) and self.links.get(id(node)) is there:
                self.membership.received(there.id, there.address, answer, self.net.now_ms)

        self.net.after(1, arrive)

    # What it is told

    def table_changed(self) -> None:
        pass

    def came_up(self, node: Node) -> None:
        self.came.append(node.id)

    def went_down(self, node: Node) -> None:
        self.went.append(node.id)


@pytest.fixture
def seven() -> Net:
    net = Net(7)
    net.form()
    return net


def agree(net: Net) -> bool:
    tables = [node.table() for node in net.nodes if node.is_up]
    return all(table == tables[0] for table in tables)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_that_meet_one_get_to_know_all(seed: int) -> None:
    net = Net(7, seed)
    net.form()
    assert agree(net)
    assert all(node.table() == {one.id: Flag(0) for one in net.nodes} for node in net.nodes)
    assert all(sorted(node.came) == sorted(one.id for one in net.nodes if one is not node) for node in net.nodes)


def test_nothing_but_pings_is_sent_once_all_know_each_other(seven: Net) -> None:
    before = seven.sent
    seven.run(10_000)
    assert seven.sent - before <= 7 * 6 * (10_000 // (TIMEOUT_MS // 4) + 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_node_has_failed_within_one_and_a_half_timeouts(seed: int) -> None:
    net = Net(5, seed)
    net.form()
    net.run(seed * 37)
    net.stop(net.nodes[2])
    net.run(TIMEOUT_MS * 3 // 2)
    others = [node for node in net.nodes if node.is_up]
    assert [node.flags_of(net.nodes[2]) for node in others] == [Flag.FAILED] * 4
    assert all(node.went == [net.nodes[2].id] for node in others)


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_falls_silent_has_failed_within_one_and_a_half_timeouts(seed: int) -> None:
    net = Net(5, seed)
    net.form()
    net.run(seed * 37)
    net.partition(2)
    net.run(TIMEOUT_MS * 3 // 2)
    assert {node.flags_of(net.nodes[2]) for node in net.nodes if node.number != 2} == {Flag.FAILED}


def test_a_minority_suspects_the_others_but_says_of_none_that_it_has_failed(seven: Net) -> None:
    seven.partition(0, 1)
    seven.run(2 * TIMEOUT_MS)
    assert [seven.nodes[0].flags_of(one) for one in seven.nodes[2:]] == [Flag.SUSPECT] * 5
    assert seven.nodes[5].flags_of(seven.nodes[0]) == Flag.FAILED
    assert seven.nodes[0].flags_of(seven.nodes[1]) == Flag(0)


@pytest.mark.parametrize("seed", range(20))
def test_a_partition_that_heals_leaves_no_trace(seed: int) -> None:
    net = Net(7, seed)
    net.form()
    net.partition(*net.random.sample(range(7), net.random.randint(1, 3)))
    net.run(net.random.randint(100, 5 * TIMEOUT_MS))
    net.heal()
    net.run(TIMEOUT_MS)
    assert all(node.table() == {one.id: Flag(0) for one in net.nodes} for node in net.nodes)
    assert all(len(node.came) - 6 == len(node.went) for node in net.nodes)


def test_who_can_send_but_hears_nothing_is_suspected_by_nobody_for_long_once_it_is_heard(seven: Net) -> None:
    seven.cut = {(2, 3)}
    seven.run(4 * TIMEOUT_MS)
    assert seven.nodes[5].flags_of(seven.nodes[3]) == Flag(0), "one node's suspicion is not enough"
    seven.heal()
    seven.run(TIMEOUT_MS)
    assert agree(seven)


def test_a_returning_node_is_up_again_for_all_within_100_ms_of_its_first_ping(seven: Net) -> None:
    seven.stop(seven.nodes[4])
    seven.run(5 * TIMEOUT_MS)
    back = seven.nodes[4]
    back.is_up = True
    back.membership.start(seven.now_ms)
    seven.run(100)
    assert [node.flags_of(back) for node in seven.nodes] == [Flag(0)] * 7


def test_a_forgotten_node_is_not_brought_back_by_gossip_for_a_minute(seven: Net) -> None:
    gone = seven.nodes[6]
    seven.stop(gone)
    for node in seven.nodes[:6]:
        entry = node.membership.table.get(gone.id)
        assert entry is not None
        node.membership.forget(entry, seven.now_ms)
        seven.run(300)
    seven.run(50_000)
    assert all(gone.id not in node.table() for node in seven.nodes[:6])


def test_a_node_in_another_place_is_found_there(seven: Net) -> None:
    seven.stop(seven.nodes[1])
    seven.run(3 * TIMEOUT_MS)
    moved = seven.nodes[1]
    moved.address = moved.membership.table.myself.address = NodeAddress("10.0.0.99", 7711, 17711)
    moved.is_up = True
    moved.membership.start(seven.now_ms)
    seven.run(TIMEOUT_MS)
    assert agree(seven)
    entry = seven.nodes[5].membership.table.get(moved.id)
    assert entry is not None
    assert entry.address.host == "10.0.0.99"


def test_a_handshake_with_nobody_ends(seven: Net) -> None:
    seven.nodes[0].membership.meet(NodeAddress("10.9.9.9", 7711, 17711), seven.now_ms)
    seven.run(TIMEOUT_MS // 2)
    assert any(flags & Flag.HANDSHAKE for flags in seven.nodes[0].table().values())
    seven.run(TIMEOUT_MS)
    assert agree(seven)
    assert all(flags == Flag(0) for flags in seven.nodes[0].table().values())


def test_leaving_is_known_to_all_at_once_and_can_be_taken_back(seven: Net) -> None:
    seven.nodes[3].membership.set_leaving(leaving=True)
    seven.run(10)
    assert [node.flags_of(seven.nodes[3]) for node in seven.nodes] == [Flag.LEAVING] * 7
    assert seven.nodes[3].id not in [node.id for node in seven.nodes[0].membership.table.reachable()]
    seven.nodes[3].membership.set_leaving(leaving=False)
    seven.run(10)
    assert agree(seven)


def test_who_is_reset_knows_nobody_and_is_not_met_again_by_gossip_of_others_that_it_does_not_know(seven: Net) -> None:
    seven.nodes[3].membership.forget_all()
    assert list(seven.nodes[3].table()) == [seven.nodes[3].id]
