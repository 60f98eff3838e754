"""CLUSTER LEAVING yes HANDOVER: moves all jobs of a leaving node to other nodes.

A leaving node of Disque moves none. Each job gets a copy on a node that does not hold it yet, if there is one; once
that node, or else one of the holders, has confirmed that it holds the job, all of them are told that this node no
longer does, and its own copy goes. A job with RETRY 0 is lent (see `at_most_once`), or dropped if it was delivered.
"""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.at_most_once import Lending
from kestreld.cluster.copying import copy_of
from kestreld.cluster.job_messages import GotJob, LeftJob, Notice, ReplJob
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.reactions import Word
from kestreld.cluster.tombstones import ELSEWHERE, Tombstones
from kestreld.jobs.job import ACTIVE, COPY, DELAYED, QUEUED, Job
from kestreld.queues.slices import WAITS, Work

ON_THE_WAY_MAX: Final = 200  # jobs that wait for the confirmation of a copy
ANSWER_MS: Final = 1_000  # after that another node is asked
ROUND_MS: Final = 1_000
HANDED_OVER: Final = "deleted"  # end of a job that has left, in the log
MOVABLE: Final = frozenset({ACTIVE, COPY, DELAYED, QUEUED})


class HandOver:
    """Jobs that are leaving this node; `is_on` from the operator's command until CLUSTER LEAVING no."""

    def __init__(
        self, peers: Peers, lending: Lending, tombstones: Tombstones, moves_away: Callable[[bytes], None]
    ) -> None:
        """`moves_away` is as in `Lending`."""
        self._peers = peers
        self._jobs = peers.jobs
        self._lending = lending
        self._tombstones = tombstones
        self._moves_away = moves_away
        self._pending: dict[bytes, tuple[bytes, int]] = {}  # job -> the node that was asked, and until when to wait
        self.is_on = False

    @property
    def left(self) -> int:
        """Number of jobs that are still here while the handover is on, else 0."""
        return self._jobs.table.count if self.is_on else 0

    def begin(self) -> Work:
        """Move all jobs, including those that arrive meanwhile."""
        if not self.is_on:
            self.is_on = True
            yield from self._run()

    def end(self) -> None:
        """End the handover: the node stays."""
        self.is_on = False
        self._pending = {}

    def _run(self) -> Work:
        jobs, clock = self._jobs, self._jobs.clock
        while self.is_on:
            again_at_ms = clock.monotonic_ms + ROUND_MS
            for part in jobs.table.parts:
                for job in list(part.values()):
                    while self._on_the_way >= ON_THE_WAY_MAX and not self._has_dropped_late():
                        yield WAITS
                    if self._is_to_be_moved(job):
                        self._move(job)
                    yield None
            self._has_dropped_late()
            while clock.monotonic_ms < again_at_ms:
                yield WAITS

    @property
    def _on_the_way(self) -> int:
        return len(self._pending) + self._lending.lent

    def _is_to_be_moved(self, job: Job) -> bool:
        return self.is_on and job.state in MOVABLE and job.id not in self._pending

    def _has_dropped_late(self) -> bool:
        """Drop requests that were not answered in time. Return True if there were any."""
        now_ms = self._jobs.clock.monotonic_ms
        late = [job_id for job_id, (_, until_ms) in self._pending.items() if until_ms <= now_ms]
        for job_id in late:
            del self._pending[job_id]
        return bool(late)

    def _move(self, job: Job) -> None:
        jobs, peers = self._jobs, self._peers
        takers = peers.takers()
        if not job.terms.retry_ms:
            self._move_once(job, takers)
            return
        takers.sort(key=lambda node: bool(job.terms.owners & peers.set_of(node)))
        if takers:
            owners = (job.terms.owners or jobs.me) | peers.set_of(takers[0])
            if owners != job.terms.owners:
                jobs.own(job, owners)
            self._pending[job.id] = (takers[0].id, jobs.clock.monotonic_ms + ANSWER_MS)
            peers.bus.send(takers[0], ReplJob(copy_of(jobs, job, owners)))

    def _move_once(self, job: Job, takers: list[Node]) -> None:
        """Move a job that is delivered at most once."""
        if job.state == ACTIVE:
            self._jobs.remove(job, HANDED_OVER)
        elif takers:
            if job.state == QUEUED:
                self._jobs.dequeue(job)
            self._lending.lend(job, takers[0])

    def got_job(self, sender: Node, message: GotJob) -> None:
        """Leave a job to the sender, which now holds a copy."""
        node_id, _ = self._pending.get(message.job_id, (b"", 0))
        job = self._jobs.find(message.job_id)
        if node_id == sender.id:
            del self._pending[message.job_id]
            if job is not None and job.state in MOVABLE and self.is_on:
                self._leave(job, sender)

    def _leave(self, job: Job, node: Node) -> None:
        """Drop a job here, and have the node queue it if it was queued or delayed here."""
        peers, jobs = self._peers, self._jobs
        if job.state == QUEUED:
            peers.bus.send(node, Notice(Word.ENQUEUE, job.id, job.nacks, job.deliveries, 0, job.terms.moves))
        elif job.state == DELAYED:
            after_ms = max(job.requeue_at_ms - jobs.now_ms, 1)
            peers.bus.send(node, Notice(Word.ENQUEUE, job.id, job.nacks, job.deliveries, after_ms, job.terms.moves))
        peers.tell(job.terms.owners, LeftJob((job.id,)))
        self._moves_away(job.id)
        jobs.remove(job, HANDED_OVER)
        self._tombstones.add(job.id, ELSEWHERE)
