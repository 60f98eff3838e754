"""What was measured, as JSON: one file for each part of the benchmarks."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.errors import Unusable
from benchmarks.load import LoadResult
from benchmarks.machine import Machine

RESULTS: Final = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one server."""

    server: str
    row: str  # what was done
    at: int  # how many queues, items or connections; 0 where nothing grows
    round: int
    result: LoadResult


@dataclass(frozen=True, slots=True)
class Backlog:
    """A server with many items in one queue, stopped, started, killed and started."""

    server: str
    items: int
    round: int
    empty_bytes: int  # memory of its processes without an item
    full_bytes: int
    stopped_ms: float  # from its start to its first item, after SIGTERM
    killed_ms: float  # the same after kill -9
    faults: int  # items lost, damaged or doubled by then


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements of one part."""

    machine: Machine
    rounds: int
    seconds: float  # of one measurement
    runs: list[Run]
    backlogs: list[Backlog]
    load_tests: list[dict[str, Any]]  # as `kestrelctl bench --json` printed them

    @property
    def faults(self) -> int:
        return (
            sum(run.result.faults for run in self.runs)
            + sum(backlog.faults for backlog in self.backlogs)
            + sum(not test["verdict"]["good"] for test in self.load_tests)
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """The rounds of one server in one row. The best of each figure: what else runs on a machine only adds."""

    cpu_us: float
    cpu_us_median: float
    ops_s: float
    p50_us: float
    p99_us: float
    p99_9_us: float
    faults: int


def cell_of(runs: Sequence[Run]) -> Cell:
    results = [run.result for run in runs]
    return Cell(
        cpu_us=min(result.server_cpu_us_op for result in results),
        cpu_us_median=median(result.server_cpu_us_op for result in results),
        ops_s=max(result.ops_s for result in results),
        p50_us=min(result.p50_us for result in results),
        p99_us=min(result.p99_us for result in results),
        p99_9_us=min(result.p99_9_us for result in results),
        faults=sum(result.faults for result in results),
    )


def cells(runs: Sequence[Run]) -> dict[tuple[str, int, str], Cell]:
    """By row, at, and server, in the order of the runs."""
    gathered: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        gathered.setdefault((run.row, run.at, run.server), []).append(run)
    return {place: cell_of(found) for place, found in gathered.items()}


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(results), indent=1) + "\n")


def load(path: Path) -> Results:
    """Raises Unusable if there are none."""
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise Unusable(f"{path.name} is not there: run `make bench` first") from error
    return Results(
        machine=Machine(**stored["machine"]),
        rounds=stored["rounds"],
        seconds=stored["seconds"],
        runs=[Run(**{**run, "result": LoadResult(**run["result"])}) for run in stored["runs"]],
        backlogs=[Backlog(**backlog) for backlog in stored["backlogs"]],
        load_tests=stored["load_tests"],
    )
