"""WAITJOB at a node that does not hold the job, or holds it no more."""

from unittest.mock import patch

import pytest

from kestreld.cluster import job_watches
from kestreld.cluster.job_messages import Declined, JobEnded, NeedJobs, TookBack
from kestreld.cluster.job_watches import AGAIN_MS, UNKNOWN
from kestreld.jobs.job import BORROWED, COPY
from tests.support.compiled import interpreted_only
from tests.support.job_net import TTL_MS, JobNet, JobNode, Q


def test_a_job_is_found_that_goes_from_node_to_node() -> None:
    net = JobNet(3)
    here, there, third = net.nodes
    job_id = here.add(1, retry_ms=0)
    ends: list[str] = []
    third.shared.watches.watch(job_id, ends.append)
    net.run(100)
    there.wait()
    net.run(3000)
    assert there.fetched == [job_id]
    there.ack(job_id)
    net.run(100)
    assert ends == ["acked"]


def test_a_job_is_found_that_has_come_to_the_node_itself() -> None:
    net = JobNet(2)
    here, there = net.nodes
    job_id = here.add(1, retry_ms=0)
    ends: list[str] = []
    there.shared.watches.watch(job_id, ends.append)
    net.run(100)
    there.wait()
    net.run(5000)
    there.ack(job_id)
    net.run(100)
    assert ends == ["acked"]


def test_nobody_asks_for_a_job_that_nobody_waits_for_any_longer() -> None:
    net = JobNet(3)
    here, there, third = net.nodes
    job_id = here.add(1, retry_ms=0)
    ends: list[str] = []
    told = ends.append
    third.shared.watches.watch(job_id, told)
    net.run(100)
    there.wait()
    net.run(100)
    third.shared.watches.unwatch(job_id, told)
    net.run(5000)
    net.sent.clear()
    net.run(10_000)
    assert net.counted()["WatchJob"] == 0


# How jobs end


class Waiting:
    """A WAITJOB at a node."""

    def __init__(self, node: JobNode, job_id: bytes) -> None:
        self.ends: list[str] = []
        self.told = self.ends.append
        self.node = node
        job = node.jobs.find(job_id)
        if job is None:
            node.shared.watches.watch(job_id, self.told)
        else:
            node.jobs.watch(job, self.told)


@pytest.fixture
def net() -> JobNet:
    return JobNet(4)


def held_by_two(net: JobNet, *, ttl_ms: int = TTL_MS) -> tuple[bytes, JobNode]:
    """A job of node 0, and a node that does not hold it."""
    job_id = net.nodes[0].add(2, ttl_ms=ttl_ms)
    net.run(10)
    return job_id, next(node for node in net.nodes if node.state_of(job_id) == -1)


def test_who_waits_elsewhere_is_told_at_once_that_a_job_is_acknowledged(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    waiting = Waiting(elsewhere, job_id)
    net.run(20_000)
    assert waiting.ends == []
    assert net.nodes[0].get() == job_id
    net.nodes[0].ack(job_id)
    net.run(5)
    assert waiting.ends == ["acked"]


def test_a_fast_acknowledgement_is_one_for_whoever_waits_wherever(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    waiting = [Waiting(node, job_id) for node in (net.nodes[0], holder, elsewhere)]
    net.run(10)
    net.nodes[0].shared.delete_everywhere(job_id)
    net.run(10)
    assert [one.ends for one in waiting] == [["acked"]] * 3


def test_who_waits_elsewhere_is_told_that_a_job_has_expired(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net, ttl_ms=5000)
    waiting = Waiting(elsewhere, job_id)
    net.run(5100)
    assert waiting.ends == ["expired"]


def test_who_waits_elsewhere_is_told_that_a_job_was_deleted(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    waiting = Waiting(net.nodes[1], job_id)
    net.run(10)
    net.nodes[0].jobs.remove(net.nodes[0].job(job_id))
    net.run(10)
    assert waiting.ends == ["deleted"]


def test_who_waits_when_all_jobs_are_flushed_is_told_so(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    waiting = Waiting(net.nodes[1], job_id)
    net.run(10)
    for _ in net.nodes[0].jobs.clear():
        pass
    net.run(10)
    assert waiting.ends == ["deleted"]


def test_a_job_that_is_over_already_is_answered_for_at_once(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    net.nodes[0].ack(job_id)
    net.run(50)
    waiting = Waiting(elsewhere, job_id)
    net.run(5)
    assert waiting.ends == ["acked"]


def test_a_job_of_which_an_acknowledgement_is_remembered_is_answered_for_at_once(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    net.partition(holder.number)
    net.nodes[0].ack(job_id)
    waiting = Waiting(elsewhere, job_id)
    net.run(10)
    assert waiting.ends == ["acked"]


def test_a_job_that_nobody_knows_is_unknown_once_all_have_said_so(net: JobNet) -> None:
    waiting = Waiting(net.nodes[0], b"D-00000000-%024d-05a1" % 1)
    net.run(1)
    assert waiting.ends == []
    net.run(2)
    assert waiting.ends == [UNKNOWN]
    assert net.counted() == {"WatchJob": 3, "JobEnded": 3}


def test_a_node_that_stands_alone_knows_no_job_of_others() -> None:
    waiting = Waiting(JobNet(1).nodes[0], b"D-00000000-%024d-05a1" % 1)
    assert waiting.ends == [UNKNOWN]


def test_several_clients_of_a_node_wait_for_one_job_with_one_question(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    waiting = [Waiting(elsewhere, job_id) for _ in range(3)]
    net.run(10)
    assert net.counted()["WatchJob"] == 3, "to each other node"
    net.nodes[0].ack(job_id)
    net.run(10)
    assert [one.ends for one in waiting] == [["acked"]] * 3


# Nodes and links that fail


def test_a_holder_that_crashes_leaves_the_answer_to_another_one(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    waiting = Waiting(elsewhere, job_id)
    net.run(10)
    net.nodes[0].crash()
    net.run(10_000)
    assert waiting.ends == []
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) != -1)
    holder.ack(job_id)
    net.run(10)
    assert waiting.ends == ["acked"]


def test_when_the_only_holder_has_crashed_a_job_is_unknown(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    waiting = Waiting(net.nodes[1], job_id)
    net.run(10)
    net.nodes[0].crash()
    net.run(AGAIN_MS + 10)
    assert waiting.ends == [UNKNOWN]


@pytest.mark.parametrize("copies", [1, 2])
def test_an_answer_that_gets_lost_with_its_link_is_asked_for_again(net: JobNet, copies: int) -> None:
    job_id = net.nodes[0].add(copies)
    net.run(10)
    elsewhere = next(node for node in net.nodes if node.state_of(job_id) == -1)
    waiting = Waiting(elsewhere, job_id)
    net.run(10)
    net.is_manual = True
    net.nodes[0].ack(job_id)
    net.lose(0, elsewhere.number)
    net.is_manual = False
    net.deliver_all()
    net.run(AGAIN_MS + 10)
    assert waiting.ends == ["acked"]


def test_a_question_that_gets_lost_is_asked_again(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.is_manual = True
    waiting = Waiting(net.nodes[1], job_id)
    net.lose(1, 0)
    net.is_manual = False
    net.deliver_all()
    net.run(AGAIN_MS + 10)
    net.nodes[0].ack(job_id)
    net.run(10)
    assert waiting.ends == ["acked"]


def test_a_node_that_went_down_is_told_nothing_and_asks_anew(net: JobNet) -> None:
    job_id, elsewhere = held_by_two(net)
    waiting = Waiting(elsewhere, job_id)
    net.run(10)
    net.partition(elsewhere.number)
    assert net.nodes[0].jobs.watches == {}
    net.run(10_000)
    assert waiting.ends == [UNKNOWN], "nobody can be asked"


# Jobs that go to another node


def test_who_waits_at_a_leaving_node_is_told_by_the_one_that_has_its_jobs_now(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    here, there = Waiting(net.nodes[0], job_id), Waiting(net.nodes[3], job_id)
    net.nodes[0].set_leaving()
    net.nodes[0].shared.leave(hands_over=True)
    net.run(3000)
    assert net.nodes[0].state_of(job_id) == -1
    assert (here.ends, there.ends) == ([], [])
    (at,) = net.holders(job_id)
    net.nodes[at].ack(job_id)
    net.run(10)
    assert (here.ends, there.ends) == (["acked"], ["acked"])


def test_who_waits_for_a_borrowed_job_that_is_taken_back_goes_on_waiting(net: JobNet) -> None:
    node = net.nodes[1]
    job_id = net.nodes[0].add(1, retry_ms=0)
    net.is_manual = True
    net.nodes[0].receive(node, NeedJobs(Q, 1))
    net.deliver(0, 1)
    assert node.state_of(job_id) == BORROWED
    waiting = Waiting(node, job_id)
    net.links.clear()
    node.receive(net.nodes[0], TookBack(job_id))
    net.nodes[0].receive(node, Declined(job_id))
    net.is_manual = False
    net.run(3000)
    assert waiting.ends == []
    assert net.nodes[0].get() == job_id
    net.nodes[0].ack(job_id)
    net.run(AGAIN_MS + 10)
    assert waiting.ends == ["acked"]


def test_a_client_that_has_ceased_to_wait_is_not_told_when_the_job_has_gone_to_another_node(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    waiting = Waiting(net.nodes[0], job_id)
    net.nodes[0].set_leaving()
    net.nodes[0].shared.leave(hands_over=True)
    net.run(3000)
    net.nodes[0].jobs.unwatch(job_id, waiting.told)
    net.nodes[0].shared.watches.unwatch(job_id, waiting.told)
    (at,) = net.holders(job_id)
    net.nodes[at].ack(job_id)
    net.run(5000)
    assert waiting.ends == []


# Bounds


@interpreted_only
def test_so_many_jobs_are_watched_for_another_node_and_no_more(net: JobNet) -> None:
    node = net.nodes[0]
    ids = [node.add(1) for _ in range(20)]
    with patch.object(job_watches, "WATCHED_MAX", 10):
        waiting = [Waiting(net.nodes[1], job_id) for job_id in ids]
        net.run(10)
        assert len(node.jobs.watches) == 10
        for job_id in ids:
            node.ack(job_id)
        net.run(AGAIN_MS + 10)
    assert [one.ends for one in waiting].count(["acked"]) >= 10


def test_a_word_that_is_no_end_counts_as_what_it_says_and_no_more(net: JobNet) -> None:
    waiting = Waiting(net.nodes[0], b"D-00000000-%024d-05a1" % 1)
    net.nodes[0].receive(net.nodes[1], JobEnded(b"D-00000000-%024d-05a1" % 2, b"acked"))
    assert waiting.ends == []
