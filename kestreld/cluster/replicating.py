"""ADDJOB in a cluster: adds jobs with copies on other nodes, and keeps copies of jobs that others add.

A job that is being added is in state WAIT_REPL: in the table but in no log, and no client gets it. It is sent to as
many nodes as are wanted; `replication` decides when to ask further ones. A node answers GOTJOB once its copy is
written. When enough nodes have answered, the client gets its reply, and only then is the job queued here. If this node
keeps no copy (it leaves, is short of memory, or cannot write its log), one holder is told to queue the job (ENQUEUE).

A node becomes an owner before the job is sent to it, so every node that may hold a copy learns of the acknowledgement.
If the job is given up, expires or is deleted first, all owners are told to drop it (GAVEUP). A holder may queue the job
before it counts as added, because its retry time is over, and a worker may even acknowledge it by then: this node does
not queue it in that case. A job with RETRY 0 has one copy, which LENDJOB offers to other nodes (see `at_most_once`).
"""

from collections.abc import Callable

from kestreld.cluster.at_most_once import Lending
from kestreld.cluster.chance import sample
from kestreld.cluster.copying import copy_of, due_in_ms, expires_in_ms, job_of
from kestreld.cluster.job_messages import GaveUp, GotJob, JobCopy, Notice, Owners, ReplJob
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

Added = Callable[[bytes | None], None]  # called with the job's id, None = it ended before enough nodes held it


class PendingAdd(Scheduled):
    """An ADDJOB that waits for copies. `is_queued_elsewhere`: another holder queues the job, so this node will not."""

    def __init__(
        self, job: Job, replication: Replication, is_kept: bool, added: Added, again: Callable[["PendingAdd"], None]
    ) -> None:
        super().__init__(replication.next_at_ms)
        self.job = job
        self.replication = replication
        self.is_kept = is_kept  # this node holds a copy
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
    """Jobs that this node is adding, by id, and copies that it takes of other nodes' jobs."""

    def __init__(self, peers: Peers, lending: Lending, tombstones: Tombstones) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._lending = lending
        self._tombstones = tombstones
        self._pending: dict[bytes, PendingAdd] = {}
        # Jobs without a copy here whose next holder cannot be told now to queue them, by node: due time and deadline.
        self._unsaid: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        self.async_copies_missed = 0  # by ADDJOB ASYNC, for want of nodes
        self.default_below_three = 0  # ADDJOBs without REPLICATE that got fewer copies, for want of nodes

    # Numbers of copies

    def copies_possible(self) -> int:
        """Return the number of nodes that could hold a job now, this one included."""
        return len(self._peers.takers()) + self._peers.keeps_copies

    def default_copies(self) -> int:
        """Return the number of copies for ADDJOB without REPLICATE."""
        return max(min(DEFAULT_COPIES, self.copies_possible()), 1)

    def note_default(self, copies: int) -> None:
        """Count an ADDJOB without REPLICATE that gets fewer than DEFAULT_COPIES."""
        self.default_below_three += copies < DEFAULT_COPIES

    def is_pending(self, job_id: bytes) -> bool:
        """Return True while that job is being added."""
        return job_id in self._pending

    def confirmed_of(self, job_id: bytes) -> list[bytes]:
        """Return the ids of the nodes known to hold a job that is being added."""
        pending = self._pending.get(job_id)
        if pending is None:
            return []
        return sorted(pending.replication.confirmed | ({self._jobs.node_id} if pending.is_kept else set()))

    # Adding

    def add(
        self, queue: JobQueue, body: bytes, options: AddedWith, key: bytes, replicate: int, added: Added, job_id: bytes
    ) -> Job | None:
        """Add a job. `added` is called once `replicate` nodes hold it; None is returned if that was so at once.

        Call this only if `copies_possible` are enough. `job_id` b"" = a new one.
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
        """ADDJOB ASYNC: add a job at once, and send copies to nodes that can take them. Return its id."""
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
        """Send a job to these nodes."""
        jobs, peers = self._jobs, self._peers
        nodes = peers.nodes_in(jobs.node_sets.of_all(asked))
        if not job.terms.retry_ms:
            for node in nodes:
                self._lending.offer(job, node)
            return
        message = ReplJob(copy_of(jobs, job, job.terms.owners))
        peers.tell_each(nodes, message)

    def give_up(self, job_id: bytes) -> None:
        """Stop adding a job, because its client has gone or timed out: all nodes that may hold the job drop it."""
        pending = self._pending.pop(job_id, None)
        if pending is not None:
            self._end(pending)
            self._jobs.unhold(pending.job)

    def forgotten(self, node: Node) -> None:
        """Drop a node that has left the cluster from all pending jobs."""
        self._unsaid.pop(node.id, None)
        for pending in self._pending.values():
            pending.replication.forget(node.id)

    def gone(self, job: Job) -> None:
        """Handle the end of a job: if it was being added, it has expired or was deleted."""
        pending = self._pending.pop(job.id, None)
        if pending is not None:
            self._end(pending)
            pending.added(None)

    def _end(self, pending: PendingAdd) -> None:
        """Tell all owners that a job is not added."""
        pending.wait_until(NEVER_MS)
        terms = pending.job.terms
        self._peers.tell(terms.owners, GaveUp(pending.job.id, terms.known_key))

    def cleared(self) -> None:
        """Give up all jobs that are being added: the node's jobs were deleted at once."""
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
        """Count the sender's copy. The job is added once there are enough."""
        pending = self._pending.get(message.job_id)
        if pending is not None and pending.replication.confirm(sender.id) and pending.replication.is_achieved:
            self._achieved(pending)

    def stored(self, sender: Node, job_id: bytes) -> bool:
        """Let the sender have an offered RETRY 0 job that it has stored. Return False if it is no longer offered."""
        pending = self._pending.get(job_id)
        if pending is None or not pending.replication.confirm(sender.id):
            return False
        del self._pending[job_id]
        pending.wait_until(NEVER_MS)
        self._jobs.let_go(pending.job, self._peers.set_of(sender))
        pending.added(job_id)
        return True

    def achieve(self, job_id: bytes) -> None:
        """Finish adding a job that is acknowledged already, without queueing it here: another node has delivered it."""
        pending = self._pending.get(job_id)
        if pending is not None:
            pending.note_queued_elsewhere()
            self._achieved(pending)

    def note_queued_elsewhere(self, job_id: bytes) -> None:
        """Note that another node queues a job that is still being added here."""
        pending = self._pending.get(job_id)
        if pending is not None:
            pending.note_queued_elsewhere()

    def _achieved(self, pending: PendingAdd) -> None:
        job = pending.job
        self._pending.pop(job.id, None)
        pending.wait_until(NEVER_MS)
        pending.added(job.id)  # before it is queued: a waiting client may be served in this turn, too
        if pending.is_kept:
            self._jobs.release(job, is_queued_elsewhere=pending.is_queued_elsewhere)
        elif pending.is_queued_elsewhere:
            self._jobs.unhold(job)
        else:
            holders = self._jobs.node_sets.of_all(pending.replication.confirmed)
            self._leave_to(job, self._peers.nodes_in(holders))

    def _leave_to(self, job: Job, holders: list[Node]) -> None:
        """Keep no copy: have one of the holders queue the job, unless they would do so by now anyway."""
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
        """Tell the node which jobs to queue. It got them before, and would queue them only after their retry time."""
        for number, (job_id, (due_at_ms, until_ms)) in enumerate(self._unsaid.pop(node.id, {}).items(), 1):
            if self._jobs.now_ms < until_ms:
                self._have_queued(node, job_id, due_at_ms)
            if number % SAID_AT_ONCE == 0:
                yield None

    # Copies of other nodes' jobs

    def repl_job(self, sender: Node, message: ReplJob) -> None:
        """Keep a copy, or give no answer if this node cannot take it: the sender then asks another node."""
        copy, jobs, peers = message.copy, self._jobs, self._peers
        job = jobs.find(copy.job_id)
        if job is None:
            if self._tombstones.end_of(copy.job_id) == DELETED:
                # The copy was here and the answer was lost. A client has deleted the job since.
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
            return  # the node that collects the acknowledgement tells the sender
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
        """Add owners that the sender knows to a job."""
        jobs = self._jobs
        job = jobs.find(message.job_id)
        if job is None or job.state == ACKED:
            return
        known = job.terms.owners or jobs.me
        wanted = known | jobs.node_sets.of_all(message.owners)
        if known != wanted:
            jobs.own(job, wanted)
