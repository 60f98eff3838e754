"""What is over leaves nothing behind, however it came to its end."""

from random import Random
from typing import Final

import pytest

from kestreld.jobs.job import DELAYED, QUEUED
from tests.support.job_net import RETRY_MS, JobNet, JobNode
from tests.support.job_sums import must_add_up, must_know_states
from tests.support.object_graph import ObjectGraph

JOBS: Final = 25
BOUNDED: Final = ("agenda", "_random", "terms", "shared_terms", "_ranks", "given", "taken", "fetched_from")
COOLED_MS: Final = 1_300_000  # by then tombstones, TTLs, timers and interest are over


def adds_up(node: JobNode) -> None:
    must_add_up(node.jobs)
    must_know_states(node.shared)


def _is_skipped(owner: object, name: str) -> bool:
    """The net around the node; and what stays until there is much of it."""
    return name in BOUNDED or (isinstance(owner, JobNode) and name != "work")


def size_of(node: JobNode) -> int:
    """How much a node remembers."""
    return ObjectGraph(node.shared, _is_skipped).size


def cool(net: JobNet) -> None:
    for node in net.nodes:
        for waiter in list(node.jobs.waiters):
            waiter.leave()
    net.run(COOLED_MS)
    for node in net.nodes:  # tombstones go as others come
        for number in range(2 * JOBS):
            node.shared.delete_everywhere(b"D-00000000-%024d-05a1" % number)
    net.run(COOLED_MS)
    for node in net.nodes:
        for _ in range(JOBS):
            node.jobs.keys.find(b"", node.jobs.now_ms)  # which forgets some
        node.fetched.clear()
        node.added.clear()
    net.sent.clear()


def fetched_and_acked(net: JobNet, random: Random) -> None:
    """Each way a job can go: with some copies or retried, fetched where it was added or not, acknowledged anywhere."""
    ids = []
    for _ in range(JOBS):
        node = random.choice(net.nodes)
        retry_ms = random.choice((0, RETRY_MS, RETRY_MS, RETRY_MS))
        ids.append(
            node.add(random.randint(1, 4) if retry_ms else 1, retry_ms=retry_ms, delay_s=random.choice((0, 0, 3)))
        )
        if random.random() < 0.3:
            random.choice(net.nodes).wait()
        net.run(random.randint(0, 300))
        for node in net.nodes:
            if random.random() < 0.5:
                node.get()
    for job_id in ids:
        random.choice(net.nodes).ack(job_id)
    net.run(5000)


def acked_before_they_are_queued_again(net: JobNet, random: Random) -> None:
    ids = [net.nodes[0].add(3) for _ in range(JOBS)]
    net.run(10)
    while net.nodes[0].get() is not None:
        pass
    net.run(RETRY_MS - 250)  # all holders have been told that they will be
    for job_id in ids:
        random.choice(net.nodes).ack(job_id)
    net.run(5000)


def expired(net: JobNet, random: Random) -> None:
    for _ in range(JOBS):
        random.choice(net.nodes).add(random.randint(1, 4), ttl_ms=random.randint(1000, 30_000))
        net.run(100)
    net.run(30_000)


def refused(net: JobNet, random: Random) -> None:
    """Nodes that do not answer, and clients that do not wait."""
    net.cut = {(one, other) for one in range(5) for other in range(5) if one != other and random.random() < 0.8}
    for number in range(JOBS):
        node = random.choice(net.nodes)
        job_id = node.add(3, key=b"%d" % number)
        net.run(100)
        node.shared.replicating.give_up(job_id)
    net.cut = set()
    net.run(RETRY_MS)
    deleted(net, random)


def deleted(net: JobNet, random: Random) -> None:
    for node in net.nodes:
        for job in list(node.jobs.table):
            node.shared.delete_everywhere(job.id)
    net.run(1000)


def given_back(net: JobNet, random: Random) -> None:
    for _ in range(JOBS):
        node = random.choice(net.nodes)
        job_id = node.add(3, retries=random.choice((-1, 0, 1)))
        net.run(50)
        node.get()
        job = node.jobs.find(job_id)
        if job is not None:
            random.choice((node.jobs.nack, node.jobs.working, node.jobs.enqueue, node.jobs.redrive))(job)
        net.run(random.randint(0, 500))
    net.run(2 * RETRY_MS)
    for node in net.nodes:
        for job in list(node.jobs.table):
            if job.state in (QUEUED, DELAYED):
                node.ack(job.id)
    net.run(5000)


def watched_and_looked_for(net: JobNet, random: Random) -> None:
    ids = [net.nodes[0].add(2) for _ in range(JOBS)]
    net.run(50)
    for number, job_id in enumerate(ids):
        node = random.choice(net.nodes)
        node.shared.watches.watch(job_id, lambda end: None)
        node.shared.keys.find(b"%d" % number, job_id, lambda known: None)
        net.run(10)
    net.run(3000)
    for job_id in ids:
        random.choice(net.nodes).ack(job_id)
    net.run(5000)


def broken(net: JobNet, random: Random) -> None:
    """Links break and nodes are cut off while jobs are on their way."""
    for _ in range(JOBS):
        node = random.choice(net.nodes)
        retry_ms = random.choice((0, RETRY_MS))
        node.add(random.randint(1, 3) if retry_ms else 1, retry_ms=retry_ms, ttl_ms=60_000)
        random.choice(net.nodes).wait()
        net.run(1)
        one, other = random.sample(net.nodes, 2)
        net.lose(one.number, other.number)
        if random.random() < 0.1:
            net.partition(one.number)
            net.run(random.randint(1, 3000))
            net.heal()
    net.run(100_000)


@pytest.mark.parametrize(
    "work",
    [
        fetched_and_acked,
        acked_before_they_are_queued_again,
        expired,
        refused,
        deleted,
        given_back,
        watched_and_looked_for,
        broken,
    ],
)
def test_jobs_that_are_over_leave_nothing_behind(work: object) -> None:
    net = JobNet(5)
    net.check = adds_up
    random = Random(7)
    sizes = []
    for _ in range(3):
        work(net, random)  # type: ignore[operator]
        cool(net)
        assert [node.jobs.table.count for node in net.nodes] == [0] * 5
        sizes.append([size_of(node) for node in net.nodes])
    assert sizes[2] == pytest.approx(sizes[1], abs=JOBS // 5)
