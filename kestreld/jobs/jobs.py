"""Operations on jobs: add, queue, hand out, give back, move to the dead letters, expire.

Every change of a job goes through here. Neither connections nor disks are known: changes are reported to a
`JobListener`, and due times are in an `Agenda`.
"""

from itertools import islice
from typing import Final

from kestreld.jobs.copies import Copies
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import (
    ACTIVE,
    COPY,
    CTIME_BITS,
    DELAYED,
    GONE,
    QUEUED,
    DeadLetter,
    Job,
    JobTerms,
)
from kestreld.jobs.job_queue import PAUSED_IN, PAUSED_OUT, JobQueue
from kestreld.jobs.store import EXPIRED, FOREVER_MS, JobStore
from kestreld.jobs.table import MASK
from kestreld.jobs.waiting import JobConsumer, JobWaiter

WAKES_AT_ONCE: Final = 64
EXPIRED_AT_ONCE: Final = 1000
DEAD_OF_RETRIES: Final = b"retries"


class Jobs(JobStore):
    """The jobs of a node, and all operations on them."""

    def pause(self, queue: JobQueue, pause: int) -> None:
        """Set which directions a queue is paused in; waiting clients are served if it gives jobs again."""
        if queue.pause != pause:
            queue.pause = pause
            if self.listener is not None:
                self.listener.paused(queue)
        if not pause & PAUSED_OUT:
            self.serve(queue)

    def pause_again(self, name: bytes, pause: int) -> None:
        """Pause a queue as a log says, even if there are too many queues. Nobody is told."""
        queue = self.unlisted_queue(name)
        if not queue.is_listed:
            queue.enlist(self.now_ms)
            self.listed += 1
        queue.pause = pause

    # Jobs come

    def add(self, body: bytes, terms: JobTerms) -> Job:
        """Add a job, queued at once unless it has a delay."""
        queue, delay_s = terms.queue, terms.delay_s
        now_ms = self.clock.monotonic_ms + self._offset_ms
        ctime = now_ms << CTIME_BITS
        if ctime <= self.last_ctime:
            ctime = self.last_ctime + 1
        self.last_ctime = ctime
        job_id = self._ids.next_id(terms.id_field)
        if delay_s:
            job = Job(job_id, body, terms, ctime, now_ms + delay_s * 1000)
        elif terms.queued_at_ms == now_ms:
            job = Job(job_id, body, terms, ctime, terms.requeue_at_ms, QUEUED)
        else:
            job = Job(job_id, body, terms, ctime, self._requeue_at_ms(terms, now_ms), QUEUED)
        self.table.parts[hash(job_id) & MASK][job_id] = job
        self.table.count += 1
        self.memory.add(len(body))
        queue.total += 1
        if terms.key:
            self.keys.add(terms.known_key, job_id)
        self._plan(job)
        if self.timers.is_untidy:
            self.timers.tidy(self.table.count)
        if self.listener is not None:
            self.listener.added(job)
        if delay_s:
            queue.delayed += 1
        else:
            self._put_in(queue, job, now_ms)
        return job

    def take_over(self, job: Job, *, is_queued: bool) -> None:
        """Take in a job of another server with its id, which is unknown here.

        Unless it `is_queued` there, it is queued after its delay, else after its retry time, as if a worker had it.
        """
        terms, now_ms = job.terms, self.now_ms
        queue, memory = terms.queue, self.memory
        due_at_ms = job.created_at_ms + terms.delay_s * 1000
        if terms.delay_s and due_at_ms > now_ms and not is_queued:
            job.state, job.requeue_at_ms = DELAYED, due_at_ms
        else:
            job.state = QUEUED if is_queued else ACTIVE
            job.requeue_at_ms = self._requeue_at_ms(terms, now_ms)
        if terms.owners and not is_queued:  # other owners are asked before it is queued, also when its delay is over
            job.state = COPY
        queue.delayed += job.state == DELAYED
        memory.delivered_once += job.state == ACTIVE and not terms.retry_ms
        self.table.add(job.id, job)
        memory.add(len(job.body))
        queue.total += 1
        self._plan(job)
        if self.listener is not None:
            self.listener.added(job)
        if is_queued:
            self.queue(queue.name)
            self._put_in(queue, job, now_ms)

    def _put_in(self, queue: JobQueue, job: Job, now_ms: int) -> None:
        """Put a queued job in its place, or serve waiting clients with it."""
        queue.jobs_in += 1
        queue.used_at_ms = now_ms
        queue.jobs.add(job)
        if (queue.waiters or self.patterns.lines) and not queue.pause & PAUSED_OUT:
            self.serve(queue)
        if self.copies is not None and queue.jobs.count and not queue.pause & PAUSED_OUT:
            self.copies.came(queue)

    # Queueing and giving back

    def may_be_queued(self, job: Job) -> bool:
        """Return True if a job may be queued: it is not queued now and, with a retry time of 0, never was."""
        state = job.state
        return state == DELAYED or (state in (ACTIVE, COPY) and job.terms.retry_ms > 0)

    def enqueue(self, job: Job) -> bool:
        """Queue a job now, before it is due, too, and count an additional delivery unless it is the first."""
        if not self.may_be_queued(job):
            return False
        if job.state != DELAYED:
            job.deliveries += 1
        self._queue_now(job)
        return True

    def _queue_now(self, job: Job, *, is_moved: bool = False) -> None:
        terms, now_ms = job.terms, self.now_ms
        queue = terms.queue
        if job.state == DELAYED:
            queue.delayed -= 1
        if not queue.is_listed:
            queue.enlist(now_ms)
            self.listed += 1
        job.state = QUEUED
        job.requeue_at_ms = self._requeue_at_ms(terms, now_ms)
        self._plan(job)
        if self.listener is not None:  # before it is put in: if its TTL is over it may go at once
            if is_moved:
                self.listener.moved(job)
            else:
                self.listener.changed(job)
        if self.copies is not None and terms.owners:
            if is_moved:
                self.copies.moved(job)
            else:
                self.copies.queued(job)
        self._put_in(queue, job, now_ms)

    def nack(self, job: Job, delay_ms: int | None = None) -> bool:
        """Take a job back from a worker. It is queued at once, or in `delay_ms`; None = the queue's back-off.

        A job that has been put back too often goes to its dead-letter queue, unless there are too many queues for that.
        """
        if not self.may_be_queued(job):
            return False
        job.nacks += 1
        if self._is_spent(job) and self.bury(job, DEAD_OF_RETRIES):
            return True
        if delay_ms is None:
            delay_ms = self.rules.backoff_ms(job.terms.queue.name, job.nacks + job.deliveries)
        if delay_ms:
            self._delay(job, delay_ms)
        else:
            self._queue_now(job)
        return True

    def _delay(self, job: Job, delay_ms: int) -> None:
        if job.state != DELAYED:
            job.state = DELAYED
            job.terms.queue.delayed += 1
        job.requeue_at_ms = self.now_ms + delay_ms
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)
        if self.copies is not None and job.terms.owners:
            self.copies.delayed(job, delay_ms)

    def dequeue(self, job: Job) -> bool:
        """Take a job out of its queue; its times are unchanged."""
        if job.state != QUEUED:
            return False
        job.terms.queue.jobs.remove(job)
        self._hand_out(job, self.now_ms)
        return True

    def _hand_out(self, job: Job, now_ms: int) -> None:
        """Mark a job that has left its queue as active."""
        job.state = ACTIVE
        requeue_at_ms = job.requeue_at_ms
        if requeue_at_ms:
            if requeue_at_ms <= now_ms:
                self._pass_requeues(job, now_ms)
            if job.requeue_at_ms < job.wakes_at_ms:
                self._plan(job)
        else:
            self.memory.delivered_once += 1

    def _pass_requeues(self, job: Job, now_ms: int) -> None:
        """Skip the requeue times that have passed while a job was queued."""
        retry_ms = job.terms.retry_ms
        job.requeue_at_ms += ((now_ms - job.requeue_at_ms) // retry_ms + 1) * retry_ms

    def working(self, job: Job) -> None:
        """Note that a worker is working on a job: its next requeue is a retry time from now."""
        if job.state == QUEUED:
            job.terms.queue.jobs.remove(job)
        elif job.state == DELAYED:
            job.terms.queue.delayed -= 1
        job.requeue_at_ms = self._requeue_at_ms(job.terms, self.now_ms)
        if not job.terms.retry_ms:
            self.memory.delivered_once += job.state != ACTIVE
        job.state = ACTIVE
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)
        if self.copies is not None and job.terms.owners:
            self.copies.worked_on(job)

    # Dead letters

    def _is_spent(self, job: Job) -> bool:
        """Return True if a job has been put back as often as it may be."""
        terms = job.terms
        most = terms.retries_max if terms.retries_max >= 0 else self.rules.retries_max(terms.queue.name)
        return terms.dead is None and 0 <= most < job.nacks + job.deliveries

    def bury(self, job: Job, reason: bytes) -> bool:
        """Move a job to its queue's dead-letter queue, and queue it there; False if there are too many queues."""
        terms = job.terms
        origin = terms.queue
        dead = DeadLetter(origin.name, reason, self.now_ms)
        return self._move(job, self.rules.dead_letter_queue(origin.name), dead)

    def redrive(self, job: Job) -> bool:
        """Put a dead letter back into the queue it came from, with its counters at 0."""
        dead = job.terms.dead
        return dead is not None and self._move(job, dead.origin, None)

    def _move(self, job: Job, to: bytes, dead: DeadLetter | None) -> bool:
        terms, queue = job.terms, self.queue(to)
        if queue is None:
            return False
        origin = terms.queue
        if job.state == QUEUED:
            origin.jobs.remove(job)
        elif job.state == DELAYED:
            origin.delayed -= 1
        elif job.state == ACTIVE and not terms.retry_ms:
            self.memory.delivered_once -= 1
        origin.total -= 1
        queue.total += 1
        queue.delayed += 1
        job.state = DELAYED
        job.terms = terms.in_queue(queue, dead, terms.moves + 1)
        if dead is None:
            job.nacks = job.deliveries = 0
        self._queue_now(job, is_moved=True)
        self._forget_unused(origin)
        return True

    # Workers fetch

    def take(self, queue: JobQueue) -> Job | None:
        """Hand out the oldest job; None if there is none."""
        if queue.pause & PAUSED_OUT:
            return None
        now_ms = self.clock.monotonic_ms + self._offset_ms
        for _ in range(EXPIRED_AT_ONCE):
            if not queue.jobs.count:
                break
            job = queue.jobs.first()
            if (job.ctime >> CTIME_BITS) + job.terms.ttl_ms <= now_ms:
                self.remove(job, EXPIRED)
                continue
            queue.jobs.drop_first()
            if self.retry_from_delivery and job.requeue_at_ms:
                self._begin_retry_time(job, now_ms)
            if now_ms < job.requeue_at_ms >= job.wakes_at_ms:
                job.state = ACTIVE  # it wakes in time already
            elif self.keeps_back and not job.terms.retry_ms:
                queue.jobs.add(job)
                return self._take_another(queue, now_ms)
            else:
                self._hand_out(job, now_ms)
            queue.jobs_out += 1
            queue.used_at_ms = now_ms
            if self.copies is not None and not queue.jobs.count:
                self.copies.emptied(queue)
            return job
        if self.copies is not None:
            self.copies.missed(queue)
        return None

    def _begin_retry_time(self, job: Job, now_ms: int) -> None:
        """Restart the retry time of a job that is handed out."""
        was_ms = job.requeue_at_ms
        job.requeue_at_ms = self._requeue_at_ms(job.terms, now_ms)
        if self.copies is not None and job.terms.owners and 2 * (was_ms - now_ms) < job.terms.retry_ms:
            self.copies.delivered(job)

    def _take_another(self, queue: JobQueue, now_ms: int) -> Job | None:
        """Hand out the oldest job that may be, while jobs that are delivered at most once are kept back."""
        self._kept_back[queue] = None
        some = islice(queue.jobs.oldest(), EXPIRED_AT_ONCE)
        job = next((one for one in some if one.terms.retry_ms and one.expires_at_ms > now_ms), None)
        if job is not None:
            queue.jobs.remove(job)
            queue.jobs_out += 1
            queue.used_at_ms = now_ms
            if self.retry_from_delivery:
                self._begin_retry_time(job, now_ms)
            self._hand_out(job, now_ms)
        return job

    def serve(self, queue: JobQueue) -> None:
        """Hand jobs to waiting clients, longest wait first."""
        while queue.jobs.count and not queue.pause & PAUSED_OUT:
            waiter = next(iter(queue.waiters), None)
            if self.patterns.lines:
                other = self.patterns.first(queue.name)
                if other is not None and (waiter is None or other.number < waiter.number):
                    waiter = other
            if waiter is None:
                return
            job = self.take(queue)
            if job is None:
                return
            waiter.leave()
            waiter.consumer.served(waiter, job)

    def wait(self, consumer: JobConsumer, queues: list[JobQueue], globs: list[Glob], wait_ms: int) -> JobWaiter:
        """Let a client wait for one job of these queues, or of queues that match a pattern; `wait_ms` 0 = forever."""
        self._waiter_number += 1
        deadline_ms = self.clock.monotonic_ms + wait_ms if wait_ms else FOREVER_MS
        waiter = JobWaiter(consumer, deadline_ms, self._waiter_number)
        for queue in queues:
            if self.copies is not None and not queue.waiters:
                self.copies.waited_for(queue)
            waiter.join(queue.waiters)
        for glob in globs:
            self.patterns.add(waiter, glob)
        waiter.join(self.waiters)
        if wait_ms:
            self.agenda.add(waiter)
        return waiter

    # Times

    def _wake_some(self) -> None:
        if self._is_restoring:
            return  # changes would not be logged now
        if self._kept_back and not self.keeps_back:
            queues, self._kept_back = self._kept_back, {}
            for queue in queues:
                self.serve(queue)
        now_ms = self.now_ms
        for job in self.timers.due(now_ms, WAKES_AT_ONCE):
            if job.state != GONE:
                self._wake(job, now_ms)
        if self.timers.has_moved_many():
            self._tidy()
        self._set_alarm()

    def _wake(self, job: Job, now_ms: int) -> None:
        """Handle a job at one of its times, or at an earlier one that has moved."""
        if (job.ctime >> CTIME_BITS) + job.terms.ttl_ms <= now_ms:
            self.remove(job, EXPIRED)
            self._serve_behind(job.terms.queue, now_ms)
            return
        if job.state == QUEUED:
            self.timers.add(job, job.expires_at_ms)
            return
        if self.copies is not None and not self._may_go_on(job, now_ms, self.copies):
            return
        if not job.requeue_at_ms or job.requeue_at_ms > now_ms:
            self._plan(job)
            return
        terms = job.terms
        if terms.queue.pause & PAUSED_IN and terms.retry_ms:
            job.requeue_at_ms = self._requeue_at_ms(terms, now_ms)
            self._plan(job)
        elif job.state != DELAYED:
            job.deliveries += 1
            if not (self._is_spent(job) and self.bury(job, DEAD_OF_RETRIES)):
                self._requeue_after_backoff(job)
        else:
            self._queue_now(job)

    def _may_go_on(self, job: Job, now_ms: int, copies: Copies) -> bool:
        """Return True unless other nodes keep a job that is due, or soon will be, from being queued."""
        state, notice_ms = job.state, job.terms.notice_ms
        if state != ACTIVE and state != COPY and state != DELAYED:
            copies.woken(job, now_ms)
            return False
        if not (notice_ms and job.is_announced) or not job.requeue_at_ms or job.requeue_at_ms - notice_ms > now_ms:
            return True
        return copies.may_queue(job, now_ms)

    def _serve_behind(self, queue: JobQueue, now_ms: int) -> None:
        """Serve waiting clients with jobs that were behind an expired one, where `take` did not get at them."""
        if (queue.waiters or self.patterns.lines) and queue.jobs.count and queue.jobs.first().expires_at_ms > now_ms:
            self.serve(queue)

    def _requeue_after_backoff(self, job: Job) -> None:
        delay_ms = self.rules.backoff_ms(job.terms.queue.name, job.nacks + job.deliveries)
        if delay_ms:
            self._delay(job, delay_ms)
        else:
            self._queue_now(job)
