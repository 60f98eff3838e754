"""Nodes that share jobs, on a network without sockets: messages arrive when a test says so, or after a delay."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from heapq import heappop, heappush
from random import Random
from typing import Final, TypeVar
from unittest.mock import patch

import pytest

from kestreld.cluster import ack_gc
from kestreld.cluster.chance import RandomBytes
from kestreld.cluster.codec import pack, read
from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable
from kestreld.cluster.peers import Peers
from kestreld.cluster.replicating import Added
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.config.job_rules import JobRule
from kestreld.jobs import jobs, recovery, store, table
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import ACKED, ACTIVE, BORROWED, DELAYED, LENT, LET_GO, QUEUED, Job, JobTerms
from kestreld.jobs.job_log import JobListener
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.node_sets import NodeSets
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.table import Table
from kestreld.jobs.waiting import JobWaiter
from kestreld.queues.agenda import Agenda
from kestreld.queues.slices import WAITS, Work
from tests.support.clock import FakeClock
from tests.support.compiled import IS_COMPILED

M = TypeVar("M")
TTL_MS: Final = 600_000
RETRY_MS: Final = 10_000
TIMEOUT_MS: Final = 4_000
SLICE_MS: Final = 50
Q: Final = b"q"
KEPT_STATES: Final = (ACKED, DELAYED, BORROWED, LENT, LET_GO)


@contextmanager
def small_tables() -> Iterator[None]:
    """Tables have one part: nodes are made ten times as fast. Not on the compiled build, whose constants are fixed."""
    with ExitStack() as patches:
        if not IS_COMPILED:
            patches.enter_context(patch.object(table, "PARTS", 1))
            patches.enter_context(patch.object(store, "JITTERS", 1))
            for module in (jobs, store, table, recovery, ack_gc):
                patches.enter_context(patch.object(module, "MASK", 0))
        yield


class JobNet:
    """Nodes, and what is on its way between them: in order on each link, `delay_ms` late."""

    def __init__(
        self,
        count: int,
        *,
        delay_ms: int = 1,
        rules: tuple[JobRule, ...] = (),
        skews_ms: tuple[int, ...] = (),
        chance: RandomBytes | None = None,
        **options: bool,
    ) -> None:
        """`skews_ms`: so much the system clock of each node is ahead. `chance` None = each node has its own."""
        self.now_ms = 5000
        self.chance = chance
        self.delay_ms: Callable[[], int] = lambda: delay_ms
        self.rules = rules
        self.skews_ms = skews_ms or (0,) * count
        self.options = options
        self.sent: list[tuple[int, int, JobMessage]] = []
        self.links: dict[tuple[int, int], deque[JobMessage]] = {}
        self.is_manual = False  # messages wait for `deliver`
        self.cut: set[tuple[int, int]] = set()
        self.check: Callable[[JobNode], None] = lambda node: None  # called with each node once something has happened
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = [JobNode(self, number) for number in range(count)]
        for node in self.nodes:
            node.know([other for other in self.nodes if other is not node])
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.link(other)
        for node in self.nodes:
            node.run()
        self.run(10)
        self.sent.clear()

    # Time

    def after(self, span_ms: int, do: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now_ms + span_ms, self._count, do))

    def run(self, span_ms: int) -> None:
        until_ms = self.now_ms + span_ms
        while True:
            due = [at_ms for node in self.nodes if node.is_up and (at_ms := node.next_at_ms()) is not None]
            due += [self.now_ms + SLICE_MS for node in self.nodes if node.work]
            next_ms = min([*due, self._events[0][0] if self._events else until_ms + 1])
            if next_ms > until_ms:
                break
            self._move_to(max(next_ms, self.now_ms))
            for node in self.nodes:
                node.run()
            while self._events and self._events[0][0] <= self.now_ms:
                heappop(self._events)[2]()
            for node in self.nodes:
                if node.is_up:
                    self.check(node)
        self._move_to(until_ms)

    def _move_to(self, now_ms: int) -> None:
        for node in self.nodes:
            node.clock.advance(now_ms - self.now_ms)
        self.now_ms = now_ms

    # Messages

    def send(self, sender: "JobNode", receiver: "JobNode", message: JobMessage) -> None:
        link = (sender.number, receiver.number)
        arrived = read(*pack(message))
        self.sent.append((*link, arrived))  # type: ignore[arg-type]
        if link in self.cut:
            return
        queue = self.links.setdefault(link, deque())
        queue.append(arrived)  # type: ignore[arg-type]
        if not self.is_manual:
            self.after(self.delay_ms(), lambda: self.deliver(*link))

    def deliver(self, sender: int, receiver: int) -> None:
        """The next message on that link arrives."""
        queue = self.links.get((sender, receiver))
        if queue:
            message = queue.popleft()
            there = self.nodes[receiver]
            if there.is_up:
                there.receive(self.nodes[sender], message)

    def deliver_all(self) -> None:
        """All that is on its way arrives, and what is sent because of it."""
        while links := [link for link, queue in self.links.items() if queue]:
            for link in links:
                self.deliver(*link)

    def lose(self, sender: int, receiver: int) -> None:
        """A link breaks, with all that is on its way, and there is a new one."""
        self.links.pop((sender, receiver), None)
        self.nodes[sender].relink(self.nodes[receiver])

    def partition(self, *numbers: int) -> None:
        """Cut these off from the others, which notice it."""
        inside = set(numbers)
        for one in self.nodes:
            for other in self.nodes:
                if (one.number in inside) != (other.number in inside):
                    self.cut.add((one.number, other.number))
                    self.links.pop((one.number, other.number), None)
                    one.lose_sight_of(other)

    def heal(self) -> None:
        cut, self.cut = self.cut, set()
        for sender, receiver in sorted(cut):
            if self.nodes[sender].is_up and self.nodes[receiver].is_up:
                self.nodes[sender].link(self.nodes[receiver])

    def counted(self) -> Counter[str]:
        """How many messages of each kind were sent since `sent` was cleared."""
        return Counter(type(message).__name__ for _, _, message in self.sent)

    def said(self, kind: type[M]) -> list[tuple[int, int, M]]:
        """Messages of that kind, with the numbers of sender and receiver."""
        return [(sender, receiver, one) for sender, receiver, one in self.sent if isinstance(one, kind)]

    def states(self, job_id: bytes) -> list[int]:
        """At each node; -1 = it is not there."""
        return [node.state_of(job_id) for node in self.nodes]

    def holders(self, job_id: bytes) -> list[int]:
        return [node.number for node in self.nodes if node.state_of(job_id) != -1]

    def queued_at(self, job_id: bytes) -> list[int]:
        return [node.number for node in self.nodes if node.is_up and node.state_of(job_id) == QUEUED]


class Disk(JobListener):
    """The log of a node, as far as a start needs it: jobs, and the ids of their owners."""

    def __init__(self, node_sets: NodeSets) -> None:
        self.node_sets = node_sets
        self.saved: dict[bytes, tuple[Job, tuple[bytes, ...]]] = {}

    def added(self, job: Job) -> None:
        copy = Job(job.id, job.body, job.terms, job.ctime, job.requeue_at_ms, job.state, job.nacks, job.deliveries)
        self.saved[job.id] = (copy, self.node_sets.ids(job.terms.owners))

    changed = owned = moved = added

    def done(self, job: Job, why: str) -> None:
        self.saved.pop(job.id, None)

    def cleared(self) -> None:
        self.saved.clear()

    def jobs_for(self, jobs: ReplicatedJobs) -> list[Job]:
        """As a start reads them."""
        found = []
        queues: dict[bytes, JobQueue] = {}
        for job, owners in self.saved.values():
            old = job.terms
            queue = queues.setdefault(old.queue.name, JobQueue(old.queue.name))
            terms = JobTerms(
                queue, old.ttl_ms, old.retry_ms, old.delay_s, old.retries_max, old.key,
                old.dead, old.replicate, jobs.node_sets.of_all(owners), old.moves,
            )  # fmt: skip
            state = job.state if job.state in KEPT_STATES else ACTIVE
            found.append(Job(job.id, job.body, terms, job.ctime, job.requeue_at_ms, state, job.nacks, job.deliveries))
        return found


class JobNode:
    """One node: its jobs, its links, and the clients that wait there."""

    def __init__(self, net: JobNet, number: int) -> None:
        self.net = net
        self.number = number
        self.is_up = True
        self.id = self.id_of(number)
        self.clock = FakeClock()
        self.clock.wall_ms += net.skews_ms[number]
        self.disk: Disk | None = None
        self.is_crowded_for: set[int] = set()
        self.stores = True  # its disk takes what is written
        self.work: deque[Work] = deque()
        self.chance = net.chance or Random(f"node {number}").randbytes
        self.others: list[JobNode] = []
        self.added: list[bytes | None] = []
        self.fetched: list[bytes] = []
        self._begin()

    @staticmethod
    def id_of(number: int) -> bytes:
        """The id of the node with that number, in any net."""
        return Random(number).randbytes(20).hex().encode()

    def _begin(self) -> None:
        net = self.net
        self.agenda = Agenda()
        self.work.clear()
        self.table = NodeTable(Node(self.id, _address(self.number), Flag.MYSELF, 0))
        self.jobs = ReplicatedJobs(self.clock, self.agenda, self.chance, self.id, rules=net.rules, **net.options)  # type: ignore[arg-type]
        peers = Peers(self.jobs, self.table, self, self.chance, lambda: self.stores)
        self.shared = SharedJobs(peers, self.work.append)

    def know(self, others: "list[JobNode]") -> None:
        self.others = others
        for other in others:
            self.table.add(Node(other.id, _address(other.number), Flag(0), 0))

    def entry(self, other: "JobNode") -> Node:
        node = self.table.get(other.id)
        assert node is not None
        return node

    # Links

    def link(self, other: "JobNode") -> None:
        node = self.entry(other)
        node.linked_at_ms = self.clock.monotonic_ms
        node.is_up = True
        node.restart_clock()
        node.note_frame(other.jobs.now_ms, self.jobs.now_ms)
        self.shared.came_up(node)

    def relink(self, other: "JobNode") -> None:
        if self.is_up and other.is_up:
            self.shared.link_broken(self.entry(other))
            self.link(other)

    def lose_sight_of(self, other: "JobNode") -> None:
        if self.is_up and self.table.get(other.id) is not None:
            entry = self.entry(other)
            entry.linked_at_ms, entry.is_up = None, False
            self.shared.went_down(entry)

    def send(self, node: Node, message: JobMessage) -> None:
        if node.is_linked:
            there = next(one for one in self.net.nodes if one.id == node.id)
            self.net.send(self, there, message)

    def send_once_written(self, node: Node, message: JobMessage) -> None:
        self.send(node, message)

    def is_crowded(self, node: Node) -> bool:
        return any(self.net.nodes[number].id == node.id for number in self.is_crowded_for)

    def receive(self, sender: "JobNode", message: JobMessage) -> None:
        node = self.table.get(sender.id)
        if node is not None and not self.is_loading:  # else it was forgotten, or this one cannot know what it is about
            self.shared.receive(node, message)
            self.run()

    def next_at_ms(self) -> int | None:
        at_ms = self.agenda.next_at_ms()
        return None if at_ms is None else at_ms - self.clock.monotonic_ms + self.net.now_ms

    def run(self) -> None:
        if not self.is_up:
            return
        self.agenda.fall_due(self.clock.monotonic_ms)
        for work in list(self.work):
            if all(step != WAITS for step in work):
                self.work.remove(work)

    # Crashes

    def keep_log(self) -> None:
        if IS_COMPILED:
            pytest.skip("a class of the tests, such as this log, cannot extend a compiled one")
        self.disk = Disk(self.jobs.node_sets)
        self.jobs.listen(self.disk)

    def crash(self) -> None:
        """Its links break, and the others notice."""
        self.is_up = False
        for other in self.others:
            self.net.links.pop((self.number, other.number), None)
            self.net.links.pop((other.number, self.number), None)
            other.lose_sight_of(self)

    def start(self, *, is_loaded: bool = True, is_all_known: bool = True) -> None:
        """With what its log says, if it has one: it knows which nodes are up before it has read that.

        `is_all_known` as for `JobStore.restore`.
        """
        self._begin()
        self.is_up = True
        self.know(self.others)
        self.table.myself.flags |= Flag.LOADING
        for other in self._reached():
            if not other.is_loading:
                self.link(other)
        if is_loaded:
            self.load(is_all_known=is_all_known)

    def load(self, *, is_all_known: bool = True) -> None:
        """The log has been read."""
        disk = self.disk
        if disk is not None:
            found: Table[Job] = Table()
            for job in disk.jobs_for(self.jobs):
                found.add(job.id, job)
            self.jobs.adopt(found)
            doubtful = self.jobs.restore(list(found), is_all_known=is_all_known)
            self.jobs.restored()
            self.keep_log()
            for job in found:
                self.disk.added(job)  # type: ignore[union-attr]
            for job in doubtful:
                self.disk.changed(job)  # type: ignore[union-attr]
        for _ in self.shared.loaded(TIMEOUT_MS):
            pass
        self.table.myself.flags &= ~Flag.LOADING
        for other in self.net.nodes:
            if other is not self and other.is_up and (other.number, self.number) not in self.net.cut:
                other.link(self)

    def _reached(self) -> "list[JobNode]":
        return [other for other in self.others if other.is_up and (self.number, other.number) not in self.net.cut]

    @property
    def is_loading(self) -> bool:
        return bool(self.table.myself.flags & Flag.LOADING)

    # Operators

    def set_leaving(self, *, is_leaving: bool = True) -> None:
        """All know it at once."""
        for entry in [self.table.myself, *[other.entry(self) for other in self.others if other.is_up]]:
            entry.flags = entry.flags | Flag.LEAVING if is_leaving else entry.flags & ~Flag.LEAVING

    def forget(self, other: "JobNode") -> None:
        """CLUSTER FORGET, here alone."""
        entry = self.entry(other)
        self.table.forget(entry, 1 << 62)
        entry.linked_at_ms, entry.is_up = None, False
        self.shared.forgotten(entry)

    def fill(self) -> None:
        """Its memory is used up, as far as jobs may use it."""
        self.jobs.memory.set_max(1)

    # Clients

    @property
    def queue(self) -> JobQueue:
        queue = self.jobs.queue(Q)
        assert queue is not None
        return queue

    def job(self, job_id: bytes) -> Job:
        job = self.jobs.find(job_id)
        assert job is not None
        return job

    def owners(self, job_id: bytes) -> set[int]:
        """The numbers of the nodes that may hold a job, as far as this one knows."""
        ids = self.jobs.node_sets.ids(self.shared.acks.owners_of(self.job(job_id)))
        return {node.number for node in self.net.nodes if node.id in ids}

    def state_of(self, job_id: bytes) -> int:
        job = self.jobs.find(job_id)
        return -1 if job is None else job.state

    def add(
        self, copies: int, *, retry_ms: int = RETRY_MS, delay_s: int = 0, ttl_ms: int = TTL_MS, key: bytes = b"",
        retries: int = -1, added: Added | None = None,
    ) -> bytes:  # fmt: skip
        """The job's id, whether it is there yet or not."""
        told = added or self.added.append
        options = (ttl_ms, retry_ms, delay_s, retries)
        job = self.shared.replicating.add(self.queue, b"body", options, key, copies, told, b"")
        if job is not None:
            return job.id
        return next(reversed(self.jobs.table.parts[0])) if added else self.added[-1] or b""

    def add_without_waiting(self, copies: int, *, retry_ms: int = RETRY_MS, delay_s: int = 0) -> bytes:
        """ADDJOB ASYNC."""
        options = (TTL_MS, retry_ms, delay_s, -1)
        return self.shared.replicating.add_without_waiting(self.queue, b"body", options, b"", copies, b"")

    def get(self) -> bytes | None:
        job = self.jobs.take(self.queue)
        if job is not None:
            self.fetched.append(job.id)
        return None if job is None else job.id

    def wait(self, wait_ms: int = 0) -> None:
        """For a job; 0 = forever."""
        if self.get() is None:
            globs: list[Glob] = []
            self.jobs.wait(self, [self.queue], globs, wait_ms)

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        if job is not None:
            self.fetched.append(job.id)

    def ack(self, job_id: bytes) -> bool:
        job = self.jobs.find(job_id)
        if job is None:
            self.shared.acks.acknowledge_unknown(job_id, TTL_MS)
            return False
        return self.shared.acks.acknowledge(job)


def _address(number: int) -> NodeAddress:
    return NodeAddress(f"10.0.0.{number + 1}", 7711, 17_711)
