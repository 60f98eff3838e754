"""Run the simulation of jobs: one seed again with a trace, or many without.

python -m tests.simulation.jobs 1234               seed 1234, line by line
python -m tests.simulation.jobs --seeds 1000       seeds 0 to 999, on every core
python -m tests.simulation.jobs --plant no-sync --seeds 100      with a bug planted in the server
"""

import sys

from tests.simulation.__main__ import command
from tests.simulation.jobs.planted import BUGS
from tests.simulation.jobs.world import run

if __name__ == "__main__":
    sys.exit(command(__doc__, "tests.simulation.jobs", BUGS, run))
