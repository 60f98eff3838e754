"""What a node counts, found anew by looking at all of its jobs."""

from collections import Counter

from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    BORROWED,
    COPY,
    DELAYED,
    GONE,
    LENT,
    LET_GO,
    QUEUED,
    WAIT_REPL,
    WITHOUT_QUEUE,
    Job,
)
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.levels import BASE_BYTES, JOB_BYTES
from kestreld.jobs.replicated_jobs import ReplicatedJobs


def must_add_up(jobs: ReplicatedJobs) -> None:
    """Raise AssertionError where a number is not what it stands for, or a job would not wake in time."""
    every = list(jobs.table)
    totals, delayed, queued = Counter[JobQueue](), Counter[JobQueue](), Counter[JobQueue]()
    for job in every:
        queue = job.terms.queue
        if job.state not in WITHOUT_QUEUE:
            totals[queue] += 1
        if job.state == DELAYED:
            delayed[queue] += 1
        if job.state == QUEUED:
            queued[queue] += 1
            assert queue.is_listed
        assert job.state != GONE
        assert jobs.find(job.id) is job
        _must_wake(job)
    assert jobs.table.count == len(every)
    queues = list(jobs.queues)
    assert jobs.queues.count == len(queues)
    assert totals.keys() <= set(queues)
    for queue in queues:
        assert (queue.total, queue.delayed, queue.jobs.count) == (totals[queue], delayed[queue], queued[queue])
        assert [job.state for job in queue.jobs.oldest()] == [QUEUED] * queued[queue]
        assert queue.total or queue.is_listed
    assert jobs.listed == sum(queue.is_listed for queue in queues)
    assert jobs.memory.used_bytes == BASE_BYTES + sum(JOB_BYTES + len(job.body) for job in every)
    assert jobs.memory.delivered_once == sum(job.state == ACTIVE and not job.terms.retry_ms for job in every)


def _must_wake(job: Job) -> None:
    assert 0 < job.wakes_at_ms <= job.expires_at_ms
    if job.state == DELAYED or (job.state in (ACTIVE, COPY, ACKED, LET_GO) and job.requeue_at_ms):
        assert job.wakes_at_ms <= job.requeue_at_ms


def must_know_states(shared: SharedJobs) -> None:
    """Raise AssertionError where a room of a node remembers a job that is in no such state, or does not."""
    by_state: dict[int, set[bytes]] = {state: set() for state in range(GONE)}
    for job in shared.jobs.table:
        by_state[job.state].add(job.id)
    acks, lending = shared.acks._acks, shared.lending
    assert {job_id for part in acks.parts for job_id in part} == by_state[ACKED]
    assert acks.count == len(by_state[ACKED])
    assert set(shared.replicating._pending) == by_state[WAIT_REPL]
    assert set(lending._lent) == by_state[LENT]
    assert set(lending._let_go) == by_state[LET_GO]
    assert set(lending._borrowed) == by_state[BORROWED]
    assert set(shared._requeueing._announced) <= set().union(*by_state.values())
