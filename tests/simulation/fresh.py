"""Run seeds that nobody has run before, in each simulation. What they find is told at the end and kept in .fresh-seeds.
It is no failure: a change is judged by seeds that are the same each time.

python -m tests.simulation.fresh                      from a seed on that is drawn
python -m tests.simulation.fresh --first 1234567      those of another run again
"""

import argparse
import os
import random
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Final

from tests.simulation import world
from tests.simulation.__main__ import Run, outcomes
from tests.simulation.cluster import world as cluster_world
from tests.simulation.jobs import world as job_world
from tests.simulation.plan import BOUND_FROM
from tests.simulation.world import Outcome

KEPT_IN: Final = Path(".fresh-seeds")
# The programs that repeat a seed, what runs one, and how many there are.
SIMULATIONS: Final[tuple[tuple[str, Run, int], ...]] = (
    ("tests.simulation", world.run, 300),
    ("tests.simulation.jobs", job_world.run, 100),
    ("tests.simulation.cluster", cluster_world.run, 750),
)


def outcome_of(run: Run, seed: int) -> Outcome:
    """Of a run, also of one that ends in an error of its own."""
    try:
        return run(seed)
    except Exception:  # noqa: BLE001
        return Outcome(seed, [traceback.format_exc()])


def keep(program: str, outcome: Outcome) -> str:
    """Write down what is wrong in a run; how to run it again."""
    again = f"python -m {program} {outcome.seed}"
    KEPT_IN.mkdir(exist_ok=True)
    path = KEPT_IN / f"{program}-{outcome.seed}"
    path.write_text("\n".join([f"again, with a trace: {again}", *outcome.violations, ""]))
    return again


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.fresh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--first", type=int, help="the first seed (drawn)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to run them in")
    parser.add_argument("--part", type=float, default=1.0, help="how many of the usual number of seeds (1.0 = all)")
    options = parser.parse_args()
    first = options.first if options.first is not None else random.randrange(10**6, 3 * BOUND_FROM)
    found: list[str] = []
    total = 0
    for program, run, count in SIMULATIONS:
        seeds = range(first, first + max(int(count * options.part), 1))
        total += len(seeds)
        print(f"{program}: fresh seeds {seeds[0]} to {seeds[-1]}", flush=True)
        for outcome in outcomes(partial(outcome_of, run), seeds, options.jobs):
            if outcome.violations:
                found.append(f"{keep(program, outcome)}: {outcome.violations[0].splitlines()[-1]}")
    if found:
        print(f"{len(found)} of {total} fresh seeds broke a promise. That fails nothing, and is to be looked into:")
        print("\n".join(f"    {one}" for one in found))
        print(f"    kept in {KEPT_IN}")
    else:
        print(f"{total} fresh seeds broke no promise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
