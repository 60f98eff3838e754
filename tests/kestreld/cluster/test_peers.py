"""The other nodes as jobs have to do with them."""

import pytest

from kestreld.cluster.job_messages import CaughtUp
from kestreld.cluster.nodes import Flag
from kestreld.cluster.peers import GAP_MS, SLOW_MS, Peers
from tests.support.job_net import JobNet


@pytest.fixture
def net() -> JobNet:
    return JobNet(5)


def peers_of(net: JobNet, number: int = 0) -> Peers:
    return net.nodes[number].shared.peers


def numbers(net: JobNet, ids: list[bytes]) -> set[int]:
    return {node.number for node in net.nodes if node.id in ids}


def test_members_are_all_other_nodes_up_or_not(net: JobNet) -> None:
    net.nodes[3].crash()
    peers = peers_of(net)
    assert numbers(net, list(peers.ids(peers.members))) == {1, 2, 3, 4}
    assert peers.has_members()
    assert not peers_of(JobNet(1)).has_members()


def test_a_node_in_handshake_is_no_member(net: JobNet) -> None:
    net.nodes[0].entry(net.nodes[1]).flags |= Flag.HANDSHAKE
    peers = peers_of(net)
    assert numbers(net, list(peers.ids(peers.members))) == {2, 3, 4}


def test_copies_are_taken_by_nodes_that_are_up_and_stay_and_read_fast_enough(net: JobNet) -> None:
    net.nodes[1].crash()
    net.nodes[2].set_leaving()
    net.nodes[0].is_crowded_for = {3}
    assert numbers(net, [node.id for node in peers_of(net).takers()]) == {4}


def test_who_takes_copies_comes_in_another_order_each_time(net: JobNet) -> None:
    assert len({tuple(node.id for node in peers_of(net).takers()) for _ in range(100)}) > 15


def test_this_node_keeps_copies_unless_it_leaves_is_full_or_cannot_store_them(net: JobNet) -> None:
    assert all(peers_of(net, number).keeps_copies for number in range(5))
    net.nodes[0].set_leaving()
    net.nodes[1].fill()
    net.nodes[2].stores = False
    assert [peers_of(net, number).keeps_copies for number in range(4)] == [False, False, False, True]


def test_sets_have_members_only_once_they_are_asked_for_as_nodes(net: JobNet) -> None:
    peers, node = peers_of(net), net.nodes[0]
    some = node.jobs.node_sets.of_all([net.nodes[1].id, net.nodes[2].id, node.id, b"f" * 40])
    assert [one.id for one in peers.nodes_in(some)] == [net.nodes[1].id, net.nodes[2].id]
    node.forget(net.nodes[1])
    assert [one.id for one in peers.nodes_in(some)] == [net.nodes[2].id]


def test_only_members_of_a_set_are_told(net: JobNet) -> None:
    peers, node = peers_of(net), net.nodes[0]
    peers.tell(node.jobs.node_sets.of_all([net.nodes[2].id, node.id, b"f" * 40]), CaughtUp())
    assert net.sent == [(0, 2, CaughtUp())]


def test_holders_of_a_job_have_different_ranks_behind_the_one_that_has_queued_it(net: JobNet) -> None:
    for queued_at in range(5):
        ranks = set()
        for number in range(5):
            if number != queued_at:
                node = net.nodes[number]
                owners = node.jobs.node_sets.of_all([other.id for other in net.nodes])
                ranks.add(node.shared.peers.rank_ms(owners, node.entry(net.nodes[queued_at])))
        assert ranks == {GAP_MS, 2 * GAP_MS, 3 * GAP_MS, 4 * GAP_MS}


def test_ranks_of_many_sets_are_not_all_remembered(net: JobNet) -> None:
    peers, node = peers_of(net), net.nodes[0]
    for number in range(14):
        node.jobs.node_sets.of(b"%040d" % number)
    for owners in range(10_000):
        peers.rank_ms(owners, node.entry(net.nodes[1]))
    assert len(peers._ranks) <= 4097


def test_a_node_that_takes_long_to_answer_a_ping_is_not_believed_to_have_read_what_it_was_sent(net: JobNet) -> None:
    peers, node = peers_of(net), net.nodes[0]
    entry = node.entry(net.nodes[1])
    assert peers.hears(entry)
    entry.ping_at_ms = node.clock.monotonic_ms
    assert peers.hears(entry)
    net.run(SLOW_MS)
    assert not peers.hears(entry)
    entry.ping_at_ms = 0
    node.is_crowded_for = {1}
    assert not peers.hears(entry)
    node.is_crowded_for = set()
    net.nodes[1].crash()
    assert not peers.hears(entry)
