"""A table of many small dicts for millions of entries: none takes long to grow, to search or to free.

One dict at first, split in two by the next bit of the hash whenever it has become large. A dict keeps the order in
which entries were put there: the first is the one not moved up for longest. So up to the first split that order is
exact, and beyond it is among a random sample of all entries.
"""

import sys
from typing import Final

from kestreld.cache.entries import NEVER_MS

DEPTH_MAX: Final = 12
PLACES: Final = 1 << DEPTH_MAX
# The highest bits: within a dict, the lowest say where an entry goes. A negative place counts from the table's end.
SHIFT: Final = sys.hash_info.width - DEPTH_MAX
SPLIT_MIN: Final = 1024
MERGE_MAX: Final = 256


class Parts:
    """The dicts. `table[hash(name) >> SHIFT]` is the dict of a name; a part fills several places of the table."""

    __slots__ = ("_cursor", "_depths", "_due_ms", "_not_before_ms", "_spare", "_split_above", "table", "tidy_at_ms")

    def __init__(self) -> None:
        # Made together: else each would keep the memory around it from going back to the kernel, as long as it lives or
        # is kept by the interpreter for reuse.
        self._spare: list[dict[bytes, bytes]] = [{} for _ in range(PLACES + 1)]
        self.table = [self._spare.pop()] * PLACES
        self._depths = [0] * PLACES
        self._due_ms: list[int] = [NEVER_MS] * PLACES  # by first place: nothing in the part expires before
        # Different limits, so that parts do not all split at once.
        self._split_above = [SPLIT_MIN + (place * 677) % SPLIT_MIN for place in range(PLACES)]
        self._cursor = 0
        self.tidy_at_ms = NEVER_MS  # time from which on an entry may have expired
        self._not_before_ms = 0

    def replace_all(self) -> list[dict[bytes, bytes]]:
        """Make all parts empty; returns the old dicts, to be freed in small steps."""
        parts, place = [], 0
        while place < PLACES:
            if self.table[place]:
                parts.append(self.table[place])
            place += PLACES >> self._depths[place]
        self.table[:] = [self._empty()] * PLACES
        self._depths = [0] * PLACES
        self._due_ms = [NEVER_MS] * PLACES
        self.tidy_at_ms = NEVER_MS
        self._cursor = 0
        return parts

    def first_of(self, place: int) -> int:
        """First place of the part that has this place."""
        return (place & (PLACES - 1)) & -(PLACES >> self._depths[place])

    def after(self, first: int) -> int:
        """First place of the next part; PLACES after the last."""
        return first + (PLACES >> self._depths[first])

    def next_first(self) -> int:
        """First place of the next part in a rotation over all."""
        first = self._cursor
        after = self.after(first)
        self._cursor = 0 if after >= PLACES else after
        return first

    def note_expiry(self, place: int, expires_at_ms: int) -> None:
        """Record that an entry in the part at `place` expires at that time."""
        first = self.first_of(place)
        if expires_at_ms < self._due_ms[first]:
            self._due_ms[first] = expires_at_ms
            if expires_at_ms < self.tidy_at_ms:
                self.tidy_at_ms = max(expires_at_ms, self._not_before_ms)

    def due_ms(self, first: int) -> int:
        """Time before which nothing in that part expires."""
        return self._due_ms[first]

    def set_due(self, first: int, due_ms: int) -> None:
        """Set the time before which nothing in that part expires."""
        self._due_ms[first] = due_ms

    def find_due(self, not_before_ms: int) -> None:
        """Set `tidy_at_ms` to the next time at which an entry may expire, or to `not_before_ms` if that is later."""
        self._not_before_ms = not_before_ms
        self.tidy_at_ms = max(min(self._due_ms), not_before_ms)

    def grown(self, place: int) -> None:
        """Split a part of more than SPLIT_MIN entries if it has too many."""
        first = self.first_of(place)
        part, depth = self.table[first], self._depths[first]
        if depth == DEPTH_MAX or len(part) <= self._split_above[first]:
            return
        half = PLACES >> (depth + 1)
        lower, upper = self._empty(), self._empty()
        for name, entry in part.items():
            if (hash(name) >> SHIFT) & half:
                upper[name] = entry
            else:
                lower[name] = entry
        self._put(first, half, depth + 1, lower)
        self._put(first + half, half, depth + 1, upper)
        self._due_ms[first + half] = self._due_ms[first]
        self.take_back(part)

    def shrunk(self, first: int, order_at: int, order_end: int) -> None:
        """Join a part that has become small with its neighbour if both are small.

        The bytes of each entry from `order_at` to `order_end` give the order of the joined entries.
        """
        depth = self._depths[first]
        if depth == 0:
            return
        size = PLACES >> depth
        low, high = first & ~size, first | size
        if self._depths[low] != depth or self._depths[high] != depth:
            return
        ours, theirs = self.table[low], self.table[high]
        if len(ours) + len(theirs) > MERGE_MAX:
            return
        both = sorted([*ours.items(), *theirs.items()], key=lambda one: one[1][order_at:order_end])
        joined = self._empty()
        joined.update(both)
        self._put(low, size * 2, depth - 1, joined)
        self.take_back(ours)
        self.take_back(theirs)
        self._due_ms[low] = min(self._due_ms[low], self._due_ms[high])
        self._due_ms[high] = NEVER_MS
        if self._cursor == high:
            self._cursor = low

    def rebuild(self, first: int) -> None:
        """Copy a part to a smaller dict, to free the space that it no longer needs."""
        part, rebuilt = self.table[first], self._empty()
        rebuilt.update(part.items())
        self._put(first, PLACES >> self._depths[first], self._depths[first], rebuilt)
        self.take_back(part)

    def take_back(self, part: dict[bytes, bytes]) -> None:
        """Clear and keep a dict that is no longer used. It must be nearly empty, or its entries be elsewhere."""
        part.clear()
        self._spare.append(part)

    def _empty(self) -> dict[bytes, bytes]:
        return self._spare.pop() if self._spare else {}

    def _put(self, first: int, size: int, depth: int, part: dict[bytes, bytes]) -> None:
        self.table[first : first + size] = [part] * size
        self._depths[first : first + size] = [depth] * size
