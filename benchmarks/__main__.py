"""`python -m benchmarks`: measure, print tables, and keep the figures as JSON. The Makefile has the common forms."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import cache, jobs
from benchmarks.backlog import backlog
from benchmarks.compare import QUEUES, compare
from benchmarks.errors import Unusable
from benchmarks.growth import growth
from benchmarks.load import SCRATCH, build
from benchmarks.load_tests import load_tests
from benchmarks.machine import Machine, describe
from benchmarks.results import RESULTS, Results, save
from benchmarks.servers import PEERS, Program, is_installed, kestreld, kestreld_cache, kestreld_jobs
from benchmarks.tables import (
    Table,
    backlog_table,
    cache_table,
    compare_tables,
    growth_tables,
    jobs_table,
    load_test_table,
)

PARTS: Final = ("compare", "load-tests", "backlog", "growth", "cache", "jobs")
QUICK_SECONDS: Final = 0.2
FAULTY: Final = 1

words = Console(stderr=True, highlight=False, soft_wrap=True)
tables = Console(highlight=False)


def main() -> int:
    """0 = measured and all intact, 1 = items or answers were wrong, 2 = it could not be measured."""
    options = _options()
    try:
        return _measure(options)
    except Unusable as unusable:
        words.print(f"benchmarks: {unusable}", markup=False)
        return 2
    except KeyboardInterrupt:
        words.print("benchmarks: stopped; parts that were complete are kept")
        return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kestreld beside other servers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure (default all): {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="so many of everything; the best of them count (3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (1.5)")
    parser.add_argument(
        "--quick", action="store_true", help="one short round with few items, kept apart in .benchmarks"
    )
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS), help="beside which servers")
    parser.add_argument(
        "--kestreld",
        action="append",
        metavar="NAME=COMMAND",
        help="the kestreld to measure; several stand beside each other (default: this one)",
    )
    parser.add_argument("--folder", type=Path, default=SCRATCH, help="where journals lie meanwhile")
    parser.add_argument("--results", type=Path, help="where the figures go (default: benchmarks/results)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.quick:
        options.rounds, options.seconds = 1, QUICK_SECONDS
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("it takes a round at least, and some time")
    options.results = options.results or (SCRATCH / "results" if options.quick else RESULTS)
    return options


def _measure(options: argparse.Namespace) -> int:
    build()
    commands = dict(given.partition("=")[::2] for given in options.kestreld or ["kestreld="])
    own = [kestreld(name, command) for name, command in commands.items()]
    peers = [peer for peer in PEERS if peer.name in options.peers.split(",")]
    missing = [peer for peer in peers if not is_installed(peer)]
    for peer in missing:
        words.print(f"benchmarks: {peer.name} is left out: it is not installed (apt-get install {peer.package})")
    programs = [*own, *(peer for peer in peers if peer not in missing)]
    caches = [kestreld_cache(name, command, cache.ROOMY_MIB) for name, command in commands.items()]
    with_jobs = [kestreld_jobs(name, command) for name, command in commands.items()]
    programs_of = {
        "compare": programs,
        "load-tests": own[:1],
        "backlog": [program for program in programs if program.protocol in QUEUES],
        "growth": own,
        "cache": caches + [program for program in programs if program.protocol == "memcached"],
        "jobs": with_jobs + [program for program in programs if program.protocol == "redis"],
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run", dir=options.folder))
    faults = 0
    try:
        machine = describe(programs, missing, folder)
        for part in options.parts or PARTS:
            results = _part(part, machine, programs_of[part], folder, options)
            save(results, options.results / f"{part}.json")
            for table in _tables(part, results):
                tables.print(_rich(table))
            faults += results.faults
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    words.print(f"benchmarks: the figures are in {options.results}")
    if faults:
        words.print(f"benchmarks: BAD: {faults} items or answers were wrong")
        return FAULTY
    return 0


def _part(
    part: str, machine: Machine, programs: Sequence[Program], folder: Path, options: argparse.Namespace
) -> Results:
    results = Results(machine, options.rounds, options.seconds, [], [], [])
    with words.status(part) as status:
        done: Callable[[str], None] = status.update if words.is_terminal else lambda what: None
        rounds, seconds, quick = options.rounds, options.seconds, options.quick
        match part:
            case "compare":
                runs = compare(programs, folder, rounds=rounds, seconds=seconds, quick=quick, done=done)
                results.runs.extend(runs)
            case "growth":
                results.runs.extend(growth(programs, folder, rounds=rounds, seconds=seconds, quick=quick, done=done))
            case "backlog":
                results.backlogs.extend(backlog(programs, folder, rounds=rounds, quick=quick, done=done))
            case "cache":
                results.runs.extend(
                    cache.compare(programs, folder, rounds=rounds, seconds=seconds, quick=quick, done=done)
                )
            case "jobs":
                results.runs.extend(jobs.compare(programs, folder, rounds=rounds, seconds=seconds, done=done))
            case "load-tests":
                results.load_tests.extend(load_tests(programs[0], folder, quick=quick, done=done))
    return results


def _tables(part: str, results: Results) -> list[Table]:
    match part:
        case "compare":
            return compare_tables(results)
        case "growth":
            return growth_tables(results)
        case "backlog":
            return [backlog_table(results)]
        case "cache":
            return [cache_table(results)]
        case "jobs":
            return [jobs_table(results)]
        case _:
            return [load_test_table(results)]


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.head):
        drawn.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
