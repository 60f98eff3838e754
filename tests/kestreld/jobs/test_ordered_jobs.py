"""The order of a queue, whatever comes and goes in whatever order."""

from bisect import insort

from hypothesis import given
from hypothesis import strategies as st

from kestreld.jobs.job import Job, JobTerms
from kestreld.jobs.job_queue import JobQueue, OrderedJobs

TERMS = JobTerms(JobQueue(b"q"), 1000, 1000)


def job_of(ctime: int, number: int) -> Job:
    return Job(b"%08d" % number, b"", TERMS, ctime, 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2))))
def test_jobs_are_by_ctime_and_id(moves: list[tuple[int, int]]) -> None:
    ordered, model = OrderedJobs(), list[tuple[int, bytes]]()
    jobs: dict[tuple[int, bytes], Job] = {}
    for number, (ctime, move) in enumerate(moves):
        if move == 2 and model:
            key = model[ctime % len(model)]
            model.remove(key)
            ordered.remove(jobs.pop(key))
        else:
            job = job_of(ctime, number * 7919 % 1000)
            if (ctime, job.id) not in jobs:
                jobs[ctime, job.id] = job
                insort(model, (ctime, job.id))
                ordered.add(job)
        assert [(job.ctime, job.id) for job in ordered.oldest()] == model
        assert ordered.count == len(model)
    assert [(job.ctime, job.id) for job in ordered.newest()] == model[::-1]


def test_many_jobs_that_come_backwards_or_with_one_ctime_are_in_order() -> None:
    for ctimes in (range(5000, 0, -1), [7] * 3000, [number % 10 for number in range(3000)]):
        ordered = OrderedJobs()
        jobs = [job_of(ctime, number * 7919 % 100_003) for number, ctime in enumerate(ctimes)]
        for job in jobs:
            ordered.add(job)
        wanted = sorted((job.ctime, job.id) for job in jobs)
        assert [(job.ctime, job.id) for job in ordered.oldest()] == wanted
        for job in jobs[::2]:
            ordered.remove(job)
        while ordered.count:
            ordered.drop_first()
        assert list(ordered.oldest()) == []
