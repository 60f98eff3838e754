"""Bugs to plant in the keeping of jobs, one at a time, to see that a run finds them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from kestreld.jobs import maintenance, recovery
from kestreld.jobs.job import ACTIVE, CTIME_BITS, DELAYED, NEVER, Job
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.log import JobLog
from kestreld.jobs.storage import JobStorage
from kestreld.jobs.store import JobStore
from kestreld.journal import job_records
from kestreld.queues.slices import Work
from tests.simulation.planted import AnyChecksum, answer_before_write, no_folder_sync, no_sync


def done_not_logged() -> AbstractContextManager[Any]:
    """The log does not say that jobs are done."""
    return patch.object(JobLog, "done", lambda self, job: None)


def changes_not_logged() -> AbstractContextManager[Any]:
    """Nor when they are queued again."""
    return patch.object(JobLog, "changed", lambda self, job: None)


def flush_not_logged() -> AbstractContextManager[Any]:
    """DEBUG FLUSHALL empties the memory only."""
    return patch.object(JobLog, "cleared", lambda self: None)


def dead_letters_not_logged() -> AbstractContextManager[Any]:
    """A start finds dead letters in the queues that they come from."""
    return patch.object(JobLog, "moved", lambda self, job: None)


def keys_not_logged() -> AbstractContextManager[Any]:
    """The client's own id of a job that is gone is forgotten by a start."""
    return patch.object(JobLog, "key", lambda self, key, job_id, until_ms: None)


def _restoring(alter: Callable[[JobStore, Job], None]) -> AbstractContextManager[Any]:
    """Have each job that a log says altered before it is there."""
    restore = JobStore.restore

    def altered(self: JobStore, jobs: Iterable[Job], *, is_all_known: bool) -> list[Job]:
        some = list(jobs)
        for job in some:
            alter(self, job)
        return restore(self, some, is_all_known=is_all_known)

    return patch.object(Jobs, "restore", altered)


def _requeued(store: JobStore, job: Job) -> None:
    if not job.terms.retry_ms and job.state == ACTIVE:
        job.come_back(DELAYED, store.now_ms + 1, job.nacks, job.deliveries, job.segment)


def retry_0_requeued() -> AbstractContextManager[Any]:
    """A job without a retry time is queued again after a start."""
    restore = JobStore.restore

    def altered(self: JobStore, jobs: Iterable[Job], *, is_all_known: bool) -> list[Job]:
        some = list(jobs)
        for job in some:
            _requeued(self, job)
        return restore(self, some, is_all_known=True)

    return patch.object(Jobs, "restore", altered)


def _as_new(store: JobStore, job: Job) -> None:
    job.ctime = store.now_ms << CTIME_BITS


def ttl_starts_over() -> AbstractContextManager[Any]:
    """The TTL counts from the start."""
    return _restoring(_as_new)


def _delayed_anew(store: JobStore, job: Job) -> None:
    if job.state == DELAYED:
        due_at_ms = store.now_ms + job.terms.delay_s * 1000
        job.come_back(DELAYED, due_at_ms, job.nacks, job.deliveries, job.segment)


def delay_starts_over() -> AbstractContextManager[Any]:
    """The delay counts from the start."""
    return _restoring(_delayed_anew)


def _due_now(store: JobStore, job: Job) -> None:
    if job.requeue_at_ms != NEVER:
        job.come_back(job.state, store.now_ms, job.nacks, job.deliveries, job.segment)


def queued_at_start() -> AbstractContextManager[Any]:
    """Whatever was to be queued at some time is queued by a start."""
    return _restoring(_due_now)


def active_jobs_not_rewritten() -> AbstractContextManager[Any]:
    """A rewrite of the log has not those that workers have."""
    again = JobLog.again

    def forgetful(self: JobLog, job: Job) -> None:
        if job.state == ACTIVE:
            self._leave(job)
        else:
            again(self, job)

    return patch.object(JobLog, "again", forgetful)


@contextmanager
def no_checksums() -> Iterator[None]:
    """What stands in the log is believed."""

    def any_checksum(*arguments: object) -> int:
        return AnyChecksum()

    with (
        patch.object(recovery, "xxh3_64_intdigest", any_checksum),
        patch.object(job_records, "xxh3_64_intdigest", any_checksum),
    ):
        yield


def segments_dropped_unsynced() -> AbstractContextManager[Any]:
    """Segments go before it is on disk that nobody needs them."""

    def at_once(*arguments: object) -> Work:
        yield from ()

    return patch.object(maintenance, "on_disk", at_once)


def queues_not_restored() -> AbstractContextManager[Any]:
    """A controlled restart does not say what is queued."""
    return patch.object(JobStorage, "_say_queued", lambda self, writer: None)


def fresh_log_counts_early() -> AbstractContextManager[Any]:
    """A log that is begun counts before all jobs are in it."""
    begin = JobStorage._begin_log

    def early(self: JobStorage) -> Work:
        yield from begin(self)
        started = self.maintenance
        if started is not None and started.is_fresh:
            started.writer.begin_segment()
            started.journal.count_from(started.journal.last_number)

    return patch.object(JobStorage, "_begin_log", early)


BUGS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "no-sync": no_sync,
    "no-folder-sync": no_folder_sync,
    "answer-before-write": answer_before_write,
    "done-not-logged": done_not_logged,
    "changes-not-logged": changes_not_logged,
    "flush-not-logged": flush_not_logged,
    "dead-letters-not-logged": dead_letters_not_logged,
    "keys-not-logged": keys_not_logged,
    "retry-0-requeued": retry_0_requeued,
    "ttl-starts-over": ttl_starts_over,
    "delay-starts-over": delay_starts_over,
    "queued-at-start": queued_at_start,
    "active-not-rewritten": active_jobs_not_rewritten,
    "torn-record-accepted": no_checksums,
    "segments-dropped-unsynced": segments_dropped_unsynced,
    "queues-not-restored": queues_not_restored,
    "fresh-log-counts-early": fresh_log_counts_early,
}

# The first seed that sees each: once the plan draws otherwise, the long test of test_job_bugs.py prints another.
SEEN_BY: Final = {
    "no-sync": 3,
    "no-folder-sync": 3,
    "answer-before-write": 9,
    "done-not-logged": 0,
    "changes-not-logged": 17,
    "flush-not-logged": 0,
    "dead-letters-not-logged": 17,
    "keys-not-logged": 7,
    "retry-0-requeued": 0,
    "ttl-starts-over": 1,
    "delay-starts-over": 0,
    "queued-at-start": 0,
    "active-not-rewritten": 3,
    "torn-record-accepted": 14,
    "segments-dropped-unsynced": 9,
    "queues-not-restored": 50,
    "fresh-log-counts-early": 84,
}
