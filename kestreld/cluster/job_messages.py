"""What nodes tell each other about jobs. Times are spans, not instants: each node has a clock of its own.

In brackets is what Disque calls the message.
"""

from dataclasses import dataclass

from kestreld.cluster.requeueing import Word


@dataclass(frozen=True, slots=True)
class Death:
    """Why a job is in a dead-letter queue, where it was taken from, and how long ago."""

    origin: bytes
    reason: bytes
    ago_ms: int


@dataclass(frozen=True, slots=True)
class JobCopy:
    """A whole job. `created` orders a queue, in units of 10^-6 ms; `due_in_ms` is when a delayed one is due, else 0."""

    job_id: bytes
    queue: bytes
    body: bytes
    created: int
    ttl_ms: int
    ttl_left_ms: int
    retry_ms: int
    delay_ms: int
    due_in_ms: int
    replicate: int
    nacks: int
    deliveries: int
    owners: tuple[bytes, ...]
    key: bytes = b""
    retries_max: int = -1
    death: Death | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Have a copy of this job (REPLJOB). It is confirmed with Kept, unless no answer is wanted."""

    copy: JobCopy
    is_answered: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """The job is here, and on disk as far as any job is (GOTJOB)."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class About:
    """WILLQUEUE, QUEUED, WORKING or ENQUEUE of a job. The counts are what the sender knows; `after_ms` is for ENQUEUE,
    and for a QUEUED that says when it will be.
    """

    word: Word
    job_id: bytes
    nacks: int = 0
    deliveries: int = 0
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Acked:
    """The job is acknowledged (SETACK); the sender knows of these owners. Answered with KnowsAck."""

    job_id: bytes
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KnowsAck:
    """The sender will not deliver it (GOTACK): `is_known` says whether it had it, and `owners` who else may."""

    job_id: bytes
    is_known: bool
    owners: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """These jobs are over: nobody has to know of them any more (DELJOB)."""

    job_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """Somebody wants so many jobs of this queue (NEEDJOBS), and waits for one; a count of 0 = nobody does any more."""

    queue: bytes
    count: int
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Give:
    """Jobs for who wants them (YOURJOBS). One that is delivered at most once is kept until LetGo comes."""

    copies: tuple[JobCopy, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A job that is delivered at most once has come, and is on disk as far as any job is: let it go."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class LetGo:
    """The sender does not have that job any more and will not deliver it: the receiver may."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class TookBack:
    """The sender has the job itself: the receiver is to forget it."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue is paused like this from now on (PAUSE)."""

    queue: bytes
    pause: int


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Its jobs are deleted."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """A job is in another queue, as a dead letter or as none any more."""

    job_id: bytes
    queue: bytes
    death: Death | None
    nacks: int
    deliveries: int


JobMessage = (
    Keep
    | Kept
    | About
    | Acked
    | KnowsAck
    | Forget
    | Need
    | Give
    | Stored
    | LetGo
    | TookBack
    | Pause
    | DeleteQueue
    | Moved
)
