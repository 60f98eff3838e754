"""Whatever happens to a cluster, in whatever order: numbers stay what they stand for, and in the end all is quiet."""

from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from kestreld.jobs.job import ACKED, BORROWED, LENT, LET_GO, WAIT_REPL, Job
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN, PAUSED_OUT
from tests.support.job_net import RETRY_MS, JobNet, JobNode, Q
from tests.support.job_sums import must_add_up, must_know_states

SEEDS: Final = range(3)
MANY_SEEDS: Final = (*range(3, 6), *range(100, 400))
ACTIONS: Final = 400
TTL_MS: Final = 120_000
NOT_TO_BE_MOVED: Final = (ACKED, LET_GO, BORROWED, LENT, WAIT_REPL)


def adds_up(node: JobNode) -> None:
    must_add_up(node.jobs)
    must_know_states(node.shared)


class Storm:
    """Clients and operators at random nodes, and trouble with these."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.net = net = JobNet(random.choice((2, 3, 5)), retry_from_delivery=random.random() < 0.5)
        net.delay_ms = lambda: random.choice((0, 1, 1, 5, random.randint(1, 200)))
        for node in net.nodes:
            if random.random() < 0.7:
                node.keep_log()
        net.check = adds_up
        self.ids: list[bytes] = []
        self.keys = 0

    @property
    def node(self) -> JobNode:
        """One that is up."""
        return self.random.choice([node for node in self.net.nodes if node.is_up])

    def job_at(self, node: JobNode) -> Job | None:
        """One that a command may change."""
        some = [job for job in node.jobs.table if job.state not in NOT_TO_BE_MOVED]
        return self.random.choice(some) if some else None

    # What clients do

    def add(self) -> None:
        random, node = self.random, self.node
        retry_ms = random.choice((0, RETRY_MS, RETRY_MS))
        copies = random.randint(1, len(self.net.nodes)) if retry_ms else 1
        if node.shared.replicating.copies_possible() < copies:
            return
        self.keys += 1
        job_id = node.add(
            copies,
            retry_ms=retry_ms,
            delay_s=random.choice((0, 0, 0, 4)),
            ttl_ms=random.choice((TTL_MS, 8_000)),
            key=random.choice((b"", b"%d" % self.keys)),
            retries=random.choice((-1, 0, 1)),
        )
        self.ids.append(job_id)

    def add_without_waiting(self) -> None:
        random, node = self.random, self.node
        if node.shared.replicating.copies_possible():
            retry_ms = random.choice((0, RETRY_MS))
            copies = random.randint(1, 3) if retry_ms else 1
            self.ids.append(node.add_without_waiting(copies, retry_ms=retry_ms, delay_s=random.choice((0, 3))))

    def give_up(self) -> None:
        node = self.node
        some = [job.id for job in node.jobs.table if job.state == WAIT_REPL]
        if some:
            node.shared.replicating.give_up(self.random.choice(some))

    def get(self) -> None:
        self.node.get()

    def wait(self) -> None:
        self.node.wait()

    def leave(self) -> None:
        for waiter in list(self.node.jobs.waiters):
            waiter.leave()

    def ack(self) -> None:
        if self.ids:
            node, job_id = self.node, self.random.choice(self.ids)
            if node.state_of(job_id) == WAIT_REPL:
                node.shared.replicating.achieve(job_id)
            node.ack(job_id)

    def fastack(self) -> None:
        if self.ids:
            self.node.shared.delete_everywhere(self.random.choice(self.ids))

    def delete(self) -> None:
        node = self.node
        some = list(node.jobs.table)
        if some:
            node.jobs.remove(self.random.choice(some))

    def change(self) -> None:
        random, node = self.random, self.node
        job = self.job_at(node)
        if job is not None:
            jobs = node.jobs
            delay_ms = random.choice((None, 0, 2000))
            changes: list[Callable[[Job], object]] = [
                jobs.enqueue, jobs.dequeue, jobs.working, jobs.redrive, lambda one: jobs.nack(one, delay_ms),
                lambda one: one.terms.dead is None and jobs.bury(one, b"asked"),
            ]  # fmt: skip
            random.choice(changes)(job)

    def pause(self) -> None:
        node = self.node
        queue = node.jobs.queue(self.random.choice((Q, b"q.dead")))
        assert queue is not None
        node.jobs.pause(queue, self.random.choice((NOT_PAUSED, NOT_PAUSED, PAUSED_IN, PAUSED_OUT)))
        if self.random.random() < 0.5:
            node.shared.pause_everywhere(queue.name, queue.pause)

    def empty(self) -> None:
        if self.random.random() < 0.2:
            node = self.node
            node.shared.empty_everywhere(Q)
            queue = node.jobs.queues.get(Q)
            for _ in node.jobs.delete_all(queue) if queue is not None else ():
                pass

    def clear(self) -> None:
        if self.random.random() < 0.1:
            for _ in self.node.jobs.clear():
                pass

    def watch(self) -> None:
        node = self.node
        if self.ids:
            job_id = self.random.choice(self.ids)
            job = node.jobs.find(job_id)
            if job is None or job.state == LET_GO:
                node.shared.watches.watch(job_id, lambda end: None)
            elif job.state != ACKED:
                node.jobs.watch(job, lambda end: None)

    # Trouble

    def lose(self) -> None:
        one, other = self.random.sample(self.net.nodes, 2)
        self.net.lose(one.number, other.number)

    def cut_off(self) -> None:
        if self.random.random() < 0.3:
            self.net.partition(self.node.number)

    def heal(self) -> None:
        self.net.heal()

    def crash(self) -> None:
        if sum(node.is_up for node in self.net.nodes) > 1 and self.random.random() < 0.3:
            self.node.crash()

    def start(self) -> None:
        for node in self.net.nodes:
            if not node.is_up and self.random.random() < 0.5:
                node.start()

    def crowd(self) -> None:
        one, other = self.random.sample(range(len(self.net.nodes)), 2)
        self.net.nodes[one].is_crowded_for ^= {other}

    def fill(self) -> None:
        node = self.node
        node.jobs.memory.set_max(self.random.choice((1, 0, 1 << 30)))

    def set_leaving(self) -> None:
        node = self.node
        is_leaving = self.random.random() < 0.3
        node.set_leaving(is_leaving=is_leaving)
        node.shared.leave(hands_over=is_leaving and self.random.random() < 0.7)

    def run(self) -> None:
        actions = [
            *[self.add] * 6, self.add_without_waiting, self.give_up, *[self.get] * 4, *[self.wait] * 2, self.leave,
            *[self.ack] * 4, self.fastack, self.delete, *[self.change] * 3, self.pause, self.empty, self.clear,
            self.watch, *[self.lose] * 2, self.cut_off, *[self.heal] * 2, self.crash, *[self.start] * 2, self.crowd,
            self.fill, self.set_leaving,
        ]  # fmt: skip
        for _ in range(ACTIONS):
            self.random.choice(actions)()
            self.net.run(self.random.choice((0, 0, 1, 10, 100, 1000, 5000)))

    def calm(self) -> None:
        """All trouble ends."""
        net = self.net
        for node in net.nodes:
            if not node.is_up:
                node.start()
        net.heal()
        for node in net.nodes:
            node.is_crowded_for = set()
            node.jobs.memory.set_max(1 << 30)
            node.set_leaving(is_leaving=False)
            node.shared.leave(hands_over=False)
            for waiter in list(node.jobs.waiters):
                waiter.leave()
            for queue in node.jobs.queues:
                node.jobs.pause(queue, NOT_PAUSED)
        net.run(2 * TTL_MS)


def weather(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    storm.calm()
    net = storm.net
    net.run(700_000)
    assert [node.jobs.table.count for node in net.nodes] == [0] * len(net.nodes)
    net.sent.clear()
    net.run(60_000)
    assert net.sent == []


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_add_up_throughout_and_in_the_end_nothing_is_left_and_nothing_said(seed: int) -> None:
    weather(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_the_same_more_often(seed: int) -> None:
    weather(seed)
