"""ADDJOB in a cluster: jobs that are being added here, and copies of jobs that are added elsewhere."""

from collections.abc import Callable

from kestreld.cluster.chance import sample
from kestreld.cluster.copying import copy_of, due_in_ms, expires_in_ms, job_of
from kestreld.cluster.job_messages import GaveUp, GotJob, JobCopy, Notice, Owners, ReplJob
from kestreld.cluster.lending import Lending
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.reactions import Word
from kestreld.cluster.replication import Replication, Taker
from kestreld.cluster.tombstones import Tombstones
from kestreld.jobs.job import ACKED, COPY, NEVER, NOTICE_MS, Job
from kestreld.jobs.job_queue import PAUSED_IN, AddedWith, JobQueue
from kestreld.jobs.store import DELETED, JITTER_MS
from kestreld.queues.agenda import Scheduled
from kestreld.queues.slices import Work

NEVER_MS = 1 << 62
DEFAULT_COPIES = 3
UNSAID_MAX = 1_000  # jobs
SAID_AT_ONCE = 100

Added = Callable[[bytes | None], None]  # told the job's id, None = it expired before enough nodes held it


class PendingAdd(Scheduled):
    """An ADDJOB that waits for copies. `is_queued_elsewhere`: a holder whose retry time is over queues the job."""

    def __init__(
        self, job: Job, replication: Replication, is_kept: bool, added: Added, again: Callable[["PendingAdd"], None]
    ) -> None:
        super().__init__(replication.next_at_ms)
        self.job = job
        self.replication = replication
        self.is_kept = is_kept  # this node is one of those that hold it
        self.added = added
        self.is_queued_elsewhere = False
        self._again = again

    def fall_due(self, now_ms: int) -> None:
        self._again(self)

    def wait_until(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms

    def note_queued_elsewhere(self) -> None:
        self.is_queued_elsewhere = True


class Replicating:
    """The jobs that this node is adding, by their ids."""

    def __init__(self, peers: Peers, lending: Lending, tombstones: Tombstones) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._lending = lending
        self._tombstones = tombstones
        self._pending: dict[bytes, PendingAdd] = {}
        # By nodes that are to queue jobs of which this one keeps no copy, and cannot be told now: when, and until when.
        self._unsaid: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        self.async_copies_missed = 0  # of ADDJOB ASYNC: there was no node to take them
        self.default_below_three = 0  # ADDJOBs without REPLICATE that got fewer copies, for want of nodes

    # What may be added

    def copies_possible(self) -> int:
        """On how many nodes a job could be now."""
        return len(self._peers.takers()) + self._peers.keeps_copies

    def default_copies(self) -> int:
        """How many copies there are to be where ADDJOB does not say so."""
        return max(min(DEFAULT_COPIES, self.copies_possible()), 1)

    def note_default(self, copies: int) -> None:
        """A job is added that is to have so many, as ADDJOB did not say."""
        self.default_below_three += copies < DEFAULT_COPIES

    def is_pending(self, job_id: bytes) -> bool:
        """Whether that job is being added."""
        return job_id in self._pending

    def confirmed_of(self, job_id: bytes) -> list[bytes]:
        """Which nodes hold a job that is being added, as far as is known."""
        pending = self._pending.get(job_id)
        if pending is None:
            return []
        return sorted(pending.replication.confirmed | ({self._jobs.node_id} if pending.is_kept else set()))

    # Adding

    def add(
        self, queue: JobQueue, body: bytes, options: AddedWith, key: bytes, replicate: int, added: Added, job_id: bytes
    ) -> Job | None:
        """A new job; `added` is told once so many nodes hold it. None where that is so at once, and it was told.

        Only where `copies_possible` are enough. `job_id` b"" = a new one.
        """
        peers, jobs = self._peers, self._jobs
        is_kept = peers.keeps_copies
        replication = Replication(replicate - is_kept, self._takers(), jobs.clock.monotonic_ms)
        owners = jobs.node_sets.of_all(replication.asked) | (jobs.me if is_kept else 0)
        if owners == jobs.me and not job_id:
            added(jobs.add(body, queue.terms_of(options, key)).id)
            return None
        job = jobs.hold(
            body, queue.terms_shared_with(options, replicate, 0 if owners == jobs.me else owners, key), job_id
        )
        pending = PendingAdd(job, replication, is_kept, added, self._ask_more)
        if replication.is_achieved:
            self._achieved(pending)
            return None
        self._pending[job.id] = pending
        self._send(job, replication.asked)
        jobs.agenda.add(pending)
        return job

    def add_without_waiting(
        self, queue: JobQueue, body: bytes, options: AddedWith, key: bytes, replicate: int, job_id: bytes
    ) -> bytes:
        """ADDJOB ASYNC: the job is there at once, and copies are sent to who can take them; its id."""
        peers, jobs = self._peers, self._jobs
        is_kept = peers.keeps_copies
        takers = peers.takers()[: replicate - is_kept]
        is_kept = is_kept or not takers
        self.async_copies_missed += replicate - is_kept - len(takers)
        if not takers and not job_id:
            return jobs.add(body, queue.terms_of(options, key)).id
        others = jobs.node_sets.of_all([node.id for node in takers])
        owners = others | (jobs.me if is_kept else 0)
        job = jobs.hold(body, queue.terms_shared_with(options, replicate, owners if takers else 0, key), job_id)
        if not is_kept and not job.terms.retry_ms:
            self._lending.lend(job, takers[0])
            return job.id
        for node in takers:
            peers.bus.send(node, ReplJob(copy_of(jobs, job, owners)))
        if is_kept:
            jobs.release(job)
        else:
            self._leave_to(job, takers[:1])
        return job.id

    def _takers(self) -> list[Taker]:
        return [(node.id, node.linked_at_ms) for node in self._peers.takers()]

    def _send(self, job: Job, asked: list[bytes]) -> None:
        """To these nodes."""
        jobs, peers = self._jobs, self._peers
        nodes = peers.nodes_in(jobs.node_sets.of_all(asked))
        if not job.terms.retry_ms:
            for node in nodes:
                self._lending.offer(job, node)
            return
        message = ReplJob(copy_of(jobs, job, job.terms.owners))
        peers.tell_each(nodes, message)

    def give_up(self, job_id: bytes) -> None:
        """Nobody waits for that ADDJOB any more, or for too long: whoever may hold the job drops it."""
        pending = self._pending.pop(job_id, None)
        if pending is not None:
            self._end(pending)
            self._jobs.unhold(pending.job)

    def forgotten(self, node: Node) -> None:
        """A node is none of the cluster any more."""
        self._unsaid.pop(node.id, None)
        for pending in self._pending.values():
            pending.replication.forget(node.id)

    def gone(self, job: Job) -> None:
        """A job has ended: if it was being added, it has expired, or was deleted."""
        pending = self._pending.pop(job.id, None)
        if pending is not None:
            self._end(pending)
            pending.added(None)

    def _end(self, pending: PendingAdd) -> None:
        """The job is not added."""
        pending.wait_until(NEVER_MS)
        terms = pending.job.terms
        self._peers.tell(terms.owners, GaveUp(pending.job.id, terms.known_key))

    def cleared(self) -> None:
        """All jobs have gone at once."""
        pending, self._pending, self._unsaid = self._pending, {}, {}
        for one in pending.values():
            self._end(one)
            one.added(None)

    def _ask_more(self, pending: PendingAdd) -> None:
        jobs, peers, job = self._jobs, self._peers, pending.job
        new, again = pending.replication.ask_more(self._takers(), jobs.clock.monotonic_ms)
        if new:
            jobs.own(job, job.terms.owners | jobs.node_sets.of_all(new))
            if job.terms.retry_ms:
                told = jobs.node_sets.of_all(set(pending.replication.asked).difference(new, again))
                peers.tell(told, Owners(job.id, peers.ids(job.terms.owners)))
        self._send(job, [*new, *again])
        pending.wait_until(pending.replication.next_at_ms)
        jobs.agenda.add(pending)

    def got_job(self, sender: Node, message: GotJob) -> None:
        """The sender holds a copy."""
        pending = self._pending.get(message.job_id)
        if pending is not None and pending.replication.confirm(sender.id) and pending.replication.is_achieved:
            self._achieved(pending)

    def stored(self, sender: Node, job_id: bytes) -> bool:
        """The sender has stored a job that is delivered at most once, and that is to be on another node than this:
        whether it is the one that gets it.
        """
        pending = self._pending.get(job_id)
        if pending is None or not pending.replication.confirm(sender.id):
            return False
        del self._pending[job_id]
        pending.wait_until(NEVER_MS)
        self._jobs.let_go(pending.job, self._peers.set_of(sender))
        pending.added(job_id)
        return True

    def achieve(self, job_id: bytes) -> None:
        """The job is acknowledged already: it is there, and has been delivered. It is not queued here."""
        pending = self._pending.get(job_id)
        if pending is not None:
            pending.note_queued_elsewhere()
            self._achieved(pending)

    def note_queued_elsewhere(self, job_id: bytes) -> None:
        """Another node queues a job that is still being added."""
        pending = self._pending.get(job_id)
        if pending is not None:
            pending.note_queued_elsewhere()

    def _achieved(self, pending: PendingAdd) -> None:
        job = pending.job
        self._pending.pop(job.id, None)
        pending.wait_until(NEVER_MS)
        pending.added(job.id)  # before it is queued: who waits is served in this turn, too
        if pending.is_kept:
            self._jobs.release(job, is_queued_elsewhere=pending.is_queued_elsewhere)
        elif pending.is_queued_elsewhere:
            self._jobs.unhold(job)
        else:
            holders = self._jobs.node_sets.of_all(pending.replication.confirmed)
            self._leave_to(job, self._peers.nodes_in(holders))

    def _leave_to(self, job: Job, holders: list[Node]) -> None:
        """No copy stays here: one of those that hold one queues it, unless by now they see to that themselves."""
        jobs, terms = self._jobs, job.terms
        due_at_ms = job.created_at_ms + terms.delay_s * 1000
        until_ms = due_at_ms + terms.retry_ms - NOTICE_MS - JITTER_MS
        if jobs.now_ms < until_ms:
            reachable = [node for node in holders if node.is_up]
            for node in sample(reachable or holders, 1, self._peers.random_bytes):
                if node.is_up:
                    self._have_queued(node, job.id, due_at_ms)
                elif sum(map(len, self._unsaid.values())) < UNSAID_MAX:
                    self._unsaid.setdefault(node.id, {})[job.id] = due_at_ms, until_ms
        jobs.unhold(job)

    def _have_queued(self, node: Node, job_id: bytes, due_at_ms: int) -> None:
        after_ms = max(due_at_ms - self._jobs.now_ms, 0)
        self._peers.bus.send(node, Notice(Word.ENQUEUE, job_id, after_ms=after_ms))

    def came_up(self, node: Node) -> Work:
        """It can be told which jobs it is to queue. It got them before, and would queue them after their retry time."""
        for number, (job_id, (due_at_ms, until_ms)) in enumerate(self._unsaid.pop(node.id, {}).items(), 1):
            if self._jobs.now_ms < until_ms:
                self._have_queued(node, job_id, due_at_ms)
            if number % SAID_AT_ONCE == 0:
                yield None

    # Copies of other nodes' jobs

    def repl_job(self, sender: Node, message: ReplJob) -> None:
        """Hold a copy, unless there is a reason not to: then nothing is answered, and the sender asks another node."""
        copy, jobs, peers = message.copy, self._jobs, self._peers
        job = jobs.find(copy.job_id)
        if job is None:
            if self._tombstones.end_of(copy.job_id) == DELETED:
                # It was here, and the answer was lost: a client has deleted it since, so it never will be again.
                peers.bus.send_once_written(sender, GotJob(copy.job_id))
                return
            if not self._takes(copy) or expires_in_ms(jobs, copy, sender) <= 0:
                return
            owners = jobs.node_sets.of_all(copy.owners) | jobs.me
            job = job_of(jobs, copy, sender, owners)
            requeue_at_ms = NEVER
            if copy.retry_ms:
                due_in = due_in_ms(jobs, copy, sender)
                requeue_at_ms = jobs.requeue_at_ms(job.terms) + due_in + peers.rank_ms(owners, sender)
            jobs.keep(job, COPY, requeue_at_ms)
        elif job.state == ACKED:
            return  # the sender is told by who collects the acknowledgement
        else:
            known = job.terms.owners or jobs.me
            wanted = known | jobs.node_sets.of_all(copy.owners)
            if known != wanted:
                jobs.own(job, wanted)
        peers.bus.send_once_written(sender, GotJob(copy.job_id))

    def _takes(self, copy: JobCopy) -> bool:
        queue = self._jobs.queues.get(copy.queue)
        if self._tombstones.has(copy.job_id) or not self._peers.keeps_copies:
            return False
        if queue is None:
            return not self._jobs.has_all_queues
        return not queue.pause & PAUSED_IN

    def owners(self, message: Owners) -> None:
        """Others may hold the job, too."""
        jobs = self._jobs
        job = jobs.find(message.job_id)
        if job is None or job.state == ACKED:
            return
        known = job.terms.owners or jobs.me
        wanted = known | jobs.node_sets.of_all(message.owners)
        if known != wanted:
            jobs.own(job, wanted)
