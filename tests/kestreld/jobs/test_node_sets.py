"""Sets of nodes as numbers."""

import pytest

from kestreld.jobs.node_sets import NOBODY, NODES_MAX, NodeSets


@pytest.fixture
def sets() -> NodeSets:
    return NodeSets()


def test_each_node_has_a_bit_of_its_own_and_keeps_it(sets: NodeSets) -> None:
    bits = [sets.of(b"%d" % number) for number in range(100)]
    assert len(set(bits)) == 100
    assert [bit.bit_count() for bit in bits] == [1] * 100
    assert [sets.of(b"%d" % number) for number in range(100)] == bits


def test_a_set_tells_its_ids_each_time_in_the_same_order(sets: NodeSets) -> None:
    for node_id in (b"a", b"b", b"c"):
        sets.of(node_id)
    assert sets.ids(sets.of_all([b"c", b"a"])) == (b"a", b"c")
    assert sets.ids(NOBODY) == ()


def test_ids_beyond_the_maximum_are_in_no_set(sets: NodeSets) -> None:
    """A peer that names nodes without end does not fill the memory."""
    for number in range(NODES_MAX + 10):
        sets.of(b"%d" % number)
    assert sets.of(b"0")
    assert sets.of(b"one more") == NOBODY
    assert sets.ids(sets.of_all([b"one more", b"0"])) == (b"0",)
