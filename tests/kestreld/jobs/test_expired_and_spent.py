"""What becomes of jobs behind those that have expired, and of those put back too often."""

import pytest

from kestreld.jobs.job import Job
from kestreld.jobs.jobs import EXPIRED_AT_ONCE
from kestreld.jobs.waiting import JobWaiter
from tests.support.clock import FakeClock
from tests.support.jobs import new_jobs, pass_time


class Worker:
    """Somebody who waits for a job."""

    def __init__(self) -> None:
        self.job: Job | None = None

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        self.job = job


def test_a_job_behind_many_that_have_expired_goes_to_who_waits() -> None:
    clock = FakeClock()
    jobs = new_jobs(clock)
    queue = jobs.queue(b"q")
    assert queue is not None
    for _ in range(EXPIRED_AT_ONCE + 1):
        jobs.add(b"body", queue.terms_of((1000, 0, 0, -1)))
    left = jobs.add(b"body", queue.terms_of((9000, 0, 0, -1)))
    clock.advance(1000)
    worker = Worker()
    if (job := jobs.take(queue)) is None:
        jobs.wait(worker, [queue], [], 0)
        pass_time(jobs, clock, 1000)
        job = worker.job
    assert job is left


@pytest.mark.parametrize("is_given_back", [True, False])
def test_a_job_comes_back_to_its_queue_where_there_may_be_none_for_dead_letters(*, is_given_back: bool) -> None:
    clock = FakeClock()
    jobs = new_jobs(clock, queues_max=1)
    queue = jobs.queue(b"q")
    assert queue is not None
    job = jobs.add(b"body", queue.terms_of((86_400_000, 60_000, 0, 0)))
    for _ in range(2):
        assert jobs.take(queue) is job
        if is_given_back:
            assert jobs.nack(job)
        else:
            pass_time(jobs, clock, 61_000)
    jobs.limit_queues(2)
    assert jobs.take(queue) is job
    assert jobs.nack(job)
    assert job.terms.queue.name == b"q.dead"
