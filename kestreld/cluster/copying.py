"""Conversion of jobs to messages for other nodes and back, with times translated from the sender's clock."""

from kestreld.cluster.job_messages import Death, JobCopy, Moved
from kestreld.cluster.nodes import Node
from kestreld.jobs.job import (
    ACTIVE,
    CREATED_UNITS,
    DELAYED,
    NEVER,
    DeadLetter,
    Job,
    JobTerms,
    created_of,
    ctime_of,
)
from kestreld.jobs.replicated_jobs import ReplicatedJobs


def copy_of(jobs: ReplicatedJobs, job: Job, owners: int) -> JobCopy:
    """Return the job as another node is to hold it, with these owners."""
    terms = job.terms
    due_at_ms = 0
    if job.state == DELAYED:
        due_at_ms = job.requeue_at_ms
    elif terms.delay_s and job.created_at_ms + terms.delay_s * 1000 > jobs.now_ms:
        due_at_ms = job.created_at_ms + terms.delay_s * 1000
    return JobCopy(
        job.id, terms.queue.name, job.body, created_of(job.ctime), terms.ttl_ms, terms.retry_ms, terms.delay_s * 1000,
        due_at_ms, terms.replicate, job.nacks, job.deliveries, jobs.node_sets.ids(owners), terms.key,
        terms.retries_max, death_of(terms.dead), terms.moves,
    )  # fmt: skip


def job_of(jobs: ReplicatedJobs, copy: JobCopy, sender: Node, owners: int) -> Job:
    """Return a copy as a job to keep, ACTIVE for the moment."""
    queue = jobs.unlisted_queue(copy.queue)
    options = (copy.ttl_ms, copy.retry_ms, copy.delay_ms // 1000, copy.retries_max)
    dead = dead_letter_of(copy.death, sender)
    moves = max(copy.moves, dead is not None)
    if not moves:
        terms = queue.terms_shared_with(options, copy.replicate, owners, copy.key)
    else:
        terms = JobTerms(queue, *options, copy.key, dead, copy.replicate, owners, moves)
    created = copy.created + sender.clock_offset_ms * CREATED_UNITS
    ctime = ctime_of(max(created, 1))
    return Job(copy.job_id, copy.body, terms, ctime, NEVER, ACTIVE, copy.nacks, copy.deliveries)


def expires_in_ms(jobs: ReplicatedJobs, copy: JobCopy, sender: Node) -> int:
    """Return the time left of the job's TTL; 0 or less = none."""
    return copy.created // CREATED_UNITS + sender.clock_offset_ms + copy.ttl_ms - jobs.now_ms


def due_in_ms(jobs: ReplicatedJobs, copy: JobCopy, sender: Node) -> int:
    """Return the time left of the job's delay; 0 = none."""
    return max(copy.due_at_ms + sender.clock_offset_ms - jobs.now_ms, 0) if copy.due_at_ms else 0


def moved_of(job: Job) -> Moved:
    """Return the message that tells other nodes which queue the job is in here."""
    terms = job.terms
    return Moved(job.id, terms.queue.name, death_of(terms.dead), job.nacks, job.deliveries, terms.moves)


def death_of(dead: DeadLetter | None) -> Death | None:
    """Return a dead letter's origin and reason as a message has them."""
    return None if dead is None else Death(dead.origin, dead.reason, dead.dead_at_ms)


def dead_letter_of(death: Death | None, sender: Node) -> DeadLetter | None:
    """Return a dead letter's origin and reason as a message of `sender` has them."""
    if death is None:
        return None
    return DeadLetter(death.origin, death.reason, max(death.dead_at_ms + sender.clock_offset_ms, 0))
