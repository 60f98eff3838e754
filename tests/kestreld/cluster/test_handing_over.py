"""CLUSTER LEAVING yes HANDOVER: a node that leaves moves its jobs."""

import pytest

from kestreld.cluster.drain import ON_THE_WAY_MAX
from kestreld.jobs.job import COPY, DELAYED, QUEUED
from tests.support.job_net import RETRY_MS, JobNet, JobNode


@pytest.fixture
def net() -> JobNet:
    return JobNet(4)


def leave(net: JobNet, node: JobNode) -> None:
    node.set_leaving()
    node.shared.leave(hands_over=True)
    node.run()
    net.run(3000)


def holders(net: JobNet, job_id: bytes) -> dict[int, int]:
    return {node.number: state for node in net.nodes if (state := node.state_of(job_id)) != -1}


def test_a_queued_job_is_queued_at_another_node_which_has_as_many_copies(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(100)
    leave(net, net.nodes[0])
    assert sorted(holders(net, job_id)) == [1, 2, 3]
    assert sorted(holders(net, job_id).values()) == [QUEUED, COPY, COPY]


def test_where_all_nodes_hold_a_job_it_only_goes_here() -> None:
    net = JobNet(3)
    job_id = net.nodes[0].add(3)
    net.run(100)
    leave(net, net.nodes[0])
    assert sorted(holders(net, job_id).values()) == [QUEUED, COPY]


def test_a_delayed_job_keeps_its_time(net: JobNet) -> None:
    job_id = net.nodes[0].add(1, delay_s=20)
    net.run(100)
    began_ms = net.now_ms
    leave(net, net.nodes[0])
    (number,) = holders(net, job_id)
    assert net.nodes[number].state_of(job_id) == DELAYED
    net.run(began_ms + 19_000 - net.now_ms)
    assert net.nodes[number].get() is None
    net.run(1100)
    assert net.nodes[number].get() == job_id


def test_a_job_that_a_worker_has_is_queued_again_by_its_new_holder_and_acknowledged_there(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    assert net.nodes[0].get() == job_id
    leave(net, net.nodes[0])
    (number,) = holders(net, job_id)
    assert net.nodes[number].state_of(job_id) == COPY
    net.nodes[0].ack(job_id)  # which says so to all, and remembers nothing
    net.run(60_000)
    assert holders(net, job_id) == {}


@pytest.mark.parametrize("delay_s", [0, 20])
def test_a_job_with_retry_0_is_let_go_of_and_comes_once(net: JobNet, delay_s: int) -> None:
    job_id = net.nodes[0].add(1, retry_ms=0, delay_s=delay_s)
    leave(net, net.nodes[0])
    (number,) = holders(net, job_id)
    assert number != 0
    net.run(21_000)
    assert [node.get() for node in net.nodes].count(job_id) == 1
    assert net.nodes[number].fetched == [job_id]


def test_an_acknowledgement_does_not_wait_for_a_node_that_has_left(net: JobNet) -> None:
    job_id = net.nodes[0].add(2)
    net.run(100)
    leave(net, net.nodes[0])
    net.nodes[0].crash()
    at = next(node for node in net.nodes[1:] if node.state_of(job_id) == QUEUED)
    assert at.get() == job_id
    at.ack(job_id)
    net.run(1000)
    assert holders(net, job_id) == {}


def test_nothing_goes_while_no_other_node_takes_it(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.partition(0)
    leave(net, net.nodes[0])
    assert holders(net, job_id) == {0: QUEUED}
    assert net.nodes[0].shared.hand_over.left == 1
    net.heal()
    net.run(3000)
    assert 0 not in holders(net, job_id)


def test_a_node_that_stays_after_all_keeps_what_it_has(net: JobNet) -> None:
    net.partition(0)
    job_id = net.nodes[0].add(1)
    leave(net, net.nodes[0])
    net.nodes[0].shared.leave(hands_over=False)
    net.heal()
    net.run(5000)
    assert holders(net, job_id) == {0: QUEUED}


def test_many_jobs_go_some_at_a_time(net: JobNet) -> None:
    node = net.nodes[0]
    for number in range(3 * ON_THE_WAY_MAX):
        node.add(1, retry_ms=RETRY_MS if number % 2 else 0)
    net.run(10)
    net.is_manual = True
    node.set_leaving()
    node.shared.leave(hands_over=True)
    node.run()
    sent = net.counted()
    assert sent["ReplJob"] + sent["LendJob"] == ON_THE_WAY_MAX
    net.is_manual = False
    net.deliver_all()
    net.run(20_000)
    assert node.jobs.table.count == 0
    assert sum(one.queue.jobs.count for one in net.nodes) == 3 * ON_THE_WAY_MAX


def test_a_job_that_no_answer_comes_for_is_offered_to_others(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(1)
    net.cut = {(1, 0), (2, 0)}
    leave(net, node)
    net.run(20_000)
    assert node.state_of(job_id) == -1
    assert 3 in holders(net, job_id)


def test_a_delivered_job_with_retry_0_goes_with_its_node(net: JobNet) -> None:
    job_id = net.nodes[0].add(1, retry_ms=0)
    assert net.nodes[0].get() == job_id
    leave(net, net.nodes[0])
    assert holders(net, job_id) == {}


def test_a_job_that_is_acknowledged_while_it_is_handed_over_is_over(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(1)
    assert node.get() == job_id
    net.is_manual = True
    node.set_leaving()
    node.shared.leave(hands_over=True)
    node.run()
    node.ack(job_id)
    net.is_manual = False
    net.deliver_all()
    net.run(10_000)
    assert holders(net, job_id) == {}


def test_a_job_that_comes_to_a_leaving_node_is_handed_over_too(net: JobNet) -> None:
    node = net.nodes[0]
    leave(net, node)
    job_id = node.add(1)
    net.run(5000)
    assert 0 not in holders(net, job_id)
    assert list(holders(net, job_id).values()) == [QUEUED]


def test_a_second_order_to_leave_changes_nothing(net: JobNet) -> None:
    node = net.nodes[0]
    ids = [node.add(1) for _ in range(5)]
    leave(net, node)
    node.shared.leave(hands_over=True)
    net.run(3000)
    assert [len(holders(net, job_id)) for job_id in ids] == [1] * 5


def test_dead_letters_keep_their_origin_and_counters(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(1)
    node.get()
    node.jobs.nack(node.job(job_id))
    node.jobs.bury(node.job(job_id), b"asked")
    leave(net, node)
    (number,) = holders(net, job_id)
    job = net.nodes[number].job(job_id)
    assert (job.terms.queue.name, job.state, job.nacks) == (b"q.dead", QUEUED, 1)
    assert job.terms.dead is not None
    assert job.terms.dead.origin == b"q"
