"""One ADDJOB on its way to several nodes."""

from kestreld.cluster.replication import MORE_AFTER_MS, Replication

A, B, C, D = (digit * 40 for digit in (b"a", b"b", b"c", b"d"))


def test_it_is_achieved_once_as_many_others_as_are_wanted_have_confirmed() -> None:
    one = Replication(2, [A, B, C, D], 0)
    assert one.asked == [A, B]
    assert one.confirm(A)
    assert not one.is_achieved
    assert not one.confirm(A)
    assert one.confirm(B)
    assert one.is_achieved


def test_who_was_not_asked_does_not_count() -> None:
    one = Replication(1, [A], 0)
    assert not one.confirm(B)
    assert not one.is_achieved


def test_one_more_node_is_asked_every_fifty_milliseconds_and_all_learn_of_it() -> None:
    one = Replication(2, [A, B, C, D], 1000)
    one.confirm(B)
    assert one.next_at_ms == 1000 + MORE_AFTER_MS
    assert one.ask_more(1050, [A, B, C, D]) == [C, B, A]
    assert one.next_at_ms == 1100
    assert one.ask_more(1100, [A, B, C, D]) == [D, C, B, A]


def test_nodes_that_have_gone_are_passed_over() -> None:
    one = Replication(1, [A, B, C], 0)
    assert one.ask_more(50, [C]) == [C]
    assert one.confirm(C)
    assert one.is_achieved


def test_with_nobody_left_to_ask_those_without_an_answer_are_asked_again() -> None:
    one = Replication(2, [A, B], 0)
    one.confirm(A)
    assert one.ask_more(50, [A, B]) == [B]
    assert one.ask_more(100, [A]) == []
    assert one.ask_more(150, [A, B]) == [B]


def test_without_wanted_copies_it_is_achieved_at_once() -> None:
    assert Replication(0, [A], 0).is_achieved
