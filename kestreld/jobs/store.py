"""Store of jobs and queues: finds them by id and name, wakes jobs at their times, counts and removes them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kestreld.clock import Clock
from kestreld.config.job_rules import JobRule
from kestreld.jobs.copies import Copies
from kestreld.jobs.dead_letters import DeadLetterRules
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
    Job,
    JobTerms,
)
from kestreld.jobs.job_id import JobIds
from kestreld.jobs.job_log import JobListener
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.keys import ClientKeys
from kestreld.jobs.levels import Memory
from kestreld.jobs.node_sets import NodeSets
from kestreld.jobs.table import MASK, Table
from kestreld.jobs.timers import CHUNK_JOBS, Timers
from kestreld.jobs.waiting import JobWaiter, PatternWaiters
from kestreld.queues.agenda import Agenda, Scheduled

JITTER_MS: Final = 250  # a requeue comes up to this much earlier or later: it keeps two nodes from queueing at once
SEED_BYTES: Final = 32
JITTERS: Final = 1024
FOREVER_MS: Final = 1 << 62
DELETED: Final = "deleted"
EXPIRED: Final = "expired"

Watch = Callable[[str], None]
RandomBytes = Callable[[int], bytes]


class _Alarm(Scheduled):
    """The store's entry in the agenda, due when the first of its jobs wakes."""

    def __init__(self, fall_due: Callable[[], None]) -> None:
        super().__init__(FOREVER_MS)
        self._fall_due = fall_due

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = FOREVER_MS
        self._fall_due()

    def set(self, due_at_ms: int) -> None:
        """Set the due time."""
        self.due_at_ms = due_at_ms


class JobStore:
    """All jobs and queues of a node. `Jobs` has what happens to a job between its start and its end.

    `retry_from_delivery`: a job's retry time counts from its delivery, not from when it was queued. `tidy` is called
    now and then while many jobs fall due, to collect garbage before the timers have allocated too much.
    """

    def __init__(
        self,
        clock: Clock,
        agenda: Agenda,
        random_bytes: RandomBytes,
        node_id: bytes,
        *,
        retry_from_delivery: bool = False,
        queues_max: int | None = None,
        rules: Sequence[JobRule] = (),
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """`queues_max` None = unlimited."""
        self.clock = clock
        self.agenda = agenda
        self.node_id = node_id
        self.node_sets = NodeSets()
        self.me = self.node_sets.of(node_id)
        self.listener: JobListener | None = None
        self.copies: Copies | None = None  # None = there are no other nodes
        self.retry_from_delivery = retry_from_delivery
        self.rules = DeadLetterRules(rules)
        self.table: Table[Job] = Table()
        self.queues: Table[JobQueue] = Table()
        self.listed = 0  # queues
        self.collected_in = self.collected_out = 0  # counts of queues that were unlisted
        self.timers = Timers()
        self.memory = Memory()
        self.keys = ClientKeys()
        self.waiters: dict[JobWaiter, None] = {}  # in the order in which they came
        self.patterns = PatternWaiters()
        self.watches: dict[bytes, list[Watch]] = {}  # job id -> functions called with its end
        self.queues_max = queues_max
        self._ids = JobIds(node_id, random_bytes(SEED_BYTES))
        self._random_bytes = random_bytes
        self._tidy = tidy
        self._jitters_ms: list[int] = []
        self._offset_ms = clock.wall_ms - clock.monotonic_ms
        self._drift_ms = 0
        self.last_ctime = 0
        self._waiter_number = 0
        self._alarm = _Alarm(self._wake_some)
        self._is_restoring = False
        self.keeps_back = False  # jobs that are delivered at most once
        self._kept_back: dict[JobQueue, None] = {}  # queues where a client would have been given one
        self.awaits_once = False  # some restored jobs that are delivered at most once are still to be queued

    @property
    def now_ms(self) -> int:
        """Time of this turn on the steady clock, ms."""
        return self.clock.monotonic_ms + self._offset_ms

    def read_now_ms(self) -> int:
        """Return `now_ms`, as a function for code that does not know the store."""
        return self.clock.monotonic_ms + self._offset_ms

    @property
    def objects(self) -> int:
        """Approximate number of objects that live as long as a job."""
        return self.table.count + self.queues.count + self.timers.entries // CHUNK_JOBS

    @property
    def drift_ms(self) -> int:
        """Difference to add to a time of the steady clock to get the system clock's, ms."""
        drift_ms = self.clock.wall_ms - self.now_ms
        if abs(drift_ms - self._drift_ms) > 1:  # less is rounding: the same instant is shown alike
            self._drift_ms = drift_ms
        return self._drift_ms

    def use_node_id(self, node_id: bytes) -> None:
        """Change this node's id."""
        self.node_id = node_id
        self.me = self.node_sets.of(node_id)
        self._ids.use_node_id(node_id)

    # Queues

    def find_queue(self, name: bytes) -> JobQueue | None:
        """Return the queue, None if it is not in use."""
        queue = self.queues.parts[hash(name) & MASK].get(name)
        return queue if queue is not None and queue.is_listed else None

    def limit_queues(self, queues_max: int | None) -> None:
        """Limit the number of queues; None = no limit."""
        self.queues_max = queues_max

    @property
    def has_all_queues(self) -> bool:
        """True if there may be no further queue."""
        return self.queues_max is not None and self.queues.count >= self.queues_max

    def queue(self, name: bytes) -> JobQueue | None:
        """Return the queue, created if it did not exist; None if there would be too many."""
        queue = self.queues.parts[hash(name) & MASK].get(name)
        if queue is None:
            if self.has_all_queues:
                return None
            queue = JobQueue(name)
            self.queues.add(name, queue)
        if not queue.is_listed:
            queue.enlist(self.now_ms)
            self.listed += 1
        return queue

    def has(self, queue: JobQueue) -> bool:
        """Return True if this is a queue of these jobs: during long work all of them may have been replaced."""
        return self.queues.get(queue.name) is queue

    def unlisted_queue(self, name: bytes) -> JobQueue:
        """Return the queue of a job that comes with an id of its own. It is listed once the job is queued."""
        queue = self.queues.get(name)
        if queue is None:
            queue = JobQueue(name)
            self.queues.add(name, queue)
        return queue

    def unlist(self, queue: JobQueue) -> None:
        """Unlist a queue that is no longer used."""
        self.collected_in += queue.jobs_in
        self.collected_out += queue.jobs_out
        queue.unlist()
        self.listed -= 1
        self._forget_unused(queue)

    def _forget_unused(self, queue: JobQueue) -> None:
        if not (queue.total or queue.is_listed):
            self.queues.remove(queue.name)

    # Jobs

    def find(self, job_id: bytes) -> Job | None:
        """Return the job, None if there is none."""
        return self.table.parts[hash(job_id) & MASK].get(job_id)

    def _requeue_at_ms(self, terms: JobTerms, now_ms: int) -> int:
        """Return when a job that is queued now is queued again: one number object for all jobs of the same ms."""
        if terms.queued_at_ms != now_ms:
            terms.note_requeue(now_ms, now_ms + terms.retry_ms + self._jitter_ms() if terms.retry_ms else NEVER)
        return terms.requeue_at_ms

    def _jitter_ms(self) -> int:
        if not self._jitters_ms:
            noise = self._random_bytes(2 * JITTERS)
            self._jitters_ms = [
                int.from_bytes(noise[at : at + 2], "big") * 2 * JITTER_MS // 65536 - JITTER_MS
                for at in range(0, 2 * JITTERS, 2)
            ]
        return self._jitters_ms.pop()

    def remove(self, job: Job, why: str = DELETED) -> None:
        """Remove a job that is acknowledged, deleted or expired."""
        job_id, state = job.id, job.state
        if self.copies is not None:
            self.copies.gone(job, why)
        is_added = state != WAIT_REPL
        if state != ACKED and state != LET_GO:
            self._leave_queue(job)
            if job.terms.key and is_added:
                self.keys.release(job.terms.known_key, self.now_ms)
            elif job.terms.key:
                self.keys.forget(job.terms.known_key, job_id)
        del self.table.parts[hash(job_id) & MASK][job_id]
        self.table.count -= 1
        self.memory.remove(len(job.body))
        job.state = GONE
        job.body = b""  # the timers may lead here for a while
        if self.listener is not None and is_added:
            self.listener.done(job, why)
        if self.watches and job_id in self.watches:
            self._tell_watches(job_id, why)

    def _leave_queue(self, job: Job) -> None:
        """Remove a job from its queue and the queue's counts."""
        terms = job.terms
        queue = terms.queue
        if job.state == QUEUED:
            queue.jobs.remove(job)
        elif job.state == DELAYED:
            queue.delayed -= 1
        elif not terms.retry_ms and job.state == ACTIVE:
            self.memory.delivered_once -= 1
        queue.total -= 1
        if not queue.total and not queue.is_listed:
            self.queues.remove(queue.name)

    def _tell_watches(self, job_id: bytes, why: str) -> None:
        for watch in self.watches.pop(job_id, []):
            watch(why)

    def watch(self, job: Job, told: Watch) -> None:
        """Have `told` called with the reason when a job ends."""
        self.watches.setdefault(job.id, []).append(told)

    def take_watches(self, job_id: bytes) -> list[Watch]:
        """Remove and return the watches of a job: their callers are told by other means."""
        return self.watches.pop(job_id, [])

    def unwatch(self, job_id: bytes, told: Watch) -> None:
        """Remove a watch."""
        watches = self.watches.get(job_id, [])
        if told in watches:
            watches.remove(told)
            if not watches:
                del self.watches[job_id]

    # Times

    def _plan(self, job: Job) -> None:
        """Plan a job's next wake-up, at the first of its times."""
        at_ms = (job.ctime >> CTIME_BITS) + job.terms.ttl_ms
        requeue_at_ms = job.requeue_at_ms
        if requeue_at_ms and requeue_at_ms < at_ms:
            at_ms = requeue_at_ms
            if job.terms.notice_ms and self.copies is not None and job.is_announced:
                at_ms -= job.terms.notice_ms
        wakes_at_ms = job.wakes_at_ms
        if wakes_at_ms and wakes_at_ms <= at_ms:
            return  # it is added again when it wakes
        self.timers.add(job, at_ms)
        if at_ms < self._alarm.due_at_ms + self._offset_ms:
            self._set_alarm()

    def _set_alarm(self) -> None:
        next_at_ms = self.timers.next_at_ms()
        if next_at_ms is not None and next_at_ms - self._offset_ms < self._alarm.due_at_ms:
            self._alarm.set(max(next_at_ms - self._offset_ms, 0))
            self.agenda.add(self._alarm)

    def _wake_some(self) -> None:
        """Handle some of the jobs that are due."""
        raise NotImplementedError

    # From a log

    def share(self, copies: Copies) -> None:
        """Have `copies` informed of changes that concern other nodes."""
        self.copies = copies

    def listen(self, listener: JobListener | None) -> None:
        """Have `listener` informed of every change from now on; None = nobody."""
        self.listener = listener

    def keep_back(self, *, wanted: bool) -> None:
        """Set whether jobs delivered at most once are kept back: a restart might not know that they were queued."""
        self.keeps_back = wanted
        if self._kept_back and not wanted:
            self._alarm.set(self.clock.monotonic_ms)
            self.agenda.add(self._alarm)

    def go_on_from(self, latest_at_ms: int) -> None:
        """Let the steady clock continue no earlier than this time."""
        self._offset_ms = max(self._offset_ms, latest_at_ms - self.clock.monotonic_ms)

    def adopt(self, table: Table[Job]) -> None:
        """Take over the jobs of a log into an empty store; `restore` follows for each of them."""
        self.table = table
        self._is_restoring, self.awaits_once = True, False

    def restored(self) -> None:
        """End the restoring: due jobs wake from now on."""
        self._is_restoring = False
        self._set_alarm()

    def restore(self, jobs: Iterable[Job], *, is_all_known: bool) -> list[Job]:
        """Plan and count some of the jobs of `adopt`, none of which is queued. Nobody is told.

        `is_all_known`: no event can be missing in the log. Otherwise a job that is delivered at most once and is due
        may have been delivered, and is not delivered again. Returns these jobs.
        """
        doubtful: list[Job] = []
        now_ms, timers, memory = self.now_ms, self.timers, self.memory
        count = body_bytes = 0
        for job in jobs:
            if job.terms.owners or job.state == ACKED:
                if self._restore_shared(job, is_all_known=is_all_known):
                    doubtful.append(job)
                continue
            terms = job.terms
            queue = terms.queue
            if not queue.total:
                self.queues.add(queue.name, queue)
            queue.total += 1
            count += 1
            body_bytes += len(job.body)
            at_ms = (job.ctime >> CTIME_BITS) + terms.ttl_ms
            if not terms.retry_ms and (job.state != DELAYED or (job.requeue_at_ms <= now_ms and not is_all_known)):
                if job.state == DELAYED:
                    doubtful.append(job)
                job.come_back(ACTIVE, NEVER, job.nacks, job.deliveries, job.segment)
                memory.delivered_once += 1
            elif job.state == DELAYED:
                queue.delayed += 1
                self.awaits_once = self.awaits_once or not terms.retry_ms
            if 0 < job.requeue_at_ms < at_ms:
                at_ms = job.requeue_at_ms
            if terms.key:
                self.keys.add(terms.known_key, job.id)
            timers.add(job, at_ms)
        memory.add_some(count, body_bytes)
        return doubtful

    def _restore_shared(self, job: Job, *, is_all_known: bool) -> bool:
        """Restore a job that other nodes may hold as a copy, because they have a say in when it is queued.

        Returns True if the job is delivered at most once and may have been delivered.
        """
        terms, state = job.terms, job.state
        is_doubtful = not is_all_known and state in (BORROWED, LENT)
        if state != ACKED and state != LET_GO:
            queue = terms.queue
            if not queue.total:
                self.queues.add(queue.name, queue)
            queue.total += 1
            if terms.key:
                self.keys.add(terms.known_key, job.id)
        if is_doubtful or (state == ACTIVE and not terms.retry_ms):
            # It may have been delivered, as far as this or an earlier start knows: it never is again, and its next
            # owner's question is answered in the negative.
            job.come_back(ACTIVE, NEVER, job.nacks, job.deliveries, job.segment)
            self.memory.delivered_once += 1
        elif state in (ACTIVE, DELAYED):
            job.come_back(COPY, job.requeue_at_ms, job.nacks, job.deliveries, job.segment)
        self.memory.add_some(1, len(job.body))
        at_ms = job.expires_at_ms
        if 0 < job.requeue_at_ms < at_ms:
            at_ms = job.requeue_at_ms - terms.notice_ms
        self.timers.add(job, at_ms)
        return is_doubtful

    def put_back(self, job_id: bytes) -> None:
        """Queue a restored job that was queued at the stop; for a shared one, ask its other holders first."""
        job = self.table.get(job_id)
        if job is None or job.state == QUEUED:
            return
        if job.state in (ACKED, BORROWED, LENT, LET_GO):
            return
        if job.state == COPY:  # meanwhile another node may have queued it: ask, at once
            job.come_back(COPY, self.now_ms, job.nacks, job.deliveries, job.segment)
            self.timers.add(job, self.now_ms)
            return
        queue = job.terms.queue
        if job.state == DELAYED:
            queue.delayed -= 1
        elif not job.terms.retry_ms:
            self.memory.delivered_once -= 1
        self.queue(queue.name)
        requeue_at_ms = job.requeue_at_ms if job.terms.retry_ms else NEVER
        job.come_back(QUEUED, requeue_at_ms, job.nacks, job.deliveries, job.segment)
        queue.jobs.add(job)

    # All of them

    def clear(self) -> Iterator[None]:
        """Remove all jobs and queues. The returned iterator dismisses waiting clients and frees memory, in steps."""
        table, queues, timers, keys = self.table, self.queues, self.timers, self.keys
        self.table, self.queues, self.timers, self.keys = Table(), Table(), Timers(), ClientKeys()
        self.listed = self.collected_in = self.collected_out = 0
        self.memory.clear()
        self._kept_back = {}
        if self.listener is not None:
            self.listener.cleared()
        if self.copies is not None:
            self.copies.cleared()
        waiters, self.waiters = self.waiters, {}
        self.patterns = PatternWaiters()
        watches, self.watches = self.watches, {}
        return _end(table, queues, timers, keys, list(waiters), watches)


def _mark_gone(table: Table[Job]) -> Iterator[None]:
    for part in table.parts:
        for job in part.values():
            job.state = GONE
        yield


def _end(
    table: Table[Job],
    queues: Table[JobQueue],
    timers: Timers,
    keys: ClientKeys,
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
    yield from _mark_gone(table)
    # Jobs are freed by their age: each part of the table has some of every memory arena, and the last part would give
    # back all of these at once.
    while table.parts:
        table.parts.pop()
        yield
    yield from keys.drop()
    while (chunk := timers.drop_some()) is not None:
        del chunk
        yield
    for queue_part in queues.parts:
        for queue in queue_part.values():
            yield from queue.jobs.drop()
            queue.unlist()  # else it and the terms of its jobs refer to each other
        queue_part.clear()
        yield
