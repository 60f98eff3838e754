"""What clients asked, what they were told and when: all that the checker knows of a run.

Instants are on virtual time, in microseconds; `served_us` is when the server had sent the last byte of an answer. The
wall clock of the server, which may step, is worked out from `steps`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, Protocol

KILLED: Final = "killed"
POWER_CUT: Final = "power cut"
STOPPED: Final = "stopped"
START_WALL_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Mode:
    """How a family is kept: `sync_ms` None = left to the kernel, 0 = before the answer, else every so many ms."""

    journal: bool = True
    sync_ms: int | None = 0


@dataclass(slots=True, eq=False)
class Life:
    """A server process. `faulty_since` says from when on the disk had failed a family in it."""

    number: int
    ready_us: int
    modes: dict[str, Mode]
    ended_us: int = -1
    how: str = ""  # it ended
    faulty_since: dict[str, int] = field(default_factory=dict)
    was_last: bool = False  # the power was cut after it had stopped

    def lost(self, family: str) -> bool:
        """Whether the power was cut before all of a family was on disk."""
        return self.how == POWER_CUT or (self.was_last and family in self.faulty_since)


class Over(Protocol):
    """A connection: when the server had let go of it, None = it has not."""

    @property
    def over_us(self) -> int | None: ...


@dataclass(slots=True, eq=False)
class Connection:
    number: int
    life: Life
    link: Over

    def was_over(self, at_us: int) -> bool:
        return self.link.over_us is not None and self.link.over_us <= at_us


@dataclass(slots=True, eq=False)
class Put:
    """An item. `connection` None: it was there before the first start, imported.

    Number 0: a record in the data of an item, which a repair took for an item. It is opened and closed as others are.
    """

    number: int
    name: str
    data: bytes
    flags: int
    expiry_s: int  # as a client says it: so long from now; 0 = never
    sent_us: int
    connection: Connection | None
    answered_us: int = -1
    outcome: Literal["", "stored", "refused", "known"] = ""  # "" = unknown; "known": it, or one with the same key
    delay_ms: int = 0
    key: str = ""
    adds: bool = False

    @property
    def family(self) -> str:
        return self.name.partition("+")[0]


@dataclass(slots=True, eq=False)
class LeaseChange:
    """What somebody has shown a token for. `ms`: how long it is extended, or the item held back."""

    kind: Literal["confirm", "extend", "give back", "fail"]
    ms: int = 0
    says_why: bool = False  # of a failure: with the item's own reason
    connection: Connection | None = None
    sent_us: int = -1
    answered_us: int = -1
    outcome: Literal["", "done", "not found"] = ""  # "" = unknown

    def latest_us(self) -> int:
        """By when it was carried out, if ever."""
        if self.answered_us >= 0:
            return self.answered_us
        over_us = self.connection.link.over_us if self.connection is not None else None
        return 1 << 62 if over_us is None else over_us


@dataclass(slots=True, eq=False)
class Delivery:
    """An item handed to a client: for good, to look at, or open until it is closed or aborted."""

    put: Put
    reader: str
    connection: Connection
    kind: Literal["get", "open", "peek", "lease"]
    sent_us: int  # the request
    served_us: int
    ending: Literal["", "close", "abort"] = ""
    ending_sent_us: int = -1
    ending_answered_us: int = -1
    was_given_back: bool = False  # maybe before it was served: its client could not have ended it any more
    token: int = 0  # of a lease, which only `close` is an ending of
    lease_ms: int = 0
    deliveries: int = -1  # that it was said to have had before; -1 = nobody asked
    changes: list[LeaseChange] = field(default_factory=list)
    by: str = ""  # the name of whoever leased it

    @property
    def came_too_late(self) -> bool:
        """Nobody can tell from this when the client had it."""
        return self.was_given_back and self.served_us > self.ending_sent_us

    def confirmed_us(self) -> int:
        """When the client knew that the item was its own for good; -1 = never."""
        if self.kind == "get":
            return self.served_us
        return self.ending_answered_us if self.ending == "close" else -1

    def confirming_life(self) -> Life:
        """The server that was told so: of a lease, maybe a later one than gave it."""
        confirmed = [one for one in self.changes if one.kind == "confirm" and one.outcome == "done" and one.connection]
        connection = confirmed[0].connection if confirmed else None
        return (connection or self.connection).life


@dataclass(slots=True, eq=False)
class Request:
    """What was asked of a reader. `closes` names what it was to confirm, once that is known."""

    kind: str
    reader: str
    text: bytes
    sent_us: int = -1
    connection: Connection | None = None
    put: Put | None = None
    takes: bool = False  # it may bring an item,
    opens: bool = False  # which is then open
    closes: bool = False
    aborts: bool = False
    may_lose: bool = False  # unanswered, it may have taken or confirmed an item that nobody saw
    lease_ms: int = 0
    lease: Delivery | None = None  # whose token it shows,
    change: LeaseChange | None = None  # to do that
    cancel: "Cancel | None" = None
    forgery: "Forgery | None" = None
    told: Callable[[bytes], None] | None = None  # the answer, by which nothing else is to be known
    listed: "Listed | None" = None  # of a lease from a list, whose reader only the answer tells
    by: str = ""  # of a lease
    presence: "Presence | None" = None


@dataclass(slots=True, eq=False)
class Listed:
    """A lease from a list of queues. `readers` are in the order in which they are looked at, known once it is answered.

    `reader` is the one an item came from, "" = none had one.
    """

    takes_turns: bool
    wait_ms: int
    connection: Connection | None = None
    readers: tuple[str, ...] = ()
    reader: str = ""
    sent_us: int = -1
    served_us: int = -1


@dataclass(slots=True, eq=False)
class Presence:
    """A connection has said that a holder is there."""

    name: str
    absence_ms: int
    connection: Connection | None = None
    sent_us: int = -1
    answered_us: int = -1
    last_us: int = -1  # of the last answer on the connection: whether it lasted longer nobody knows


@dataclass(slots=True, eq=False)
class Wipe:
    """A flush or delete of a reader."""

    reader: str
    deletes: bool
    connection: Connection
    sent_us: int
    answered_us: int = -1


@dataclass(slots=True, eq=False)
class Cancel:
    """What is not due yet was to be dropped, by its key."""

    reader: str
    key: str
    connection: Connection | None = None
    sent_us: int = -1
    answered_us: int = -1
    outcome: Literal["", "done", "not found"] = ""


@dataclass(slots=True, eq=False)
class Forgery:
    """A token that nobody was given, and whether it was good."""

    reader: str
    token: int
    answered_us: int = -1
    was_good: bool = False


@dataclass(slots=True, eq=False)
class Reopening:
    """A repair that a client has asked for."""

    life: Life
    family: str
    asked_us: int


@dataclass(slots=True)
class History:
    lives: list[Life] = field(default_factory=list)
    puts: dict[int, Put] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    unanswered: list[Request] = field(default_factory=list)  # requests that may have brought an item to nobody
    wipes: list[Wipe] = field(default_factory=list)
    repairs: list[Reopening] = field(default_factory=list)
    # When readers were known to be there: the life, when that was asked and when it was answered
    touched: dict[str, list[tuple[Life, int, int]]] = field(default_factory=dict)
    steps: list[tuple[int, int]] = field(
        default_factory=lambda: [(0, START_WALL_MS)]
    )  # from when on, wall less virtual
    destroyed: set[Put] = field(default_factory=set)  # items that had a bit flipped
    damaged: set[str] = field(default_factory=set)  # families that had a bit flipped
    repaired: set[str] = field(default_factory=set)  # families repaired that a power cut may have taken more from
    unmarked: set[str] = field(default_factory=set)  # families a sync of which failed, and no note was made of it
    stopped: set[str] = field(default_factory=set)  # families that may have been stopped, and repaired
    from_inside: set[str] = field(default_factory=set)  # families that took a record inside an item for one of theirs
    begun: dict[str, list[Life]] = field(default_factory=dict)  # in which streams were made
    undone: set[str] = field(default_factory=set)  # readers to which what was wiped may have been put back
    leases: list[Delivery] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    forged: list[Forgery] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)  # that were answered
    presences: list[Presence] = field(default_factory=list)
    halts: list[tuple[int, int]] = field(default_factory=list)  # from when until when a server was stopped by SIGSTOP
    hurried: dict[tuple[str, Put], int] = field(default_factory=dict)  # what need not wait any more, and since when
    withdrawn: set[tuple[str, Put]] = field(default_factory=set)
    # Items that wait at the end, where, and why they have failed, as is said there
    reasons: list[tuple[str, Put, str]] = field(default_factory=list)
    sent_back: dict[Put, list[int]] = field(default_factory=dict)  # to where they had come from, and when each time
    problems: list[str] = field(default_factory=list)  # found on the way

    def steps_ahead_ms(self, from_us: int, until_us: int) -> int:
        """By how much the wall clock was set forward in that time, all in all."""
        return sum(
            max(after - before, 0)
            for (_, before), (at_us, after) in pairwise(self.steps)
            if from_us <= at_us <= until_us
        )

    def wall_ms(self, at_us: int) -> int:
        return at_us // 1000 + next(offset for since_us, offset in reversed(self.steps) if since_us <= at_us)

    def latest_wall_ms(self, from_us: int, until_us: int) -> int:
        """The highest that the wall clock showed in that time."""
        ends = [since_us - 1 for since_us, _ in self.steps if from_us < since_us <= until_us]
        return max(self.wall_ms(at_us) for at_us in (from_us, until_us, *ends))

    def earliest_wall_ms(self, from_us: int, until_us: int) -> int:
        starts = [since_us for since_us, _ in self.steps if from_us < since_us <= until_us]
        return min(self.wall_ms(at_us) for at_us in (from_us, *starts))
