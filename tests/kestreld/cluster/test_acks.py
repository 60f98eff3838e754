"""Who has to know of an acknowledgement before a job may be forgotten."""

import pytest

from kestreld.cluster.acks import FIRST_RETRY_MS, RETRY_MS_MAX, TOLD_FIRST_MS, Ack

A, B, C, D = (digit * 40 for digit in (b"a", b"b", b"c", b"d"))
ALL = (B, C, D)  # the other members, for A


def owned(*owners: bytes) -> Ack:
    return Ack(A, owners, 0, is_dummy=False, was_told=False)


def test_all_owners_but_this_node_are_missing_at_first() -> None:
    assert owned(A, B, C).missing(ALL) == [B, C]


def test_nobody_is_missing_where_this_node_is_the_only_owner() -> None:
    assert owned(A).missing(ALL) == []


def test_it_is_over_once_each_owner_has_said_that_it_knows() -> None:
    ack = owned(A, B, C)
    ack.confirm(B, (A, B, C))
    assert ack.missing(ALL) == [C]
    ack.confirm(C, (A, B, C))
    assert ack.missing(ALL) == []


def test_an_owner_that_another_one_knows_of_is_missing_too() -> None:
    ack = owned(A, B)
    ack.confirm(B, (A, B, D))
    assert ack.missing(ALL) == [D]


def test_who_did_not_have_the_job_and_got_it_since_is_told_again() -> None:
    ack = owned(A, B)
    ack.confirm(C, ())
    ack.confirm(B, (A, B, C))
    assert ack.missing(ALL) == [C]


def test_a_node_that_is_no_member_any_more_is_not_waited_for() -> None:
    assert owned(A, B, C).missing((C, D)) == [C]


def test_a_dummy_waits_for_all_nodes() -> None:
    ack = Ack(A, (), 0, is_dummy=True, was_told=False)
    assert ack.missing(ALL) == [B, C, D]
    for node in ALL:
        ack.confirm(node, ())
    assert ack.missing(ALL) == []


def test_a_dummy_that_learns_of_the_owners_waits_for_them() -> None:
    ack = Ack(A, (), 0, is_dummy=True, was_told=False)
    ack.confirm(C, (C, D))
    assert ack.missing(ALL) == [D]


def test_it_is_told_at_once_and_then_less_and_less_often() -> None:
    ack = owned(A, B)
    assert ack.next_at_ms == 0
    waits = []
    now_ms = 0
    for _ in range(12):
        ack.try_again(now_ms, 0)
        waits.append(ack.next_at_ms - now_ms)
        now_ms = ack.next_at_ms
    assert waits[:4] == [FIRST_RETRY_MS, 2 * FIRST_RETRY_MS, 4 * FIRST_RETRY_MS, 8 * FIRST_RETRY_MS]
    assert waits[-1] == RETRY_MS_MAX
    assert waits == sorted(waits)


def test_a_node_that_returns_is_told_at_once() -> None:
    ack = owned(A, B)
    for _ in range(5):
        ack.try_again(0, 0)
    ack.hurry(500)
    assert ack.next_at_ms == 500


@pytest.mark.parametrize("is_dummy", [False, True])
def test_who_was_told_leaves_it_to_the_other_at_first(is_dummy: bool) -> None:
    assert Ack(A, (A, B), 100, is_dummy=is_dummy, was_told=True).next_at_ms == 100 + TOLD_FIRST_MS
