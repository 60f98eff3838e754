"""Sorted item ids as ranges (first, last), the form in which DONE records and CHECKPOINTs store them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise

from kestreld.journal.records import Range, ReaderState


def ranges_of(ids: list[int]) -> list[Range]:
    """Ranges of at least one id; `ids` are in rising order."""
    first = last = ids[0]
    if ids[-1] - first + 1 == len(ids):
        return [(first, ids[-1])]
    made: list[Range] = []
    for one in ids[1:]:
        if one == last + 1:
            last = one
        else:
            made.append((first, last))
            first = last = one
    made.append((first, last))
    return made


def gaps(first: int, end: int, kept: list[int]) -> list[Range]:
    """Ranges of the ids from `first` up to but not including `end`, without `kept` (in order)."""
    inside = kept[bisect_left(kept, first) : bisect_left(kept, end)]
    return [(one + 1, next_one - 1) for one, next_one in pairwise([first - 1, *inside, end]) if next_one - one > 1]


def waiting_in(state: ReaderState) -> Callable[[int], bool]:
    """Return a function of an id that is True if the item is not done for a reader in this state."""
    firsts: list[int] = [first for first, _ in state.done]
    done: list[Range] = state.done

    def is_waiting(found: int) -> bool:
        if found < state.head:
            return False
        index = bisect_right(firsts, found) - 1
        return index < 0 or found > done[index][1]

    return is_waiting
