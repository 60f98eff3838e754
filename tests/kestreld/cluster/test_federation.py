"""What a node asks others for, and what it remembers of who has asked."""

from itertools import pairwise

import pytest

from kestreld.cluster.federation import (
    ALL_EVERY_MS,
    ALL_EVERY_MS_MAX,
    ASKED_FOR_MAX,
    INTEREST_MS,
    PERIOD_MS_MIN,
    SOURCE_MS,
    SOURCES_EVERY_MS,
    SOURCES_EVERY_MS_MAX,
    Imports,
    Interest,
    to_give,
)

A, B, C = (digit * 40 for digit in (b"a", b"b", b"c"))


def times_asked(imports: Imports, until_ms: int) -> list[int]:
    return [now_ms for now_ms in range(0, until_ms, 5) if imports.ask_all(now_ms)]


def test_all_are_asked_at_once_and_then_less_and_less_often() -> None:
    asked = times_asked(Imports(), 200_000)
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert asked[0] == 0
    assert waits[:3] == [ALL_EVERY_MS, 2 * ALL_EVERY_MS, 4 * ALL_EVERY_MS]
    assert waits[-1] == ALL_EVERY_MS_MAX


def test_a_new_source_has_all_asked_more_often_again() -> None:
    imports = Imports()
    times_asked(imports, 60_000)
    imports.came(A, 1, 60_000)
    assert imports.ask_all(100_000)
    assert imports.ask_all(100_000 + ALL_EVERY_MS)


def test_sources_are_asked_often_while_they_give_and_less_often_when_they_do_not() -> None:
    imports = Imports()
    assert imports.ask_sources(0, is_just_empty=True) == 0, "there is none"
    imports.came(A, 1, 0)
    asked = [now_ms for now_ms in range(1, SOURCE_MS) if imports.ask_sources(now_ms, is_just_empty=False)]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert waits[:2] == [SOURCES_EVERY_MS, 2 * SOURCES_EVERY_MS]
    assert max(waits) <= SOURCES_EVERY_MS_MAX
    assert imports.ask_sources(SOURCE_MS, is_just_empty=True) == 0, "it has given none for too long"


def test_a_queue_that_has_just_become_empty_does_not_wait() -> None:
    imports = Imports()
    imports.came(A, 1, 0)
    assert imports.ask_sources(1, is_just_empty=False)
    assert not imports.ask_sources(2, is_just_empty=False)
    assert imports.ask_sources(2, is_just_empty=True)


@pytest.mark.parametrize(("jobs", "sources", "count"), [(1, [A], 5), (40, [A, B], 100), (100_000, [A], ASKED_FOR_MAX)])
def test_as_many_jobs_are_asked_for_as_come_in_a_second_within_limits(
    jobs: int, sources: list[bytes], count: int
) -> None:
    imports = Imports()
    for source in sources:
        imports.came(source, jobs, 1000)
    assert imports.ask_sources(1100, is_just_empty=False) == (count if jobs != 1 else 10)


def test_the_rate_is_that_of_the_last_seconds_and_ends_with_the_jobs() -> None:
    imports = Imports()
    assert imports.rate(0) == 0
    for now_ms in range(1000, 11_000, 10):
        imports.came(A, 1, now_ms)
    assert 95 <= imports.rate(11_000) <= 105
    assert imports.rate(11_000 + SOURCE_MS) == 0


@pytest.mark.parametrize(
    ("count", "waiting", "given"), [(1, 0, 0), (1, 1, 1), (5, 1, 1), (5, 9, 4), (5, 10, 5), (100, 1000, 100)]
)
def test_a_node_gives_what_it_is_asked_for_but_keeps_half_of_little(count: int, waiting: int, given: int) -> None:
    assert to_give(count, waiting) == given


def test_who_asked_is_given_jobs_in_turn() -> None:
    interest = Interest()
    for node in (A, B, C):
        interest.add(node, 2, 0)
    assert [interest.take(1, (A, B, C)) for _ in range(4)] == [A, B, C, A]
    assert interest.take(1, (A, C)) == C
    interest.remove(A)
    assert interest.take(1, (A, B)) == B


def test_nobody_is_given_more_than_it_has_asked_for() -> None:
    interest = Interest()
    interest.add(A, 2, 0)
    assert [interest.take(1, (A,)) for _ in range(3)] == [A, A, None]
    assert not interest


def test_who_cannot_be_reached_keeps_its_place() -> None:
    interest = Interest()
    interest.add(A, 1, 0)
    interest.add(B, 1, 0)
    assert interest.take(1, (B,)) == B
    assert interest.take(1, ()) is None
    assert interest.take(1, (A,)) == A


def test_interest_ends_unless_it_is_renewed() -> None:
    interest = Interest()
    interest.add(A, 1, 0)
    interest.add(B, 1, 0)
    interest.add(B, 1, 10)
    assert not interest.is_over(INTEREST_MS)
    assert interest.take(INTEREST_MS, (A, B)) == B
    assert interest.take(INTEREST_MS + 10, (A, B)) is None
    assert not interest


def test_interest_is_over_once_all_of_it_has_expired() -> None:
    interest = Interest()
    interest.add(A, 1, 0)
    interest.add(B, 1, 10)
    assert not interest.is_over(INTEREST_MS)
    assert interest.is_over(INTEREST_MS + 10)


def test_imports_are_forgotten_once_nobody_gives_and_all_may_be_asked_again() -> None:
    imports = Imports()
    assert imports.is_over(0)
    imports.ask_all(0)
    assert not imports.is_over(ALL_EVERY_MS - 1)
    imports.came(A, 1, 1000)
    assert not imports.is_over(999 + SOURCE_MS)
    assert imports.is_over(1000 + SOURCE_MS)


def test_several_jobs_that_come_at_once_are_a_rate_that_fits_in_the_shortest_period() -> None:
    imports = Imports()
    imports.came(A, 3, 1000)
    assert imports.rate(1000) == 3 * 1000 // PERIOD_MS_MIN


def test_the_number_of_tries_does_not_grow_without_bound() -> None:
    """Disque's shift overflows after 31 tries."""
    imports = Imports()
    now_ms = 0
    for _ in range(100):
        assert imports.ask_all(now_ms)
        now_ms += ALL_EVERY_MS_MAX
    assert imports.ask_all(now_ms)
    assert not imports.ask_all(now_ms + ALL_EVERY_MS_MAX - 1)
