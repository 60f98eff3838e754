"""Collections of very many items, none of whose steps is long."""

import sys

from kestreld.queues.sharded import DROPPED_AT_ONCE, PARTS, ShardedDict

MANY = 200_000
FEW = 128  # as many as are put in one go


def test_few_parts_grow_in_one_go() -> None:
    """Ids that follow on each other come to all parts alike, and of equal parts all would grow with the same few."""
    parted: ShardedDict[int, int] = ShardedDict()
    sizes: list[int] = []
    for first in range(1, MANY, FEW):
        for one in range(first, first + FEW):
            parted[one] = one
        before, sizes = sizes, [sys.getsizeof(part) for part in parted.parts()]
        if first > MANY // 10:
            grown = sum(size != earlier for size, earlier in zip(sizes, before, strict=True))
            assert grown <= PARTS // 8


def test_what_is_dropped_is_freed_in_small_steps() -> None:
    parted: ShardedDict[int, int] = ShardedDict()
    for one in range(MANY):
        parted[one] = one
    left, steps = len(parted), 0
    while parted.drop_some():
        assert 0 < left - len(parted) <= DROPPED_AT_ONCE
        left, steps = len(parted), steps + 1
    assert left == 0
    assert steps < 2 * MANY // DROPPED_AT_ONCE


def test_a_key_that_comes_again_counts_once() -> None:
    parted: ShardedDict[int, int] = ShardedDict()
    parted[-1] = 1
    parted[-1] = 2
    assert (len(parted), parted[-1], parted.pop(-1), parted.pop(-1), len(parted)) == (1, 2, 2, None, 0)
