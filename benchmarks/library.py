"""`python -m benchmarks.library`: what a put and a get of an item cost on one thread, without a server.

Beside kestreld's library stand `queue.Queue`, and persist-queue and litequeue where they are installed.
"""

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from kestreld.library import ConcurrentBlockingQueue, PersistentQueue, SimpleBlockingQueue

ITEM: Final = b"x" * 64
BATCH: Final = 100

Operation = Callable[[], object]


@dataclass
class Row:
    """A queue at work: each call of `put` and `get` handles `batch` items."""

    name: str
    put: Operation
    get: Operation
    batch: int = 1
    items_max: int = 1 << 60  # of slow ones not more


@dataclass
class Cost:
    """Microseconds for an item: elapsed, and of the processor."""

    wall_us: float = float("inf")
    processor_us: float = float("inf")

    def measure(self, operation: Operation, calls: int, items: int) -> None:
        """The best of all measurements counts."""
        wall_ns, processor_ns = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(calls):
            operation()
        self.processor_us = min(self.processor_us, (time.process_time_ns() - processor_ns) / items / 1000)
        self.wall_us = min(self.wall_us, (time.perf_counter_ns() - wall_ns) / items / 1000)


def rows(folder: Path, durable: PersistentQueue) -> list[Row]:
    plain: queue.Queue[bytes] = queue.Queue()
    simple: SimpleBlockingQueue[bytes] = SimpleBlockingQueue()
    concurrent: ConcurrentBlockingQueue[bytes] = ConcurrentBlockingQueue()
    batch = [ITEM] * BATCH
    found = [
        Row("PersistentQueue", lambda: durable.add(ITEM), durable.remove),
        Row(
            f"PersistentQueue, {BATCH} at a time",
            lambda: durable.add_all(batch),
            lambda: durable.remove_all(BATCH),
            BATCH,
        ),
        Row("SimpleBlockingQueue (memory)", lambda: simple.put(ITEM), simple.poll),
        Row("ConcurrentBlockingQueue (memory)", lambda: concurrent.put(ITEM), concurrent.poll),
        Row("queue.Queue (memory)", lambda: plain.put(ITEM), plain.get_nowait),
    ]
    return found + peers(folder)


def peers(folder: Path) -> list[Row]:
    """Packages that do the like, as they come, but without a sync of each write where that can be said."""
    found = []
    if find_spec("persistqueue") is not None:
        persistqueue: Any = __import__("persistqueue")
        file_queue = persistqueue.Queue(str(folder / "persist-queue"))
        sqlite = persistqueue.SQLiteQueue(str(folder / "persist-queue-sqlite"), auto_commit=True)
        found.append(Row("persist-queue, files", lambda: file_queue.put(ITEM), file_queue.get_nowait, items_max=300))
        found.append(
            Row("persist-queue, SQLite", lambda: sqlite.put(ITEM), lambda: sqlite.get(block=False), items_max=300)
        )
    if find_spec("litequeue") is not None:
        litequeue: Any = __import__("litequeue")
        lite = litequeue.LiteQueue(str(folder / "litequeue.db"))
        found.append(Row("litequeue", lambda: lite.put(ITEM), lambda: lite.done(lite.pop().message_id), items_max=300))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.library", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (3)")
    parser.add_argument("--items", type=int, default=10_000, help="in each round (10,000)")
    parser.add_argument("--folder", type=Path, help="where journals lie meanwhile (default: the system's)")
    options = parser.parse_args()
    table = Table("queue", "put µs", "get µs", "put CPU µs", "get CPU µs")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        durable = PersistentQueue(f"{name}/spool", "work")
        durable.setup()
        measured = [(row, Cost(), Cost()) for row in rows(Path(name), durable)]
        for _ in range(options.rounds):
            for row, put, get in measured:
                items = max(min(options.items, row.items_max), row.batch)
                calls = items // row.batch
                put.measure(row.put, calls, calls * row.batch)
                get.measure(row.get, calls, calls * row.batch)
        durable.close()
    for row, put, get in measured:
        figures = (put.wall_us, get.wall_us, put.processor_us, get.processor_us)
        table.add_row(row.name, *[f"{figure:.2f}" for figure in figures])
    Console().print(table)
    for package in ("persistqueue", "litequeue"):
        if find_spec(package) is None:
            sys.stderr.write(
                f"benchmarks: {package} is left out: it is not installed (make bench-report installs it)\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
