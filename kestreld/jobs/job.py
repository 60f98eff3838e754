"""One job: the options and body that ADDJOB was given, its state, and its times.

Instants are on the steady clock of `Jobs`: milliseconds since the epoch as they were when the process started, counted
on from there whatever happens to the system clock.
"""

from typing import TYPE_CHECKING, Final

from kestreld.jobs.job_id import ttl_field
from kestreld.jobs.keys import key_in

# A cycle: a queue holds jobs, and their terms name the queue.
if TYPE_CHECKING:
    from kestreld.jobs.job_queue import JobQueue

# States, as plain ints: commands compare them. A job of a lone node is only ever active, queued, delayed or gone.
WAIT_REPL: Final = 0  # added here, but not yet held by enough other nodes: in no log
ACTIVE: Final = 1  # with a worker that fetched it here
QUEUED: Final = 2
ACKED: Final = 3  # acknowledged, but other holders have yet to learn that: without its body
DELAYED: Final = 4  # waits for a time to be queued at; to clients it is active, too
# Jobs that are delivered at most once, on their way from one node to another:
BORROWED: Final = 5  # stored here, and not to be delivered before its giver has let go of it
LENT: Final = 6  # sent to another node, which may or may not have it
LET_GO: Final = 7  # left to another node, which has yet to learn that: without its body
# The states below are in no log.
COPY: Final = 8  # another node has queued it, or its worker: queued here should that node fail
GONE: Final = 9  # acknowledged, deleted or expired: skipped by whatever still refers to it

STATE_NAMES: Final = {b"wait-repl": WAIT_REPL, b"active": ACTIVE, b"queued": QUEUED, b"acked": ACKED}
# By state, for clients.
NAMES: Final = (
    b"wait-repl", b"active", b"queued", b"acked", b"active", b"wait-repl", b"active", b"acked", b"active", b"gone"
)  # fmt: skip
WITHOUT_QUEUE: Final = frozenset({ACKED, GONE, LET_GO})  # states in which a job does not count as one of its queue's
NEVER: Final = 0  # as `requeue_at_ms`
NOTICE_MS: Final = 500  # how long before it queues a job again a node tells the other holders
CTIME_BITS: Final = 18  # of a ctime, below its milliseconds: a million of these would take a longer number
CREATED_UNITS: Final = 1_000_000  # of Disque's ctime in a millisecond
_CTIME_MASK: Final = (1 << CTIME_BITS) - 1


def created_of(ctime: int) -> int:
    """Return a ctime in Disque's units."""
    return (ctime >> CTIME_BITS) * CREATED_UNITS + (ctime & _CTIME_MASK)


def ctime_of(created: int) -> int:
    """Return the ctime for one in Disque's units."""
    return created // CREATED_UNITS << CTIME_BITS | min(created % CREATED_UNITS, _CTIME_MASK)


class DeadLetter:
    """Reason for which a job is in a dead-letter queue; `origin` is the queue it was taken from."""

    __slots__ = ("dead_at_ms", "origin", "reason")

    def __init__(self, origin: bytes, reason: bytes, dead_at_ms: int) -> None:
        self.origin = origin
        self.reason = reason
        self.dead_at_ms = dead_at_ms


class JobTerms:
    """Options of ADDJOB, shared by all jobs that were added with the same ones.

    `retries_max` is how often the job may be put back before it goes to the dead-letter queue, -1 = no limit; `key` is
    the client's own id, b"" = none; `dead` is the origin of a job in a dead-letter queue. `owners` is the set of nodes
    that may hold the job, 0 = this one alone. `moves` is how often the job was moved to the dead letters and back, odd
    for a dead letter: of two holders the one that knows of more moves is right.
    """

    __slots__ = (
        "dead",
        "delay_s",
        "id_field",
        "key",
        "log_extras",
        "log_fields",
        "moves",
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
        owners: int = 0,
        moves: int = 0,
    ) -> None:
        self.queue = queue
        self.ttl_ms = ttl_ms
        self.retry_ms = retry_ms
        self.delay_s = delay_s
        self.retries_max = retries_max
        self.key = key
        self.dead = dead
        self.replicate = replicate
        self.id_field = ttl_field(ttl_ms // 1000, retry_ms // 1000)
        self.owners = owners
        self.moves = moves
        self.notice_ms = NOTICE_MS if owners and retry_ms else 0
        self.log_fields = self.log_extras = b""  # the common fields of all these jobs in a log
        self.queued_at_ms = -1  # jobs queued in that ms
        self.requeue_at_ms = NEVER  # are queued again then: one number object for all of them

    def with_owners(self, owners: int) -> "JobTerms":
        """Return these terms with other owners."""
        options = (self.ttl_ms, self.retry_ms, self.delay_s, self.retries_max)
        if not self.moves:
            return self.queue.terms_shared_with(options, self.replicate, owners, self.key)
        return JobTerms(self.queue, *options, self.key, self.dead, self.replicate, owners, self.moves)

    def in_queue(self, queue: "JobQueue", dead: DeadLetter | None, moves: int) -> "JobTerms":
        """Return the terms of a job that was moved to this queue, as a dead letter or back from there."""
        return JobTerms(
            queue, self.ttl_ms, self.retry_ms, self.delay_s, self.retries_max, self.key, dead, self.replicate,
            self.owners, moves,
        )  # fmt: skip

    def without_key(self) -> "JobTerms":
        """Return the terms of a job whose key was freed."""
        options = (self.ttl_ms, self.retry_ms, self.delay_s, self.retries_max)
        return JobTerms(self.queue, *options, b"", self.dead, self.replicate, self.owners, self.moves)

    @property
    def told_moves(self) -> int:
        """The number of moves, as far as a log has to record it, else 0.

        Moves of a job that only one node holds are never compared, and a dead letter is known to have one.
        """
        return self.moves if self.moves > 1 and self.owners else 0

    @property
    def known_key(self) -> bytes:
        """The key together with the queue that the job was added to, as `key_in` has it; b"" = none."""
        queue = self.queue.name if self.dead is None else self.dead.origin
        return key_in(queue, self.key) if self.key else b""

    def note_requeue(self, queued_at_ms: int, requeue_at_ms: int) -> None:
        """Remember the requeue time of all jobs that are queued in that ms."""
        self.queued_at_ms = queued_at_ms
        self.requeue_at_ms = requeue_at_ms

    def note_log_fields(self, fields: bytes, extras: bytes) -> None:
        """Remember the bytes that all these jobs have in common in a log."""
        self.log_fields, self.log_extras = fields, extras


class Job:
    """One job. There may be millions: a job has few attributes of its own, and shared ones are in `terms`.

    `ctime` is its creation in ms * 2**18 + n, which orders the jobs of a queue; `requeue_at_ms` is when it is queued
    (again), NEVER if it will not be; `wakes_at_ms` is for `Timers`. `deliveries` counts additional deliveries: how
    often it was queued again without a NACK.
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
        """The last four parameters are for jobs from a log; `segment` is the log's segment."""
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

    @property
    def is_announced(self) -> bool:
        """True if other holders are to be told before it is queued: it has been queued before."""
        return self.state != DELAYED or self.nacks > 0 or self.deliveries > 0

    def use_terms(self, terms: JobTerms) -> None:
        """Replace the terms: other nodes may hold the job, or it is in another queue."""
        self.terms = terms

    def logged(self, segment: int) -> None:
        """Note the segment of the log that has the job; it may be a later one."""
        self.segment = segment

    def drop_body(self) -> None:
        """Free the body of a job that is acknowledged or left to another node."""
        self.body = b""

    def come_back(self, state: int, requeue_at_ms: int, nacks: int, deliveries: int, segment: int) -> None:
        """Set the state, active or delayed, and counters that a log has in that segment."""
        self.state = state
        self.requeue_at_ms = requeue_at_ms
        self.nacks = nacks
        self.deliveries = deliveries
        self.segment = segment

    def next_requeue_at_ms(self, now_ms: int) -> int:
        """Return when the job is queued (again), NEVER if it will not be. Times that have passed are skipped."""
        at_ms, retry_ms = self.requeue_at_ms, self.terms.retry_ms
        if at_ms and at_ms <= now_ms and retry_ms:
            at_ms += ((now_ms - at_ms) // retry_ms + 1) * retry_ms
        return at_ms

    @property
    def created_at_ms(self) -> int:
        """Time of creation, ms."""
        return self.ctime >> CTIME_BITS

    @property
    def expires_at_ms(self) -> int:
        """Time at which the job expires, whatever its state, ms."""
        return (self.ctime >> CTIME_BITS) + self.terms.ttl_ms
