"""Every disk that a crash may leave, at any change a short script makes: each is started from and judged."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.simulation import planted
from tests.simulation.exploring import SYNCED, a_crash_is_bad, every_crash, every_disagreement
from tests.simulation.scripts import BY_NAME

searching = pytest.mark.skipif("SEARCH" not in os.environ, reason="minutes more: SEARCH=1 does it, as does make prove")
SHORT = ("put", "done", "roll", "fanout", "import")


@pytest.mark.exhaustive("put")
@pytest.mark.parametrize("name", SHORT)
def test_after_a_crash_at_any_change_every_promise_holds(name: str) -> None:
    found = every_crash(BY_NAME[name], SYNCED)
    print(f"\n{name}: {found.tried} states")
    assert found.tried > 200
    assert found.bad == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync_ms", [SYNCED, pytest.param(None, marks=searching)], ids=["synced", "not synced"])
@pytest.mark.parametrize("name", BY_NAME)
def test_so_it_does_in_every_mode_and_every_script(name: str, sync_ms: int | None) -> None:
    found = every_crash(BY_NAME[name], sync_ms)
    print(f"\n{name}, sync_journal {sync_ms}: {found.tried} states")
    assert found.bad == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sync_ms"),
    [
        ("roll", SYNCED),
        *((name, None) for name in ("fanout", "roll", "delete", "repair")),
        pytest.param("compact", None, marks=searching),
    ],
)
@pytest.mark.timeout(900)
def test_verify_finds_bad_what_a_start_stops_and_nothing_else(name: str, sync_ms: int | None) -> None:
    found = every_disagreement(BY_NAME[name], sync_ms)
    print(f"\n{name}, sync_journal {sync_ms}: {found.tried} states")
    assert found.bad == []


@pytest.mark.skipif(not planted.CAN_BE_PLANTED, reason=planted.WHY_NOT)
@pytest.mark.parametrize(
    ("bug", "script", "sync_ms", "since"),
    [
        (planted.no_sync, "put", SYNCED, 12),
        (planted.no_folder_sync, "put", SYNCED, 12),
        (planted.answer_before_write, "put", SYNCED, 12),
        (planted.marker_leads, "put", SYNCED, 1),
        (planted.floor_not_synced, "roll", None, 34),
        (planted.stop_syncs_nothing, "stop", None, 20),
        (planted.segments_begun_over_others, "first lease", SYNCED, 28),
        (planted.leases_behind_a_roll, "lease during a sync", SYNCED, 35),
        pytest.param(planted.compacted_segment_not_synced, "compact", SYNCED, 1, marks=pytest.mark.long),
        pytest.param(planted.compaction_unlinks_first, "compact", SYNCED, 1, marks=pytest.mark.long),
    ],
)
def test_a_planted_bug_is_seen(
    bug: Callable[[], AbstractContextManager[Any]], script: str, sync_ms: int | None, since: int
) -> None:
    """`since`: what the bug is about comes late in the script, after hundreds of states that are sound."""
    with bug():
        assert a_crash_is_bad(BY_NAME[script], sync_ms, since)
