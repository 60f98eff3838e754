"""A job: what ADDJOB was told of it, and what has become of it since.

Instants are on the steady clock of `Jobs`: milliseconds since the epoch as they were when the process started, counted
on from there whatever happens to the system clock.
"""

from typing import TYPE_CHECKING, Final

from kestreld.jobs.job_id import ttl_field

# A queue holds jobs, and what jobs have in common says which queue is theirs.
if TYPE_CHECKING:
    from kestreld.jobs.job_queue import JobQueue

# States, as plain ints: commands compare them. WAIT_REPL and ACKED are those of a cluster: no job of a lone node is
# ever in them.
WAIT_REPL: Final = 0
ACTIVE: Final = 1  # with a worker
QUEUED: Final = 2
ACKED: Final = 3
DELAYED: Final = 4  # waits for a time to be queued at; to clients it is active, too
GONE: Final = 5  # acknowledged, deleted or expired: what still leads to it passes over it

STATE_NAMES: Final = {b"wait-repl": WAIT_REPL, b"active": ACTIVE, b"queued": QUEUED, b"acked": ACKED}
NAMES: Final = (b"wait-repl", b"active", b"queued", b"acked", b"active", b"gone")  # by state
NEVER: Final = 0  # as `requeue_at_ms`
NOTICE_MS: Final = 500
CTIME_BITS: Final = 18  # of a ctime, below its milliseconds: a million of these would take a longer number
CREATED_UNITS: Final = 1_000_000  # of Disque's ctime in a millisecond
_CTIME_MASK: Final = (1 << CTIME_BITS) - 1


def created_of(ctime: int) -> int:
    """A ctime as Disque has it."""
    return (ctime >> CTIME_BITS) * CREATED_UNITS + (ctime & _CTIME_MASK)


def ctime_of(created: int) -> int:
    """A ctime from one that Disque has."""
    return created // CREATED_UNITS << CTIME_BITS | min(created % CREATED_UNITS, _CTIME_MASK)


class DeadLetter:
    """Why a job is in a dead-letter queue: `origin` is the queue it was taken from."""

    __slots__ = ("dead_at_ms", "origin", "reason")

    def __init__(self, origin: bytes, reason: bytes, dead_at_ms: int) -> None:
        self.origin = origin
        self.reason = reason
        self.dead_at_ms = dead_at_ms


class JobTerms:
    """What ADDJOB was told beside the body. Shared by the jobs that were added with the same options.

    `retries_max` is how often the job may be put back before it goes to the dead-letter queue, -1 = any number of
    times; `key` the client's own id, b"" = none; `dead` says of a job in a dead-letter queue where it comes from;
    `owners` are the nodes that may have a copy, this one among them, () = this one alone.
    """

    __slots__ = (
        "dead",
        "delay_s",
        "id_field",
        "key",
        "log_fields",
        "notice_ms",
        "owners",
        "queue",
        "queued_at_ms",
        "replicate",
        "requeue_at_ms",
        "retries_max",
        "retry_ms",
        "ttl_ms",
    )

    def __init__(
        self,
        queue: "JobQueue",
        ttl_ms: int,
        retry_ms: int,
        delay_s: int = 0,
        retries_max: int = -1,
        key: bytes = b"",
        dead: DeadLetter | None = None,
        replicate: int = 1,
        owners: tuple[bytes, ...] = (),
    ) -> None:
        self.queue = queue
        self.ttl_ms = ttl_ms
        self.retry_ms = retry_ms
        self.delay_s = delay_s
        self.retries_max = retries_max
        self.key = key
        self.dead = dead
        self.replicate = replicate
        self.owners = owners
        self.notice_ms = NOTICE_MS if owners and retry_ms else 0  # its owners are told so long before it is queued
        self.id_field = ttl_field(ttl_ms // 1000, retry_ms // 1000)
        self.log_fields = b""  # what a log says of all these jobs
        self.queued_at_ms = -1  # what is queued in that ms
        self.requeue_at_ms = NEVER  # is queued again then: one number for all of it

    def note_requeue(self, queued_at_ms: int, requeue_at_ms: int) -> None:
        """What is queued in that ms is queued again then."""
        self.queued_at_ms = queued_at_ms
        self.requeue_at_ms = requeue_at_ms

    def note_log_fields(self, fields: bytes) -> None:
        """A log says that of all these jobs."""
        self.log_fields = fields


class Job:
    """One job. There may be millions: it has few attributes of its own, and what many have in common is in `terms`.

    `ctime` is its creation in ms * 2**18 + n, which orders the jobs of a queue; `requeue_at_ms` is when it is queued
    (again), NEVER where it will not be; `wakes_at_ms` is for `Timers`. `deliveries` are the additional ones: how often
    it was queued again without a NACK.
    """

    __slots__ = (
        "body",
        "ctime",
        "deliveries",
        "id",
        "nacks",
        "requeue_at_ms",
        "segment",
        "state",
        "terms",
        "wakes_at_ms",
    )

    def __init__(
        self,
        id: bytes,
        body: bytes,
        terms: JobTerms,
        ctime: int,
        requeue_at_ms: int,
        state: int = DELAYED,
        nacks: int = 0,
        deliveries: int = 0,
        segment: int = 0,
    ) -> None:
        """The last four are of a job that a log says, and `segment` is of that."""
        self.id = id
        self.body = body
        self.terms = terms
        self.ctime = ctime
        self.state = state
        self.requeue_at_ms = requeue_at_ms
        self.wakes_at_ms = NEVER
        self.nacks = nacks
        self.deliveries = deliveries
        self.segment = segment

    def logged(self, segment: int) -> None:
        """The log has it in that segment, or a later one."""
        self.segment = segment

    def come_back(self, state: int, requeue_at_ms: int, nacks: int, deliveries: int, segment: int) -> None:
        """Be what a log says has become of it, in that segment: active, or delayed."""
        self.state = state
        self.requeue_at_ms = requeue_at_ms
        self.nacks = nacks
        self.deliveries = deliveries
        self.segment = segment

    def next_requeue_at_ms(self, now_ms: int) -> int:
        """When it is queued (again), NEVER where it will not be: the times that have passed are passed over."""
        at_ms, retry_ms = self.requeue_at_ms, self.terms.retry_ms
        if at_ms and at_ms <= now_ms and retry_ms:
            at_ms += ((now_ms - at_ms) // retry_ms + 1) * retry_ms
        return at_ms

    @property
    def created_at_ms(self) -> int:
        """When it came."""
        return self.ctime >> CTIME_BITS

    @property
    def expires_at_ms(self) -> int:
        """When it goes, whatever has become of it."""
        return (self.ctime >> CTIME_BITS) + self.terms.ttl_ms
