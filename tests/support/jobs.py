"""A store of jobs without a server, on a clock that stands still until a test moves it."""

from random import Random
from typing import Any, Final

from kestreld.jobs.jobs import Jobs
from kestreld.queues.agenda import Agenda
from tests.support.clock import FakeClock

NODE_ID: Final = b"0123456789abcdef0123456789abcdef01234567"


def new_jobs(clock: FakeClock, *, jitters: bool = True, **options: Any) -> Jobs:
    """An empty store; where nothing `jitters`, jobs are requeued when their retry time is over, to the millisecond."""
    random_bytes = Random(7).randbytes if jitters else lambda size_bytes: b"\x80\x00" * (size_bytes // 2)
    return Jobs(clock, Agenda(), random_bytes, NODE_ID, **options)


def pass_time(jobs: Jobs, clock: FakeClock, span_ms: int) -> None:
    """Move the clock, and do whatever falls due on the way when it does."""
    until_ms = clock.monotonic_ms + span_ms
    while (next_at_ms := jobs.agenda.next_at_ms()) is not None and next_at_ms <= until_ms:
        clock.advance(max(next_at_ms - clock.monotonic_ms, 0))
        jobs.agenda.fall_due(clock.monotonic_ms)
    clock.advance(until_ms - clock.monotonic_ms)
