"""What commands do to the jobs and queues of all nodes, and what becomes of jobs with the nodes of a cluster."""

import pytest

from kestreld.cluster.job_messages import DeleteQueue, DelJob, JobMessage, LeftJob, PauseQueue
from kestreld.cluster.shared_jobs import _HANDLERS
from kestreld.jobs.job import ACKED, COPY, LET_GO, QUEUED
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN, PAUSED_OUT
from tests.support.job_net import RETRY_MS, JobNet, Q


@pytest.fixture
def net() -> JobNet:
    return JobNet(3)


def test_there_is_a_handler_for_every_message_about_jobs() -> None:
    assert set(_HANDLERS) == set(JobMessage.__args__)


# PAUSE BCAST


@pytest.mark.parametrize("pause", [PAUSED_IN, PAUSED_OUT, PAUSED_IN | PAUSED_OUT])
def test_a_queue_is_paused_at_all_nodes_that_can_be_reached(net: JobNet, pause: int) -> None:
    node = net.nodes[0]
    net.nodes[2].crash()
    node.jobs.pause(node.queue, pause)
    node.shared.pause_everywhere(Q, pause)
    net.run(10)
    assert net.nodes[1].queue.pause == pause
    node.shared.pause_everywhere(Q, NOT_PAUSED)
    net.run(10)
    assert net.nodes[1].queue.pause == NOT_PAUSED


def test_who_waits_is_served_where_another_node_ends_a_pause(net: JobNet) -> None:
    node = net.nodes[1]
    node.jobs.pause(node.queue, PAUSED_OUT)
    job_id = node.add(1)
    node.wait()
    assert node.fetched == []
    net.nodes[0].shared.pause_everywhere(Q, NOT_PAUSED)
    net.run(10)
    assert node.fetched == [job_id]


def test_no_queue_is_made_to_end_a_pause_that_it_never_had(net: JobNet) -> None:
    net.nodes[0].shared.pause_everywhere(b"other", NOT_PAUSED)
    net.run(10)
    assert net.nodes[1].jobs.find_queue(b"other") is None


def test_a_pause_of_a_queue_too_many_is_ignored(net: JobNet) -> None:
    net.nodes[1].jobs.limit_queues(0)
    net.nodes[1].receive(net.nodes[0], PauseQueue(b"other", PAUSED_IN))
    assert net.nodes[1].jobs.find_queue(b"other") is None


# QDEL BCAST


def test_all_jobs_of_a_queue_are_deleted_at_all_nodes(net: JobNet) -> None:
    for number in range(30):
        net.nodes[number % 3].add(1 + number % 3)
    net.run(10)
    node = net.nodes[0]
    node.shared.empty_everywhere(Q)
    for _ in node.jobs.delete_all(node.queue):
        pass
    net.run(100)
    assert [one.jobs.table.count for one in net.nodes] == [0, 0, 0]
    net.run(3 * RETRY_MS)
    assert [one.queue.jobs.count for one in net.nodes] == [0, 0, 0]


def test_deleting_the_jobs_of_a_queue_takes_short_steps(net: JobNet) -> None:
    node = net.nodes[1]
    for _ in range(50):
        node.add(1)
    node.shared.receive(node.entry(net.nodes[0]), DeleteQueue(Q))
    (work,) = node.work
    next(work)
    assert node.jobs.table.count == 49


def test_other_queues_are_not_emptied(net: JobNet) -> None:
    node = net.nodes[1]
    other = node.jobs.queue(b"other")
    assert other is not None
    node.jobs.add(b"", other.terms_of((60_000, RETRY_MS, 0, -1)))
    net.nodes[0].shared.empty_everywhere(Q)
    net.run(100)
    assert other.jobs.count == 1


# Flushes and resets


def test_a_flush_is_of_one_node_and_leaves_copies_elsewhere(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    for _ in net.nodes[0].jobs.clear():
        pass
    net.run(RETRY_MS + 3000)
    assert net.states(job_id)[0] == -1
    assert len(net.queued_at(job_id)) == 1


def test_after_a_flush_nothing_of_what_was_is_remembered(net: JobNet) -> None:
    node = net.nodes[0]
    once = node.add(1, retry_ms=0)
    acked = node.add(3)
    net.run(10)
    net.is_manual = True
    node.ack(acked)
    node.jobs.dequeue(node.job(once))
    node.shared.lending.lend(node.job(once), node.entry(net.nodes[1]))
    net.nodes[1].shared.watches.watch(once, lambda end: None)
    net.deliver(1, 0)
    node.add(3)
    for _ in node.jobs.clear():
        pass
    assert node.added[-1] is None
    assert (node.jobs.table.count, node.shared.acks.count, node.shared.lending.lent) == (0, 0, 0)
    net.is_manual = False
    net.deliver_all()
    net.run(60_000)
    assert node.jobs.table.count == 0


def test_a_node_that_knows_no_others_any_more_serves_what_it_holds(net: JobNet) -> None:
    """CLUSTER RESET SOFT."""
    job_id = net.nodes[0].add(3)
    net.run(10)
    node = net.nodes[0]
    for other in net.nodes[1:]:
        node.forget(other)
    assert node.get() == job_id
    net.sent.clear()
    net.run(RETRY_MS + 1000)
    assert node.get() == job_id
    assert node.ack(job_id)
    assert node.state_of(job_id) == -1
    assert [one for one in net.sent if one[0] == 0] == []


def test_a_node_with_a_new_id_is_another_owner(net: JobNet) -> None:
    """CLUSTER RESET HARD: what it holds from before is its own."""
    node = net.nodes[0]
    for other in net.nodes[1:]:
        node.forget(other)
    job_id = node.add(1)
    node.jobs.use_node_id(b"9" * 40)
    assert node.get() == job_id
    assert node.ack(job_id)
    assert node.state_of(job_id) == -1
    new_id = node.add(1)
    assert new_id.startswith(b"D-99999999-")


# Nodes that are forgotten or leave


def test_a_node_that_is_forgotten_with_a_job_lent_to_it_gives_that_back(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(1, retry_ms=0)
    net.is_manual = True
    node.jobs.dequeue(node.job(job_id))
    node.shared.lending.lend(node.job(job_id), node.entry(net.nodes[1]))
    node.forget(net.nodes[1])
    node.run()
    assert node.get() == job_id


def test_what_was_let_go_of_to_a_forgotten_node_goes_with_its_ttl(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(1, retry_ms=0, ttl_ms=60_000)
    net.is_manual = True
    node.jobs.dequeue(node.job(job_id))
    node.shared.lending.lend(node.job(job_id), node.entry(net.nodes[1]))
    net.deliver(0, 1)
    net.deliver(1, 0)
    assert node.state_of(job_id) == LET_GO
    node.forget(net.nodes[1])
    net.nodes[1].crash()
    net.run(59_000)
    assert (node.state_of(job_id), node.get()) == (LET_GO, None)
    net.run(1100)
    assert node.state_of(job_id) == -1


def test_an_owner_that_has_let_a_job_go_is_told_nothing_more_about_it(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.nodes[2].jobs.remove(net.nodes[2].job(job_id))
    net.nodes[0].receive(net.nodes[2], LeftJob((job_id,)))
    assert net.nodes[0].owners(job_id) == {0, 1}
    net.nodes[0].receive(net.nodes[2], LeftJob((b"D-00000000-%024d-05a1" % 1,)))
    net.sent.clear()
    net.nodes[0].get()
    net.run(RETRY_MS + 1000)
    assert 2 not in {receiver for sender, receiver, _ in net.sent if sender == 0}


def test_an_acknowledgement_does_not_wait_for_an_owner_that_lets_its_job_go_meanwhile(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.cut = {(2, 0)}
    net.nodes[0].ack(job_id)
    net.run(10)
    assert net.nodes[0].state_of(job_id) == ACKED
    net.cut = set()
    net.nodes[0].receive(net.nodes[2], LeftJob((job_id,)))
    net.run(10)
    assert net.states(job_id)[:2] == [-1, -1]


# Alone, and not alone any more


def test_a_lone_node_does_nothing_for_other_nodes() -> None:
    net = JobNet(1)
    node = net.nodes[0]
    assert node.jobs.copies is None
    job_id = node.add(1)
    assert node.get() == job_id
    net.run(RETRY_MS + 500)
    assert node.get() == job_id
    assert node.ack(job_id)
    assert node.jobs.table.count == 0


def test_jobs_from_before_a_node_joined_are_its_own_until_others_take_them(net: JobNet) -> None:
    lone = JobNet(1)
    job_id = lone.nodes[0].add(1)
    assert lone.nodes[0].job(job_id).terms.owners == 0
    job_id = net.nodes[0].add(1)
    assert net.nodes[0].job(job_id).terms.owners == 0
    net.nodes[1].wait()
    net.run(10)
    assert net.nodes[0].owners(job_id) == {0, 1}


def test_a_deleted_copy_is_not_told_to_others(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.sent.clear()
    copy = next(node for node in net.nodes if node.state_of(job_id) == COPY)
    copy.jobs.remove(copy.job(job_id))
    net.run(10)
    assert net.said(DelJob) == []
    assert net.queued_at(job_id) == [0]
    assert net.nodes[0].state_of(job_id) == QUEUED
