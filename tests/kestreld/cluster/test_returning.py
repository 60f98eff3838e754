"""A node that was down queues nothing again before it knows what it has missed, or has waited for a node timeout."""

from typing import Final

import pytest

from kestreld.cluster.job_messages import CaughtUp, Notice, SetAck
from kestreld.cluster.peers import GAP_MS
from kestreld.jobs.job import ACTIVE, COPY, NOTICE_MS
from kestreld.jobs.store import JITTER_MS
from tests.support.job_net import RETRY_MS, TIMEOUT_MS, JobNet, JobNode

LATE_MS: Final = NOTICE_MS + JITTER_MS + 50
LONG_MS: Final = RETRY_MS + 2 * GAP_MS + LATE_MS


@pytest.fixture
def net() -> JobNet:
    net = JobNet(3)
    for node in net.nodes:
        node.keep_log()
    return net


def fetched(net: JobNet) -> bytes:
    """A job of node 0 that all hold and a worker of node 0 has."""
    job_id = net.nodes[0].add(3)
    net.run(10)
    assert net.nodes[0].get() == job_id
    return job_id


def acked_while_away(net: JobNet, *nodes: JobNode) -> bytes:
    """A job that these nodes hold, and that was acknowledged while they were down; its retry time is over."""
    job_id = fetched(net)
    for node in nodes:
        node.crash()
    assert next(node for node in net.nodes if node.is_up).ack(job_id)
    net.run(LONG_MS)
    net.sent.clear()
    return job_id


def test_what_was_acknowledged_meanwhile_is_not_queued(net: JobNet) -> None:
    node = net.nodes[2]
    job_id = acked_while_away(net, node)
    node.start()
    net.run(20)
    assert node.state_of(job_id) == -1
    net.run(LONG_MS)
    assert [one.get() for one in net.nodes] == [None] * 3
    assert net.holders(job_id) == []


def test_nothing_is_queued_before_all_that_are_up_have_told_what_they_know(net: JobNet) -> None:
    node = net.nodes[2]
    job_id = acked_while_away(net, node)
    net.is_manual = True
    node.start()
    net.run(TIMEOUT_MS - 300)  # its job's time has come, and what the others say is still on its way
    assert (node.state_of(job_id), net.said(Notice)) == (COPY, [])
    net.deliver_all()
    assert net.holders(job_id) == []


def test_a_node_that_does_not_say_so_is_waited_for_a_node_timeout_and_no_longer(net: JobNet) -> None:
    job_id = fetched(net)
    node = net.nodes[2]
    for one in net.nodes:
        one.crash()
    net.run(LONG_MS)
    node.start()
    net.run(TIMEOUT_MS - 300)
    assert net.queued_at(job_id) == []
    net.run(300 + 2 * NOTICE_MS)
    assert net.queued_at(job_id) == [2]


def test_a_node_that_goes_down_meanwhile_is_not_waited_for(net: JobNet) -> None:
    job_id = fetched(net)
    node = net.nodes[2]
    net.nodes[0].crash()
    node.crash()
    net.run(RETRY_MS - 1000)
    net.is_manual = True
    node.start()
    net.nodes[1].crash()
    node.lose_sight_of(net.nodes[0])
    net.run(1000 + 2 * GAP_MS + LATE_MS)
    assert net.queued_at(job_id) == [2]


def test_a_node_that_was_down_for_a_moment_goes_on_at_once_when_it_has_caught_up(net: JobNet) -> None:
    job_id = fetched(net)
    net.nodes[0].crash()
    net.nodes[0].start()
    net.run(RETRY_MS + LATE_MS)
    assert net.queued_at(job_id) == [0]


def test_its_first_requeue_is_announced_as_any_other(net: JobNet) -> None:
    job_id = fetched(net)
    node = net.nodes[0]
    node.crash()
    net.run(RETRY_MS - 1000)
    node.start()
    net.sent.clear()
    net.run(1000 + LATE_MS)
    assert net.queued_at(job_id) == [0]
    assert [receiver for sender, receiver, _ in net.said(Notice) if sender == 0] == [1, 2, 1, 2]


def test_a_job_that_another_node_has_queued_meanwhile_is_not_queued_by_the_one_that_returns(net: JobNet) -> None:
    job_id = fetched(net)
    node = net.nodes[0]
    node.crash()
    net.run(LONG_MS)
    (at,) = net.queued_at(job_id)
    assert net.nodes[at].get() == job_id
    node.start()
    net.run(TIMEOUT_MS)
    assert node.state_of(job_id) == COPY
    assert net.nodes[at].state_of(job_id) == ACTIVE


# Who tells it


def test_it_is_told_of_every_acknowledgement_it_has_missed_and_then_that_these_were_all(net: JobNet) -> None:
    node = net.nodes[2]
    ids = {fetched(net) for _ in range(50)}
    node.crash()
    for job_id in ids:
        net.nodes[0].ack(job_id)
    net.run(100)
    net.sent.clear()
    node.start()
    net.run(10)
    told = [message for sender, receiver, message in net.sent if (sender, receiver) == (0, 2)]
    told = [message for message in told if isinstance(message, (SetAck, CaughtUp))]
    assert {message.job_id for message in told[:-1] if isinstance(message, SetAck)} == ids
    assert told[-1] == CaughtUp()


def test_a_node_that_reads_its_own_log_does_not_say_that_it_has_told_all(net: JobNet) -> None:
    """After a reboot of all: the one that knows of the acknowledgement has the longest log."""
    job_id = acked_while_away(net, net.nodes[1], net.nodes[2])
    net.nodes[0].crash()
    net.nodes[0].start(is_loaded=False)
    net.nodes[1].start()
    net.nodes[2].start()
    net.run(TIMEOUT_MS - 500)
    assert net.states(job_id) == [-1, COPY, COPY]
    assert net.said(Notice) == []
    net.nodes[0].load()
    net.run(20)
    assert net.holders(job_id) == []


def test_a_node_that_has_read_its_log_tells_what_it_knows_to_those_that_came_up_before(net: JobNet) -> None:
    job_id = acked_while_away(net, net.nodes[1], net.nodes[2])
    net.nodes[0].crash()
    for node in net.nodes:
        node.start(is_loaded=False)
    net.nodes[2].load()
    net.nodes[1].load()
    net.nodes[0].load()
    net.run(20)
    assert net.holders(job_id) == []


def test_a_link_that_breaks_while_it_is_told_does_not_make_it_believe_that_it_knows_all(net: JobNet) -> None:
    node, other = net.nodes[2], net.nodes[0]
    ids = [fetched(net) for _ in range(5)]
    net.nodes[1].crash()
    node.crash()
    for job_id in ids:
        other.ack(job_id)
    net.run(100)
    other.is_crowded_for = {2}
    node.start()
    net.run(1)
    (telling,) = other.work
    other.is_crowded_for = set()
    next(telling)  # it has told of some
    net.lose(0, 2)
    other.work.rotate()  # the new link's turn comes first
    net.sent.clear()
    other.run()
    told = [message for sender, receiver, message in net.sent if (sender, receiver) == (0, 2)]
    assert {message.job_id for message in told if isinstance(message, SetAck)} == set(ids)
    assert [message for message in told if isinstance(message, CaughtUp)] == [CaughtUp()]


def test_a_peer_that_reads_slowly_is_told_as_fast_as_it_reads(net: JobNet) -> None:
    node, other = net.nodes[2], net.nodes[0]
    job_id = acked_while_away(net, node)
    other.is_crowded_for = {2}
    net.nodes[1].is_crowded_for = {2}
    node.start()
    net.run(1000)
    assert node.state_of(job_id) == COPY
    assert net.said(CaughtUp) == [one for one in net.said(CaughtUp) if one[0] == 2]
    other.is_crowded_for = net.nodes[1].is_crowded_for = set()
    net.run(200)
    assert net.holders(job_id) == []
