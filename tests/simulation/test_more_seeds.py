"""The second half of the thousand seeds, in a file of its own so that another core takes it."""

import os

import pytest

from tests.simulation.world import run


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif("SEARCH" not in os.environ, reason="minutes more of the same: SEARCH=1 does it, as does make prove")
@pytest.mark.parametrize("first", range(550, 1000, 150))
def test_no_promise_is_broken(first: int) -> None:
    outcomes = [run(seed) for seed in range(first, first + 150)]
    assert [f"seed {one.seed}: {one.violations[0]}" for one in outcomes if one.violations] == []
