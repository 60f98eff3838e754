"""Acknowledgements: known to all who may hold the job, wherever it is acknowledged, and then forgotten by all."""

from typing import Final

import pytest

from kestreld.cluster.ack_confirmations import FIRST_RETRY_MS, TOLD_FIRST_MS, TOLD_MS_MAX
from kestreld.cluster.job_messages import DelJob, GotAck, SetAck, YourJobs
from kestreld.cluster.peers import GAP_MS
from kestreld.jobs.job import ACKED, ACTIVE, COPY, NOTICE_MS, QUEUED
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from tests.support.job_net import RETRY_MS, TTL_MS, JobNet

LONG_MS: Final = RETRY_MS + 3 * GAP_MS + 2 * NOTICE_MS


@pytest.fixture
def net() -> JobNet:
    return JobNet(3)


@pytest.fixture
def seven() -> JobNet:
    return JobNet(7)


def fetched(net: JobNet, copies: int = 3, *, key: bytes = b"") -> bytes:
    """A job of node 0 that a worker of that node has."""
    job_id = net.nodes[0].add(copies, key=key)
    net.run(10)
    assert net.nodes[0].get() == job_id
    net.sent.clear()
    return job_id


def nobody_gets_anything(net: JobNet, span_ms: int = 2 * LONG_MS) -> bool:
    for _ in range(4):
        net.run(span_ms // 4)
        if any(node.queue.jobs.count for node in net.nodes if node.is_up):
            return False
    return True


# Messages


@pytest.mark.parametrize("copies", range(1, 8))
def test_an_acknowledgement_takes_three_messages_for_each_further_copy(seven: JobNet, copies: int) -> None:
    job_id = fetched(seven, copies)
    assert seven.nodes[0].ack(job_id)
    seven.run(10)
    assert seven.holders(job_id) == []
    seven.run(10 * RETRY_MS)
    others = copies - 1
    assert seven.counted() == ({"SetAck": others, "GotAck": others, "DelJob": others} if others else {})


@pytest.mark.parametrize("copies", range(1, 8))
def test_a_fast_acknowledgement_takes_one_message_for_each_further_copy(seven: JobNet, copies: int) -> None:
    job_id = fetched(seven, copies)
    assert seven.nodes[0].shared.delete_everywhere(job_id)
    seven.run(10)
    assert seven.holders(job_id) == []
    seven.run(2 * RETRY_MS)
    assert seven.counted() == ({"DelJob": copies - 1} if copies > 1 else {})


@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_is_the_same_at_each_owner(net: JobNet, at: int) -> None:
    job_id = fetched(net)
    assert net.nodes[at].ack(job_id)
    assert net.nodes[at].state_of(job_id) == ACKED
    net.run(10)
    assert net.holders(job_id) == []
    assert net.counted() == {"SetAck": 2, "GotAck": 2, "DelJob": 2}


def test_a_second_acknowledgement_counts_for_nothing(net: JobNet) -> None:
    job_id = fetched(net)
    net.is_manual = True
    assert net.nodes[0].ack(job_id)
    assert not net.nodes[0].ack(job_id)
    net.deliver_all()
    assert net.counted()["SetAck"] == 2


# At the importer, at nodes that do not hold the job, on both sides


def test_an_importer_is_an_owner_and_an_acknowledgement_there_is_known_to_the_giver(net: JobNet) -> None:
    """Disque's importer is none: the giver delivers the job again."""
    job_id = net.nodes[0].add(1)
    net.nodes[1].wait()
    net.run(10)
    assert net.nodes[1].fetched == [job_id]
    assert net.nodes[1].owners(job_id) == {0, 1}
    assert net.nodes[1].ack(job_id)
    net.run(10)
    assert net.holders(job_id) == []
    assert nobody_gets_anything(net)


def test_an_acknowledgement_at_another_owner_reaches_an_importer_that_it_does_not_know(seven: JobNet) -> None:
    job_id = seven.nodes[0].add(2)
    seven.run(10)
    (other,) = [number for number in seven.holders(job_id) if number]
    importer = next(node for node in seven.nodes if node.number not in seven.holders(job_id))
    seven.cut = {(importer.number, other)}
    importer.wait()
    seven.run(10)
    assert importer.fetched == [job_id]
    assert importer.number not in seven.nodes[other].owners(job_id)
    seven.cut = set()
    assert seven.nodes[other].ack(job_id)
    seven.run(10)
    assert seven.holders(job_id) == []


def test_an_owner_that_is_down_is_not_replaced_by_an_importer_that_is_up(seven: JobNet) -> None:
    """Disque compares how many have confirmed: the one that was down delivers the job again."""
    seven.nodes[0].keep_log()
    job_id = seven.nodes[0].add(2)
    seven.run(10)
    importer = next(node for node in seven.nodes if node.number not in seven.holders(job_id))
    importer.wait()
    seven.run(10)
    assert importer.fetched == [job_id]
    seven.nodes[0].crash()
    importer.ack(job_id)
    seven.run(1000)
    assert importer.state_of(job_id) == ACKED
    seven.nodes[0].start()
    seven.run(100)
    assert seven.holders(job_id) == []
    assert nobody_gets_anything(seven)


def test_a_job_acknowledged_where_it_is_not_is_forgotten_by_all(seven: JobNet) -> None:
    job_id = fetched(seven)
    elsewhere = next(node for node in seven.nodes if node.state_of(job_id) == -1)
    assert not elsewhere.ack(job_id)
    assert elsewhere.shared.acks.is_dummy(elsewhere.job(job_id))
    seven.run(20)
    assert seven.holders(job_id) == []
    assert nobody_gets_anything(seven)


def test_an_acknowledgement_of_a_job_that_nobody_knows_is_forgotten_once_all_have_said_so(seven: JobNet) -> None:
    job_id = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
    seven.nodes[0].ack(job_id)
    seven.run(10)
    assert seven.holders(job_id) == []
    assert seven.counted() == {"SetAck": 6, "GotAck": 6}


def test_a_dummy_waits_for_members_that_are_down(net: JobNet) -> None:
    job_id = fetched(net, 2)
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    other = next(node for node in net.nodes[1:] if node is not holder)
    net.partition(other.number)
    other.ack(job_id)
    net.run(LONG_MS)
    assert other.state_of(job_id) == ACKED
    net.heal()
    net.run(50)
    assert net.holders(job_id) == []


def test_a_dummy_does_not_wait_for_a_member_that_is_forgotten(net: JobNet) -> None:
    job_id = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
    net.nodes[2].crash()
    net.nodes[0].ack(job_id)
    net.run(10_000)
    assert net.states(job_id)[0] == ACKED
    net.nodes[0].forget(net.nodes[2])
    net.run(100)
    assert net.states(job_id)[0] == -1


def test_a_dummy_that_nobody_answers_expires_with_the_ttl_of_its_id(net: JobNet) -> None:
    job_id = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
    net.partition(0)
    net.nodes[0].ack(job_id)
    net.run(TTL_MS - 10)
    assert net.nodes[0].state_of(job_id) == ACKED
    net.run(20)
    assert net.nodes[0].state_of(job_id) == -1


def test_a_leaving_node_says_so_to_all_and_remembers_nothing(net: JobNet) -> None:
    job_id = fetched(net, 2)
    elsewhere = next(node for node in net.nodes if node.state_of(job_id) == -1)
    elsewhere.set_leaving()
    elsewhere.ack(job_id)
    assert elsewhere.state_of(job_id) == -1
    net.run(TOLD_FIRST_MS + 100)
    assert net.holders(job_id) == []


def test_a_lone_node_remembers_no_acknowledgement_of_a_job_it_does_not_know() -> None:
    net = JobNet(1)
    net.nodes[0].ack(b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1")
    assert net.nodes[0].jobs.table.count == 0


def test_both_sides_of_a_partition_may_acknowledge_a_job(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    assert net.nodes[0].ack(job_id)
    assert net.nodes[2].ack(job_id)
    net.run(LONG_MS)
    assert set(net.states(job_id)) == {ACKED}
    net.heal()
    net.run(50)
    assert net.holders(job_id) == []
    assert nobody_gets_anything(net)


def test_two_owners_that_are_told_at_once_forget_it_once_each(net: JobNet) -> None:
    job_id = fetched(net)
    assert net.nodes[0].ack(job_id)
    assert net.nodes[1].ack(job_id)
    net.run(20)
    assert net.holders(job_id) == []
    net.sent.clear()
    net.run(TTL_MS)
    assert net.sent == []


# Owners that are away


def test_an_owner_that_was_away_does_not_deliver_what_was_acknowledged_meanwhile(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    net.run(100)
    net.nodes[0].ack(job_id)
    net.run(RETRY_MS // 2)
    assert net.states(job_id) == [ACKED, ACKED, COPY]
    net.heal()
    net.run(50)
    assert net.holders(job_id) == []


def test_an_owner_that_delivered_it_while_it_was_away_delivers_it_no_more(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    net.nodes[0].ack(job_id)
    net.run(LONG_MS)
    assert net.nodes[2].get() == job_id, "it could not know"
    net.heal()
    net.run(50)
    assert net.holders(job_id) == []


def test_it_is_said_again_less_and_less_often_to_an_owner_that_does_not_answer(net: JobNet) -> None:
    job_id = fetched(net, 2)
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    net.cut = {(holder.number, 0)}
    net.nodes[0].ack(job_id)
    net.run(100)
    told = [1]
    for number in range(4):
        net.run((FIRST_RETRY_MS << number) + 300)
        told.append(len([one for one in net.said(SetAck) if one[0] == 0]))
    assert told == [1, 2, 3, 4, 5]


def test_who_was_told_leaves_it_to_the_one_that_collects(net: JobNet) -> None:
    job_id = fetched(net)
    net.cut = {(2, 0)}
    net.nodes[0].ack(job_id)
    net.run(TOLD_MS_MAX - 1000)
    assert [one for one in net.said(SetAck) if one[0] != 0] == []
    net.run(TOLD_FIRST_MS + 2000)
    assert {one[0] for one in net.said(SetAck)} == {0, 1, 2}, "but not forever"
    assert net.holders(job_id) == []


def test_the_last_word_of_the_one_that_collects_may_be_lost_with_a_link_of_its_own(net: JobNet) -> None:
    job_id = fetched(net)
    net.is_manual = True
    net.nodes[0].ack(job_id)
    for sender, receiver in ((0, 1), (0, 2), (1, 0), (2, 0)):
        net.deliver(sender, receiver)
    net.links[0, 2].clear()
    net.is_manual = False
    net.deliver_all()
    net.run(TOLD_FIRST_MS + 1000)
    assert net.holders(job_id) == [2], "it has not been told that it is over"
    net.nodes[0].relink(net.nodes[2])
    net.run(1000)
    assert net.holders(job_id) == []


def test_who_was_told_goes_on_where_the_one_that_collects_is_gone(net: JobNet) -> None:
    job_id = fetched(net)
    net.is_manual = True
    net.nodes[0].ack(job_id)
    net.deliver(0, 1)
    net.nodes[0].crash()
    net.nodes[1].forget(net.nodes[0])
    net.is_manual = False
    net.run(TOLD_FIRST_MS + 100)
    assert net.states(job_id)[1:] == [-1, -1]


def test_an_owner_that_was_forgotten_is_not_waited_for(net: JobNet) -> None:
    job_id = fetched(net)
    net.nodes[2].crash()
    net.nodes[0].ack(job_id)
    net.run(5000)
    assert net.states(job_id)[:2] == [ACKED, ACKED]
    net.nodes[0].forget(net.nodes[2])
    net.run(100)
    assert net.states(job_id)[:2] == [-1, -1], "and the other one is told that it need not wait either"


def test_what_is_acknowledged_after_an_owner_was_forgotten_does_not_wait_for_it(net: JobNet) -> None:
    job_id = fetched(net)
    for node in net.nodes[:2]:
        node.forget(net.nodes[2])
    net.nodes[0].ack(job_id)
    net.run(50)
    assert net.states(job_id)[:2] == [-1, -1]


def test_where_all_other_owners_were_forgotten_nothing_is_remembered(net: JobNet) -> None:
    job_id = fetched(net)
    for other in net.nodes[1:]:
        net.nodes[0].forget(other)
    assert net.nodes[0].ack(job_id)
    assert net.nodes[0].state_of(job_id) == -1


def test_after_a_restart_an_acknowledgement_is_told_to_those_who_may_not_know(net: JobNet) -> None:
    for node in net.nodes:
        node.keep_log()
    job_id = fetched(net)
    net.partition(0)
    net.nodes[0].ack(job_id)
    net.nodes[0].crash()
    net.cut = set()
    for number in (1, 2):
        net.nodes[number].crash()
        net.nodes[number].start()
    net.nodes[0].start()
    net.run(TOLD_FIRST_MS + 100)
    assert net.holders(job_id) == []
    assert nobody_gets_anything(net)


# What comes too late


def test_an_acknowledgement_of_a_job_that_is_over_here_is_confirmed(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = fetched(net, 1)
    node.ack(job_id)
    node.receive(net.nodes[1], SetAck(job_id, (net.nodes[1].id,)))
    assert net.said(GotAck) == [(0, 1, GotAck(job_id, is_known=False, owners=()))]
    assert node.state_of(job_id) == -1


def test_no_copy_comes_back_after_its_end(seven: JobNet) -> None:
    """A job on its way to a node that wants it, while it is acknowledged elsewhere."""
    job_id = seven.nodes[0].add(2)
    seven.run(10)
    importer = next(node for node in seven.nodes if node.state_of(job_id) == -1)
    seven.is_manual = True
    importer.wait()
    seven.deliver(importer.number, 0)
    ((giver, receiver, late),) = seven.said(YourJobs)
    seven.links[giver, receiver].clear()
    holder = next(node for node in seven.nodes if node.state_of(job_id) == COPY and node.number)
    holder.ack(job_id)
    seven.deliver_all()
    assert seven.holders(job_id) == []
    importer.receive(seven.nodes[giver], late)
    assert importer.fetched == []
    assert importer.state_of(job_id) == -1


def test_a_copy_that_comes_behind_the_word_that_its_job_is_acknowledged_is_not_taken(net: JobNet) -> None:
    net.is_manual = True
    job_id = net.nodes[0].add(3)
    net.deliver(0, 2)
    node = net.nodes[1]
    node.receive(net.nodes[2], SetAck(job_id, tuple(one.id for one in net.nodes)))
    net.deliver(0, 1)
    assert node.state_of(job_id) == -1


def test_owners_of_which_only_the_acknowledgement_tells_are_in_the_log(net: JobNet) -> None:
    net.is_manual = True
    for node in net.nodes:
        node.keep_log()
    job_id = net.nodes[0].add(1)
    net.nodes[0].receive(net.nodes[1], SetAck(job_id, (net.nodes[0].id, net.nodes[2].id)))
    net.nodes[0].crash()
    net.nodes[0].start()
    assert net.nodes[0].owners(job_id) == {0, 2}


def test_what_is_said_of_acknowledgements_that_nobody_has_changes_nothing(net: JobNet) -> None:
    node, job_id = net.nodes[0], net.nodes[0].add(1)
    node.receive(net.nodes[1], GotAck(job_id, is_known=True, owners=(net.nodes[1].id,)))
    assert node.state_of(job_id) == QUEUED
    node.receive(net.nodes[1], GotAck(b"D-00000000-%024d-05a1" % 1, is_known=True, owners=()))
    node.receive(net.nodes[1], DelJob((b"D-00000000-%024d-05a1" % 1,)))
    assert net.sent == []


def test_a_fast_acknowledgement_at_a_node_that_does_not_hold_the_job_deletes_it_everywhere(seven: JobNet) -> None:
    job_id = fetched(seven)
    elsewhere = next(node for node in seven.nodes if node.state_of(job_id) == -1)
    assert not elsewhere.shared.delete_everywhere(job_id)
    seven.run(10)
    assert seven.holders(job_id) == []
    assert seven.counted() == {"DelJob": 6}


def test_an_owner_that_a_fast_acknowledgement_did_not_reach_delivers_the_job_again(net: JobNet) -> None:
    """The seed: "nobody able to inform it the message has been acknowledged when the partition heals"."""
    job_id = fetched(net)
    net.partition(2)
    net.nodes[0].shared.delete_everywhere(job_id)
    net.run(LONG_MS)
    net.heal()
    net.run(10)
    assert net.nodes[2].get() == job_id
    assert net.nodes[2].ack(job_id)
    net.run(50)
    assert net.holders(job_id) == []


@pytest.mark.parametrize("at", [0, 2], ids=["where that was said", "where it was not"])
def test_an_acknowledgement_after_a_fast_one_that_did_not_reach_all_reaches_them(net: JobNet, at: int) -> None:
    job_id = fetched(net, copies=2)
    (cut_off,) = [node for node in net.nodes[1:] if node.state_of(job_id) != -1]
    net.partition(cut_off.number)
    net.nodes[0].shared.delete_everywhere(job_id)
    net.run(10)
    (other,) = {1, 2} - {cut_off.number}
    net.nodes[0 if at == 0 else other].ack(job_id)
    net.heal()
    net.run(RETRY_MS // 2)
    assert [node.state_of(job_id) for node in net.nodes] == [-1] * 3
    assert all(not node.shared.acks.count for node in net.nodes)


def test_who_is_told_by_one_that_has_forgotten_the_job_collects_soon(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.nodes[0].jobs.remove(net.nodes[0].job(job_id), ACKNOWLEDGED)
    net.nodes[1].receive(net.nodes[0], SetAck(job_id, (net.nodes[0].id,)))
    net.run(TOLD_FIRST_MS + 100)
    assert net.holders(job_id) == []


def test_a_fast_acknowledgement_does_not_end_one_that_others_have_yet_to_learn(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    net.nodes[0].ack(job_id)
    assert not net.nodes[0].shared.delete_everywhere(job_id)
    net.run(2000)
    net.heal()
    net.run(10_000)
    assert net.holders(job_id) == []


def test_a_deleted_job_is_deleted_at_its_node_alone(net: JobNet) -> None:
    job_id = fetched(net)
    net.nodes[0].jobs.remove(net.nodes[0].job(job_id))
    net.run(LONG_MS)
    (at,) = net.queued_at(job_id)
    assert net.nodes[at].get() == job_id
    net.nodes[at].ack(job_id)
    net.run(50)
    assert net.holders(job_id) == []


# Keys


def test_a_key_stays_known_at_each_owner_after_the_acknowledgement(net: JobNet) -> None:
    job_id = fetched(net, key=b"key")
    net.nodes[1].ack(job_id)
    net.run(50)
    assert [node.jobs.keys.find(b"1:qkey", node.jobs.now_ms) for node in net.nodes] == [job_id] * 3


def test_a_job_that_is_acknowledged_and_then_queued_by_a_late_word_stays_acknowledged(net: JobNet) -> None:
    job_id = fetched(net)
    net.cut = {(2, 0), (2, 1)}
    net.nodes[0].ack(job_id)
    net.run(10)
    assert net.states(job_id) == [ACKED] * 3
    for node in net.nodes:
        assert not node.jobs.enqueue(node.job(job_id))
        assert not node.jobs.nack(node.job(job_id))
    assert nobody_gets_anything(net)
    assert ACTIVE not in net.states(job_id)
