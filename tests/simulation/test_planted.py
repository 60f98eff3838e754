"""Bugs planted in the daemon are seen: a harness that finds none proves nothing."""

import os

import pytest

from tests.simulation.plan import BOUND_FROM, DECLARED_FROM, LISTED_FROM, PRESENT_FROM, REASONED_FROM, TIMED_FROM
from tests.simulation.planted import BUGS, CAN_BE_PLANTED, SEEN_BY, WHY_NOT
from tests.simulation.world import run

pytestmark = pytest.mark.skipif(not CAN_BE_PLANTED, reason=WHY_NOT)

IN_LEASES = {"lost-item-token-good", "undone-lease-believed"}  # seen by the tests of leases,
IN_CRASH_STATES = {"floor-unsynced", "stop-unsynced", "segment-over-unsynced", "lease-behind-roll"}  # and of that name
RARE = IN_LEASES | {"segment-over-unsynced", "lease-behind-roll", "failures-told-late"}  # few seeds see these
RUNS_MAX = 1000  # as many as `make test-all` runs without a bug
SEARCHES = "SEARCH" in os.environ


@pytest.mark.parametrize("bug", SEEN_BY)
def test_a_planted_bug_is_seen_by_the_seed_that_is_known_to(bug: str) -> None:
    with BUGS[bug]():
        assert run(SEEN_BY[bug]).violations


def test_every_planted_bug_is_seen_by_the_quick_tests() -> None:
    assert BUGS.keys() - SEEN_BY.keys() == IN_CRASH_STATES | IN_LEASES


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not SEARCHES, reason="it takes minutes for each: SEARCH=1 does it, as does make prove")
@pytest.mark.parametrize("bug", sorted(BUGS.keys() - RARE))
def test_every_planted_bug_is_seen_by_the_thousand_seeds(bug: str) -> None:
    starts = (0, TIMED_FROM, REASONED_FROM, DECLARED_FROM, BOUND_FROM, LISTED_FROM, PRESENT_FROM)
    first = max(start for start in starts if SEEN_BY.get(bug, 0) >= start)
    with BUGS[bug]():
        seen_by = next((seed for seed in range(first, first + RUNS_MAX) if run(seed).violations), None)
    print(f"\n{bug}: first seen by seed {seen_by}")
    assert seen_by is not None
