"""Bugs planted in the daemon are seen: a harness that finds none proves nothing."""

import pytest

from tests.simulation.planted import BUGS, CAN_BE_PLANTED, SEEN_BY, WHY_NOT
from tests.simulation.world import run

pytestmark = pytest.mark.skipif(not CAN_BE_PLANTED, reason=WHY_NOT)

RUNS = range(100)
RUNS_MAX = 1000  # what `make test-all` runs


@pytest.mark.parametrize("bug", SEEN_BY)
def test_a_planted_bug_is_seen_by_the_seed_that_is_known_to(bug: str) -> None:
    with BUGS[bug]():
        assert any(run(seed).violations for seed in (SEEN_BY[bug], *range(40)))


def test_every_planted_bug_is_seen_by_the_quick_tests() -> None:
    assert BUGS.keys() - SEEN_BY.keys() == {"floor-unsynced", "stop-unsynced"}  # these in test_crash_states.py


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_seen_by_the_thousand_seeds(bug: str) -> None:
    seen: list[int] = []
    with BUGS[bug]():
        for seed in range(RUNS_MAX):
            if seed in RUNS or not seen:
                seen += [seed] if run(seed).violations else []
    tried = max(len(RUNS), seen[0] + 1 if seen else RUNS_MAX)
    print(f"\n{bug}: seen by {len(seen)} of {tried} seeds, first by {seen[:1]}")
    assert seen
