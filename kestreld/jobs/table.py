"""A table of millions of entries in many small dicts: none takes long to grow, search or free."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

V = TypeVar("V")

PARTS: Final = 4096
MASK: Final = PARTS - 1


class Table(Generic[V]):
    """Values by bytes. `parts[hash(key) & MASK]` has a key, for callers that look one up with every command."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.parts: list[dict[bytes, V]] = [{} for _ in range(PARTS)]
        self.count = 0

    def get(self, key: bytes) -> V | None:
        return self.parts[hash(key) & MASK].get(key)

    def add(self, key: bytes, value: V) -> None:
        """Add a key that is not there."""
        self.parts[hash(key) & MASK][key] = value
        self.count += 1

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        del self.parts[hash(key) & MASK][key]
        self.count -= 1

    def __iter__(self) -> Iterator[V]:
        """Iterate over all values; entries that come or go meanwhile may or may not be included."""
        for part in self.parts:
            if part:
                yield from list(part.values())

    def scan(self, cursor: int) -> Iterator[tuple[int, list[V]]]:
        """Iterate over the parts from a cursor on, each with the cursor after it: 0 at the end.

        An entry that exists from the first call to the last is in one of the parts.
        """
        for number in range(cursor % PARTS, PARTS):
            if number >= len(self.parts):
                return  # all of it is being thrown away
            part = self.parts[number]
            if part or number == MASK:
                yield (number + 1) % PARTS, list(part.values())
