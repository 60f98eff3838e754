"""What a store of jobs asks of whoever knows the other nodes, and tells it."""

from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue


class Copies:
    """Told of what happens to jobs whose terms name `owners`, so that these do not queue them, too."""

    def may_queue(self, job: Job, now_ms: int) -> bool:
        """Whether a job may be queued again whose time has come, or comes in `NOTICE_MS`. If not, when it wakes next
        has been planned.
        """
        return True

    def woken(self, job: Job, now_ms: int) -> None:
        """A job has woken that is not queued by its time: it waits for other nodes."""

    def queued(self, job: Job) -> None:
        """It is in its queue again."""

    def delivered(self, job: Job) -> None:
        """A worker has it, and its retry time begins now."""

    def worked_on(self, job: Job) -> None:
        """A worker goes on with it for another retry time."""

    def delayed(self, job: Job, delay_ms: int) -> None:
        """It was given back, to be queued in so many ms."""

    def moved(self, job: Job) -> None:
        """It is in another queue."""

    def gone(self, job: Job, why: str) -> None:
        """It has ended here, as `JobListener.done` has it; its state is still the one that it was in."""

    def cleared(self) -> None:
        """Every job is gone at once."""

    def missed(self, queue: JobQueue) -> None:
        """Somebody wants a job of a queue that has none."""

    def came(self, queue: JobQueue) -> None:
        """A job has come into a queue, and nobody here waits for it."""

    def waited_for(self, queue: JobQueue) -> None:
        """Somebody begins to wait for a job of a queue for which nobody here has waited."""

    def emptied(self, queue: JobQueue) -> None:
        """The last job of a queue was handed out."""
