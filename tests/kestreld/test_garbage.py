"""Collections of cyclic garbage are short, and jobs leave none."""

import gc
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kestreld import garbage
from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.timers import MOVED_MANY
from tests.support.clock import FakeClock
from tests.support.jobs import new_jobs, pass_time


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.freeze()  # as before each test: else those that follow have all of it looked through
    gc.enable()


def test_full_collections_happen_only_while_there_are_few_old_objects() -> None:
    garbage.resume()
    _, _, often = gc.get_threshold()
    garbage.limit_full_collections(garbage.OLD_OBJECTS_MAX + 1)
    _, _, never = gc.get_threshold()
    garbage.limit_full_collections(garbage.OLD_OBJECTS_MAX)
    assert gc.get_threshold()[2] == often
    assert never == garbage.NEVER


def test_jobs_and_queues_are_counted_as_old_objects() -> None:
    jobs = new_jobs(FakeClock())
    queue = jobs.queue(b"q")
    assert queue is not None
    for _ in range(100):
        jobs.add(b"x", queue.terms_of((60_000, 30_000, 0, -1)))
    assert jobs.objects >= 101


def test_while_many_jobs_fall_due_what_the_timers_allocate_is_collected_in_between() -> None:
    clock, told = FakeClock(), list[int]()
    jobs = new_jobs(clock, tidy=lambda: told.append(1))
    queue = jobs.queue(b"q")
    assert queue is not None
    for _ in range(3 * MOVED_MANY):
        jobs.add(b"x", queue.terms_of((60_000, 30_000, 0, -1)))
    pass_time(jobs, clock, 61_000)
    assert jobs.table.count == 0
    assert len(told) >= 3


def test_jobs_that_are_dropped_leave_no_cyclic_garbage() -> None:
    jobs = new_jobs(FakeClock())
    queue = jobs.queue(b"dropped")
    assert queue is not None
    for _ in range(100):
        jobs.add(b"x", queue.terms_of((60_000, 30_000, 0, -1)))
    del queue
    gc.collect()
    gc.disable()
    for _ in jobs.clear():
        pass
    left = [one.terms.queue if type(one) is Job else one for one in gc.get_objects() if type(one) in (Job, JobQueue)]
    assert b"dropped" not in [queue.name for queue in left]


def test_jobs_that_are_dropped_are_freed_a_few_at_a_time_in_the_order_in_which_they_came() -> None:
    """Else the last of them, of which some are in every arena of memory, give back all of it at once."""
    jobs = new_jobs(FakeClock())
    queue = jobs.queue(b"q")
    assert queue is not None
    freed: list[int] = []
    for number in range(5000):
        job = jobs.add(Body(number, freed), queue.terms_of((60_000, 30_000, 0, -1)))
    del queue, job
    steps = [len(freed) for _ in jobs.clear()]
    assert len(freed) == 5000
    assert max(later - earlier for earlier, later in pairwise([0, *steps, 5000])) <= 1000
    assert sum(abs(later - earlier) == 1 for earlier, later in pairwise(freed)) > 4900


class Body(bytes):
    """A body that says when it is freed."""

    def __new__(cls, number: int, freed: list[int]) -> "Body":
        body = super().__new__(cls, b"x")
        body.number, body.freed = number, freed
        return body

    number: int
    freed: list[int]

    def __del__(self) -> None:
        self.freed.append(self.number)
