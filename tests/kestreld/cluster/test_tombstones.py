"""Jobs that are over are remembered for a while, and only so many."""

import time

import pytest

from kestreld.cluster import tombstones
from kestreld.cluster.tombstones import KEPT_MAX, KEPT_MS, Tombstones
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stones(clock: FakeClock) -> Tombstones:
    return Tombstones(clock)


def test_how_a_job_has_ended_is_known_for_ten_minutes(stones: Tombstones, clock: FakeClock) -> None:
    stones.add(b"a", "acked")
    clock.advance(KEPT_MS - 1)
    assert stones.has(b"a")
    assert stones.end_of(b"a") == "acked"
    clock.advance(1)
    assert not stones.has(b"a")
    assert stones.end_of(b"a") == ""


def test_of_jobs_that_never_were_nothing_is_known(stones: Tombstones) -> None:
    assert not stones.has(b"a")
    assert stones.end_of(b"a") == ""


def test_the_last_word_counts_and_its_time(stones: Tombstones, clock: FakeClock) -> None:
    stones.add(b"a", "deleted")
    clock.advance(KEPT_MS - 1)
    stones.add(b"a", "acked")
    clock.advance(KEPT_MS - 1)
    assert stones.end_of(b"a") == "acked"


def test_the_oldest_goes_where_there_are_too_many(stones: Tombstones, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "KEPT_MAX", 10)
    for number in range(15):
        stones.add(b"%d" % number, "acked")
    assert [number for number in range(15) if stones.has(b"%d" % number)] == list(range(5, 15))


def test_one_more_costs_no_more_where_there_are_as_many_as_are_kept(stones: Tombstones) -> None:
    def cpu_s_of(first: int) -> float:
        begin_s = time.process_time()
        for number in range(first, first + 20_000):
            stones.add(b"%d" % number, "acked")
        return time.process_time() - begin_s

    few_s = cpu_s_of(0)
    for number in range(20_000, KEPT_MAX):
        stones.add(b"%d" % number, "acked")
    # Looked for among those that were dropped before it, the oldest one took fifty times as long.
    assert cpu_s_of(KEPT_MAX) < 10 * few_s


def test_those_whose_time_is_over_go_as_others_come(stones: Tombstones, clock: FakeClock) -> None:
    for number in range(1000):
        stones.add(b"%d" % number, "acked")
    clock.advance(KEPT_MS)
    for number in range(1000):
        stones.add(b"new %d" % number, "acked")
    assert stones.count == 1000


def test_all_can_be_forgotten_at_once(stones: Tombstones) -> None:
    stones.add(b"a", "acked")
    stones.clear()
    assert not stones.has(b"a")
