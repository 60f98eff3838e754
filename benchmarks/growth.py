"""What an operation costs while queues, queued items or connections become more. A fresh server each time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare import measure
from benchmarks.load import Load
from benchmarks.results import Run
from benchmarks.servers import Program, running

ACTIVE = 64
ROW_SOME_QUEUES = "queues, 64 of them active"
ROW_ALL_QUEUES = "queues, all of them active"
ROW_ITEMS = "queued items"
ROW_CONNECTIONS = "connections, 64 of them active"


@dataclass(frozen=True, slots=True)
class Point:
    """One place on one curve."""

    row: str
    at: int
    load: Load
    others: int = 0  # further queues, with an item each


def points(*, quick: bool) -> list[Point]:
    queue_counts = [ACTIVE, 500] if quick else [ACTIVE, 1_000, 10_000]
    item_counts = [0, 1_000, 20_000] if quick else [0, 1_000, 10_000, 100_000, 1_000_000, 5_000_000]
    connection_counts = [ACTIVE, 500] if quick else [ACTIVE, 1_000, 10_000]
    on_some = Load(clients=ACTIVE, queues=ACTIVE)
    return [
        *(Point(ROW_SOME_QUEUES, count, on_some, others=count - ACTIVE) for count in queue_counts),
        *(Point(ROW_ALL_QUEUES, count, Load(clients=ACTIVE, queues=count)) for count in [1, *queue_counts]),
        *(Point(ROW_ITEMS, count, Load(clients=ACTIVE, fill=count)) for count in item_counts),
        *(Point(ROW_CONNECTIONS, count, Load(clients=ACTIVE, idle=count - ACTIVE)) for count in connection_counts),
    ]


def growth(
    programs: Sequence[Program], folder: Path, *, rounds: int, seconds: float, quick: bool, done: Callable[[str], None]
) -> Iterator[Run]:
    """`done` hears what is being measured."""
    for round_number in range(rounds):
        for point in points(quick=quick):
            for program in programs:
                done(f"round {round_number + 1}: {point.at:,} {point.row}: {program.name}")
                with running([program], folder / "growing") as (server,):
                    if point.others:
                        others = Load(queues=point.others, fill=point.others, leave=True)
                        measure(server, point.row, others, "idle", round_number, 0)
                    if point.load.queues > 1:
                        # Making a queue costs more than using it, and is not what is measured.
                        made = Load(clients=ACTIVE, queues=point.load.queues, fill=point.load.queues)
                        measure(server, point.row, made, "active", round_number, 0)
                    yield measure(server, point.row, point.load, "active", round_number, seconds, at=point.at)
