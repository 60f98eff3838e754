"""Messages between nodes about jobs, as values, with Disque's names where Disque has the message.

Times are spans, except in `JobCopy` and `Death`, because each node has a clock of its own.
"""

from dataclasses import dataclass

from kestreld.cluster.reactions import Word


@dataclass(frozen=True, slots=True)
class Death:
    """Reason for which a job is in a dead-letter queue, the queue it comes from, and the time on the sender's clock."""

    origin: bytes
    reason: bytes
    dead_at_ms: int


@dataclass(frozen=True, slots=True)
class JobCopy:
    """A whole job. Instants are on the steady clock of the sender; receivers translate them to their own.

    `created` orders a queue, in units of 10^-6 ms; `due_at_ms` is the time at which a delayed job is due, 0 = not
    delayed; `owners` are the ids of the nodes that may hold the job; `moves` is as in `JobTerms`.
    """

    job_id: bytes
    queue: bytes
    body: bytes
    created: int
    ttl_ms: int
    retry_ms: int
    delay_ms: int
    due_at_ms: int
    replicate: int
    nacks: int
    deliveries: int
    owners: tuple[bytes, ...]
    key: bytes = b""
    retries_max: int = -1
    death: Death | None = None
    moves: int = 0


@dataclass(frozen=True, slots=True)
class ReplJob:
    """Request to hold a copy of this job. Answered with GotJob."""

    copy: JobCopy


@dataclass(frozen=True, slots=True)
class GotJob:
    """Confirmation that the sender holds a copy: in its log if it has one, and synced if replies wait for that."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Owners:
    """Further nodes that may hold the job. It makes no copy at the receiver, so a late one brings no job back."""

    job_id: bytes
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """WILLQUEUE, QUEUED, WORKING or ENQUEUE of a job.

    `nacks` and `deliveries` are the sender's counts since the last of the `moves`. `after_ms`: for WORKING, the time
    until the sender's requeue; for QUEUED and ENQUEUE, the time until the job is queued, 0 = now.
    """

    word: Word
    job_id: bytes
    nacks: int = 0
    deliveries: int = 0
    after_ms: int = 0
    moves: int = 0


@dataclass(frozen=True, slots=True)
class SetAck:
    """The job is acknowledged. `owners`: those the sender knows, () = it never held the job. Answered with GotAck."""

    job_id: bytes
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GotAck:
    """Confirmation that the sender will not deliver the job. `is_known`: it holds the job; `owners`: those it knows."""

    job_id: bytes
    is_known: bool
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DelJob:
    """Request to drop these jobs, whatever their states."""

    job_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NeedJobs:
    """Request for up to `count` jobs of this queue. `is_waiting`: clients wait, so jobs that come later are wanted,
    too; a count of 0 ends that.
    """

    queue: bytes
    count: int
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The sender has stopped adding this job and told its client so: drop it, and free its key.

    `key` is the known form (see `keys.key_in`), b"" = no key.
    """

    job_id: bytes
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class NeedNothing:
    """Withdrawal of all NeedJobs of the sender: what it wants now follows."""


@dataclass(frozen=True, slots=True)
class YourJobs:
    """Jobs for a node that wants them, except those that are delivered at most once. Answered with TookJobs."""

    number: int  # of this message, among those of its sender
    copies: tuple[JobCopy, ...]


@dataclass(frozen=True, slots=True)
class TookJobs:
    """Confirmation that the jobs of all YourJobs up to this number have arrived."""

    number: int


@dataclass(frozen=True, slots=True)
class LendJob:
    """Request to store this job, which is delivered at most once (RETRY 0). Answered with Stored or Declined; the job
    may be delivered once LetGo has come. `is_new`: the job is being added, and any node will do.
    """

    copy: JobCopy
    is_new: bool


@dataclass(frozen=True, slots=True)
class Declined:
    """Refusal of the sender to store that job."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """Confirmation that the sender holds a lent job, in the sense of GotJob. Answered with LetGo or TookBack."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class LetGo:
    """The sender will not deliver that job: the receiver may. Answered with Released."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Released:
    """Confirmation that LetGo has arrived: its sender may forget the job."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class TookBack:
    """The sender keeps the job: the receiver must drop it and never deliver it."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """The job is in another queue after so many `moves`, as a dead letter (`death`) or back from there.

    A node that knows of more moves answers with a Moved of its own.
    """

    job_id: bytes
    queue: bytes
    death: Death | None
    nacks: int
    deliveries: int
    moves: int = 0


@dataclass(frozen=True, slots=True)
class LeftJob:
    """The sender no longer holds these jobs, and nobody has to wait for its acknowledgement of them."""

    job_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """End of the acknowledgements that the receiver missed while it was down, as far as the sender knows them."""


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """Request to pause the queue like this from now on."""

    queue: bytes
    pause: int


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Request to delete the queue's jobs."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class FindKey:
    """Question whether there is a job with this client's own id (ADDJOB ID). The sender would add it as `job_id`."""

    key: bytes
    job_id: bytes


@dataclass(frozen=True, slots=True)
class FoundKey:
    """Answer to FindKey for `job_id`: the id of the job with that key, b"" = none is known to the sender.

    `is_pending`: that job is being added and may yet be refused.
    """

    job_id: bytes
    known_id: bytes
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class WatchJob:
    """The sender's clients wait for the end of this job. Answered with JobEnded, at once if the job is not known."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class JobEnded:
    """End of a watched job: `acked`, `deleted`, `expired`, or `unknown` to the sender."""

    job_id: bytes
    end: bytes


JobMessage = (
    ReplJob
    | GotJob
    | Owners
    | Notice
    | SetAck
    | GotAck
    | DelJob
    | NeedJobs
    | YourJobs
    | TookJobs
    | LendJob
    | Declined
    | Stored
    | LetGo
    | Released
    | TookBack
    | Moved
    | LeftJob
    | CaughtUp
    | PauseQueue
    | DeleteQueue
    | FindKey
    | FoundKey
    | WatchJob
    | JobEnded
    | NeedNothing
    | GaveUp
)
