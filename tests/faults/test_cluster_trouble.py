"""Seven nodes and ten minutes of trouble: nothing that was added is lost while at most two of its holders are down, and
what comes twice has a reason. CLUSTER_SECONDS says how long.
"""

import os
import time
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.faults.cluster_trouble import on_hosts, over_a_bad_network
from tests.support.namespaces import missing

SECONDS: Final = float(os.environ.get("CLUSTER_SECONDS", "30"))
MASS_KILLS: Final = max(int(SECONDS // 15), 2)
SEED: Final = os.environ.get("CLUSTER_SEED", "")
pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 300)]


def chance() -> Random:
    seed = SEED or str(Random().randrange(1 << 30))
    print(f"CLUSTER_SEED={seed}")
    return Random(seed)


def test_nodes_that_are_killed_stopped_and_cut_off_lose_nothing(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    with on_hosts(tmp_path, chance()) as (world, more, heal):
        world.run(SECONDS, more)
        assert world.end(heal) == []


def test_nodes_on_a_slow_network_whose_connections_break_lose_nothing(tmp_path: Path) -> None:
    with over_a_bad_network(tmp_path, chance()) as (world, more, heal):
        world.run(SECONDS, more)
        assert world.end(heal) == []


def test_all_nodes_killed_at_once_lose_nothing_and_forget_no_acknowledgement(tmp_path: Path) -> None:
    """With each answer on disk (appendfsync always)."""
    with over_a_bad_network(tmp_path, chance()) as (world, _, heal):
        for _ in range(MASS_KILLS):
            time.sleep(3)
            world.kill_all()
        assert world.end(heal) == []
        assert world.figures["delivered again after ACKJOB"] == 0
