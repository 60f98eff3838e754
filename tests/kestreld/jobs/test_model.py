"""A store of jobs beside a model of it: whatever is done in whatever order, both say the same."""

from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kestreld.jobs.job import ACTIVE, DELAYED, QUEUED, Job
from kestreld.jobs.job_log import JobListener
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN, PAUSED_OUT
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.levels import BASE_BYTES, JOB_BYTES
from kestreld.jobs.timers import SLOT_BITS
from tests.support.clock import FakeClock
from tests.support.compiled import IS_COMPILED
from tests.support.jobs import new_jobs, pass_time

QUEUES = st.sampled_from([b"a", b"b", b"c.dead"])
STEP_MS = 1006  # of the clock: nothing falls due at the very moment at which something is done


@dataclass
class Model:
    """What a job should be like."""

    queue: bytes
    body: bytes
    order: int
    expires_at_ms: int
    retry_ms: int
    retries_max: int
    state: int = QUEUED
    requeue_at_ms: int = 0
    nacks: int = 0
    deliveries: int = 0
    origin: bytes = b""


@dataclass
class Heard(JobListener):
    """What a listener knows of the jobs that there are."""

    jobs: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def added(self, job: Job) -> None:
        assert job.id not in self.jobs
        self.changed(job)

    def changed(self, job: Job) -> None:
        self.jobs[job.id] = (job.nacks, job.deliveries)

    def moved(self, job: Job) -> None:
        self.changed(job)

    def done(self, job: Job, why: str) -> None:
        del self.jobs[job.id]

    def cleared(self) -> None:
        self.jobs.clear()


class JobsMachine(RuleBasedStateMachine):
    ids = Bundle("ids")

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.jobs: Jobs = new_jobs(self.clock, jitters=False)
        self.listener = None if IS_COMPILED else Heard()
        self.jobs.listener = self.listener
        self.model: dict[bytes, Model] = {}
        self.paused: dict[bytes, int] = {}
        self.orders = count()

    @property
    def now_ms(self) -> int:
        return self.jobs.now_ms

    # What clients do

    @rule(
        target=ids,
        queue=QUEUES,
        body=st.binary(max_size=5),
        ttl_s=st.sampled_from([5, 40, 10_000]),
        retry_s=st.sampled_from([0, 10, 60]),
        delay_s=st.sampled_from([0, 0, 3, 20]),
        retries_max=st.sampled_from([-1, -1, 0, 2]),
    )
    def add(self, queue: bytes, body: bytes, ttl_s: int, retry_s: int, delay_s: int, retries_max: int) -> bytes:
        owner = self.jobs.queue(queue)
        assert owner is not None
        job = self.jobs.add(body, owner.terms_of((ttl_s * 1000, retry_s * 1000, delay_s, retries_max)))
        model = self.model[job.id] = Model(
            queue, body, next(self.orders), self.now_ms + ttl_s * 1000, retry_s * 1000, retries_max
        )
        if delay_s:
            model.state, model.requeue_at_ms = DELAYED, self.now_ms + delay_s * 1000
        else:
            self._queued(model)
        return job.id

    @rule(queue=QUEUES)
    def take(self, queue: bytes) -> None:
        owner = self.jobs.find_queue(queue)
        if owner is None:
            return
        job = self.jobs.take(owner)
        waiting = self._waiting(queue) if not self.paused.get(queue, 0) & PAUSED_OUT else []
        assert (job is None) == (waiting == [])
        if job is not None:
            assert job.id == waiting[0]
            self._taken(self.model[job.id])

    @rule(job_id=consumes(ids))
    def acknowledge(self, job_id: bytes) -> None:
        job = self.jobs.table.get(job_id)
        assert (job is not None) == (job_id in self.model)
        if job is not None:
            self.jobs.remove(job, "acked")
            del self.model[job_id]

    @rule(target=ids, job_id=consumes(ids), delay_ms=st.sampled_from([None, None, 5000]))
    def nack(self, job_id: bytes, delay_ms: int | None) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None:
            assert self.jobs.nack(job, delay_ms) == self._may_be_queued(model)
            if self._may_be_queued(model):
                model.nacks += 1
                if not self._is_buried(model):
                    if delay_ms:
                        model.state, model.requeue_at_ms = DELAYED, self.now_ms + delay_ms
                    else:
                        self._queued(model)
        return job_id

    @rule(target=ids, job_id=consumes(ids))
    def enqueue(self, job_id: bytes) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None:
            assert self.jobs.enqueue(job) == self._may_be_queued(model)
            if self._may_be_queued(model):
                model.deliveries += model.state == ACTIVE
                self._queued(model)
        return job_id

    @rule(target=ids, job_id=consumes(ids))
    def dequeue(self, job_id: bytes) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None:
            assert self.jobs.dequeue(job) == (model.state == QUEUED)
            if model.state == QUEUED:
                self._taken(model)
        return job_id

    @rule(target=ids, job_id=consumes(ids))
    def working(self, job_id: bytes) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None:
            self.jobs.working(job)
            model.requeue_at_ms = self.now_ms + model.retry_ms if model.retry_ms else 0
            model.state = ACTIVE
        return job_id

    @rule(target=ids, job_id=consumes(ids))
    def bury(self, job_id: bytes) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None and not model.origin:
            assert self.jobs.bury(job, b"asked")
            self._buried(model)
        return job_id

    @rule(target=ids, job_id=consumes(ids))
    def redrive(self, job_id: bytes) -> bytes:
        job, model = self._both(job_id)
        if job is not None and model is not None:
            assert self.jobs.redrive(job) == bool(model.origin)
            if model.origin:
                model.queue, model.origin, model.nacks, model.deliveries = model.origin, b"", 0, 0
                self._queued(model)
        return job_id

    @rule(queue=QUEUES, pause=st.sampled_from([NOT_PAUSED, PAUSED_IN, PAUSED_OUT]))
    def pause(self, queue: bytes, pause: int) -> None:
        owner = self.jobs.queue(queue)
        assert owner is not None
        self.jobs.pause(owner, pause)
        self.paused[queue] = pause

    @rule(steps=st.integers(1, 30))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self._pass_second()

    @rule(target=ids)
    def clear(self) -> object:
        for _ in self.jobs.clear():
            pass
        self.model.clear()
        self.paused.clear()
        return multiple()

    # What should become of it

    def _both(self, job_id: bytes) -> tuple[Job | None, Model | None]:
        job, model = self.jobs.table.get(job_id), self.model.get(job_id)
        assert (job is None) == (model is None)
        return job, model

    def _waiting(self, queue: bytes) -> list[bytes]:
        there = [
            (one.order, job_id) for job_id, one in self.model.items() if one.queue == queue and one.state == QUEUED
        ]
        return [job_id for _, job_id in sorted(there)]

    def _may_be_queued(self, model: Model) -> bool:
        return model.state == DELAYED or (model.state == ACTIVE and model.retry_ms > 0)

    def _queued(self, model: Model, at_ms: int = 0) -> None:
        model.state = QUEUED
        model.requeue_at_ms = (at_ms or self.now_ms) + model.retry_ms if model.retry_ms else 0

    def _taken(self, model: Model) -> None:
        model.state = ACTIVE
        while 0 < model.requeue_at_ms <= self.now_ms:
            model.requeue_at_ms += model.retry_ms

    def _is_buried(self, model: Model, at_ms: int = 0) -> bool:
        if model.origin or not 0 <= model.retries_max < model.nacks + model.deliveries:
            return False
        self._buried(model, at_ms)
        return True

    def _buried(self, model: Model, at_ms: int = 0) -> None:
        model.origin, model.queue = model.queue, model.queue + b".dead"
        self._queued(model, at_ms)

    def _pass_second(self) -> None:
        pass_time(self.jobs, self.clock, STEP_MS)
        for job_id, model in list(self.model.items()):
            while (at_ms := self._wakes_at_ms(model)) <= self.now_ms:
                if model.expires_at_ms <= at_ms:
                    del self.model[job_id]
                    break
                self._requeued(model, at_ms)

    def _wakes_at_ms(self, model: Model) -> int:
        first_ms = model.expires_at_ms
        if model.requeue_at_ms and model.state != QUEUED:
            first_ms = min(first_ms, model.requeue_at_ms)
        return ((first_ms >> SLOT_BITS) + 1) << SLOT_BITS

    def _requeued(self, model: Model, at_ms: int) -> None:
        if self.paused.get(model.queue, 0) & PAUSED_IN and model.retry_ms:
            model.requeue_at_ms = at_ms + model.retry_ms
            return
        model.deliveries += model.state == ACTIVE
        if model.state == DELAYED or not self._is_buried(model, at_ms):
            self._queued(model, at_ms)

    # Both say the same

    @invariant()
    def the_same_jobs_are_there(self) -> None:
        jobs = self.jobs
        assert {job.id for job in jobs.table} == set(self.model)
        assert jobs.table.count == len(self.model)
        for job in jobs.table:
            model = self.model[job.id]
            assert (job.state, job.body, job.terms.queue.name) == (model.state, model.body, model.queue)
            assert (job.nacks, job.deliveries) == (model.nacks, model.deliveries)
            assert job.requeue_at_ms == model.requeue_at_ms

    @invariant()
    def the_listener_knows_them(self) -> None:
        if self.listener is None:
            return  # a compiled class is not extended here
        assert self.listener.jobs == {job_id: (one.nacks, one.deliveries) for job_id, one in self.model.items()}

    @invariant()
    def what_is_counted_adds_up(self) -> None:
        jobs, models = self.jobs, self.model.values()
        bodies = sum(len(one.body) for one in models)
        assert jobs.memory.used_bytes == BASE_BYTES + JOB_BYTES * len(models) + bodies
        once = [one for one in models if one.state == ACTIVE and not one.retry_ms]
        assert jobs.memory.delivered_once == len(once)
        for queue in jobs.queues:
            own = [one for one in models if one.queue == queue.name]
            assert queue.total == len(own)
            assert queue.delayed == sum(one.state == DELAYED for one in own)
            assert queue.active == sum(one.state == ACTIVE for one in own)
            assert [job.id for job in queue.jobs.oldest()] == self._waiting(queue.name)
        assert jobs.listed == sum(queue.is_listed for queue in jobs.queues)


TestJobs = JobsMachine.TestCase
