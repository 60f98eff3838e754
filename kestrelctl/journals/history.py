"""Number of items of a queue over time, and the items put, taken, dropped and leased per step, from its journal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.journals.events import Begun, Came, Event, RunningLeases, child_of, events
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.journals.times import written_instant
from kestrelctl.journals.working import WORK_COLUMNS, Happened, Worked, happened
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell
from kestreld.journal.records import PUT_HEADER_BYTES, Done, Reason

COLUMNS: Final = [
    "time",
    "items",
    "bytes",
    "put_items",
    "taken_items",
    "expired_items",
    "discarded_items",
    "moved_items",
    "flushed_items",
]
POINTS: Final = 60
POINTS_MAX: Final = 100_000
STEPS_MS: Final = tuple(
    count * unit_ms
    for unit_ms, counts in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 30, 90, 365)),
    )
    for count in counts
)
BARS: Final = "▁▂▃▄▅▆▇█"
_NAMES: Final = {
    Reason.GOT: "taken_items",
    Reason.CONFIRMED: "taken_items",
    Reason.EXPIRED: "expired_items",
    Reason.MOVED: "moved_items",
    Reason.DISCARDED: "discarded_items",
    Reason.FLUSHED: "flushed_items",
}


@dataclass(slots=True)
class Point:
    """A step of time: the queue's items and bytes at its end, and the counts and leases within it."""

    at_ms: int  # its end
    items: int
    data_bytes: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS[3:], 0))
    worked: Worked = field(default_factory=Worked)


@dataclass(slots=True)
class Change:
    """A queue's size from a moment on, and the count that rose: `name` "" = none; or what happened to a lease."""

    at_ms: int
    items: int
    data_bytes: int
    name: str = ""
    count: int = 0
    lease: Happened | None = None


def history(
    place: JournalLocation, queue: str, since_ms: int | None, until_ms: int, step_ms: int | None
) -> list[Point]:
    """A point for each step from `since_ms`, None = the start of the journal, to `until_ms`. Raises Failure."""
    with replaying(str(place)):
        changes = _changes(events(place.segments(queue), child_of(queue)))
        first = next(changes, None)
        if first is None:
            raise Failure(ExitCode.NEGATIVE, f"{place}: the journal of {queue} has no records of it")
        first_ms = first.at_ms if since_ms is None else max(since_ms, first.at_ms)
        if first_ms >= until_ms:
            reach = f"the journal goes back to {written_instant(first.at_ms)}"
            raise Failure(ExitCode.NEGATIVE, f"no records of {queue} in that period: {reach}")
        step_ms = step_ms or next((step for step in STEPS_MS if step * POINTS >= until_ms - first_ms), STEPS_MS[-1])
        if (until_ms - first_ms) // step_ms >= POINTS_MAX:
            raise Failure(ExitCode.USAGE, f"--step gives more than {POINTS_MAX} rows: use a longer one")
        return list(_points(first, changes, first_ms, until_ms, step_ms))


def _changes(found: Iterable[Event]) -> Iterator[Change]:
    """Changes in order. Times never decrease: an imported item counts at the time of its import."""
    at_ms = items = data_bytes = 0
    leases = RunningLeases()
    for event in found:
        at_ms = max(at_ms, event.at_ms)
        for lease in happened(leases, event):
            yield Change(at_ms, items, data_bytes, lease=lease)
        match event:
            case Begun():
                state = event.state
                items, data_bytes = (state.items, state.data_bytes) if state is not None else (0, 0)
                yield Change(at_ms, items, data_bytes)
            case Came():
                items += 1
                data_bytes += len(event.record) - PUT_HEADER_BYTES
                yield Change(at_ms, items, data_bytes, "put_items", 1)
            case Done():
                items -= event.items
                data_bytes -= event.data_bytes
                yield Change(at_ms, items, data_bytes, _NAMES[event.reason], event.items)


def _points(held: Change, changes: Iterator[Change], first_ms: int, until_ms: int, step_ms: int) -> Iterator[Point]:
    """Steps end at multiples of `step_ms`, the last one at `until_ms`."""
    coming = next(changes, None)
    while coming is not None and coming.at_ms < first_ms:
        held, coming = coming, next(changes, None)
    end_ms = first_ms
    while end_ms < until_ms:
        end_ms = min((end_ms // step_ms + 1) * step_ms, until_ms)
        point = Point(end_ms, 0, 0)
        while coming is not None and coming.at_ms < end_ms:
            if coming.name:
                point.counts[coming.name] += coming.count
            elif coming.lease is not None:
                point.worked.add(coming.lease)
            held, coming = coming, next(changes, None)
        point.items, point.data_bytes = max(held.items, 0), max(held.data_bytes, 0)
        yield point


def rows(points: Sequence[Point]) -> list[dict[str, Cell]]:
    return [
        {
            "at_ms": point.at_ms,
            "time": written_instant(point.at_ms),
            "items": point.items,
            "bytes": point.data_bytes,
            **point.counts,
            **point.worked.row(),
        }
        for point in points
    ]


def columns(points: Sequence[Point]) -> list[str]:
    """The columns of a table: those of leases only if there were any."""
    return [*COLUMNS, *WORK_COLUMNS] if any(point.worked.counts for point in points) else COLUMNS


def sparkline(points: Sequence[Point], width: int = 80) -> str:
    """The items over time in at most `width` characters, each the highest of its points."""
    count = min(width, len(points))
    heights = [
        max(point.items for point in points[at * len(points) // count : (at + 1) * len(points) // count])
        for at in range(count)
    ]
    top = max(heights)
    return "".join(BARS[-(-height * (len(BARS) - 1) // top) if top else 0] for height in heights)
