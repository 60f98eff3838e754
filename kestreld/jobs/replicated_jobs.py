"""Changes to jobs that other nodes hold, too: held, released, put off, moved, lent, acknowledged.

They are made because other nodes say so; `Copies` knows these nodes.
"""

from collections.abc import Iterator
from typing import Final

from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    BORROWED,
    COPY,
    CTIME_BITS,
    DELAYED,
    GONE,
    LENT,
    LET_GO,
    NEVER,
    QUEUED,
    WAIT_REPL,
    WITHOUT_QUEUE,
    DeadLetter,
    Job,
    JobTerms,
)
from kestreld.jobs.job_queue import PAUSED_OUT, JobQueue
from kestreld.jobs.jobs import EXPIRED_AT_ONCE, Jobs
from kestreld.jobs.store import EXPIRED

ACKNOWLEDGED: Final = "acked"


class ReplicatedJobs(Jobs):
    """The jobs of a node that may be one of several."""

    def jitter_ms(self) -> int:
        """Return a random time up to a quarter of a second, positive or negative, ms."""
        return self._jitter_ms()

    def requeue_at_ms(self, terms: JobTerms) -> int:
        """Return when a job that is queued somewhere now is queued again, NEVER if it will not be."""
        return self._requeue_at_ms(terms, self.now_ms)

    def new_id(self, terms: JobTerms) -> bytes:
        """Return an id for a job that may yet be added."""
        return self._ids.next_id(terms.id_field)

    # Jobs that count once enough nodes hold them

    def hold(self, body: bytes, terms: JobTerms, job_id: bytes = b"") -> Job:
        """Create a job that nobody gets before `release`, and that is in no log."""
        ctime = max(self.now_ms << CTIME_BITS, self.last_ctime + 1)
        self.last_ctime = ctime
        job = Job(job_id or self.new_id(terms), body, terms, ctime, NEVER, WAIT_REPL)
        self._take_in(job)
        return job

    def release(self, job: Job, *, is_queued_elsewhere: bool = False) -> None:
        """Queue a held job, or wait for the end of its delay, or of the retry time of the node that has queued it."""
        terms, now_ms = job.terms, self.now_ms
        due_at_ms = job.created_at_ms + terms.delay_s * 1000
        if is_queued_elsewhere:
            job.state, job.requeue_at_ms = COPY, self._requeue_at_ms(terms, now_ms)
        elif terms.delay_s and due_at_ms > now_ms:
            job.state, job.requeue_at_ms = DELAYED, due_at_ms
            terms.queue.delayed += 1
        else:
            job.state, job.requeue_at_ms = QUEUED, self._requeue_at_ms(terms, now_ms)
        self._plan(job)
        if self.listener is not None:
            self.listener.added(job)
        if job.state == QUEUED:
            self._put_in_listed(job, now_ms)

    def unhold(self, job: Job) -> None:
        """Drop a held job that will not be one of this node's."""
        self.remove(job)

    def unadd(self, job: Job) -> None:
        """Drop a job that its node has given up adding, and free its key."""
        terms = job.terms
        if terms.key:
            self.keys.forget(terms.known_key, job.id)
            job.use_terms(terms.without_key())
        self.remove(job)

    def _take_in(self, job: Job) -> None:
        self.table.add(job.id, job)
        self.memory.add(len(job.body))
        queue = job.terms.queue
        if self.queues.get(queue.name) is None:
            self.queues.add(queue.name, queue)
        queue.total += 1
        if job.terms.key:
            self.keys.add(job.terms.known_key, job.id)
        self._plan(job)
        self._tidy_timers()

    def _tidy_timers(self) -> None:
        if self.timers.is_untidy:
            self.timers.tidy(self.table.count)

    def _put_in_listed(self, job: Job, now_ms: int) -> None:
        queue = job.terms.queue
        if not queue.is_listed:
            queue.enlist(now_ms)
            self.listed += 1
        self._put_in(queue, job, now_ms)

    # Copies

    def keep(self, job: Job, state: int, requeue_at_ms: int) -> None:
        """Take in a job of another node that is unknown here: a COPY, or BORROWED."""
        job.state, job.requeue_at_ms = state, requeue_at_ms
        self._take_in(job)
        if self.listener is not None:
            self.listener.added(job)

    def keep_again(self, left: Job, job: Job) -> None:
        """Make a job BORROWED again that comes back: it was LET_GO, or a start did not trust it to be BORROWED."""
        if left.state != LET_GO:
            self._leave_queue(left)
        self.table.remove(left.id)
        self.memory.remove(len(left.body))
        job.state, job.requeue_at_ms, left.state = BORROWED, NEVER, GONE
        job.logged(left.segment)
        self._take_in(job)
        if self.listener is not None:
            self.listener.moved(job)

    def own(self, job: Job, owners: int) -> None:
        """Change the set of nodes that may hold a job."""
        job.terms = job.terms.with_owners(owners)
        if job.state not in WITHOUT_QUEUE:
            self._plan(job)
        if self.listener is not None and job.state != WAIT_REPL:
            self.listener.owned(job)

    def count(self, job: Job, nacks: int, deliveries: int) -> None:
        """Take over another node's counts of a job, where they are higher."""
        job.nacks, job.deliveries = max(job.nacks, nacks), max(job.deliveries, deliveries)

    def put_off(self, job: Job, requeue_at_ms: int) -> None:
        """Postpone a job's requeue: another node has it in its queue, or a worker of that node has it."""
        if job.state == QUEUED:
            job.terms.queue.jobs.remove(job)
        elif job.state == DELAYED:
            job.terms.queue.delayed -= 1
        job.state = COPY
        job.requeue_at_ms = requeue_at_ms
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)

    def ask_at(self, job: Job, at_ms: int) -> None:
        """Wake a job then, to ask again whether it is to be queued."""
        job.requeue_at_ms = at_ms
        self.timers.add(job, min(at_ms, job.expires_at_ms))
        self._set_alarm()

    def remind_at(self, job: Job, at_ms: int) -> None:
        """Wake a job then that is on its way to or from this node, to repeat a message."""
        self.timers.add(job, min(at_ms, job.expires_at_ms))
        self._set_alarm()

    def wake_at_end(self, job: Job) -> None:
        """Wake a job only when its TTL is over, unless another node changes that."""
        self.timers.add(job, job.expires_at_ms)
        self._set_alarm()

    def delay(self, job: Job, delay_ms: int) -> None:
        """Queue a job here in `delay_ms`; no other node is told."""
        if job.state != DELAYED:
            job.state = DELAYED
            job.terms.queue.delayed += 1
        job.requeue_at_ms = self.now_ms + delay_ms
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)

    def queue_here(self, job: Job) -> None:
        """Queue a job here with its counts unchanged; no other node is told."""
        terms, now_ms = job.terms, self.now_ms
        if job.state == DELAYED:
            terms.queue.delayed -= 1
        elif job.state == ACTIVE and not terms.retry_ms:
            self.memory.delivered_once -= 1
        job.state, job.requeue_at_ms = QUEUED, self._requeue_at_ms(terms, now_ms)
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)
        self._put_in_listed(job, now_ms)

    def follow(self, job: Job, to: JobQueue, dead: DeadLetter | None, moves: int, nacks: int, deliveries: int) -> None:
        """Move a job to a queue where another node knows it to be."""
        self._leave_queue(job)
        job.state = COPY
        if self.queues.get(to.name) is None:
            self.queues.add(to.name, to)
        to.total += 1
        job.terms = job.terms.in_queue(to, dead, moves)
        job.nacks, job.deliveries = nacks, deliveries
        if self.listener is not None:
            self.listener.moved(job)

    # Jobs that go to another node

    def first_to_give(self, queue: JobQueue) -> Job | None:
        """Take the oldest job out of its queue for another node; None if there is none.

        The job is ACTIVE until it is put off or lent.
        """
        if queue.pause & PAUSED_OUT:
            return None
        now_ms = self.now_ms
        for _ in range(EXPIRED_AT_ONCE):
            if not queue.jobs.count:
                break
            job = queue.jobs.first()
            if job.expires_at_ms <= now_ms:
                self.remove(job, EXPIRED)
                continue
            if self.keeps_back and not job.terms.retry_ms:
                break
            queue.jobs.drop_first()
            self._hand_out(job, now_ms)
            queue.jobs_out += 1
            queue.used_at_ms = now_ms
            return job
        return None

    def lend(self, job: Job, owners: int) -> None:
        """Mark a job that is delivered at most once as LENT to the other node of `owners`, which may decline it."""
        if job.state == ACTIVE:
            self.memory.delivered_once -= 1
        elif job.state == DELAYED:
            job.terms.queue.delayed -= 1
        job.state, job.requeue_at_ms = LENT, NEVER
        self._become(job, owners)

    def keep_for_itself(self, job: Job) -> None:
        """Make a job this node's own: queue it, or wait for the end of its delay.

        Either the node to which the job was LENT will never deliver it, or the giver has let go of a BORROWED job.
        """
        due_at_ms = job.created_at_ms + job.terms.delay_s * 1000
        if job.terms.delay_s and due_at_ms > self.now_ms:
            job.state, job.requeue_at_ms = DELAYED, due_at_ms
            job.terms.queue.delayed += 1
            self._become(job, 0)
        else:
            job.state = QUEUED
            self._become(job, 0)
            self._put_in_listed(job, self.now_ms)

    def let_go(self, job: Job, owners: int) -> None:
        """Leave a job to another node, which has yet to learn that."""
        self._leave_queue(job)
        self._drop_body(job)
        if job.terms.key:
            self.keys.release(job.terms.known_key, self.now_ms)
        job.state, job.requeue_at_ms = LET_GO, NEVER
        self._become(job, owners)

    def _become(self, job: Job, owners: int) -> None:
        job.terms = job.terms.with_owners(owners)
        self._plan(job)
        if self.listener is not None:
            self.listener.moved(job)

    # Acknowledged jobs

    def remember_ack(self, job: Job) -> None:
        """Mark a job as acknowledged: nobody gets it any longer, but its other owners have yet to know."""
        is_logged = job.state != WAIT_REPL
        self._leave_queue(job)
        self._drop_body(job)
        if job.terms.key:
            self.keys.release(job.terms.known_key, self.now_ms)
        job.state, job.requeue_at_ms = ACKED, NEVER
        if self.listener is not None:
            if is_logged:
                self.listener.changed(job)
            else:
                self.listener.added(job)
        self._tell_watches(job.id, ACKNOWLEDGED)

    def keep_dummy(self, job_id: bytes, terms: JobTerms) -> Job:
        """Remember a job that is acknowledged and not here."""
        job = Job(job_id, b"", terms, self.now_ms << CTIME_BITS, NEVER, ACKED)
        self.table.add(job_id, job)
        self.memory.add(0)
        self._plan(job)
        self._tidy_timers()
        if self.listener is not None:
            self.listener.added(job)
        return job

    def _drop_body(self, job: Job) -> None:
        self.memory.remove(len(job.body))
        self.memory.add(0)
        job.body = b""

    # Queues

    def delete_all(self, queue: JobQueue) -> Iterator[int]:
        """Delete the jobs that a queue has now, waiting ones first. Yields the number deleted so far at each step."""
        deleted = 0
        newest = max(self.last_ctime, self.now_ms << CTIME_BITS)  # loaded jobs are older than now
        while self.has(queue) and queue.jobs.count and queue.jobs.first().ctime <= newest:
            self.remove(queue.jobs.first())
            deleted += 1
            yield deleted
        for number in range(len(self.table.parts)):
            if not (queue.total and self.has(queue)):
                break
            for job in list(self.table.parts[number].values()):
                if job.terms.queue is queue and job.ctime <= newest and job.state not in WITHOUT_QUEUE:
                    self.remove(job)
                    deleted += 1
            yield deleted
