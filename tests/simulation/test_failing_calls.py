"""The n-th call to the disk fails, for every n, kind of call, error and script: what was answered stays so."""

import pytest

from tests.simulation.exploring import FAILURES, MODES, SYNCED, every_failure, failures
from tests.simulation.scripts import BY_NAME


@pytest.mark.exhaustive("put", "done", "fanout", "stop")
@pytest.mark.parametrize("name", BY_NAME)
def test_after_any_call_that_fails_every_promise_holds(name: str) -> None:
    found = [every_failure(BY_NAME[name], SYNCED, "EIO", kind) for kind in failures("EIO")]
    assert sum(one.tried for one in found) > 50
    assert [bad for one in found for bad in one.bad] == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("name", BY_NAME)
def test_so_it_does_with_every_error_in_every_mode(name: str, error: str) -> None:
    found = [every_failure(BY_NAME[name], sync_ms, error, kind) for sync_ms in MODES for kind in failures(error)]
    print(f"\n{name}, {error}: {sum(one.tried for one in found)} ways to go on")
    assert [bad for one in found for bad in one.bad] == []
