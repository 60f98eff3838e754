"""A run of a cluster: clients at all nodes, and networks and nodes that fail; all of it from one integer.

The judge is a history of what clients asked for and were told. Jobs are added, fetched and acknowledged; whatever the
network does, none is lost as long as one of its copies is there, and none that is delivered at most once comes twice.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from kestreld.cluster.nodes import Flag
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import ACKED, QUEUED, Job
from kestreld.jobs.waiting import JobWaiter
from tests.support.cluster_net import Member, Net

Q: Final = b"q"
TIMEOUT_MS: Final = 4_000
TTL_MS: Final = 3_600_000
SETTLE_MS: Final = 200_000  # the longest wait between two attempts to have an acknowledgement known is 180 s
JITTER_MS: Final = 250


@dataclass
class Told:
    """What clients asked for of one job, and were told."""

    job_id: bytes
    copies: int
    retry_ms: int
    due_at_ms: int
    holders: set[int] = field(default_factory=set)  # nodes that had it when ADDJOB was answered
    answered_at_ms: int = -1
    deliveries: list[tuple[int, int]] = field(default_factory=list)  # when, and at which node
    nacks: int = 0
    acked: list[tuple[int, int]] = field(default_factory=list)  # the same
    is_forced: bool = False  # FASTACK: no promise that it does not come again
    lost: set[int] = field(default_factory=set)  # nodes that had it and lost their memory


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(f"{seed} cluster")
        self.net = Net(self.chance.choice([3, 3, 5, 7]), seed, timeout_ms=TIMEOUT_MS)
        self.is_calm = seed % 5 == 0
        slow = self.chance.choice([1, 1, 5, 30])
        self.net.delay_ms = lambda: 1 + int(self.chance.expovariate(1 / slow)) if slow > 1 else 1
        self.jobs: dict[bytes, Told] = {}
        self.problems: list[str] = []
        self.figures = {"jobs": 0, "deliveries": 0, "acks": 0, "partitions": 0, "crashes": 0, "messages": 0}
        self.down: list[Member] = []

    def complain(self, words: str) -> None:
        self.problems.append(f"at {self.net.now_ms}: {words}")

    def run(self) -> list[str]:
        """What was wrong."""
        net, chance = self.net, self.chance
        net.form()
        for _ in range(chance.randint(50, 300)):
            net.run(chance.choice([0, 1, 5, 20, 100, 500]))
            self._step()
        self._end()
        self.figures["messages"] = net.sent
        return self.problems

    # Clients

    def _node(self) -> Member:
        return self.chance.choice([node for node in self.net.nodes if node.is_up])

    def _step(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.35:
            self._add(self._node())
        elif what < 0.6:
            Fetching(self, self._node()).fetch()
        elif what < 0.8:
            self._acknowledge()
        elif what < 0.86:
            self._say_something_else()
        elif not self.is_calm:
            self._trouble()

    def _add(self, node: Member) -> None:
        chance = self.chance
        queue = node.jobs.queue(Q)
        assert queue is not None
        copies = chance.choice([1, 1, 2, 3, 3])
        retry_ms = chance.choice([1000, 2000, 5000]) if copies > 1 or chance.random() < 0.6 else 0
        delay_s = chance.choice([0, 0, 0, 1, 3])
        if node.shared.can_add(copies):
            return
        told: list[bytes | None] = []

        def answered(job_id: bytes | None) -> None:
            told.append(job_id)
            if job_id is not None:
                self._answered(job_id, copies, retry_ms, self.net.now_ms + delay_s * 1000)

        started_ms = self.net.now_ms
        job = node.shared.add(queue, b"%d" % len(self.jobs), (TTL_MS, retry_ms, delay_s, -1), b"", copies, answered)
        if job is not None:
            known = Told(job.id, copies, retry_ms, started_ms + delay_s * 1000)
            self.jobs.setdefault(job.id, known)

            def give_up() -> None:
                if not told and node.is_up:
                    node.shared.give_up(job.id)

            self.net.after(chance.choice([300, 2000]), give_up)

    def _answered(self, job_id: bytes, copies: int, retry_ms: int, due_at_ms: int) -> None:
        told = self.jobs.setdefault(job_id, Told(job_id, copies, retry_ms, due_at_ms))
        told.retry_ms = retry_ms
        told.answered_at_ms = self.net.now_ms
        self.figures["jobs"] += 1
        told.holders = {node.number for node in self.net.nodes if node.is_up and self.has(node, job_id)}
        if len(told.holders | told.lost) < copies and not self.down:
            self.complain(f"{job_id!r} was answered with {len(told.holders)} of {copies} copies")

    def has(self, node: Member, job_id: bytes) -> bool:
        job = node.jobs.find(job_id)
        return job is not None and job.state != ACKED

    def delivered(self, job_id: bytes, node: Member) -> None:
        self.figures["deliveries"] += 1
        now_ms = self.net.now_ms
        told = self.jobs.get(job_id)
        if told is None:  # to who waited, before it was answered that it was added
            told = self.jobs[job_id] = Told(job_id, 1, -1, 0)
        if now_ms < told.due_at_ms - 1:
            self.complain(f"{job_id!r} was delivered {told.due_at_ms - now_ms} ms before its time")
        if told.deliveries:
            before_ms, _ = told.deliveries[-1]
            if not told.retry_ms:
                self.complain(f"{job_id!r} with a retry of 0 was delivered at {told.deliveries} and now")
            elif self.is_calm and not told.nacks and now_ms - before_ms < 1:
                self.complain(f"{job_id!r} was delivered twice at once")
        told.deliveries.append((now_ms, node.number))

    def _acknowledge(self) -> None:
        out = [told for told in self.jobs.values() if told.deliveries and not told.acked]
        if not out:
            return
        told = self.chance.choice(out)
        node = self._node() if self.chance.random() < 0.4 else self.net.nodes[told.deliveries[-1][1]]
        if node.is_up:
            self._ack(told, node)

    def _ack(self, told: Told, node: Member) -> None:
        self.figures["acks"] += 1
        job = node.jobs.find(told.job_id)
        if job is not None:
            node.shared.acknowledge(job)
        elif told.retry_ms:
            node.shared.acknowledge_unknown(told.job_id, TTL_MS)
        told.acked.append((self.net.now_ms, node.number))

    def _say_something_else(self) -> None:
        out = [told for told in self.jobs.values() if told.deliveries and not told.acked]
        if not out:
            return
        told = self.chance.choice(out)
        node = self.net.nodes[told.deliveries[-1][1]]
        job = node.jobs.find(told.job_id) if node.is_up else None
        if job is None or job.state == ACKED:
            return
        what = self.chance.random()
        if what < 0.4:
            told.nacks += node.jobs.nack(job)
        elif what < 0.6:
            told.nacks += node.jobs.nack(job, self.chance.choice([500, 3000]))
        elif what < 0.9:
            node.jobs.working(job)
        else:
            told.is_forced = True
            told.acked.append((self.net.now_ms, node.number))
            node.shared.delete(told.job_id)

    # Trouble

    def _trouble(self) -> None:
        net, chance = self.net, self.chance
        what = chance.random()
        numbers = range(len(net.nodes))
        if what < 0.3:
            self.figures["partitions"] += 1
            net.partition(*chance.sample(numbers, chance.randint(1, len(net.nodes) // 2)))
        elif what < 0.4:
            one, other = chance.sample(numbers, 2)
            net.cut.add((one, other))
        elif what < 0.75:
            net.heal()
        elif what < 0.85 and not self.down:
            self._crash(self._node())
        elif self.down:
            self._restart(self.down.pop())
        else:
            net.run(chance.choice([TIMEOUT_MS, 3 * TIMEOUT_MS]))

    def _crash(self, node: Member) -> None:
        """It loses all it knows of jobs."""
        self.figures["crashes"] += 1
        for told in self.jobs.values():
            if self.has(node, told.job_id) or any(number == node.number for _, number in told.acked):
                told.lost.add(node.number)
        self.net.stop(node)
        node.lose_jobs()
        self.down.append(node)

    def _restart(self, node: Member) -> None:
        node.is_up = True
        node.membership.start(node.clock.monotonic_ms)
        node.shared.start(TIMEOUT_MS)

    # The last look

    def _end(self) -> None:
        net = self.net
        net.heal()
        net.delay_ms = lambda: 1
        for node in self.down:
            self._restart(node)
        net.run(3 * TIMEOUT_MS)
        if any(node.table() != {one.id: Flag(0) for one in net.nodes} for node in net.nodes):
            self.complain(f"the nodes do not agree: {[node.table() for node in net.nodes]}")
        self._settle()
        settled_ms = net.now_ms
        for _ in range(40):
            for node in net.nodes:
                while Fetching(self, node).fetch(waits=False):
                    pass
            net.run(500)
        for told in self.jobs.values():
            self._judge(told, settled_ms)
        for told in self.jobs.values():
            if not told.acked:
                self._ack(told, net.nodes[0])
        self._settle()
        left = {node.number: [job.id for job in node.jobs.table if job.state == ACKED] for node in net.nodes}
        if any(left.values()):
            self.complain(f"acknowledged jobs are left: {left}")

    def _settle(self) -> None:
        """Until nobody remembers an acknowledgement, or that has taken too long."""
        for _ in range(SETTLE_MS // 1000):
            self.net.run(1000)
            if not any(job.state == ACKED for node in self.net.nodes for job in node.jobs.table):
                return

    def _judge(self, told: Told, settled_ms: int) -> None:
        is_acked = bool(told.acked)
        last_ms = told.deliveries[-1][0] if told.deliveries else -1
        if is_acked and last_ms >= settled_ms and not told.is_forced:
            if not any(number in told.lost for _, number in told.acked):
                self.complain(f"{told} was delivered although it was acknowledged")
        if told.answered_at_ms >= 0 and not is_acked and told.retry_ms and last_ms < settled_ms:
            if len(told.lost & told.holders) < told.copies:
                self.complain(f"{told} is lost")
        if told.answered_at_ms >= 0 and not told.retry_ms and not told.deliveries and not is_acked and not told.lost:
            self.complain(f"{told} is lost")


class Fetching:
    """A client that fetches a job, and waits for one where there is none."""

    def __init__(self, world: World, node: Member) -> None:
        self._world = world
        self._node = node

    def fetch(self, *, waits: bool = True) -> bool:
        """Whether there was one."""
        jobs = self._node.jobs
        queue = jobs.queue(Q)
        assert queue is not None
        job = jobs.take(queue)
        if job is not None:
            self._world.delivered(job.id, self._node)
        elif waits:
            globs: list[Glob] = []
            jobs.wait(self, [queue], globs, self._world.chance.choice([50, 500, 5000]))
        return job is not None

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        if job is not None:
            self._world.delivered(job.id, self._node)


def queued_at(net: Net, job_id: bytes) -> list[int]:
    return [node.number for node in net.nodes if (job := node.jobs.find(job_id)) is not None and job.state == QUEUED]
