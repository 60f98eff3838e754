"""What nodes tell each other about jobs. Spans, not instants, except in `JobCopy`: each node has a clock of its own.

The names are Disque's, as far as it has the message.
"""

from dataclasses import dataclass

from kestreld.cluster.reactions import Word


@dataclass(frozen=True, slots=True)
class Death:
    """Why a job is in a dead-letter queue, which queue it comes from, and since when (on the sender's clock)."""

    origin: bytes
    reason: bytes
    dead_at_ms: int


@dataclass(frozen=True, slots=True)
class JobCopy:
    """A whole job. Instants are on the steady clock of the sender; receivers translate them to their own.

    `created` orders a queue, in units of 10^-6 ms; `due_at_ms` is when a delayed job is due, 0 = it is not delayed;
    `owners` are the ids of the nodes that may hold the job; `moves` is as `JobTerms` has it.
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
    """Hold a copy of this job. Answered with GotJob."""

    copy: JobCopy


@dataclass(frozen=True, slots=True)
class GotJob:
    """The sender holds a copy, in its log if it has one, and synced if replies wait for that."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Owners:
    """These nodes may hold the job, too. Nobody gets a copy by this, so a late one cannot bring a job back."""

    job_id: bytes
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """WILLQUEUE, QUEUED, WORKING or ENQUEUE of a job.

    `nacks` and `deliveries` are what the sender has counted since the last of the `moves`. `after_ms`: WORKING, the
    sender's requeue is that far away; QUEUED and ENQUEUE, the job will be queued after that time, 0 = now.
    """

    word: Word
    job_id: bytes
    nacks: int = 0
    deliveries: int = 0
    after_ms: int = 0
    moves: int = 0


@dataclass(frozen=True, slots=True)
class SetAck:
    """The job is acknowledged; the sender knows of these owners, () = it never held the job. Answered with GotAck."""

    job_id: bytes
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GotAck:
    """The sender will not deliver the job: `is_known` says whether it holds it, `owners` who else may."""

    job_id: bytes
    is_known: bool
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DelJob:
    """Drop these jobs, whatever their states."""

    job_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NeedJobs:
    """The sender wants up to `count` jobs of this queue. `is_waiting`: clients wait there, so a job that comes later is
    wanted, too; a count of 0 ends that.
    """

    queue: bytes
    count: int
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The sender adds this job no more, and has said so to its client: drop it, and let its key be used for another.

    `key` is as it is known (see `keys.key_in`), b"" = it has none.
    """

    job_id: bytes
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class NeedNothing:
    """Forget which queues' jobs the sender has wanted: it says anew what it wants now."""


@dataclass(frozen=True, slots=True)
class YourJobs:
    """Jobs for a node that wants them, but for those that are delivered at most once. Answered with TookJobs."""

    number: int  # of this message, among those of its sender
    copies: tuple[JobCopy, ...]


@dataclass(frozen=True, slots=True)
class TookJobs:
    """The jobs of that YourJobs have arrived."""

    number: int


@dataclass(frozen=True, slots=True)
class LendJob:
    """Store this job, which is delivered at most once (RETRY 0), and say so by Stored: it may be delivered once LetGo
    has come. `is_new`: it is being added, and any node will do.
    """

    copy: JobCopy
    is_new: bool


@dataclass(frozen=True, slots=True)
class Declined:
    """The sender does not store that job."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """The sender holds a job that it was lent, as GotJob means it: let it go, or take it back."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class LetGo:
    """The sender will not deliver that job: the receiver may. Answered with Released."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Released:
    """LetGo has arrived: its sender may forget the job."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class TookBack:
    """The sender keeps the job: the receiver must drop it and never deliver it."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """A job is in another queue, as a dead letter (`death`) or back from there, by so many moves.

    Answered by who knows of more of them with its own Moved.
    """

    job_id: bytes
    queue: bytes
    death: Death | None
    nacks: int
    deliveries: int
    moves: int = 0


@dataclass(frozen=True, slots=True)
class LeftJob:
    """The sender holds the job no more, and nobody has to wait for its acknowledgement."""

    job_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The receiver was down: it has been told of every acknowledgement that it missed and the sender knows."""


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """The queue is paused like this from now on."""

    queue: bytes
    pause: int


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete the queue's jobs."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class FindKey:
    """Is there a job with this client's own id (ADDJOB ID)? The sender would add it as `job_id`."""

    key: bytes
    job_id: bytes


@dataclass(frozen=True, slots=True)
class FoundKey:
    """The answer to FindKey for `job_id`: the id of the job with that key, b"" = none is known here.

    `is_pending`: that one is being added and may yet be refused.
    """

    job_id: bytes
    known_id: bytes
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class WatchJob:
    """The sender's clients wait for the end of this job. Answered with JobEnded where it is not known."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class JobEnded:
    """What has become of a watched job: `acked`, `deleted`, `expired`, or `unknown` to the sender."""

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
