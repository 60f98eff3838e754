"""The store of jobs, and who alone changes them. It knows neither connections nor disks: what it does is told to a
`JobListener`, and what is due when is in an `Agenda`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kestreld.clock import Clock
from kestreld.jobs.dead_letters import DeadLetterRules
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import (
    ACTIVE,
    CTIME_UNITS,
    DELAYED,
    GONE,
    NEVER,
    QUEUED,
    DeadLetter,
    Job,
    JobTerms,
)
from kestreld.jobs.job_id import JobIds, ttl_field
from kestreld.jobs.job_log import JobListener
from kestreld.jobs.job_queue import PAUSED_IN, PAUSED_OUT, JobQueue
from kestreld.jobs.keys import ClientKeys
from kestreld.jobs.levels import Memory
from kestreld.jobs.table import MASK, Table
from kestreld.jobs.timers import Timers
from kestreld.jobs.waiting import JobConsumer, JobWaiter, PatternWaiters
from kestreld.queues.agenda import Agenda, Scheduled

JITTER_MS: Final = 250  # a requeue comes up to this much earlier or later: it keeps two nodes from queueing at once
WAKES_AT_ONCE: Final = 400
EXPIRED_AT_ONCE: Final = 1000
SEED_BYTES: Final = 32
JITTERS: Final = 1024
FOREVER_MS: Final = 1 << 62
DELETED: Final = "deleted"
EXPIRED: Final = "expired"
DEAD_OF_RETRIES: Final = b"retries"

Watch = Callable[[str], None]
RandomBytes = Callable[[int], bytes]


class _Alarm(Scheduled):
    """The store's entry in the agenda: when the first of its jobs wakes."""

    def __init__(self, fall_due: Callable[[], None]) -> None:
        super().__init__(FOREVER_MS)
        self._fall_due = fall_due

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = FOREVER_MS
        self._fall_due()

    def set(self, due_at_ms: int) -> None:
        """It is due then."""
        self.due_at_ms = due_at_ms


class Jobs:
    """Every job and every queue of a node.

    `retry_from_delivery`: a job's retry time counts from when it is handed out, not from when it was queued.
    """

    def __init__(
        self,
        clock: Clock,
        agenda: Agenda,
        random_bytes: RandomBytes,
        node_id: bytes,
        *,
        retry_from_delivery: bool = False,
    ) -> None:
        self.clock = clock
        self.agenda = agenda
        self.node_id = node_id
        self.listener: JobListener | None = None
        self.retry_from_delivery = retry_from_delivery
        self.rules = DeadLetterRules()
        self.table: Table[Job] = Table()
        self.queues: Table[JobQueue] = Table()
        self.listed = 0  # queues
        self.timers = Timers()
        self.memory = Memory()
        self.keys = ClientKeys()
        self.waiters: dict[JobWaiter, None] = {}  # all that wait, in the order they came
        self.patterns = PatternWaiters()
        self.watches: dict[bytes, list[Watch]] = {}  # told what becomes of a job
        self.queues_max: int | None = None  # None = unlimited
        self._ids = JobIds(node_id, random_bytes(SEED_BYTES))
        self._random_bytes = random_bytes
        self._jitters_ms: list[int] = []
        self._offset_ms = clock.wall_ms - clock.monotonic_ms
        self.last_ctime = 0
        self._waiter_number = 0
        self._alarm = _Alarm(self._wake_some)
        self._is_restoring = False
        self._fields: dict[tuple[int, bool], bytes] = {}

    @property
    def now_ms(self) -> int:
        """The instant of this turn on the steady clock."""
        return self.clock.monotonic_ms + self._offset_ms

    @property
    def drift_ms(self) -> int:
        """What has to be added to an instant of the steady clock to have one of the system clock as it is now."""
        return self.clock.wall_ms - self.now_ms

    def use_node_id(self, node_id: bytes) -> None:
        """The node has another id from now on."""
        self.node_id = node_id
        self._ids.use_node_id(node_id)

    # Queues

    def find_queue(self, name: bytes) -> JobQueue | None:
        """The queue, if somebody uses it."""
        queue = self.queues.get(name)
        return queue if queue is not None and queue.is_listed else None

    def queue(self, name: bytes) -> JobQueue | None:
        """The queue, which is there from now on; None when there would be too many."""
        queue = self.queues.get(name)
        if queue is None:
            if self.queues_max is not None and self.queues.count >= self.queues_max:
                return None
            queue = JobQueue(name)
            self.queues.add(name, queue)
        if not queue.is_listed:
            queue.enlist(self.now_ms)
            self.listed += 1
        return queue

    def unlist(self, queue: JobQueue) -> None:
        """Collect a queue that nobody uses."""
        queue.unlist()
        self.listed -= 1
        self._forget_unused(queue)

    def _forget_unused(self, queue: JobQueue) -> None:
        if not (queue.total or queue.is_listed):
            self.queues.remove(queue.name)

    def pause(self, queue: JobQueue, pause: int) -> None:
        """Set what a queue does not do; who waits is served where it gives jobs again."""
        queue.pause = pause
        if not pause & PAUSED_OUT:
            self.serve(queue)

    # Jobs come

    def add(
        self,
        queue: JobQueue,
        body: bytes,
        ttl_ms: int,
        retry_ms: int,
        delay_s: int = 0,
        retries_max: int = -1,
        key: bytes = b"",
    ) -> Job:
        """A new job, queued at once where it has no delay."""
        terms = queue.terms_of(ttl_ms, retry_ms, delay_s, retries_max)
        if key:
            terms = JobTerms(queue, ttl_ms, retry_ms, delay_s, retries_max, key)
        now_ms = self.clock.monotonic_ms + self._offset_ms
        ctime = now_ms * CTIME_UNITS
        if ctime <= self.last_ctime:
            ctime = self.last_ctime + 1
        self.last_ctime = ctime
        job_id = self._ids.next_id(self._field(ttl_ms, retry_ms > 0))
        if delay_s:
            job = Job(job_id, body, terms, ctime, now_ms + delay_s * 1000)
        else:
            job = Job(job_id, body, terms, ctime, now_ms + retry_ms + self._jitter_ms() if retry_ms else NEVER)
            job.state = QUEUED
        self.table.parts[hash(job_id) & MASK][job_id] = job
        self.table.count += 1
        self.memory.add(len(body))
        queue.total += 1
        if key:
            self.keys.add(key, job_id)
        self._plan(job)
        self.timers.tidy(self.table.count)
        if self.listener is not None:
            self.listener.added(job)
        if delay_s:
            queue.delayed += 1
        else:
            self._put_in(queue, job)
        return job

    def _field(self, ttl_ms: int, at_least_once: bool) -> bytes:
        field = self._fields.get((ttl_ms, at_least_once))
        if field is None:
            if len(self._fields) >= 256:
                self._fields.clear()
            field = self._fields[ttl_ms, at_least_once] = ttl_field(ttl_ms // 1000, at_least_once)
        return field

    def _jitter_ms(self) -> int:
        if not self._jitters_ms:
            noise = self._random_bytes(2 * JITTERS)
            self._jitters_ms = [
                int.from_bytes(noise[at : at + 2], "big") * 2 * JITTER_MS // 65536 - JITTER_MS
                for at in range(0, 2 * JITTERS, 2)
            ]
        return self._jitters_ms.pop()

    # What becomes of them

    def _put_in(self, queue: JobQueue, job: Job) -> None:
        """A queued job takes its place, or goes to who waits."""
        queue.jobs_in += 1
        queue.used_at_ms = self.clock.monotonic_ms + self._offset_ms
        queue.jobs.add(job)
        if (queue.waiters or self.patterns) and not queue.pause & PAUSED_OUT:
            self.serve(queue)

    def may_be_queued(self, job: Job) -> bool:
        """Whether it may be put into its queue: it is not there, and one with a retry of 0 has never been."""
        return job.state == DELAYED or (job.state == ACTIVE and job.terms.retry_ms > 0)

    def enqueue(self, job: Job) -> bool:
        """Queue it now, whatever its time, and count an additional delivery unless it is the first."""
        if not self.may_be_queued(job):
            return False
        if job.state == ACTIVE:
            job.deliveries += 1
        self._queue_now(job)
        return True

    def _queue_now(self, job: Job) -> None:
        terms = job.terms
        queue = terms.queue
        if job.state == DELAYED:
            queue.delayed -= 1
        if not queue.is_listed:
            queue.enlist(self.now_ms)
            self.listed += 1
        job.state = QUEUED
        job.requeue_at_ms = self.now_ms + terms.retry_ms + self._jitter_ms() if terms.retry_ms else NEVER
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)
        self._put_in(queue, job)

    def nack(self, job: Job, delay_ms: int | None = None) -> bool:
        """A worker gives it back. It is queued at once, or in so many ms; None = as the queue's back-off says.

        One that has been put back too often goes to its dead-letter queue.
        """
        if not self.may_be_queued(job):
            return False
        job.nacks += 1
        if self._is_spent(job):
            self.bury(job, DEAD_OF_RETRIES)
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

    def dequeue(self, job: Job) -> bool:
        """Take it out of its queue; its times stay as they are."""
        if job.state != QUEUED:
            return False
        job.terms.queue.jobs.remove(job)
        self._hand_out(job)
        return True

    def _hand_out(self, job: Job) -> None:
        """It has left its queue."""
        job.state = ACTIVE
        requeue_at_ms = job.requeue_at_ms
        if requeue_at_ms:
            now_ms = self.clock.monotonic_ms + self._offset_ms
            if requeue_at_ms <= now_ms:
                self._pass_requeues(job, now_ms)
            if job.requeue_at_ms < job.wakes_at_ms:
                self._plan(job)
        else:
            self.memory.delivered_once += 1

    def _pass_requeues(self, job: Job, now_ms: int) -> None:
        """While a job is queued, the times at which it would have been are passed over."""
        retry_ms = job.terms.retry_ms
        job.requeue_at_ms += ((now_ms - job.requeue_at_ms) // retry_ms + 1) * retry_ms

    def working(self, job: Job) -> None:
        """A worker is at it: its next requeue is a retry time from now."""
        if job.state == QUEUED:
            job.terms.queue.jobs.remove(job)
        elif job.state == DELAYED:
            job.terms.queue.delayed -= 1
        if job.terms.retry_ms:
            job.requeue_at_ms = self.now_ms + job.terms.retry_ms + self._jitter_ms()
        else:
            job.requeue_at_ms = NEVER
            self.memory.delivered_once += job.state != ACTIVE
        job.state = ACTIVE
        self._plan(job)
        if self.listener is not None:
            self.listener.changed(job)

    def remove(self, job: Job, why: str = DELETED) -> None:
        """It is acknowledged, deleted or expired."""
        job_id, terms = job.id, job.terms
        queue = terms.queue
        if job.state == QUEUED:
            queue.jobs.remove(job)
        elif job.state == DELAYED:
            queue.delayed -= 1
        elif not terms.retry_ms:
            self.memory.delivered_once -= 1
        del self.table.parts[hash(job_id) & MASK][job_id]
        self.table.count -= 1
        self.memory.remove(len(job.body))
        job.state = GONE
        job.body = b""  # the timers may lead here for a while
        queue.total -= 1
        if not queue.total and not queue.is_listed:
            self.queues.remove(queue.name)
        if terms.key:
            self.keys.release(terms.key, self.now_ms)
        if self.listener is not None:
            self.listener.done(job)
        if self.watches and job_id in self.watches:
            for watch in self.watches.pop(job_id):
                watch(why)

    def _is_spent(self, job: Job) -> bool:
        """Whether it has been put back as often as it may be."""
        terms = job.terms
        most = terms.retries_max if terms.retries_max >= 0 else self.rules.retries_max(terms.queue.name)
        return 0 <= most < job.nacks + job.deliveries and terms.dead is None

    # Dead letters

    def bury(self, job: Job, reason: bytes) -> bool:
        """Move it to the dead-letter queue of its queue, and queue it there; False where there may be no such queue."""
        terms = job.terms
        origin = terms.queue
        dead = DeadLetter(origin.name, reason, self.now_ms)
        return self._move(job, self.rules.dead_letter_queue(origin.name), dead)

    def redrive(self, job: Job) -> bool:
        """Put a dead letter back into the queue it was in, its counters at 0."""
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
        elif not terms.retry_ms:
            self.memory.delivered_once -= 1
        origin.total -= 1
        queue.total += 1
        queue.delayed += 1
        job.state = DELAYED
        job.terms = JobTerms(
            queue, terms.ttl_ms, terms.retry_ms, terms.delay_s, terms.retries_max, terms.key, dead, terms.replicate
        )
        if dead is None:
            job.nacks = job.deliveries = 0
        self._queue_now(job)
        if self.listener is not None:
            self.listener.moved(job)
        self._forget_unused(origin)
        return True

    # From a log

    def listen(self, listener: JobListener | None) -> None:
        """Have that one told of every change from now on; None = nobody."""
        self.listener = listener

    def go_on_from(self, latest_at_ms: int) -> None:
        """The steady clock goes on no earlier than that."""
        self._offset_ms = max(self._offset_ms, latest_at_ms - self.clock.monotonic_ms)

    def adopt(self, table: Table[Job]) -> None:
        """These are the jobs, as a log says, each of which `restore` is to be told of. There were none."""
        self.table = table
        self._is_restoring = True

    def restored(self) -> None:
        """All of them are there, and what is due falls due."""
        self._is_restoring = False
        self._set_alarm()

    def restore(self, jobs: Iterable[Job], *, is_all_known: bool) -> None:
        """Some of the jobs that came with `adopt`, active or delayed. Nobody is told.

        `is_all_known`: nothing that happened can be missing in the log. Otherwise a job that is delivered at most once,
        and whose time has come, may have been delivered: it is not again.
        """
        now_ms, timers, memory = self.now_ms, self.timers, self.memory
        for job in jobs:
            terms = job.terms
            queue = terms.queue
            if not queue.total:
                self.queues.add(queue.name, queue)
            queue.total += 1
            memory.add(len(job.body))
            at_ms = job.ctime // CTIME_UNITS + terms.ttl_ms
            if not terms.retry_ms and (job.state != DELAYED or (job.requeue_at_ms <= now_ms and not is_all_known)):
                job.come_back(ACTIVE, NEVER, job.nacks, job.deliveries, job.segment)
                memory.delivered_once += 1
            elif job.state == DELAYED:
                queue.delayed += 1
            if 0 < job.requeue_at_ms < at_ms:
                at_ms = job.requeue_at_ms
            if terms.key:
                self.keys.add(terms.key, job.id)
            timers.add(job, at_ms)

    def put_back(self, job_id: bytes) -> None:
        """A job that was restored is in its queue, as it was when the server was stopped."""
        job = self.table.get(job_id)
        if job is None or job.state == QUEUED:
            return
        queue = job.terms.queue
        if job.state == DELAYED:
            queue.delayed -= 1
        elif not job.terms.retry_ms:
            self.memory.delivered_once -= 1
        self.queue(queue.name)
        job.state = QUEUED
        queue.jobs.add(job)

    # Workers fetch

    def take(self, queue: JobQueue) -> Job | None:
        """Hand out the oldest job; None when there is none."""
        if queue.pause & PAUSED_OUT:
            return None
        now_ms = self.clock.monotonic_ms + self._offset_ms
        for _ in range(EXPIRED_AT_ONCE):
            if not queue.jobs.count:
                break
            job = queue.jobs.first()
            if job.ctime // CTIME_UNITS + job.terms.ttl_ms <= now_ms:
                self.remove(job, EXPIRED)
                continue
            queue.jobs.drop_first()
            queue.jobs_out += 1
            queue.used_at_ms = now_ms
            if self.retry_from_delivery and job.requeue_at_ms:
                job.requeue_at_ms = now_ms + job.terms.retry_ms + self._jitter_ms()
            self._hand_out(job)
            return job
        return None

    def serve(self, queue: JobQueue) -> None:
        """Hand jobs to those who wait for them, who has waited longest first."""
        while queue.jobs.count and not queue.pause & PAUSED_OUT:
            waiter = next(iter(queue.waiters), None)
            if self.patterns:
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
        """Have somebody wait for one job of these queues, or of queues like these patterns; `wait_ms` 0 = forever."""
        now_ms = self.clock.monotonic_ms
        self._waiter_number += 1
        waiter = JobWaiter(consumer, now_ms + wait_ms if wait_ms else FOREVER_MS, now_ms, self._waiter_number)
        for queue in queues:
            waiter.join(queue.waiters)
        for glob in globs:
            self.patterns.add(waiter, glob)
        waiter.join(self.waiters)
        if wait_ms:
            self.agenda.add(waiter)
        return waiter

    def watch(self, job: Job, told: Watch) -> None:
        """Have somebody told what becomes of a job, once it is gone."""
        self.watches.setdefault(job.id, []).append(told)

    def unwatch(self, job_id: bytes, told: Watch) -> None:
        """Nobody waits for that any more."""
        watches = self.watches.get(job_id, [])
        if told in watches:
            watches.remove(told)
            if not watches:
                del self.watches[job_id]

    # Times

    def _plan(self, job: Job) -> None:
        """Have it wake at the first of its times."""
        at_ms = job.ctime // CTIME_UNITS + job.terms.ttl_ms
        requeue_at_ms = job.requeue_at_ms
        if requeue_at_ms and requeue_at_ms < at_ms:
            at_ms = requeue_at_ms
        wakes_at_ms = job.wakes_at_ms
        if wakes_at_ms and wakes_at_ms <= at_ms:
            return  # it is put in again then
        self.timers.add(job, at_ms)
        if at_ms < self._alarm.due_at_ms + self._offset_ms:
            self._set_alarm()

    def _set_alarm(self) -> None:
        next_at_ms = self.timers.next_at_ms()
        if next_at_ms is not None and next_at_ms - self._offset_ms < self._alarm.due_at_ms:
            self._alarm.set(max(next_at_ms - self._offset_ms, 0))
            self.agenda.add(self._alarm)

    def _wake_some(self) -> None:
        if self._is_restoring:
            return  # what happened now nobody would write down
        now_ms = self.now_ms
        for job in self.timers.due(now_ms, WAKES_AT_ONCE):
            if job.state != GONE:
                self._wake(job, now_ms)
        self._set_alarm()

    def _wake(self, job: Job, now_ms: int) -> None:
        """One of its times has come, or one that was its before."""
        if job.ctime // CTIME_UNITS + job.terms.ttl_ms <= now_ms:
            self.remove(job, EXPIRED)
            return
        if job.state == QUEUED:
            self.timers.add(job, job.expires_at_ms)
            return
        if not job.requeue_at_ms or job.requeue_at_ms > now_ms:
            self._plan(job)
            return
        terms = job.terms
        if terms.queue.pause & PAUSED_IN and terms.retry_ms:
            job.requeue_at_ms = now_ms + terms.retry_ms + self._jitter_ms()
            self._plan(job)
        elif job.state == ACTIVE:
            job.deliveries += 1
            if self._is_spent(job):
                self.bury(job, DEAD_OF_RETRIES)
            else:
                self._requeue_after_backoff(job)
        else:
            self._queue_now(job)

    def _requeue_after_backoff(self, job: Job) -> None:
        delay_ms = self.rules.backoff_ms(job.terms.queue.name, job.nacks + job.deliveries)
        if delay_ms:
            self._delay(job, delay_ms)
        else:
            self._queue_now(job)

    # All of them

    def clear(self) -> Iterator[None]:
        """Every job and every queue is gone. What is left to do, in short steps: send who waits away, free memory."""
        table, queues, timers = self.table, self.queues, self.timers
        self.table, self.queues, self.timers = Table(), Table(), Timers()
        self.listed = 0
        self.memory.clear()
        self.keys = ClientKeys()
        if self.listener is not None:
            self.listener.cleared()
        waiters, self.waiters = self.waiters, {}
        self.patterns = PatternWaiters()
        watches, self.watches = self.watches, {}
        return _end(table, queues, timers, list(waiters), watches)


def _end(
    table: Table[Job],
    queues: Table[JobQueue],
    timers: Timers,
    waiters: list[JobWaiter],
    watches: dict[bytes, list[Watch]],
) -> Iterator[None]:
    for waiter in waiters:
        if not waiter.over:
            waiter.leave()
            waiter.consumer.served(waiter, None)
            yield
    for told in watches.values():
        for watch in told:
            watch(DELETED)
            yield
    for part in table.parts:
        for job in part.values():
            job.state = GONE
        yield
    while (chunk := timers.drop_some()) is not None:
        del chunk
        yield
    for queue_part in queues.parts:
        for queue in queue_part.values():
            yield from queue.jobs.drop()
        queue_part.clear()
        yield
    while table.parts:
        table.parts.pop()
        yield
