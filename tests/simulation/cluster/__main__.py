"""Run the simulation of a cluster: one seed again with a trace, or many without.

python -m tests.simulation.cluster 1234               seed 1234, line by line
python -m tests.simulation.cluster --seeds 1000       seeds 0 to 999, on every core
python -m tests.simulation.cluster --plant tie-break --seeds 100      with a bug planted in the nodes
"""

import sys

from tests.simulation.__main__ import command
from tests.simulation.cluster.planted import BUGS
from tests.simulation.cluster.world import run

if __name__ == "__main__":
    sys.exit(command(__doc__, "tests.simulation.cluster", BUGS, run))
