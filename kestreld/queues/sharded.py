"""A dict and a heap for millions of items, in parts: none is grown, tidied or freed in one long step."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import log2
from typing import Final, Generic, TypeVar

K = TypeVar("K", int, bytes)
V = TypeVar("V")

PARTS: Final = 64  # each has 16,000 of a million keys: growing takes half a millisecond
_PLACES: Final = 4096
_MASK: Final = _PLACES - 1
# The largest part has nearly twice as many keys as the smallest: equal parts would all grow at the same time.
_PART_OF: Final = bytes(int(PARTS * log2(1 + place / _PLACES)) for place in range(_PLACES))
DROPPED_AT_ONCE: Final = 500  # each may be the last in a megabyte of free memory, which goes back to the kernel
TIDY_MIN: Final = 64
LOOKS: Final = 1000


class ShardedDict(Generic[K, V]):
    """A dict in PARTS parts, each created when it is first needed."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: dict[int, dict[K, V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        part = self._parts.get(_PART_OF[hash(key) & _MASK])
        return part is not None and key in part

    def __getitem__(self, key: K) -> V:
        return self._parts[_PART_OF[hash(key) & _MASK]][key]

    def get(self, key: K) -> V | None:
        part = self._parts.get(_PART_OF[hash(key) & _MASK])
        return None if part is None else part.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        part = self._parts.get(_PART_OF[hash(key) & _MASK])
        if part is None:
            part = self._parts[_PART_OF[hash(key) & _MASK]] = {}
        before = len(part)
        part[key] = value
        self._count += len(part) - before

    def pop(self, key: K) -> V | None:
        """Remove a key; returns its value, or None if it is not there."""
        part = self._parts.get(_PART_OF[hash(key) & _MASK])
        if part is None or key not in part:
            return None
        self._count -= 1
        return part.pop(key)

    def __iter__(self) -> Iterator[K]:
        for part in self.parts():
            yield from part

    def parts(self) -> Iterator[dict[K, V]]:
        """The parts, one at a time. Keys added meanwhile may be missing."""
        yield from list(self._parts.values())

    def drop_some(self) -> bool:
        """Free some of it; False if nothing is left."""
        if not self._parts:
            return False
        place, part = next(reversed(self._parts.items()))
        if len(part) <= DROPPED_AT_ONCE:
            self._count -= len(self._parts.pop(place))
            return True
        for _ in range(DROPPED_AT_ONCE):
            part.popitem()
        self._count -= DROPPED_AT_ONCE
        return True


class ShardedHeap:
    """A heap of numbers in parts; a number's key decides on its part.

    `counts` returns True for a number that is still of use, `of_use` how many are.
    """

    __slots__ = ("_counts", "_of_use", "_parts", "_tidy_at")

    def __init__(self, counts: Callable[[int], bool], of_use: Callable[[], int]) -> None:
        self._counts = counts
        self._of_use = of_use
        self._parts: dict[int, list[int]] = {}
        self._tidy_at: dict[int, int] = {}

    def push(self, key: int, number: int) -> None:
        place = _PART_OF[key & _MASK]
        part = self._parts.get(place)
        if part is None:
            part = self._parts[place] = []
            self._tidy_at[place] = TIDY_MIN
        elif len(part) >= self._tidy_at[place]:
            if sum(map(len, self._parts.values())) > 2 * self._of_use():
                part[:] = [one for one in part if self._counts(one)]
                heapify(part)
            self._tidy_at[place] = 2 * len(part) + TIDY_MIN
        heappush(part, number)

    def first(self) -> int | None:
        """The lowest number that counts, or a lower one: at most LOOKS dead ones are removed per call. None = empty."""
        lowest: int | None = None
        left = LOOKS
        for part in self._parts.values():
            while part and left and not self._counts(part[0]):
                heappop(part)
                left -= 1
            if part and (lowest is None or part[0] < lowest):
                lowest = part[0]
        return lowest

    def pop_below(self, end: int, most: int) -> list[int]:
        """Remove and return up to `most` numbers below `end`, dead or not."""
        popped: list[int] = []
        for part in self._parts.values():
            while part and part[0] < end and len(popped) < most:
                popped.append(heappop(part))
        return popped

    def clear(self) -> list[list[int]]:
        """Empty the heap and return its parts, to be freed in steps."""
        parts = [*self._parts.values()]
        self._parts, self._tidy_at = {}, {}
        return parts
