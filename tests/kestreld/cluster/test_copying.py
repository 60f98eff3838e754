"""Jobs of nodes whose clocks differ: their times go with them."""

from typing import Final

import pytest

from kestreld.cluster.copying import copy_of, dead_letter_of, death_of, due_in_ms, expires_in_ms
from kestreld.cluster.job_messages import YourJobs
from kestreld.cluster.peers import GAP_MS
from kestreld.jobs.job import COPY, DELAYED, NOTICE_MS, QUEUED, DeadLetter
from kestreld.jobs.store import JITTER_MS
from tests.support.job_net import RETRY_MS, TTL_MS, JobNet

SKEWS_MS: Final = [0, 3_600_000, -3_600_000, 250]


@pytest.fixture(params=SKEWS_MS)
def net(request: pytest.FixtureRequest) -> JobNet:
    """The clock of node 1 is ahead by that much."""
    return JobNet(3, skews_ms=(0, request.param, 0))


def test_a_copy_expires_when_its_job_does(net: JobNet) -> None:
    job_id = net.nodes[0].add(3, ttl_ms=60_000)
    net.run(59_990)
    assert net.states(job_id)[1] != -1
    net.run(20)
    assert net.holders(job_id) == []


def test_a_copy_is_queued_again_no_sooner_than_its_job_would_be(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.nodes[0].crash()
    net.nodes[2].crash()
    net.run(RETRY_MS - JITTER_MS)
    assert net.queued_at(job_id) == []
    net.run(2 * GAP_MS + 2 * JITTER_MS + NOTICE_MS)
    assert net.queued_at(job_id) == [1]


def test_a_delay_ends_when_it_should_whoever_sees_to_it(net: JobNet) -> None:
    node = net.nodes[1]
    net.nodes[2].crash()
    net.nodes[0].set_leaving()
    job_id = net.nodes[0].add(1, delay_s=30)
    net.run(29_980)
    assert node.state_of(job_id) == DELAYED
    net.run(40)
    assert node.state_of(job_id) == QUEUED


@pytest.mark.parametrize("retry_ms", [RETRY_MS, 0])
def test_an_imported_job_keeps_its_ttl(net: JobNet, retry_ms: int) -> None:
    job_id = net.nodes[0].add(1, retry_ms=retry_ms, ttl_ms=20_000)
    net.run(5000)
    net.nodes[1].wait()
    net.run(10)
    assert net.nodes[1].fetched == [job_id]
    net.run(14_980)
    assert net.nodes[1].state_of(job_id) != -1
    net.run(20)
    assert net.nodes[1].state_of(job_id) == -1


def test_jobs_of_nodes_whose_clocks_differ_are_in_the_order_in_which_they_were_added(net: JobNet) -> None:
    """By the clock of the node that they are fetched from, not by those of the nodes that they were added at."""
    ids = []
    for number in range(12):
        ids.append(net.nodes[number % 2].add(1))
        net.run(50)
    node = net.nodes[2]
    while len(node.fetched) < 12:
        if node.get() is None:
            node.wait()
        net.run(2)
    first_six = node.fetched[:6]
    assert sorted(first_six, key=ids.index) == first_six


def test_a_job_that_is_handed_on_and_on_keeps_its_place(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    created = net.nodes[0].job(job_id).created_at_ms - net.nodes[0].jobs.now_ms
    net.run(1000)
    net.nodes[1].receive(net.nodes[0], _your_jobs(net, 0, 1, job_id))
    net.nodes[2].receive(net.nodes[1], _your_jobs(net, 1, 2, job_id))
    here = net.nodes[2].job(job_id).created_at_ms - net.nodes[2].jobs.now_ms
    assert here == created - 1000


def _your_jobs(net: JobNet, giver: int, taker: int, job_id: bytes) -> YourJobs:
    jobs = net.nodes[giver].jobs
    job = net.nodes[giver].job(job_id)
    return YourJobs(1, (copy_of(jobs, job, jobs.me | jobs.node_sets.of(net.nodes[taker].id)),))


def test_what_is_left_of_ttl_and_delay_is_told_by_the_receivers_clock(net: JobNet) -> None:
    job_id = net.nodes[0].add(1, delay_s=30, ttl_ms=60_000)
    net.run(10_000)
    here, there = net.nodes[:2]
    copy = copy_of(here.jobs, here.job(job_id), here.jobs.me)
    assert expires_in_ms(there.jobs, copy, there.entry(here)) == 50_000
    assert due_in_ms(there.jobs, copy, there.entry(here)) == 20_000
    net.run(25_000)
    assert due_in_ms(there.jobs, copy, there.entry(here)) == 0


def test_a_job_without_a_delay_is_due_now(net: JobNet) -> None:
    here, there = net.nodes[:2]
    job_id = here.add(1)
    copy = copy_of(here.jobs, here.job(job_id), here.jobs.me)
    assert (copy.due_at_ms, due_in_ms(there.jobs, copy, there.entry(here))) == (0, 0)


def test_since_when_a_job_is_a_dead_letter_is_told_by_the_receivers_clock(net: JobNet) -> None:
    here, there = net.nodes[:2]
    death = death_of(DeadLetter(b"q", b"retries", here.jobs.now_ms - 5000))
    dead = dead_letter_of(death, there.entry(here))
    assert dead is not None
    assert (dead.origin, dead.reason, dead.dead_at_ms) == (b"q", b"retries", there.jobs.now_ms - 5000)
    assert death_of(None) is None
    assert dead_letter_of(None, there.entry(here)) is None


def test_everything_that_was_said_of_a_job_goes_with_it(net: JobNet) -> None:
    job_id = net.nodes[0].add(2, delay_s=30, ttl_ms=TTL_MS, key=b"key", retries=5)
    net.run(100)
    at = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    job, other = net.nodes[0].job(job_id), at.job(job_id)
    for name in ("ttl_ms", "retry_ms", "delay_s", "retries_max", "key", "replicate", "id_field"):
        assert getattr(job.terms, name) == getattr(other.terms, name), name
    assert (other.body, other.terms.queue.name) == (b"body", b"q")


def test_no_clock_makes_a_job_older_than_time() -> None:
    """A sender whose clock is far behind."""
    net = JobNet(2, skews_ms=(-1_700_000_000_000 + 1000, 0))
    job_id = net.nodes[0].add(2)
    net.run(10)
    assert net.nodes[0].added == [job_id]
    assert net.nodes[1].job(job_id).ctime > 0
