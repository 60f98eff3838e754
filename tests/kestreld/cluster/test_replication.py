"""Whom an ADDJOB asks for copies, and whom else when they do not answer."""

from kestreld.cluster.replication import MORE_AFTER_MS, Replication

A, B, C, D = (letter * 40 for letter in (b"a", b"b", b"c", b"d"))
TAKERS = [(A, 1), (B, 1), (C, 1), (D, 1)]


def test_as_many_are_asked_as_are_wanted() -> None:
    replication = Replication(2, TAKERS, 0)
    assert replication.asked == [A, B]
    assert not replication.is_achieved


def test_it_is_achieved_when_so_many_hold_it() -> None:
    replication = Replication(2, TAKERS, 0)
    assert replication.confirm(B)
    assert not replication.is_achieved
    assert replication.confirm(A)
    assert replication.is_achieved


def test_a_confirmation_counts_once_and_only_of_who_was_asked() -> None:
    replication = Replication(2, TAKERS, 0)
    assert replication.confirm(A)
    assert not replication.confirm(A)
    assert not replication.confirm(D)
    assert not replication.is_achieved


def test_where_none_is_wanted_it_is_achieved_at_once() -> None:
    assert Replication(0, TAKERS, 0).is_achieved


def test_one_more_is_asked_each_time() -> None:
    replication = Replication(1, TAKERS, 0)
    assert replication.next_at_ms == MORE_AFTER_MS
    assert replication.ask_more(TAKERS, 50) == ([B], [])
    assert replication.ask_more(TAKERS, 100) == ([C], [])
    assert replication.next_at_ms == 100 + MORE_AFTER_MS
    assert replication.asked == [A, B, C]


def test_nobody_is_asked_twice_over_one_link() -> None:
    replication = Replication(4, TAKERS, 0)
    assert replication.ask_more(TAKERS, 50) == ([], [])


def test_who_has_not_confirmed_is_asked_again_over_a_new_link() -> None:
    replication = Replication(2, TAKERS[:2], 0)
    replication.confirm(A)
    assert replication.ask_more([(A, 2), (B, 2)], 50) == ([], [B])
    assert replication.ask_more([(A, 2), (B, 2)], 100) == ([], [])


def test_who_has_not_confirmed_is_asked_again_after_a_while() -> None:
    replication = Replication(2, TAKERS[:2], 0)
    replication.confirm(A)
    asked_at_ms = [at_ms for at_ms in range(50, 20_000, 50) if replication.ask_more(TAKERS[:2], at_ms) == ([], [B])]
    assert asked_at_ms == [2000, 6000, 11_000, 16_000]


def test_a_node_that_comes_later_is_asked() -> None:
    replication = Replication(2, TAKERS[:1], 0)
    assert replication.ask_more(TAKERS[:1], 50) == ([], [])
    assert replication.ask_more(TAKERS[:2], 100) == ([B], [])


def test_a_late_confirmation_of_one_more_counts() -> None:
    replication = Replication(2, TAKERS, 0)
    replication.confirm(A)
    replication.ask_more(TAKERS, 50)
    assert replication.confirm(C)
    assert replication.is_achieved
