"""Jobs of which other nodes have copies: what is done to them because other nodes say so.

Who these nodes are, and what they are told, is for `Copies`.
"""

from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    CTIME_BITS,
    DELAYED,
    NEVER,
    NOTICE_MS,
    QUEUED,
    WAIT_REPL,
    DeadLetter,
    Job,
    JobTerms,
)
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.jobs import Jobs


class CopiedJobs(Jobs):
    """The jobs of a node that may be one of several."""

    def jitter_ms(self) -> int:
        """Up to a quarter of a second, earlier or later."""
        return self._jitter_ms()

    def next_requeue_at_ms(self, terms: JobTerms) -> int:
        """When a job that is queued somewhere now is queued again, NEVER where it will not be."""
        return self._requeue_at_ms(terms, self.now_ms)

    # Jobs that count once enough nodes have them

    def hold(self, body: bytes, terms: JobTerms) -> Job:
        """A new job that nobody gets before `release`, and that is in no log."""
        ctime = max(self.now_ms << CTIME_BITS, self.last_ctime + 1)
        self.last_ctime = ctime
        job = Job(self._ids.next_id(terms.id_field), body, terms, ctime, NEVER, WAIT_REPL)
        self._take_in(job)
        return job

    def release(self, job: Job) -> None:
        """It is queued, or waits for the end of its delay."""
        terms, now_ms = job.terms, self.now_ms
        due_at_ms = job.created_at_ms + terms.delay_s * 1000
        if terms.delay_s and due_at_ms > now_ms:
            job.state, job.requeue_at_ms = DELAYED, due_at_ms
            terms.queue.delayed += 1
        else:
            job.state, job.requeue_at_ms = QUEUED, self._requeue_at_ms(terms, now_ms)
        self._plan(job)
        if self.listener is not None:
            self.listener.added(job)
        if job.state == QUEUED:
            self._enlist(terms.queue)
            self._put_in(terms.queue, job, now_ms)

    def unhold(self, job: Job) -> None:
        """It will not be one of this node's jobs."""
        listener, self.listener = self.listener, None  # which was never told of it
        try:
            self.remove(job)
        finally:
            self.listener = listener

    def hold_copy(self, job: Job) -> None:
        """A copy of another node's job that nobody gets before `release`; it is in the log."""
        job.state = WAIT_REPL
        self._take_in(job)
        if self.listener is not None:
            self.listener.added(job)

    def _take_in(self, job: Job) -> None:
        self.table.add(job.id, job)
        self.memory.add(len(job.body))
        queue = job.terms.queue
        if self.queues.get(queue.name) is None:
            self.queues.add(queue.name, queue)
        queue.total += 1
        if job.terms.key:
            self.keys.add(job.terms.key, job.id)
        self._plan(job)

    # Copies

    def keep(self, job: Job, requeue_at_ms: int) -> None:
        """A copy of another node's job, which nobody here knows. It is queued then, unless that node says otherwise.

        One that is delivered at most once waits to be told.
        """
        job.requeue_at_ms = requeue_at_ms
        if not job.terms.retry_ms:
            job.state = DELAYED
            job.terms.queue.delayed += 1
        self._take_in(job)
        if self.listener is not None:
            self.listener.added(job)

    def own(self, job: Job, terms: JobTerms) -> None:
        """Other nodes have it than before."""
        job.terms = terms
        self._plan(job)
        if self.listener is not None and job.state != WAIT_REPL:
            self.listener.owned(job)

    def count(self, job: Job, nacks: int, deliveries: int) -> None:
        """Another node has counted so many of it."""
        job.nacks, job.deliveries = max(job.nacks, nacks), max(job.deliveries, deliveries)

    def put_off(self, job: Job, after_ms: int = 0) -> None:
        """Another node has queued it or will in so many ms, or a worker of another node goes on with it: here it is not
        queued before another retry time is over, and that node has had the time to queue it again.
        """
        if job.state == QUEUED:
            job.terms.queue.jobs.remove(job)
        elif job.state == DELAYED:
            job.terms.queue.delayed -= 1
        job.state = ACTIVE
        requeue_at_ms = self._requeue_at_ms(job.terms, self.now_ms)
        job.requeue_at_ms = requeue_at_ms + after_ms + NOTICE_MS if requeue_at_ms else NEVER
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)

    def delay(self, job: Job, delay_ms: int) -> None:
        """It is queued here in so many ms; no other node is told."""
        if job.state != DELAYED:
            job.state = DELAYED
            job.terms.queue.delayed += 1
        job.requeue_at_ms = self.now_ms + delay_ms
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)

    def queue_first(self, job: Job) -> None:
        """It is queued here, for the first time as far as its counters go; no other node is told."""
        terms, now_ms = job.terms, self.now_ms
        if job.state == DELAYED:
            terms.queue.delayed -= 1
        elif job.state == ACTIVE and not terms.retry_ms:
            self.memory.delivered_once -= 1
        self._enlist(terms.queue)
        job.state, job.requeue_at_ms = QUEUED, self._requeue_at_ms(terms, now_ms)
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)
        self._put_in(terms.queue, job, now_ms)

    def follow(self, job: Job, to: JobQueue, dead: DeadLetter | None, nacks: int, deliveries: int) -> None:
        """Another node has moved it to that queue, and queued it there."""
        self._leave_queue(job)
        terms = job.terms
        job.state = ACTIVE
        if self.queues.get(to.name) is None:
            self.queues.add(to.name, to)
        to.total += 1
        job.terms = JobTerms(
            to, terms.ttl_ms, terms.retry_ms, terms.delay_s, terms.retries_max, terms.key, dead, terms.replicate,
            terms.owners,
        )  # fmt: skip
        job.nacks, job.deliveries = nacks, deliveries
        job.requeue_at_ms = self._requeue_at_ms(job.terms, self.now_ms)
        self._plan(job)
        if self.listener is not None:
            self.listener.moved(job)

    def _enlist(self, queue: JobQueue) -> None:
        if not queue.is_listed:
            queue.enlist(self.now_ms)
            self.listed += 1

    # Acknowledged jobs

    def remember_ack(self, job: Job) -> None:
        """It is acknowledged: nobody gets it any more, but its other owners have yet to know."""
        self._leave_queue(job)
        self.memory.remove(len(job.body))
        self.memory.add(0)
        if job.terms.key:
            self.keys.release(job.terms.key, self.now_ms)
        job.state, job.requeue_at_ms, job.body = ACKED, NEVER, b""
        if self.listener is not None:
            self.listener.changed(job)
        self._tell_watches(job.id, "acked")

    def keep_dummy(self, job_id: bytes, terms: JobTerms) -> Job:
        """A job that is acknowledged and not here."""
        job = Job(job_id, b"", terms, self.now_ms << CTIME_BITS, NEVER, ACKED)
        self.table.add(job_id, job)
        self.memory.add(0)
        self._plan(job)
        if self.listener is not None:
            self.listener.added(job)
        return job

    def wake_at(self, job: Job, at_ms: int) -> None:
        """Have `Copies` be told of an acknowledged job then, unless it expires before."""
        job.requeue_at_ms = at_ms
        self.timers.add(job, min(at_ms, job.expires_at_ms))
        self._set_alarm()
