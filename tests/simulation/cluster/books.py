"""What clients of a cluster asked, at which node, and what they were told.

Instants are on virtual time, in microseconds.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from kestreld.jobs.dead_letters import DEAD_SUFFIX
from tests.simulation.history import Life, Over

# What ends the jobs of one node, and what may queue a job again.
CLEARS: Final = frozenset({"reset", "reload", "flush"})  # all that a node has
CAUSES: Final = frozenset({"nack", "enqueue", "bury", "redrive"})
MOVES: Final = CAUSES | {"working", "dequeue"}


@dataclass(slots=True, eq=False)
class Act:
    """Something that was asked for at a node, of the jobs with these ids, of a queue, or with neither of all jobs.

    `count` is what was answered, -1 = nothing or an error: it may have been carried out or not; 0 = it was not.
    """

    kind: str
    host: str
    life: Life
    link: Over
    sent_us: int
    ids: tuple[bytes, ...] = ()
    queue: bytes = b""
    word: bytes = b""
    answered_us: int = -1
    served_us: int = -1  # the answer had left
    count: int = -1
    error: bytes = b""
    is_alone: bool = False  # the node knew no other one, such as after the loss of its disk
    is_broken_off: bool = False  # its client has not waited for the answer
    wait_ms: int = -1  # how long it may have to wait for its answer, -1 = not at all

    def latest_us(self) -> int:
        """By when it was carried out, if ever."""
        if self.answered_us >= 0:
            return self.answered_us
        return self.link.over_us if self.link.over_us is not None else 1 << 62

    @property
    def may_be_done(self) -> bool:
        """Whether it may have been carried out, whatever its count is; after MISCONF nobody knows."""
        return not self.error or self.error.startswith(b"MISCONF")

    def concerns(self, job: "Sent") -> bool:
        if self.ids:
            return not job.ids.keys().isdisjoint(self.ids)
        return not self.queue or self.queue in (job.queue, job.queue + DEAD_SUFFIX)


@dataclass(slots=True, eq=False)
class Try:
    """One ADDJOB. "timed out": enough nodes did not hold it in time, or it was gone; some may hold it."""

    act: Act
    replicate: int  # 0 = not said
    is_async: bool
    outcome: Literal["", "ok", "refused", "timed out"] = ""  # "" = unknown
    job_id: bytes = b""


@dataclass(slots=True, eq=False)
class Sent:
    """A job as ADDJOB was told of it, once, or with a `key` several times. `ids` are all that it is known by."""

    number: int
    queue: bytes
    body: bytes
    retry_s: int
    ttl_s: int
    delay_s: int
    retries: int
    key: bytes
    tries: list[Try] = field(default_factory=list)
    ids: dict[bytes, Try | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Handout:
    """A job that came to a client."""

    job: Sent
    job_id: bytes
    queue: bytes
    host: str
    served_us: int
    nacks: int = -1  # -1 = not asked for
    deliveries: int = -1


@dataclass(slots=True)
class Books:
    """All that clients know of a run."""

    jobs: dict[int, Sent] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    handouts: list[Handout] = field(default_factory=list)
    by_id: dict[bytes, Sent] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
