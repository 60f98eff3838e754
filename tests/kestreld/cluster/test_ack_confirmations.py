"""Who has to know of an acknowledgement before a job may be forgotten. Sets of nodes are bits."""

import pytest

from kestreld.cluster.ack_confirmations import FIRST_RETRY_MS, RETRY_MS_MAX, TOLD_FIRST_MS, TOLD_MS_MAX, Ack

A, B, C, D = (1 << number for number in range(4))
OTHERS = B | C | D  # the other members, for A


def owned(owners: int) -> Ack:
    return Ack(A, owners, 0)


def dummy() -> Ack:
    return owned(0)


def test_all_owners_but_this_node_are_missing_at_first() -> None:
    assert owned(A | B | C).missing(OTHERS) == B | C


def test_nobody_is_missing_where_this_node_is_the_only_owner() -> None:
    assert not owned(A).missing(OTHERS)


def test_it_is_over_once_each_owner_has_said_that_it_knows() -> None:
    ack = owned(A | B | C)
    ack.confirm(B, A | B | C)
    assert ack.missing(OTHERS) == C
    ack.confirm(C, A | B | C)
    assert not ack.missing(OTHERS)


def test_an_owner_that_another_one_knows_of_is_missing_too() -> None:
    ack = owned(A | B)
    assert ack.confirm(B, A | B | D)
    assert ack.missing(OTHERS) == D


def test_owners_are_compared_as_sets_not_by_how_many_they_are() -> None:
    """Disque compares sizes: an importer that confirms stands for an owner that does not."""
    ack = owned(A | B)
    ack.confirm(C, A)
    assert ack.missing(OTHERS) == B


def test_who_did_not_have_the_job_and_got_it_since_is_told_again() -> None:
    ack = owned(A | B)
    ack.confirm(C, 0)
    ack.confirm(B, A | B | C)
    assert ack.missing(OTHERS) == C


def test_what_is_known_already_is_no_news() -> None:
    ack = owned(A | B)
    assert not ack.confirm(B, A | B)


def test_a_node_that_is_no_member_any_more_is_not_waited_for() -> None:
    assert owned(A | B | C).missing(C | D) == C


def test_an_owner_that_has_let_go_of_the_job_is_not_waited_for() -> None:
    ack = owned(A | B | C)
    ack.leave(C)
    assert ack.missing(OTHERS) == B
    assert ack.owners == A | B


def test_a_dummy_waits_for_all_members() -> None:
    ack = dummy()
    assert ack.missing(OTHERS) == B | C | D
    for node in (B, C, D):
        ack.confirm(node, 0)
    assert not ack.missing(OTHERS)


def test_a_dummy_does_not_wait_for_a_member_that_was_forgotten() -> None:
    ack = dummy()
    ack.confirm(B, 0)
    ack.confirm(C, 0)
    assert ack.missing(OTHERS) == D
    assert not ack.missing(B | C)


def test_a_dummy_that_learns_of_the_owners_waits_for_these_alone() -> None:
    ack = dummy()
    ack.confirm(C, C | D)
    assert ack.missing(OTHERS) == D


def test_it_is_told_at_once_and_then_less_and_less_often() -> None:
    ack = owned(A | B)
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


def test_nodes_do_not_repeat_it_in_step() -> None:
    ack = owned(A | B)
    ack.try_again(0, -37)
    assert ack.next_at_ms == FIRST_RETRY_MS - 37


@pytest.mark.parametrize("owners", [0, A | B])
def test_who_was_told_leaves_it_to_the_other_at_first(owners: int) -> None:
    ack = Ack(A, owners, 100, told_by=B)
    assert (ack.told_by, ack.next_at_ms) == (B, 100 + TOLD_FIRST_MS)


def test_who_was_told_leaves_it_to_the_other_for_a_while_if_that_is_up_and_then_no_longer() -> None:
    ack = Ack(A, A | B, 100, told_by=B)
    ack.leave_it(ack.next_at_ms)
    assert (ack.is_left, ack.next_at_ms) == (True, 100 + TOLD_FIRST_MS + TOLD_MS_MAX)


def test_what_a_log_says_is_told_soon_as_nobody_knows_who_was_collecting() -> None:
    ack = Ack(A, A | B, 100, told_by=0)
    assert (ack.told_by, ack.next_at_ms) == (0, 100 + TOLD_FIRST_MS)
