"""Item ids in order as ranges, first and last id each: what DONE records and CHECKPOINTs say of them."""

from bisect import bisect_left
from itertools import pairwise

from kestreld.journal.records import Range


def ranges_of(ids: list[int]) -> list[Range]:
    """Ids in rising order, at least one, as ranges."""
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
    """The ids from `first` up to but not including `end`, less `kept` (in order), as ranges."""
    inside = kept[bisect_left(kept, first) : bisect_left(kept, end)]
    return [(one + 1, next_one - 1) for one, next_one in pairwise([first - 1, *inside, end]) if next_one - one > 1]
