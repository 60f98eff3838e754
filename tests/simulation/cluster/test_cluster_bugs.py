"""Bugs planted in the nodes of a cluster are seen: a harness that finds none proves nothing."""

import os

import pytest

from tests.simulation.cluster.planted import BUGS, RARE, SEEN_BY
from tests.simulation.cluster.world import run
from tests.simulation.planted import CAN_BE_PLANTED, WHY_NOT

pytestmark = pytest.mark.skipif(not CAN_BE_PLANTED, reason=WHY_NOT)

QUICK = ("ack-before-n-copies", "deljob-before-gotack", "deljob-on-broken-link", "acks-not-logged", "delay-forgotten")
RUNS_MAX = 200
SEARCHES = "SEARCH" in os.environ


@pytest.mark.parametrize("bug", [bug if bug in QUICK else pytest.param(bug, marks=pytest.mark.long) for bug in SEEN_BY])
@pytest.mark.timeout(300)
def test_a_planted_bug_is_seen_by_the_seed_that_is_known_to(bug: str) -> None:
    with BUGS[bug]():
        assert run(SEEN_BY[bug]).violations


def test_every_planted_bug_is_seen_by_the_first_runs() -> None:
    assert SEEN_BY.keys() == BUGS.keys()
    assert max(seed for bug, seed in SEEN_BY.items() if bug not in RARE) < RUNS_MAX


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SEARCHES, reason="it takes minutes for each: SEARCH=1 does it, as does make prove")
@pytest.mark.parametrize("bug", sorted(BUGS.keys() - RARE))
def test_every_planted_bug_is_seen_by_the_first_runs_again(bug: str) -> None:
    with BUGS[bug]():
        seen_by = next((seed for seed in range(RUNS_MAX) if run(seed).violations), None)
    print(f"\n{bug}: first seen by seed {seen_by}")
    assert seen_by is not None
