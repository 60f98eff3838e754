"""Short scripts, one for each thing that happens to journals: what a client does, step by step, on a real server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.history import Request
from tests.simulation.host import STOP_US
from tests.simulation.plan import IMPORTED, LATE
from tests.simulation.requests import Change, be_present, lease, order, put, read, repair, undo, wipe

WORK, CHILD, OTHER, OTHER_CHILD = "work", "work+a", "tmp", "tmp+x"
HANG_UP: Final = "hang up"
STOP: Final = "stop"  # the server; nothing comes after it
FLIP: Final = "flip"  # a bit of the oldest item that is still on the disk


@dataclass(frozen=True, slots=True)
class Show:
    """The token of a lease, the first, second, ..., is shown."""

    which: int
    kind: Change
    ms: int = 0


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Another client asks this so many us after the next step has begun, and nobody waits for the answer."""

    us: int
    asked: list[Request]


# Ask all of it at once; show a token; another client; wait so many ms; hang up, stop, flip
Step = list[Request] | Show | Meanwhile | int | str
Changes = dict[str, object]


@dataclass(frozen=True, slots=True)
class Script:
    """`settings` are of all families, `own` of single queues: QueueConfig field -> value."""

    name: str
    steps: Callable[[Iterator[int]], Iterator[Step]]
    readers: tuple[str, ...] = (WORK,)
    settings: Changes = field(default_factory=dict)
    own: dict[str, Changes] = field(default_factory=dict)
    moves_to: dict[str, str] = field(default_factory=dict)
    stop_time_us: int = STOP_US
    has_times: bool = False


def _put(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers)]
    yield [put(WORK, numbers, 700), put(WORK, numbers, flags=7)]
    yield [put(WORK, numbers, 1400)]


def _done(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers) for _ in range(5)]
    yield [read(WORK)]
    yield [read(WORK, opens=True)]
    yield [read(WORK, closes=True, opens=True)]
    yield [read(WORK, aborts=True)]
    yield [read(WORK, opens=True)]
    yield HANG_UP
    yield [read(WORK), put(WORK, numbers)]


def _roll(numbers: Iterator[int]) -> Iterator[Step]:
    for _ in range(4):
        yield [put(WORK, numbers, 60), put(WORK, numbers)]
        yield [read(WORK)]
    yield 1100
    yield [read(WORK) for _ in range(4)]
    yield 1100


def _fanout(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers), put(WORK, numbers, 600)]
    yield [read(WORK), put(CHILD, numbers)]
    yield [put(WORK, numbers), read(CHILD, opens=True)]
    yield [read(CHILD, closes=True)]
    yield [read(CHILD)]


def _compact(numbers: Iterator[int]) -> Iterator[Step]:
    # The child holds on to its first item, and its parent goes on.
    yield [put(WORK, numbers, 60)]
    yield [read(CHILD, opens=True)]
    for _ in range(7):
        yield [put(WORK, numbers, 60), put(WORK, numbers, 60)]
        yield [read(WORK), read(WORK)]
    yield 1100
    yield [read(WORK), put(WORK, numbers)]
    yield 1100
    yield [read(CHILD, closes=True)]
    yield [put(WORK, numbers)]


def _delete(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(OTHER, numbers), put(OTHER, numbers, 60)]
    yield [wipe("delete", OTHER_CHILD)]
    yield [put(OTHER, numbers)]
    yield [wipe("delete", OTHER)]
    yield [put(OTHER, numbers)]
    yield [read(OTHER_CHILD), put(OTHER, numbers)]
    yield [wipe("delete", OTHER), wipe("delete", OTHER_CHILD)]
    yield [read(OTHER), put(OTHER, numbers)]


def _flush(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(OTHER, numbers), put(OTHER, numbers, 60), put(OTHER, numbers)]
    yield [read(OTHER, opens=True), wipe("flush", OTHER)]
    yield [put(OTHER, numbers)]
    yield [read(OTHER, aborts=True)]
    yield [wipe("flush", OTHER_CHILD), put(OTHER, numbers)]


def _undo(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(OTHER, numbers), put(OTHER, numbers, 60)]
    yield [wipe("flush", OTHER), put(OTHER, numbers)]
    yield [undo(OTHER)]
    yield 20
    yield [wipe("delete", OTHER)]
    yield [undo(OTHER)]
    yield 20
    yield [put(OTHER, numbers), read(OTHER)]


def _repair(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers, 60), put(WORK, numbers, 60)]
    yield [put(WORK, numbers, 60), read(CHILD)]
    yield FLIP
    yield [repair(WORK)]
    yield [put(WORK, numbers), read(WORK)]


def _lease(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers), put(WORK, numbers)]
    yield [lease(WORK, 3000), lease(CHILD, 2000)]
    yield [lease(WORK, 3)]
    yield Show(0, "extend", 3000)
    yield 10
    yield [lease(WORK, 3000)]
    yield Show(3, "give back")
    yield Show(1, "fail")
    yield [lease(WORK, 3000), put(WORK, numbers)]
    yield Show(0, "confirm")


def _first_lease(numbers: Iterator[int]) -> Iterator[Step]:
    # Of a journal without leases, at the beginning of a segment that nothing has had synced yet.
    yield [put(WORK, numbers, delay_ms=1000)]
    yield [put(WORK, numbers, 150), put(WORK, numbers, 150)]
    yield 20
    yield [lease(WORK, 3000)]
    yield [lease(WORK, 3000)]


def _lease_during_sync(numbers: Iterator[int]) -> Iterator[Step]:
    # Each put fills a segment, so that its sync is followed by a new one; the lease comes during the sync.
    yield [put(WORK, numbers, delay_ms=1000), put(WORK, numbers)]
    yield [lease(WORK, 3000)]
    for us in range(300, 2400, 300):
        yield [put(WORK, numbers)]
        yield Meanwhile(us, [lease(WORK, 3000)])
        yield [put(WORK, numbers, 300)]
        yield 5


def _absence(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers), put(WORK, numbers)]
    yield [be_present("a", 100), lease(WORK, 3000, by="a"), lease(CHILD, 3000, by="a.1")]
    yield HANG_UP
    yield 150
    yield [lease(WORK, 3000), put(WORK, numbers)]
    yield Show(2, "confirm")


def _move(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put("jobs", numbers, expiry_s=1), put("jobs", numbers, expiry_s=1), put("jobs", numbers)]
    yield 1500
    yield [order("flush_expired jobs")]
    for _ in range(3):
        yield [read("jobs", opens=True)]
        yield [read("jobs", aborts=True)]
    yield [read(LATE)]


def _import(numbers: Iterator[int]) -> Iterator[Step]:
    yield [read(IMPORTED), put(IMPORTED, numbers)]
    yield [read(IMPORTED + "+kid")]


def _stop(numbers: Iterator[int]) -> Iterator[Step]:
    yield [put(WORK, numbers), put(OTHER, numbers)]
    yield [read(WORK), put(OTHER, numbers)]
    yield STOP


TINY: Final[Changes] = {"max_journal_size_bytes": 300, "max_memory_size_bytes": 150}
SCRIPTS: Final = (
    Script("put", _put),
    Script("done", _done),
    Script("roll", _roll, settings=TINY),
    Script("fanout", _fanout, (WORK, CHILD)),
    Script("compact", _compact, (WORK, CHILD), {**TINY, "max_journal_overflow": 1}),
    Script("delete", _delete, (OTHER, OTHER_CHILD)),
    Script("flush", _flush, (OTHER, OTHER_CHILD), {**TINY, "trash_ms": 60_000}),
    Script("undo", _undo, (OTHER,), {"trash_ms": 60_000}),
    Script("repair", _repair, (WORK, CHILD), {"max_journal_size_bytes": 300}),
    Script(
        "move",
        _move,
        ("jobs", LATE),
        own={"jobs": {"move_expired_to": LATE, "max_retries": 2, "move_failed_to": LATE}},
        moves_to={"jobs": LATE},
    ),
    Script("lease", _lease, (WORK, CHILD), has_times=True),
    Script("lease and roll", _lease, (WORK, CHILD), TINY, has_times=True),
    Script("first lease", _first_lease, settings=TINY, has_times=True),
    Script("lease during a sync", _lease_during_sync, settings=TINY, has_times=True),
    Script("absence", _absence, (WORK, CHILD), own={WORK: {"retry_delays_ms": (3,)}}, has_times=True),
    Script("stop", _stop, (WORK, OTHER)),
    Script("stop in no time", _stop, (WORK, OTHER), stop_time_us=0),
    Script("import", _import, (IMPORTED, IMPORTED + "+kid")),
)
BY_NAME: Final = {script.name: script for script in SCRIPTS}
