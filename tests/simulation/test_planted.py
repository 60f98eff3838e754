"""Bugs planted in the daemon are seen: a harness that finds none proves nothing."""

import pytest

from tests.simulation.planted import BUGS
from tests.simulation.world import run

SEEN_BY = {
    "no-sync": 0,
    "no-folder-sync": 8,
    "answer-before-write": 0,
    "open-item-lost": 2,
}
RUNS = range(100)
RUNS_MAX = 1000  # what `make test-all` runs


@pytest.mark.parametrize("bug", SEEN_BY)
def test_a_planted_bug_is_seen_by_a_seed_known_to_see_it(bug: str) -> None:
    with BUGS[bug]():
        assert run(SEEN_BY[bug]).violations != []
    assert run(SEEN_BY[bug]).violations == []


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
