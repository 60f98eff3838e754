"""Run the simulation: one seed again with a trace, or many without.

python -m tests.simulation 1234               seed 1234, line by line
python -m tests.simulation --seeds 10000      seeds 0 to 9999, on every core
python -m tests.simulation --plant no-sync --seeds 100      with a bug planted in the daemon
"""

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.pool import AsyncResult
from typing import Any

from tests.simulation.planted import BUGS
from tests.simulation.world import Outcome, run

CHUNK_SEEDS = 10
Run = Callable[..., Outcome]


def command(
    description: str | None, program: str, bugs: Mapping[str, Callable[[], AbstractContextManager[Any]]], run: Run
) -> int:
    """Run what the command line says; the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int, nargs="?", help="the one to run with a trace")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so many (no limit)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to run them in")
    parser.add_argument("--plant", choices=sorted(bugs), help="a bug to plant in the daemon")
    options = parser.parse_args()
    with bugs[options.plant]() if options.plant else contextlib.nullcontext():
        if options.seed is not None:
            return show(run(options.seed, print))
        seeds = range(options.first, options.first + options.seeds)
        return show_all(run, program, seeds, options.jobs, options.seconds)


def show(outcome: Outcome) -> int:
    """The end of one run."""
    for violation in outcome.violations:
        print(f"violation: {violation}")
    print(f"seed {outcome.seed}: {', '.join(f'{what} {count}' for what, count in outcome.figures.items())}")
    return int(bool(outcome.violations))


def show_all(run: Run, program: str, seeds: range, jobs: int, limit_s: float) -> int:
    """What failed, as it is found; then the sum of it all."""
    figures: Counter[str] = Counter()
    done = failed = 0
    started_s = time.monotonic()
    for outcome in outcomes(run, seeds, jobs, limit_s):
        done += 1
        figures.update(outcome.figures)
        if outcome.violations:
            failed += 1
            more = f" (and {len(outcome.violations) - 1} more)" if len(outcome.violations) > 1 else ""
            print(f"seed {outcome.seed}: {outcome.violations[0]}{more}")
            print(f"    again, with a trace: python -m {program} {outcome.seed}", flush=True)
    took_s = time.monotonic() - started_s
    print(f"seeds {done} from {seeds[0]} on, failed {failed}, {took_s:.0f} s, {done / took_s * 60:.0f} seeds a minute")
    print(", ".join(f"{what} {count:,}" for what, count in sorted(figures.items())))
    return int(bool(failed))


def outcomes(run: Run, seeds: range, jobs: int, limit_s: float = math.inf) -> Iterator[Outcome]:
    """As they end. No seed is begun after the limit."""
    until_s = time.monotonic() + limit_s
    if jobs <= 1:
        yield from map(run, itertools.takewhile(lambda _: time.monotonic() < until_s, seeds))
        return
    chunks = (seeds[start : start + CHUNK_SEEDS] for start in range(0, len(seeds), CHUNK_SEEDS))
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        running: deque[AsyncResult[list[Outcome]]] = deque()
        for chunk in itertools.takewhile(lambda _: time.monotonic() < until_s, chunks):
            running.append(pool.map_async(run, chunk, CHUNK_SEEDS))
            while len(running) > 2 * jobs:
                yield from running.popleft().get()
        while running:
            yield from running.popleft().get()


if __name__ == "__main__":
    sys.exit(command(__doc__, "tests.simulation", BUGS, run))
