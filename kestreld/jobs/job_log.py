"""Interface through which a store of jobs reports its changes to whatever keeps them on disk."""

from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue


class JobListener:
    """Receiver of each change as it happens, before any reply. Times of jobs are on the steady clock.

    Queues are not persistent: the delivery of a job (GETJOB, DEQUEUE) is not reported.
    """

    def added(self, job: Job) -> None:
        """Note a new job, with its state, `requeue_at_ms` and counters."""

    def changed(self, job: Job) -> None:
        """Note a change of `requeue_at_ms` or counters: WORKING, NACK, ENQUEUE, a requeue."""

    def owned(self, job: Job) -> None:
        """Note a change of the nodes that may hold a job, in its `terms`."""

    def paused(self, queue: JobQueue) -> None:
        """Note a change of a queue's `pause`."""

    def moved(self, job: Job) -> None:
        """Note new `terms` of a job that went to a dead-letter queue or came back from there."""

    def done(self, job: Job, why: str) -> None:
        """Note the end of a job: acknowledged, deleted (or evicted) or expired. `why` is one of `job_records.ENDS`."""

    def cleared(self) -> None:
        """Note that all jobs were deleted at once."""
