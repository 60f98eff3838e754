"""Many items in one queue: the memory they take, and how long a start with them takes."""

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.compare import measure
from benchmarks.load import Load
from benchmarks.results import Backlog
from benchmarks.servers import Program, running

QUEUE: Final = "backlog"
ITEMS: Final = 1_000_000
MORE_ITEMS: Final = 5_000_000


def item_counts(program: Program, *, quick: bool) -> list[int]:
    if quick:
        return [0, 5_000]
    return [0, ITEMS, MORE_ITEMS] if program.is_ours else [ITEMS]


def backlog(
    programs: Sequence[Program], folder: Path, *, rounds: int, quick: bool, done: Callable[[str], None]
) -> Iterator[Backlog]:
    """`done` hears what is being measured."""
    for round_number in range(rounds):
        for program in programs:
            for items in item_counts(program, quick=quick):
                done(f"round {round_number + 1}: start with {items:,} items: {program.name}")
                yield _one(program, folder / "backlog", items, round_number)


def _one(program: Program, folder: Path, items: int, round_number: int) -> Backlog:
    items += 2  # the two that are taken to see that it runs
    with running([program], folder) as (server,):
        empty_bytes = server.resident_bytes
        filling = measure(server, "", Load(fill=items, leave=True), QUEUE, 0, 0)
        full_bytes = server.resident_bytes
        server.stop(signal.SIGTERM)
        server.start()
        stopped_ms = server.first_get(QUEUE, 0)
        server.stop(signal.SIGKILL)
        server.start()
        killed_ms = server.first_get(QUEUE, 1)
        rest = Load(work="drain", numbers=f"2-{items - 1}")
        draining = measure(server, "", rest, QUEUE, 0, 0)
    faults = filling.result.faults + draining.result.faults
    return Backlog(program.name, items - 2, round_number, empty_bytes, full_bytes, stopped_ms, killed_ms, faults)
