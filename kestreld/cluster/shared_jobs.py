"""One node's part in jobs that several nodes hold: dispatches messages and events to the state machines.

Each job is delivered although nodes fail, and no more often than necessary. Pure: messages of other nodes come in
through `receive`, messages to them go out through a `JobBus`, and the store reports what happens to its jobs (see
`Copies`). The state machines are Disque's (its README, "Disque state machine") except where a module says otherwise.
"""

from collections.abc import Callable
from typing import Any, Final

from kestreld.cluster.ack_gc import AckCollector
from kestreld.cluster.at_most_once import RELEASED, Lending
from kestreld.cluster.catch_up import Returning
from kestreld.cluster.client_keys import KeySearches
from kestreld.cluster.drain import HandOver
from kestreld.cluster.federating import Federating
from kestreld.cluster.job_messages import (
    CaughtUp,
    Declined,
    DeleteQueue,
    DelJob,
    FindKey,
    FoundKey,
    GaveUp,
    GotAck,
    GotJob,
    JobEnded,
    JobMessage,
    LeftJob,
    LendJob,
    LetGo,
    Moved,
    NeedJobs,
    NeedNothing,
    Notice,
    Owners,
    PauseQueue,
    Released,
    ReplJob,
    SetAck,
    Stored,
    TookBack,
    TookJobs,
    WatchJob,
    YourJobs,
)
from kestreld.cluster.job_watches import JobWatches
from kestreld.cluster.jobs_side import JobsSide
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.reactions import Word
from kestreld.cluster.replicating import Replicating
from kestreld.cluster.requeueing import Requeueing
from kestreld.cluster.tombstones import Tombstones
from kestreld.jobs.copies import Copies
from kestreld.jobs.job import ACKED, BORROWED, LENT, LET_GO, WAIT_REPL, Job
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.store import DELETED
from kestreld.queues.slices import Work


class SharedJobs(Copies, JobsSide):
    """One node's part in the jobs of a cluster. `take_on` runs long work in slices."""

    def __init__(self, peers: Peers, take_on: Callable[[Work], None]) -> None:
        self.peers = peers
        self.jobs = peers.jobs
        self._take_on = take_on
        self._tombstones = Tombstones(peers.jobs.clock)
        self.returning = Returning(peers)
        self.watches = JobWatches(peers, self._tombstones)
        self.lending = Lending(peers, self._tombstones, self.watches.moves_away, self.returning.is_held_back)
        self.replicating = Replicating(peers, self.lending, self._tombstones)
        self.acks = AckCollector(peers, self._tombstones)
        self.federating = Federating(peers, self.lending, self._tombstones, self.acks.say_acked)
        self.hand_over = HandOver(peers, self.lending, self._tombstones, self.watches.moves_away)
        self.keys = KeySearches(peers, self.replicating.is_pending)
        self._requeueing = Requeueing(
            peers, self.returning.is_held_back, self.acks.say_acked, self.replicating.note_queued_elsewhere
        )

    # Nodes

    def loaded(self, timeout_ms: int) -> Work:
        self.returning.begin(timeout_ms)
        is_shared = self.peers.has_members()
        for part in self.jobs.table.parts:
            for job in list(part.values()):
                if job.state == ACKED:
                    self.acks.restored(job)
                elif job.state in (BORROWED, LENT, LET_GO):
                    self.lending.restored(job)
                is_shared = is_shared or bool(job.terms.owners)
            if part:
                yield None
        if is_shared:
            self.jobs.share(self)
        for node in self.peers.up():
            self._tell_all(node)

    def came_up(self, node: Node) -> None:
        self.jobs.share(self)
        if not self.peers.is_loading:  # else it is told once this node knows its own jobs
            self._tell_all(node)

    def _tell_all(self, node: Node) -> None:
        """Tell a node all that it has missed."""
        self._take_on(self.lending.came_up(node))
        self._take_on(self.replicating.came_up(node))
        self.federating.came_up(node)
        self._take_on(self.federating.announce_waits())
        self._take_on(self.federating.give_again(node))
        self._take_on(self.acks.catch_up(node))

    def link_broken(self, node: Node) -> None:
        self.federating.link_broken(node)
        self.keys.went_down(node)

    def went_down(self, node: Node) -> None:
        self.link_broken(node)
        self._take_on(self.lending.went_down(node))
        self.watches.went_down(node)
        self.returning.went_down(node)

    def forgotten(self, node: Node) -> None:
        self.went_down(node)
        self.replicating.forgotten(node)
        self._take_on(self.acks.settle_all())

    # Commands that concern jobs of other nodes

    def delete_everywhere(self, job_id: bytes) -> bool:
        """FASTACK: drop a job on all nodes that can be reached. Return True if it was here."""
        return self.acks.delete_everywhere(job_id)

    def pause_everywhere(self, name: bytes, pause: int) -> None:
        """PAUSE BCAST: have all other nodes pause a queue as it is paused here."""
        self.peers.tell_each(self.peers.up(), PauseQueue(name, pause))

    def leave(self, *, hands_over: bool) -> None:
        """CLUSTER LEAVING: with `hands_over`, move all jobs to other nodes; without, end that."""
        if hands_over:
            self._take_on(self.hand_over.begin())
        else:
            self.hand_over.end()

    def empty_everywhere(self, name: bytes) -> None:
        """QDEL BCAST: have the other nodes delete a queue's jobs, too."""
        self.peers.tell_each(self.peers.up(), DeleteQueue(name))

    # Messages of other nodes

    def receive(self, sender: Node, message: JobMessage) -> None:
        _HANDLERS[type(message)](self, sender, message)

    def _repl_job(self, sender: Node, message: ReplJob) -> None:
        job_id = message.copy.job_id
        if self.jobs.find(job_id) is None and self._tombstones.end_of(job_id) == ACKNOWLEDGED:
            self.acks.say_acked(sender, job_id)
        else:
            self.replicating.repl_job(sender, message)

    def _got_job(self, sender: Node, message: GotJob) -> None:
        self.replicating.got_job(sender, message)
        if self.hand_over.is_on:
            self.hand_over.got_job(sender, message)

    def _caught_up(self, sender: Node) -> None:
        self.returning.caught_up(sender)
        self._take_on(self.acks.caught_up(sender))

    def _gave_up(self, sender: Node, message: GaveUp) -> None:
        job = self.jobs.find(message.job_id)
        if job is None:
            self._tombstones.add(message.job_id, DELETED)
            if message.key:
                self.jobs.keys.forget(message.key, message.job_id)
        elif job.state == ACKED:
            self.jobs.remove(job, ACKNOWLEDGED)
        elif not self.keys.is_vouched_for(job.id):
            self.jobs.unadd(job)

    def _notice(self, sender: Node, message: Notice) -> None:
        job = self.jobs.find(message.job_id)
        if job is not None:
            self._requeueing.notice(sender, job, message)
        elif self._tombstones.end_of(message.job_id) == ACKNOWLEDGED:
            self.acks.say_acked(sender, message.job_id)

    def _set_ack(self, sender: Node, message: SetAck) -> None:
        job = self.jobs.find(message.job_id)
        if job is not None and job.state == WAIT_REPL:
            self.replicating.achieve(job.id)
        self.acks.set_ack(sender, message)

    def _left_job(self, sender: Node, message: LeftJob) -> None:
        for job_id in message.job_ids:
            job = self.jobs.find(job_id)
            if job is not None and job.state == ACKED:
                self.acks.left(job, sender)
            elif job is not None and job.terms.owners & self.peers.set_of(sender):
                self.jobs.own(job, job.terms.owners & ~self.peers.set_of(sender))

    def _stored(self, sender: Node, message: Stored) -> None:
        job = self.jobs.find(message.job_id)
        if job is not None and job.state == WAIT_REPL and self.replicating.stored(sender, job.id):
            self.lending.left(job, sender)
        else:
            self.lending.stored(sender, message)

    def _let_go(self, sender: Node, message: LetGo) -> None:
        job = self.jobs.find(message.job_id)
        is_imported = job is not None and job.state == BORROWED
        queue = job.terms.queue if job is not None else None
        self.lending.let_go(sender, message)
        if is_imported and queue is not None:
            self.federating.imported(sender, queue)

    def _released(self, sender: Node, message: Released) -> None:
        if self.lending.released(sender, message):
            self.watches.moves_away(message.job_id)
            job = self.jobs.find(message.job_id)
            if job is not None:
                self.jobs.remove(job, RELEASED)

    def _pause_queue(self, sender: Node, message: PauseQueue) -> None:
        jobs = self.jobs
        queue = jobs.queue(message.queue) if message.pause else jobs.find_queue(message.queue)
        if queue is not None:
            jobs.pause(queue, message.pause)

    def _delete_queue(self, sender: Node, message: DeleteQueue) -> None:
        queue = self.jobs.queues.get(message.queue)
        if queue is not None:
            self._take_on(self._emptied(queue))

    def _emptied(self, queue: JobQueue) -> Work:
        for _ in self.jobs.delete_all(queue):
            yield None

    # Events of jobs here

    def may_queue(self, job: Job, now_ms: int) -> bool:
        return self._requeueing.may_queue(job, now_ms)

    def woken(self, job: Job, now_ms: int) -> None:
        if job.state == ACKED:
            self.acks.woken(job)
        else:
            self.lending.woken(job)

    def queued(self, job: Job) -> None:
        self._requeueing.say(Word.HAS_QUEUED, job)

    def delivered(self, job: Job) -> None:
        self._requeueing.say(Word.WORKING, job, max(job.requeue_at_ms - self.jobs.now_ms, 0))

    def worked_on(self, job: Job) -> None:
        self._requeueing.say(Word.WORKING, job, max(job.requeue_at_ms - self.jobs.now_ms, 0))

    def delayed(self, job: Job, delay_ms: int) -> None:
        self._requeueing.say(Word.HAS_QUEUED, job, delay_ms)

    def moved(self, job: Job) -> None:
        self._requeueing.say_moved(job)

    def gone(self, job: Job, why: str) -> None:
        state = job.state
        self._requeueing.gone(job)  # in any state: an announced job may have been acknowledged since
        if state == WAIT_REPL:
            self.replicating.gone(job)
        elif state in (BORROWED, LENT, LET_GO):
            self.lending.gone(job)
        elif state == ACKED:
            self.acks.gone(job)
            self._tombstones.add(job.id, ACKNOWLEDGED)
        elif job.terms.owners:
            self._tombstones.add(job.id, why)
        if job.terms.key:
            self.keys.gone(job.id)

    def cleared(self) -> None:
        self.replicating.cleared()
        rooms = (self.lending, self.acks, self.federating, self.watches, self.keys, self._requeueing)
        for room in (*rooms, self._tombstones):
            room.clear()

    def missed(self, queue: JobQueue) -> None:
        self.federating.missed(queue)

    def came(self, queue: JobQueue) -> None:
        self.federating.came(queue)

    def waited_for(self, queue: JobQueue) -> None:
        self.federating.waited_for(queue)

    def emptied(self, queue: JobQueue) -> None:
        self.federating.emptied(queue)


_Handler = Callable[[SharedJobs, Node, Any], object]
_HANDLERS: Final[dict[type[Any], _Handler]] = {
    ReplJob: SharedJobs._repl_job,
    GotJob: SharedJobs._got_job,
    GaveUp: SharedJobs._gave_up,
    Owners: lambda shared, sender, message: shared.replicating.owners(message),
    Notice: SharedJobs._notice,
    Moved: lambda shared, sender, message: shared._requeueing.moved(sender, message),
    SetAck: SharedJobs._set_ack,
    LeftJob: SharedJobs._left_job,
    GotAck: lambda shared, sender, message: shared.acks.got_ack(sender, message),
    DelJob: lambda shared, sender, message: shared.acks.del_job(message),
    CaughtUp: lambda shared, sender, message: shared._caught_up(sender),
    NeedJobs: lambda shared, sender, message: shared.federating.need_jobs(sender, message),
    NeedNothing: lambda shared, sender, message: shared.federating.need_nothing(sender),
    YourJobs: lambda shared, sender, message: shared.federating.your_jobs(sender, message),
    TookJobs: lambda shared, sender, message: shared.federating.took_jobs(sender, message),
    LendJob: lambda shared, sender, message: shared.lending.lend_job(sender, message),
    Declined: lambda shared, sender, message: shared.lending.declined(sender, message),
    Stored: SharedJobs._stored,
    LetGo: SharedJobs._let_go,
    Released: SharedJobs._released,
    TookBack: lambda shared, sender, message: shared.lending.took_back(sender, message),
    PauseQueue: SharedJobs._pause_queue,
    DeleteQueue: SharedJobs._delete_queue,
    FindKey: lambda shared, sender, message: shared.keys.find_key(sender, message),
    FoundKey: lambda shared, sender, message: shared.keys.found_key(sender, message),
    WatchJob: lambda shared, sender, message: shared.watches.watch_job(sender, message),
    JobEnded: lambda shared, sender, message: shared.watches.job_ended(sender, message),
}
