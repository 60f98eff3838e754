"""Who is in a cluster and who is up, of several nodes on a network that a test cuts, without sockets."""

import pytest

from kestreld.cluster.nodes import Flag, NodeAddress
from tests.support.cluster_net import TIMEOUT_MS, Net


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
