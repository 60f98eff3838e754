"""Interface through which a store of jobs asks and informs the part that knows other nodes."""

from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue


class Copies:
    """Receiver of changes to jobs whose terms name `owners`, so that those nodes do not queue them, too."""

    def may_queue(self, job: Job, now_ms: int) -> bool:
        """Return True if a job that is due, or soon will be, may be queued again. If not, plan its next wake-up."""
        return True

    def woken(self, job: Job, now_ms: int) -> None:
        """Handle the wake-up of a job that waits for other nodes and is not queued by its time."""

    def queued(self, job: Job) -> None:
        """Note that a job is in its queue again."""

    def delivered(self, job: Job) -> None:
        """Note that a worker has a job whose retry time begins now."""

    def worked_on(self, job: Job) -> None:
        """Note that a worker keeps a job for another retry time."""

    def delayed(self, job: Job, delay_ms: int) -> None:
        """Note that a job was given back, to be queued in `delay_ms`."""

    def moved(self, job: Job) -> None:
        """Note that a job is in another queue."""

    def gone(self, job: Job, why: str) -> None:
        """Note that a job has ended here, as in `JobListener.done`; its state is still the one before its end."""

    def cleared(self) -> None:
        """Note that all jobs were deleted at once."""

    def missed(self, queue: JobQueue) -> None:
        """Note that a client wants a job of a queue that has none."""

    def came(self, queue: JobQueue) -> None:
        """Note that a job has come into a queue, and no client of this node waits for it."""

    def waited_for(self, queue: JobQueue) -> None:
        """Note that a client begins to wait for jobs of a queue, the first of this node."""

    def emptied(self, queue: JobQueue) -> None:
        """Note that the last job of a queue was handed out."""
