"""How many items a queue held over time, and what came and went meanwhile, from its journal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.blocks import Cell
from kestrelctl.exit_codes import ExitCode, Failure
from kestrelctl.journals.events import Begun, Came, Event, Gone, child_of, events
from kestrelctl.journals.places import Place, replaying
from kestrelctl.journals.times import written_instant
from kestreld.journal.records import PUT_HEADER_BYTES, Reason

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
    """A step of time: what the queue held at its end, and at most, and what happened in it."""

    at_ms: int  # its end
    items: int
    data_bytes: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS[3:], 0))


@dataclass(slots=True)
class Depth:
    """What a queue holds, and how that changes. Times never go back: an item that was imported came when it was."""

    at_ms: int = 0
    items: int = 0
    data_bytes: int = 0


def history(place: Place, queue: str, since_ms: int | None, until_ms: int, step_ms: int | None) -> list[Point]:
    """A point for each step from `since_ms` (None: as far back as the journal goes) to `until_ms`. Raises Failure."""
    files = place.segments(queue)
    with replaying(str(place)):
        changes = list(_changes(events(files, child_of(queue))))
    if not changes:
        raise Failure(ExitCode.NO_INPUT, f"{place}: the journal of {queue} says nothing of it")
    begin_ms = changes[0][0].at_ms
    first_ms = begin_ms if since_ms is None else max(since_ms, begin_ms)
    if first_ms >= until_ms:
        reach = f"the journal goes back to {written_instant(begin_ms)}"
        raise Failure(ExitCode.NEGATIVE, f"nothing is known of {queue} in that time: {reach}")
    step_ms = step_ms or next((step for step in STEPS_MS if step * POINTS >= until_ms - first_ms), STEPS_MS[-1])
    if (until_ms - first_ms) // step_ms >= POINTS_MAX:
        raise Failure(ExitCode.USAGE, f"--step gives more than {POINTS_MAX} points: make it longer")
    return list(_points(changes, first_ms, until_ms, step_ms))


Change = tuple[Depth, str, int]  # what the queue holds from then on; which count rises, and by how much


def _changes(happened: Iterator[Event]) -> Iterator[Change]:
    depth = Depth()
    for event in happened:
        depth = Depth(max(depth.at_ms, event.at_ms), depth.items, depth.data_bytes)
        name, count = "", 0
        match event:
            case Begun():
                state = event.state
                depth.items, depth.data_bytes = (state.items, state.data_bytes) if state is not None else (0, 0)
            case Came():
                name, count = "put_items", 1
                depth.items += 1
                depth.data_bytes += len(event.record) - PUT_HEADER_BYTES
            case Gone():
                name, count = _NAMES[event.reason], event.items
                depth.items -= count
                depth.data_bytes -= event.data_bytes
        yield depth, name, count


def _points(changes: Sequence[Change], first_ms: int, until_ms: int, step_ms: int) -> Iterator[Point]:
    at = 0
    held = changes[0][0]
    while at < len(changes) and changes[at][0].at_ms < first_ms:
        held = changes[at][0]
        at += 1
    end_ms = (first_ms // step_ms + 1) * step_ms
    while True:
        point = Point(min(end_ms, until_ms), 0, 0)
        while at < len(changes) and changes[at][0].at_ms < point.at_ms:
            held, name, count = changes[at]
            if name:
                point.counts[name] += count
            at += 1
        point.items, point.data_bytes = max(held.items, 0), max(held.data_bytes, 0)
        yield point
        if end_ms >= until_ms:
            return
        end_ms += step_ms


def rows(points: Sequence[Point]) -> list[dict[str, Cell]]:
    return [
        {
            "at_ms": point.at_ms,
            "time": written_instant(point.at_ms),
            "items": point.items,
            "bytes": point.data_bytes,
            **point.counts,
        }
        for point in points
    ]


def sparkline(points: Sequence[Point], width: int = 80) -> str:
    """The items over time in at most so many characters, of several points the highest."""
    count = min(width, len(points))
    heights = [
        max(point.items for point in points[at * len(points) // count : (at + 1) * len(points) // count])
        for at in range(count)
    ]
    top = max(heights)
    return "".join(BARS[-(-height * (len(BARS) - 1) // top) if top else 0] for height in heights)
