"""What a store of jobs asks of whoever knows the nodes that have copies of its jobs, and tells it."""

from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue


class Copies:
    """Told of what happens to jobs whose terms name `owners`, so that these do not queue a job which this node has
    queued.
    """

    def will_be_queued(self, job: Job) -> None:
        """It will be in so many ms as its terms have for a notice, unless an owner objects."""

    def holds_back(self, job: Job) -> bool:
        """Whether it must not be queued yet, although its time has come: its other owners were not asked yet."""
        return False

    def queued(self, job: Job) -> None:
        """It is in its queue again."""

    def worked_on(self, job: Job) -> None:
        """A worker goes on with it for another retry time."""

    def delayed(self, job: Job, delay_ms: int) -> None:
        """It was given back, to be queued in so many ms."""

    def moved(self, job: Job) -> None:
        """It is in another queue."""

    def woken(self, job: Job, now_ms: int) -> None:
        """One of its times has come while it waits for copies or is acknowledged, which the store does not see to."""

    def missed(self, queue: JobQueue) -> None:
        """Somebody wants a job of a queue that has none."""

    def came(self, queue: JobQueue) -> None:
        """A job has come into a queue, and nobody here waits for it."""

    def waited_for(self, queue: JobQueue) -> None:
        """Somebody begins to wait for a job of a queue for which nobody here has waited."""

    def emptied(self, queue: JobQueue) -> None:
        """The last job of a queue was handed out."""
