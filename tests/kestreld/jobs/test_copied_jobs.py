"""What is done to jobs because other nodes say so: states, counters and times."""

from random import Random
from typing import Final

import pytest

from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    BORROWED,
    COPY,
    CTIME_BITS,
    DELAYED,
    LENT,
    LET_GO,
    NEVER,
    QUEUED,
    WAIT_REPL,
    Job,
)
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.timers import IDLE_ENTRIES_MAX
from kestreld.queues.agenda import Agenda
from tests.support.clock import FakeClock
from tests.support.job_sums import must_add_up
from tests.support.jobs import NODE_ID, pass_time

OTHER_ID: Final = b"f" * 40
RETRY_MS: Final = 10_000
TTL_MS: Final = 60_000


class Node:
    """The jobs of one of two nodes."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.jobs = ReplicatedJobs(self.clock, Agenda(), Random(7).randbytes, NODE_ID)
        self.both = self.jobs.me | self.jobs.node_sets.of(OTHER_ID)
        self._number = 0

    @property
    def queue(self) -> JobQueue:
        queue = self.jobs.queue(b"q")
        assert queue is not None
        return queue

    def kept(self, state: int = COPY, *, retry_ms: int = RETRY_MS, key: bytes = b"", at_ms: int = RETRY_MS) -> Job:
        """A job of the other node."""
        jobs = self.jobs
        self._number += 1
        terms = self.queue.terms_shared_with((TTL_MS, retry_ms, 0, -1), 2, self.both, key)
        job = Job(b"D-%038d" % self._number, b"body", terms, jobs.now_ms << CTIME_BITS, NEVER, ACTIVE)
        jobs.keep(job, state, jobs.now_ms + at_ms if retry_ms else NEVER)
        return job

    def held(self, *, delay_s: int = 0, key: bytes = b"", retry_ms: int = RETRY_MS) -> Job:
        """A job that is being added."""
        terms = self.queue.terms_shared_with((TTL_MS, retry_ms, delay_s, -1), 2, self.both, key)
        return self.jobs.hold(b"body", terms)

    def bring(self, copy: Job, state: int) -> None:
        """Have a copy be queued, delayed, or with a worker."""
        if state in (QUEUED, ACTIVE):
            self.jobs.queue_here(copy)
        if state == ACTIVE:
            assert self.take() is copy
        if state == DELAYED:
            self.jobs.delay(copy, 1000)
        assert copy.state == state

    def take(self) -> Job | None:
        return self.jobs.take(self.queue)

    def pass_time(self, span_ms: int) -> None:
        pass_time(self.jobs, self.clock, span_ms)
        must_add_up(self.jobs)


@pytest.fixture
def node() -> Node:
    return Node()


def test_times_of_copies_that_are_over_are_swept_up_as_others_come(node: Node) -> None:
    """A node that only holds copies of others' jobs would otherwise remember them until their retry times."""
    for _ in range(4 * IDLE_ENTRIES_MAX):
        node.jobs.remove(node.kept())
    assert node.jobs.timers.entries < 2 * IDLE_ENTRIES_MAX


def test_times_of_dummies_that_are_over_are_swept_up_as_others_come(node: Node) -> None:
    terms = JobQueue(b"").terms_of((TTL_MS, 1, 0, -1))
    for number in range(4 * IDLE_ENTRIES_MAX):
        node.jobs.remove(node.jobs.keep_dummy(b"D-%038d" % number, terms))
    assert node.jobs.timers.entries < 2 * IDLE_ENTRIES_MAX


def test_a_job_that_is_being_added_counts_in_its_queue_and_is_not_given_to_anybody(node: Node) -> None:
    job = node.held()
    assert (job.state, node.queue.total, node.queue.jobs.count) == (WAIT_REPL, 1, 0)
    assert node.take() is None
    must_add_up(node.jobs)
    node.jobs.release(job)
    assert (job.state, node.queue.total) == (QUEUED, 1)
    must_add_up(node.jobs)
    assert node.take() is job


def test_a_delay_counts_from_when_the_job_came_not_from_when_it_was_added(node: Node) -> None:
    job = node.held(delay_s=5)
    node.pass_time(3000)
    node.jobs.release(job)
    assert job.state == DELAYED
    node.pass_time(1990)
    assert node.take() is None
    node.pass_time(20)
    assert node.take() is job


def test_a_job_whose_delay_is_over_when_it_is_added_is_queued(node: Node) -> None:
    job = node.held(delay_s=5)
    node.pass_time(6000)
    node.jobs.release(job)
    assert node.take() is job


def test_a_job_that_was_not_added_leaves_its_key_free(node: Node) -> None:
    job = node.held(key=b"key")
    node.jobs.unhold(job)
    must_add_up(node.jobs)
    assert node.jobs.keys.find(job.terms.known_key, node.jobs.now_ms) is None


def test_a_job_that_is_being_added_expires(node: Node) -> None:
    job = node.held()
    node.pass_time(TTL_MS + 10)
    assert node.jobs.find(job.id) is None


def test_jobs_of_other_nodes_are_in_the_order_of_their_creation(node: Node) -> None:
    copies = [node.kept() for _ in range(3)]
    copies[1].ctime -= 5000 << CTIME_BITS
    for job in reversed(copies):
        node.jobs.queue_here(job)
    assert [node.take() for _ in range(3)] == [copies[1], copies[0], copies[2]]


@pytest.mark.parametrize("state", [QUEUED, DELAYED, ACTIVE, COPY])
def test_a_job_is_put_off_whatever_it_waits_for(node: Node, state: int) -> None:
    job = node.kept()
    node.bring(job, state)
    assert job.state == state
    node.jobs.put_off(job, node.jobs.now_ms + 30_000)
    must_add_up(node.jobs)
    assert (job.state, node.take()) == (COPY, None)
    node.pass_time(29_990)
    assert job.state == COPY
    node.pass_time(500)
    assert node.take() is job


def test_a_job_that_is_taken_from_its_queue_for_another_node_is_not_counted_twice(node: Node) -> None:
    job = node.kept()
    node.jobs.queue_here(job)
    assert node.jobs.first_to_give(node.queue) is job
    must_add_up(node.jobs)
    assert (node.queue.jobs_out, node.take()) == (1, None)


def test_no_expired_job_is_given_to_another_node(node: Node) -> None:
    job = node.kept()
    node.jobs.queue_here(job)
    node.clock.advance(TTL_MS)
    assert node.jobs.first_to_give(node.queue) is None
    assert node.jobs.find(job.id) is None


def test_a_job_that_is_delivered_at_most_once_goes_from_queue_to_lent_to_let_go(node: Node) -> None:
    jobs = node.jobs
    job = jobs.add(b"body", node.queue.terms_of((TTL_MS, 0, 0, -1)))
    assert jobs.first_to_give(node.queue) is job
    jobs.lend(job, node.both)
    must_add_up(jobs)
    assert (job.state, job.body, jobs.memory.delivered_once) == (LENT, b"body", 0)
    jobs.let_go(job, jobs.node_sets.of(OTHER_ID))
    must_add_up(jobs)
    assert (job.state, job.body, node.queue.total) == (LET_GO, b"", 0)
    jobs.remove(job)
    must_add_up(jobs)


@pytest.mark.parametrize("delay_s", [0, 5])
def test_a_job_that_was_lent_is_queued_again_or_waits_for_the_rest_of_its_delay(node: Node, delay_s: int) -> None:
    jobs = node.jobs
    job = jobs.add(b"body", node.queue.terms_of((TTL_MS, 0, delay_s, -1)))
    if not delay_s:
        jobs.first_to_give(node.queue)
    jobs.lend(job, node.both)
    jobs.keep_for_itself(job)
    must_add_up(jobs)
    assert job.state == (DELAYED if delay_s else QUEUED)
    assert job.terms.owners == 0
    node.pass_time(5010)
    assert node.take() is job


def test_a_borrowed_job_is_given_to_nobody(node: Node) -> None:
    job = node.kept(BORROWED, retry_ms=0)
    must_add_up(node.jobs)
    assert node.take() is None
    assert not node.jobs.may_be_queued(job)
    node.jobs.keep_for_itself(job)
    must_add_up(node.jobs)
    assert node.take() is job


@pytest.mark.parametrize("state", [QUEUED, DELAYED, ACTIVE, COPY, WAIT_REPL])
def test_an_acknowledged_job_is_none_of_its_queue_and_has_no_body(node: Node, state: int) -> None:
    job = node.held(key=b"key") if state == WAIT_REPL else node.kept(key=b"key")
    node.bring(job, state)
    told: list[str] = []
    node.jobs.watch(job, told.append)
    node.jobs.remember_ack(job)
    must_add_up(node.jobs)
    assert (job.state, job.body, node.queue.total, told) == (ACKED, b"", 0, ["acked"])
    assert node.jobs.keys.find(job.terms.known_key, node.jobs.now_ms) == job.id
    node.jobs.remove(job)
    must_add_up(node.jobs)


def test_a_job_of_several_nodes_is_queued_again_where_there_is_no_cluster_any_more(node: Node) -> None:
    """And nothing wakes again and again in the half second in which others would be told."""
    job = node.kept()
    node.pass_time(RETRY_MS - 10)
    assert job.state == COPY
    node.pass_time(20)
    assert node.take() is job


def test_an_acknowledged_job_expires(node: Node) -> None:
    job = node.kept()
    node.jobs.remember_ack(job)
    node.pass_time(TTL_MS + 10)
    assert node.jobs.find(job.id) is None


@pytest.mark.parametrize("state", [QUEUED, DELAYED, ACTIVE, COPY])
def test_a_job_that_another_node_has_moved_is_a_copy_in_that_queue(node: Node, state: int) -> None:
    job = node.kept()
    node.bring(job, state)
    to = node.jobs.unlisted_queue(b"q.dead")
    node.jobs.follow(job, to, None, 2, 3, 4)
    node.jobs.put_off(job, node.jobs.now_ms + RETRY_MS)
    must_add_up(node.jobs)
    assert (job.state, job.terms.queue, job.nacks, job.deliveries) == (COPY, to, 3, 4)
    assert (node.queue.total, to.total) == (0, 1)


def test_a_job_can_be_moved_to_the_queue_that_it_is_in(node: Node) -> None:
    job = node.kept()
    node.jobs.unlist(node.queue)
    node.jobs.follow(job, job.terms.queue, None, 2, 0, 0)
    must_add_up(node.jobs)


def test_counters_of_other_nodes_never_make_less_of_what_was_counted_here(node: Node) -> None:
    job = node.kept()
    node.jobs.count(job, 2, 5)
    node.jobs.count(job, 3, 1)
    assert (job.nacks, job.deliveries) == (3, 5)


def test_all_jobs_of_a_queue_are_deleted_but_for_those_that_are_remembered_for_others(node: Node) -> None:
    jobs = [node.kept(), node.held(), node.kept(BORROWED, retry_ms=0), node.kept()]
    node.jobs.queue_here(jobs[3])
    acked = node.kept()
    node.jobs.remember_ack(acked)
    *_, deleted = node.jobs.delete_all(node.queue)
    assert deleted == 4
    must_add_up(node.jobs)
    assert list(node.jobs.table) == [acked]


def test_a_job_that_comes_while_its_queue_is_emptied_stays(node: Node) -> None:
    old = [node.kept() for _ in range(3)]
    for job in old:
        node.jobs.queue_here(job)
    work = node.jobs.delete_all(node.queue)
    next(work)
    node.clock.advance(10)
    new = node.jobs.add(b"", node.queue.terms_of((TTL_MS, RETRY_MS, 0, -1)))
    for _ in work:
        pass
    assert list(node.jobs.table) == [new]
