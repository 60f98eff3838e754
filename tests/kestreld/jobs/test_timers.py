"""Times of jobs: exact, and cheap however many there are."""

from random import Random

from kestreld.jobs.job import GONE, Job, JobTerms
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.timers import IDLE_ENTRIES_MAX, Timers

TERMS = JobTerms(JobQueue(b"q"), 1 << 40, 1000)


def new_job(number: int) -> Job:
    return Job(b"%d" % number, b"", TERMS, number, 0)


def run_until(timers: Timers, now_ms: int, most: int = 100) -> dict[bytes, int]:
    """When each job woke on the way there."""
    woken: dict[bytes, int] = {}
    while (next_at_ms := timers.next_at_ms()) is not None and next_at_ms <= now_ms:
        for job in timers.due(max(next_at_ms, 0), most):
            woken[job.id] = next_at_ms
    return woken


def test_each_job_wakes_once_and_within_four_milliseconds_of_its_time() -> None:
    random, timers = Random(3), Timers()
    times = {}
    for number in range(3000):
        job = new_job(number)
        times[job.id] = random.choice([random.randrange(5000), random.randrange(200_000)])
        timers.add(job, times[job.id])
    woken = run_until(timers, 300_000)
    assert woken.keys() == times.keys()
    assert [job_id for job_id, at_ms in times.items() if not 0 <= woken[job_id] - at_ms <= 4] == []
    assert timers.next_at_ms() is None


def test_a_job_that_moves_wakes_at_its_new_time_only() -> None:
    timers, job = Timers(), new_job(1)
    for at_ms in (9000, 20_000, 3000, 3001, 50_000, 7000):
        timers.add(job, at_ms)
    assert list(run_until(timers, 100_000).values()) == [7004]


def test_what_many_jobs_leave_behind_that_have_gone_is_swept_up() -> None:
    timers, live = Timers(), [new_job(number) for number in range(100)]
    for job in live:
        timers.add(job, 10_000_000)
    for number in range(3 * IDLE_ENTRIES_MAX):
        job = new_job(number)
        timers.add(job, 300_000 + number)
        job.state = GONE
        timers.tidy(len(live))
    entries = 0
    while (chunk := timers.drop_some()) is not None:
        entries += len(chunk)
    assert entries < 2 * IDLE_ENTRIES_MAX
    for job in live:
        assert job.wakes_at_ms == 10_000_000


def test_a_sweep_loses_no_job() -> None:
    timers, live = Timers(), {}
    for number in range(2 * IDLE_ENTRIES_MAX):
        job = new_job(number)
        timers.add(job, 500_000 + number * 7 % 100_000)
        if number % 50:
            job.state = GONE
        else:
            live[job.id] = job.wakes_at_ms
        timers.tidy(len(live) // 2)
    woken = run_until(timers, 1_000_000)
    assert woken.keys() == live.keys()
