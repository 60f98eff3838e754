"""What a store of jobs tells of its changes, to whoever keeps them on disk."""

from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue


class JobListener:
    """Told of each change as it happens, before anybody is answered. Instants of jobs are on the steady clock.

    Queues are not persistent: that a job was handed out (GETJOB, DEQUEUE) is not told.
    """

    def added(self, job: Job) -> None:
        """A new job: its state, `requeue_at_ms` and counters are those of `job`."""

    def changed(self, job: Job) -> None:
        """Its `requeue_at_ms` or counters have changed: WORKING, NACK, ENQUEUE, a requeue."""

    def owned(self, job: Job) -> None:
        """Other nodes may hold it than before: its `terms` are others."""

    def paused(self, queue: JobQueue) -> None:
        """Its `pause` is another."""

    def moved(self, job: Job) -> None:
        """Its `terms` are others: it went to a dead-letter queue, or came back from there."""

    def done(self, job: Job, why: str) -> None:
        """It is acknowledged, deleted (or evicted) or expired: `why` is one of `job_records.ENDS`."""

    def cleared(self) -> None:
        """Every job is gone at once."""
