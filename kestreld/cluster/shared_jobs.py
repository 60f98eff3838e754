"""Jobs that several nodes have: what this one does so that each is delivered though others fail, and no more often than
it has to be.

Nothing here knows sockets or reads a clock. What other nodes say comes in through `receive`, what they are told goes
out through a `JobBus`; what happens to jobs here is told by their store.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from kestreld.cluster.acks import Ack
from kestreld.cluster.chance import RandomBytes, sample
from kestreld.cluster.federation import Imports, Interest, to_give
from kestreld.cluster.job_messages import (
    About,
    Acked,
    Death,
    DeleteQueue,
    Forget,
    Give,
    JobCopy,
    JobMessage,
    Keep,
    Kept,
    KnowsAck,
    LetGo,
    Moved,
    Need,
    Pause,
    Stored,
    TookBack,
)
from kestreld.cluster.nodes import Flag, Node, NodeTable
from kestreld.cluster.replication import Replication
from kestreld.cluster.requeueing import REACTIONS, Do, Word, is_greater
from kestreld.jobs.copied_jobs import CopiedJobs
from kestreld.jobs.copies import Copies
from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    CTIME_BITS,
    DELAYED,
    NEVER,
    NOTICE_MS,
    WAIT_REPL,
    DeadLetter,
    Job,
    JobTerms,
    created_of,
    ctime_of,
)
from kestreld.jobs.job_queue import PAUSED_IN, PAUSED_OUT, AddedWith, JobQueue
from kestreld.queues.agenda import Scheduled

ANSWERED_LATE_MS: Final = 600_000  # so long what comes late of a job that is over is known to be late
LATE_MAX: Final = 100_000  # ids
SKEW_MS: Final = 100  # times of jobs that come from a node are as much earlier or later as its clock, in these steps
WAITS_LOOKED_AT_MS: Final = 100
REMINDED_MS: Final = 1_000
ACKNOWLEDGED: Final = "acked"
GONE_ELSEWHERE: Final = "deleted"

Added = Callable[[bytes | None], None]  # told the id of the job, None = it has expired before enough nodes had it


class JobBus(Protocol):
    """The links to other nodes, as far as jobs use them."""

    def send(self, node: Node, message: JobMessage) -> None:
        """At once; nothing happens where there is no link."""

    def send_once_written(self, node: Node, message: JobMessage) -> None:
        """When what was changed before is in the log as far as replies wait for that; not at all if it cannot be."""


class _Adding(Scheduled):
    """An ADDJOB that waits for copies."""

    def __init__(self, job: Job, replication: Replication, added: Added, again: Callable[["_Adding"], None]) -> None:
        super().__init__(replication.next_at_ms)
        self.job = job
        self.replication = replication
        self.added = added
        self._again = again

    def fall_due(self, now_ms: int) -> None:
        self._again(self)

    def wait_until(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms


class _Look(Scheduled):
    """Looks after clients that wait for jobs of other nodes, as long as there are any."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(0)
        self._look = look

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = 0
        self._look()

    def wait_until(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms


class SharedJobs(Copies):
    """What one node knows of the other copies of its jobs."""

    def __init__(self, jobs: CopiedJobs, table: NodeTable, bus: JobBus, random_bytes: RandomBytes) -> None:
        self.jobs = jobs
        self.table = table
        self._bus = bus
        self._random_bytes = random_bytes
        self._adding: dict[bytes, _Adding] = {}  # by the job's id, as all that follow:
        self._acks: dict[bytes, Ack] = {}
        self._over: dict[bytes, int] = {}  # jobs that are over, until then, in the order of these times
        self._lent: dict[bytes, bytes] = {}  # delivered at most once: sent to that node, which may not have it yet
        self._let_go: dict[bytes, int] = {}  # of these, what that node may deliver, in the order of their ends
        self._borrowed: dict[bytes, bytes] = {}  # here, not to be delivered before that node has let go of it
        self._imports: dict[bytes, Imports] = {}  # by the queue's name, as this:
        self._interest: dict[bytes, Interest] = {}
        self._announced: dict[bytes, JobQueue] = {}  # queues that other nodes know somebody here waits for
        self._look = _Look(self._look_after_waits)
        self._held_back_until_ms = 0
        self._reminded_at_ms = 0
        self._nowhere = JobQueue(b"")  # of jobs that are acknowledged and not here
        self.async_copies_lost = 0

    @property
    def _me(self) -> bytes:
        return self.jobs.node_id

    @property
    def _now_ms(self) -> int:
        return self.jobs.clock.monotonic_ms

    # Nodes

    def _there(self, ids: Iterable[bytes]) -> list[Node]:
        """Those of these nodes that are others, and known."""
        found = [self.table.get(one) for one in ids if one != self._me]
        return [node for node in found if node is not None and node.is_member]

    def _members(self) -> list[bytes]:
        return [node.id for node in self.table.members()]

    def _takers(self) -> list[Node]:
        """Who may be given a copy now, in an order by chance."""
        nodes = [node for node in self.table.reachable() if node.is_linked]
        return sample(nodes, len(nodes), self._random_bytes)

    @property
    def _keeps_copies(self) -> bool:
        """Whether this node may have more copies."""
        return not (self.table.myself.flags & Flag.LEAVING or self.jobs.memory.level)

    def start(self, held_back_ms: int) -> None:
        """The node was down: its jobs are not queued before the other owners were asked, for so long at most."""
        self._held_back_until_ms = self._now_ms + held_back_ms
        for job in list(self.jobs.table):
            if job.state == ACKED:
                self._collect(job, was_told=False)
            elif job.state == WAIT_REPL:
                self._borrowed[job.id] = next((one for one in job.terms.owners if one != self._me), b"")

    def came_up(self, node: Node) -> None:
        """It can be reached: what it has missed."""
        if all(one.is_linked or one.flags & (Flag.SUSPECT | Flag.FAILED) for one in self.table.members()):
            self._held_back_until_ms = min(self._held_back_until_ms, self._now_ms + 500)
        members = self._members()
        for job_id, ack in list(self._acks.items()):
            if node.id in ack.missing(members):
                ack.hurry(self._now_ms)
                self._tell_of_ack(job_id, ack)
        for job_id, giver in self._borrowed.items():
            if giver == node.id:
                self._bus.send_once_written(node, Stored(job_id))
        for name in self._announced:
            self._bus.send(node, Need(name, 1, is_waiting=True))

    def went_down(self, node: Node) -> None:
        """It cannot be reached: what it was lent is ours again, unless it was let go of."""
        for interest in self._interest.values():
            interest.remove(node.id)
        for job_id in [one for one, taker in self._lent.items() if taker == node.id]:
            self._take_back(job_id)
        for job_id, ack in list(self._acks.items()):
            self._settle_ack(job_id, ack)  # it may be forgotten

    # ADDJOB

    def default_replicate(self) -> int:
        """How many copies there are to be where ADDJOB does not say so."""
        return max(min(3, len(self._takers()) + self._keeps_copies), 1)

    def can_add(self, replicate: int) -> int:
        """How many copies are missing for that: nodes that cannot take one now. 0 = it can be done."""
        return max(replicate - len(self._takers()) - self._keeps_copies, 0)

    def add(
        self, queue: JobQueue, body: bytes, options: AddedWith, key: bytes, replicate: int, added: Added
    ) -> Job | None:
        """A new job; `added` is told once so many nodes have it. None where it is added already, and `added` was told.

        Only where `can_add` says so.
        """
        is_kept = self._keeps_copies
        takers = self._takers()
        replication = Replication(replicate - is_kept, [node.id for node in takers], self._now_ms)
        owners = tuple(sorted([self._me] * is_kept + replication.asked))
        if owners == (self._me,):
            added(self.jobs.add(body, queue.terms_of(options, key)).id)
            return None
        job = self.jobs.hold(body, self._terms(queue, options, key, None, replicate, owners))
        adding = _Adding(job, replication, added, self._ask_more)
        self._adding[job.id] = adding
        self.jobs.watch(job, lambda end: self._expired(job.id))
        copy = self._copy_of(job)
        for node in self._there(replication.asked):
            self._bus.send(node, Keep(copy, is_answered=True))
        self.jobs.agenda.add(adding)
        return job

    def add_now(self, queue: JobQueue, body: bytes, options: AddedWith, key: bytes, replicate: int) -> bytes:
        """ADDJOB ASYNC: the job is there at once, and copies are sent; its id."""
        takers = [node.id for node in self._takers()][: replicate - self._keeps_copies]
        if not takers:
            return self.jobs.add(body, queue.terms_of(options, key)).id
        if self._keeps_copies:
            terms = self._terms(queue, options, key, None, replicate, tuple(sorted([self._me, *takers])))
            job = self.jobs.hold(body, terms)
            for node in self._there(takers):
                self._bus.send(node, Keep(self._copy_of(job), is_answered=False))
            self.jobs.release(job)
            return job.id
        job = self.jobs.hold(body, self._terms(queue, options, key, None, replicate, tuple(sorted(takers))))
        for node in self._there(takers):
            self._bus.send(node, Keep(self._copy_of(job), is_answered=False))
        self._leave_to_others(job, takers)
        return job.id

    def give_up(self, job_id: bytes) -> None:
        """Nobody waits for that ADDJOB any more, or for too long: whoever may have a copy forgets it."""
        adding = self._adding.pop(job_id, None)
        if adding is not None:
            self._end(adding)
            self._tell_owners(adding.job, Forget((job_id,)))
            self.jobs.unhold(adding.job)

    def _expired(self, job_id: bytes) -> None:
        adding = self._adding.pop(job_id, None)
        if adding is not None:
            self._end(adding)
            adding.added(None)

    def _end(self, adding: _Adding) -> None:
        adding.wait_until(NEVER)

    def _ask_more(self, adding: _Adding) -> None:
        replication, job = adding.replication, adding.job
        before = len(replication.asked)
        nodes = replication.ask_more(self._now_ms, [node.id for node in self._takers()])
        if len(replication.asked) > before:
            self.jobs.own(job, self._with_owners(job.terms, (*job.terms.owners, replication.asked[-1])))
        copy = self._copy_of(job)
        for node in self._there(nodes):
            self._bus.send(node, Keep(copy, is_answered=node.id not in replication.confirmed))
        adding.wait_until(replication.next_at_ms)
        self.jobs.agenda.add(adding)

    def _kept(self, sender: Node, message: Kept) -> None:
        adding = self._adding.get(message.job_id)
        if adding is not None and adding.replication.confirm(sender.id) and adding.replication.is_achieved:
            self._achieved(adding)

    def _achieved(self, adding: _Adding) -> None:
        job = adding.job
        del self._adding[job.id]
        self._end(adding)
        if self._me in job.terms.owners:
            self.jobs.release(job)
        else:
            self._leave_to_others(job, sorted(adding.replication.confirmed))
        adding.added(job.id)

    def _leave_to_others(self, job: Job, holders: list[bytes]) -> None:
        """No copy stays here: one of those who have one queues it."""
        due_in_ms = max(job.created_at_ms + job.terms.delay_s * 1000 - self.jobs.now_ms, 0)
        for node in self._there(sample(holders, 1, self._random_bytes)):
            self._bus.send(node, About(Word.ENQUEUE, job.id, after_ms=due_in_ms if job.terms.delay_s else 0))
        self.jobs.unhold(job)

    # Jobs on the way

    def _terms(
        self, queue: JobQueue, options: AddedWith, key: bytes, dead: DeadLetter | None, replicate: int,
        owners: tuple[bytes, ...],
    ) -> JobTerms:  # fmt: skip
        ttl_ms, retry_ms, delay_s, retries_max = options
        return JobTerms(queue, ttl_ms, retry_ms, delay_s, retries_max, key, dead, replicate, owners)

    def _with_owners(self, terms: JobTerms, owners: Iterable[bytes]) -> JobTerms:
        options = (terms.ttl_ms, terms.retry_ms, terms.delay_s, terms.retries_max)
        return self._terms(terms.queue, options, terms.key, terms.dead, terms.replicate, tuple(sorted(set(owners))))

    def _copy_of(self, job: Job) -> JobCopy:
        terms, now_ms = job.terms, self.jobs.now_ms
        dead = terms.dead
        due_at_ms = job.requeue_at_ms if job.state == DELAYED else job.created_at_ms + terms.delay_s * 1000
        return JobCopy(
            job.id, terms.queue.name, job.body, created_of(job.ctime), terms.ttl_ms,
            max(job.expires_at_ms - now_ms, 1), terms.retry_ms, terms.delay_s * 1000,
            max(due_at_ms - now_ms, 0), terms.replicate, job.nacks, job.deliveries, terms.owners, terms.key,
            terms.retries_max,
            None if dead is None else Death(dead.origin, dead.reason, max(now_ms - dead.dead_at_ms, 0)),
        )  # fmt: skip

    def _job_of(self, copy: JobCopy, owners: Iterable[bytes]) -> Job:
        queue = self.jobs.unlisted_queue(copy.queue)
        now_ms, death = self.jobs.now_ms, copy.death
        dead = None if death is None else DeadLetter(death.origin, death.reason, now_ms - death.ago_ms)
        # It expires here when it has been there for its TTL, whatever the clocks of the two nodes say.
        ctime = ctime_of(copy.created)
        ttl_ms = now_ms + copy.ttl_left_ms - (ctime >> CTIME_BITS)
        ttl_ms = copy.ttl_ms + (ttl_ms - copy.ttl_ms) // SKEW_MS * SKEW_MS
        options = (ttl_ms, copy.retry_ms, copy.delay_ms // 1000, copy.retries_max)
        terms = self._terms(queue, options, copy.key, dead, copy.replicate, tuple(sorted(set(owners))))
        return Job(copy.job_id, copy.body, terms, ctime, NEVER, ACTIVE, copy.nacks, copy.deliveries)

    # What other nodes say

    def receive(self, sender: Node, message: JobMessage) -> None:
        """A message of a node that is a member."""
        handler = _HANDLERS[type(message)]
        handler(self, sender, message)

    def _keep(self, sender: Node, message: Keep) -> None:
        copy = message.copy
        job = self.jobs.find(copy.job_id)
        if job is None:
            queue = self.jobs.queues.get(copy.queue)
            if (
                self._is_over(copy.job_id)
                or not self._keeps_copies
                or (queue is not None and queue.pause & PAUSED_IN)
                or (queue is None and self.jobs.has_all_queues)
            ):
                return
            job = self._job_of(copy, (*copy.owners, self._me))
            if copy.retry_ms:
                self.jobs.keep(job, copy.due_in_ms + self.jobs.next_requeue_at_ms(job.terms) + NOTICE_MS)
            else:
                self.jobs.keep(job, NEVER)
        elif job.state != ACKED:
            self._know_owners(job, copy.owners)
        if message.is_answered:
            self._bus.send_once_written(sender, Kept(copy.job_id))

    def _know_owners(self, job: Job, owners: Iterable[bytes]) -> None:
        """These nodes may have it, too."""
        known = set(job.terms.owners or (self._me,))
        if not known.issuperset(owners):
            self.jobs.own(job, self._with_owners(job.terms, known.union(owners)))

    def _about(self, sender: Node, message: About) -> None:
        job = self.jobs.find(message.job_id)
        if job is None:
            if self._is_over(message.job_id):
                self._bus.send(sender, Acked(message.job_id, (self._me,)))
            return
        reaction = REACTIONS[message.word][job.state]
        if reaction is Do.NOTHING:
            return
        if reaction is Do.SAY_ACKED:
            self._bus.send(sender, Acked(job.id, self._owners_of_ack(job)))
            return
        self._know_owners(job, (sender.id,))
        self.jobs.count(job, message.nacks, message.deliveries)
        if reaction is Do.QUEUE:
            self._queue_for(job, message.after_ms)
        elif reaction is Do.SAY_QUEUED:
            self._tell_owners(job, About(Word.HAS_QUEUED, job.id, job.nacks, job.deliveries))
        elif reaction is Do.SETTLE:
            if is_greater(sender.id, self._me, job.id):
                self.jobs.put_off(job, message.after_ms)
            else:
                self._bus.send(sender, About(Word.HAS_QUEUED, job.id, job.nacks, job.deliveries))
        elif reaction in (Do.PUT_OFF, Do.TAKE_BACK):
            self.jobs.put_off(job, message.after_ms)

    def _queue_for(self, job: Job, after_ms: int) -> None:
        """Another node leaves it to us to queue it."""
        if after_ms:
            self.jobs.delay(job, after_ms)
        else:
            self.jobs.queue_first(job)

    # Acknowledgements

    def acknowledge(self, job: Job) -> bool:
        """A client has acknowledged a job that is here; whether it is the first to do so."""
        if job.state == ACKED:
            return False
        if job.id in self._borrowed:
            del self._borrowed[job.id]
        if not self._there(job.terms.owners):
            self.jobs.remove(job, ACKNOWLEDGED)
            self._note_over(job.id)
            return True
        self.jobs.remember_ack(job)
        self._collect(job, was_told=False)
        return True

    def acknowledge_unknown(self, job_id: bytes, ttl_ms: int) -> None:
        """A client has acknowledged a job that is not here: somebody may have it."""
        if not self._members() or self.table.myself.flags & Flag.LEAVING or self._is_over(job_id):
            return
        job = self.jobs.keep_dummy(job_id, JobTerms(self._nowhere, ttl_ms, 1))
        self._collect(job, was_told=False)

    def delete(self, job_id: bytes) -> bool:
        """FASTACK, or DELJOB of all copies; whether there was one here."""
        job = self.jobs.find(job_id)
        self._note_over(job_id)
        if job is None:
            for node in self.table.members():
                self._bus.send(node, Forget((job_id,)))
            return False
        owners = self._owners_of_ack(job) if job.state == ACKED else job.terms.owners
        for node in self._there(owners) if owners else ():
            self._bus.send(node, Forget((job_id,)))
        self._drop(job, ACKNOWLEDGED)
        return True

    def _collect(self, job: Job, *, was_told: bool) -> None:
        is_dummy = job.terms.queue is self._nowhere
        owners = () if is_dummy else (job.terms.owners or (self._me,))
        ack = self._acks[job.id] = Ack(self._me, owners, self._now_ms, is_dummy=is_dummy, was_told=was_told)
        if was_told:
            self.jobs.wake_at(job, self.jobs.now_ms + ack.next_at_ms - self._now_ms)
        else:
            self._tell_of_ack(job.id, ack)

    def _tell_of_ack(self, job_id: bytes, ack: Ack) -> None:
        """Tell all that have not said that they know."""
        job = self.jobs.find(job_id)
        if job is None or self._settle_ack(job_id, ack):
            return
        owners = tuple(sorted(ack.owners))
        for node in self._there(ack.missing(self._members())):
            self._bus.send(node, Acked(job_id, owners))
        ack.try_again(self._now_ms, self.jobs.jitter_ms())
        self.jobs.wake_at(job, self.jobs.now_ms + ack.next_at_ms - self._now_ms)

    def _settle_ack(self, job_id: bytes, ack: Ack) -> bool:
        """Whether all know, so that all may forget it."""
        job = self.jobs.find(job_id)
        if job is None or ack.missing(self._members()):
            return False
        for node in self._there(ack.owners):
            self._bus.send(node, Forget((job_id,)))
        self._drop(job, ACKNOWLEDGED)
        return True

    def _acked(self, sender: Node, message: Acked) -> None:
        job = self.jobs.find(message.job_id)
        if job is None:
            self._note_over(message.job_id)
            self._bus.send(sender, KnowsAck(message.job_id, is_known=False, owners=()))
            return
        if job.state == WAIT_REPL and job.id in self._adding:
            self._achieved(self._adding[job.id])
        if self.jobs.find(message.job_id) is None:
            self._bus.send(sender, KnowsAck(message.job_id, is_known=False, owners=()))
            return
        if job.state != ACKED:
            self._borrowed.pop(job.id, None)
            self._know_owners(job, (*message.owners, self._me) if job.terms.owners else (self._me, *message.owners))
            self.jobs.remember_ack(job)
            self._collect(job, was_told=True)
        ack = self._acks[job.id]
        ack.learn(message.owners)
        ack.confirm(sender.id, ())
        answer = KnowsAck(job.id, is_known=not ack.is_dummy, owners=tuple(sorted(ack.owners)))
        self._bus.send_once_written(sender, answer)

    def _knows_ack(self, sender: Node, message: KnowsAck) -> None:
        ack = self._acks.get(message.job_id)
        if ack is not None:
            before = set(ack.owners)
            ack.confirm(sender.id, message.owners)
            if not self._settle_ack(message.job_id, ack) and ack.owners != before:
                self._tell_of_ack(message.job_id, ack)

    def _forget(self, sender: Node, message: Forget) -> None:
        for job_id in message.job_ids:
            self._note_over(job_id)
            job = self.jobs.find(job_id)
            if job is not None:
                self._drop(job, ACKNOWLEDGED)

    def _drop(self, job: Job, why: str) -> None:
        self._note_over(job.id)
        self._acks.pop(job.id, None)
        self._borrowed.pop(job.id, None)
        self._lent.pop(job.id, None)
        self.jobs.remove(job, why)

    def _owners_of_ack(self, job: Job) -> tuple[bytes, ...]:
        ack = self._acks.get(job.id)
        return tuple(sorted(ack.owners)) if ack is not None else job.terms.owners

    def _note_over(self, job_id: bytes) -> None:
        """What comes of it from now on comes late."""
        now_ms = self._now_ms
        self._over.pop(job_id, None)
        self._over[job_id] = now_ms + ANSWERED_LATE_MS
        for old, until_ms in list(self._over.items())[:2]:
            if until_ms <= now_ms or len(self._over) > LATE_MAX:
                del self._over[old]

    def _is_over(self, job_id: bytes) -> bool:
        return self._over.get(job_id, 0) > self._now_ms

    # What happens to jobs here

    def will_be_queued(self, job: Job) -> None:
        self._tell_owners(job, About(Word.WILL_QUEUE, job.id, job.nacks, job.deliveries))

    def holds_back(self, job: Job) -> bool:
        return self._now_ms < self._held_back_until_ms

    def queued(self, job: Job) -> None:
        self._tell_owners(job, About(Word.HAS_QUEUED, job.id, job.nacks, job.deliveries))

    def worked_on(self, job: Job) -> None:
        self._tell_owners(job, About(Word.WORKING, job.id, job.nacks, job.deliveries))

    def delayed(self, job: Job, delay_ms: int) -> None:
        self._tell_owners(job, About(Word.HAS_QUEUED, job.id, job.nacks, job.deliveries, delay_ms))

    def moved(self, job: Job) -> None:
        dead = job.terms.dead
        death = None if dead is None else Death(dead.origin, dead.reason, max(self.jobs.now_ms - dead.dead_at_ms, 0))
        self._tell_owners(job, Moved(job.id, job.terms.queue.name, death, job.nacks, job.deliveries))

    def woken(self, job: Job, now_ms: int) -> None:
        ack = self._acks.get(job.id)
        if ack is not None:
            self._tell_of_ack(job.id, ack)

    def _tell_owners(self, job: Job, message: JobMessage) -> None:
        for node in self._there(job.terms.owners):
            self._bus.send(node, message)

    def _move(self, sender: Node, message: Moved) -> None:
        job = self.jobs.find(message.job_id)
        if job is None or job.state in (WAIT_REPL, ACKED):
            return
        death = message.death
        dead = None if death is None else DeadLetter(death.origin, death.reason, self.jobs.now_ms - death.ago_ms)
        self.jobs.follow(job, self.jobs.unlisted_queue(message.queue), dead, message.nacks, message.deliveries)

    # Federation

    def missed(self, queue: JobQueue) -> None:
        self._ask(queue, is_just_empty=False)

    def waited_for(self, queue: JobQueue) -> None:
        self._announced[queue.name] = queue
        for node in self.table.reachable():
            self._bus.send(node, Need(queue.name, 1, is_waiting=True))
        self._look_soon()

    def emptied(self, queue: JobQueue) -> None:
        if queue.name in self._imports:
            self._ask(queue, is_just_empty=True)

    def _ask(self, queue: JobQueue, *, is_just_empty: bool) -> None:
        """Somebody wants a job of a queue that has none here."""
        if self.table.myself.flags & Flag.LEAVING or not self._members():
            return
        imports = self._imports.setdefault(queue.name, Imports())
        now_ms = self._now_ms
        if not is_just_empty and imports.ask_all(now_ms):
            for node in self.table.reachable():
                self._bus.send(node, Need(queue.name, 1, is_waiting=bool(queue.waiters)))
        count = imports.ask_sources(now_ms, is_just_empty=is_just_empty)
        if count:
            for node in self._there(imports.sources(now_ms)):
                self._bus.send(node, Need(queue.name, count))

    def _look_soon(self) -> None:
        if not self._look.due_at_ms:
            self._look.wait_until(self._now_ms + WAITS_LOOKED_AT_MS)
            self.jobs.agenda.add(self._look)

    def _look_after_waits(self) -> None:
        for name, queue in list(self._announced.items()):
            if queue.waiters and not queue.jobs.count:
                self._ask(queue, is_just_empty=False)
            elif not queue.waiters:
                del self._announced[name]
                for node in self.table.reachable():
                    self._bus.send(node, Need(name, 0))
        self._remind()
        for name, imports in list(self._imports.items()):
            if name not in self._announced and not imports.sources(self._now_ms):
                del self._imports[name]
        if self._announced or self._imports or self._lent or self._borrowed:
            self._look_soon()

    def _remind(self) -> None:
        """Say again what may have been lost with a link, of jobs that are delivered at most once."""
        now_ms = self._now_ms
        if now_ms < self._reminded_at_ms + REMINDED_MS:
            return
        self._reminded_at_ms = now_ms
        for job_id, taker in list(self._lent.items()):
            job, node = self.jobs.find(job_id), self.table.get(taker)
            if job is None:
                del self._lent[job_id]
            elif node is None or not node.is_member:
                self._take_back(job_id)
            else:
                self._bus.send(node, Give((self._copy_of(job),)))
        for job_id, giver in self._borrowed.items():
            for node in self._there((giver,)):
                self._bus.send_once_written(node, Stored(job_id))

    def _need(self, sender: Node, message: Need) -> None:
        interest = self._interest.get(message.queue)
        if not message.count:
            if interest is not None:
                interest.remove(sender.id)
                if not interest:
                    del self._interest[message.queue]
            return
        queue = self.jobs.queues.get(message.queue)
        imports = self._imports.get(message.queue)
        is_importing = imports is not None and imports.rate(self._now_ms) > 0
        waiting = 0 if queue is None or queue.pause & PAUSED_OUT or is_importing else queue.jobs.count
        count = to_give(message.count, waiting)
        count = self._give(queue, sender, count) if queue is not None and count else 0
        if not count and message.is_waiting:
            self._interest.setdefault(message.queue, Interest()).add(sender.id, self._now_ms)

    def came(self, queue: JobQueue) -> None:
        interest = self._interest.get(queue.name)
        if interest is None:
            return
        node_id = interest.take(self._now_ms, [node.id for node in self.table.reachable() if node.is_linked])
        if not interest:
            del self._interest[queue.name]
        node = self.table.get(node_id) if node_id is not None else None
        if node is not None:
            self._give(queue, node, 1)

    def _give(self, queue: JobQueue, node: Node, count: int) -> int:
        copies: list[JobCopy] = []
        for _ in range(count):
            job = self.jobs.take(queue) if queue.jobs.count else None
            if job is None:
                break
            if job.terms.retry_ms:
                self._know_owners(job, (node.id,))
            else:
                self._lent[job.id] = node.id
            copies.append(self._copy_of(job))
        if copies:
            self._bus.send(node, Give(tuple(copies)))
            self._look_soon()
        return len(copies)

    def _take_given(self, sender: Node, message: Give) -> None:
        by_queue: dict[bytes, int] = {}
        for copy in message.copies:
            job = self.jobs.find(copy.job_id)
            if job is None and self._is_over(copy.job_id):
                self._bus.send(sender, Acked(copy.job_id, (self._me,)))
                continue
            by_queue[copy.queue] = by_queue.get(copy.queue, 0) + 1
            if not copy.retry_ms:
                self._borrow(sender, copy, job)
            elif job is None:
                job = self._job_of(copy, (*copy.owners, self._me, sender.id))
                self.jobs.keep(job, self.jobs.next_requeue_at_ms(job.terms))
                self.jobs.queue_first(job)
            elif job.state == ACKED:
                self._bus.send(sender, Acked(job.id, self._owners_of_ack(job)))
            else:
                self._know_owners(job, (*copy.owners, sender.id))
                if job.state in (ACTIVE, DELAYED):
                    self.jobs.queue_first(job)
        for name, count in by_queue.items():
            self._imports.setdefault(name, Imports()).came(sender.id, count, self._now_ms)
        self._look_soon()

    # Jobs that are delivered at most once go to another node in three steps, so that one of the two has them

    def _borrow(self, sender: Node, copy: JobCopy, job: Job | None) -> None:
        if job is None:
            job = self._job_of(copy, (sender.id, self._me))
            self.jobs.hold_copy(job)
            self._borrowed[job.id] = sender.id
        if self._borrowed.get(job.id) == sender.id:
            self._bus.send_once_written(sender, Stored(job.id))

    def _stored(self, sender: Node, message: Stored) -> None:
        job_id = message.job_id
        if self._lent.get(job_id) == sender.id:
            job = self.jobs.find(job_id)
            if job is not None:
                self._let_go[job_id] = job.expires_at_ms
                del self._lent[job_id]
                self.jobs.remove(job, GONE_ELSEWHERE)
        if job_id in self._let_go:
            self._bus.send_once_written(sender, LetGo(job_id))
        else:
            self._bus.send(sender, TookBack(job_id))

    def _may_deliver(self, sender: Node, message: LetGo) -> None:
        job = self.jobs.find(message.job_id)
        if job is not None and self._borrowed.pop(job.id, b"") == sender.id:
            self.jobs.own(job, self._with_owners(job.terms, ()))
            self.jobs.release(job)

    def _took_back(self, sender: Node, message: TookBack) -> None:
        job = self.jobs.find(message.job_id)
        if job is not None and self._borrowed.get(job.id) == sender.id:
            del self._borrowed[job.id]
            self.jobs.remove(job, GONE_ELSEWHERE)

    def _take_back(self, job_id: bytes) -> None:
        """The node that it was lent to cannot be reached."""
        del self._lent[job_id]
        job = self.jobs.find(job_id)
        if job is not None and job.state == ACTIVE:
            self.jobs.queue_first(job)

    # Queues

    def pause(self, queue: JobQueue) -> None:
        """Have all nodes pause it as it is here."""
        for node in self.table.members():
            self._bus.send(node, Pause(queue.name, queue.pause))

    def _paused(self, sender: Node, message: Pause) -> None:
        queue = self.jobs.queue(message.queue) if message.pause else self.jobs.find_queue(message.queue)
        if queue is not None:
            self.jobs.pause(queue, message.pause)

    def _delete_queue(self, sender: Node, message: DeleteQueue) -> None:
        raise NotImplementedError


_HANDLERS: Final[dict[type[Any], Callable[[Any, Node, Any], None]]] = {
    Keep: SharedJobs._keep,
    Kept: SharedJobs._kept,
    About: SharedJobs._about,
    Acked: SharedJobs._acked,
    KnowsAck: SharedJobs._knows_ack,
    Forget: SharedJobs._forget,
    Need: SharedJobs._need,
    Give: SharedJobs._take_given,
    Stored: SharedJobs._stored,
    LetGo: SharedJobs._may_deliver,
    TookBack: SharedJobs._took_back,
    Pause: SharedJobs._paused,
    DeleteQueue: SharedJobs._delete_queue,
    Moved: SharedJobs._move,
}
