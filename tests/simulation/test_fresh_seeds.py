"""Runs that nobody has seen before. `FIRST` says from which seed on, as `make test-all` does, which draws it."""

import os

import pytest

from tests.simulation.world import run

SEEDS = 300
FIRST = int(os.environ.get("FIRST", "1000"))  # those after the thousand that are kept


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 150))
def test_no_promise_is_broken(first: int) -> None:
    outcomes = [run(seed) for seed in range(first, first + 150)]
    assert [f"seed {one.seed}: {one.violations[0]}" for one in outcomes if one.violations] == []
