"""Counts of commands by key prefix (before the first colon), for `stats detail`."""

from typing import Final

PREFIXES_MAX: Final = 2000
DELIMITER: Final = b":"


class Prefixes:
    """Counts of the first PREFIXES_MAX prefixes while `is_on`. Keys without a colon are not counted."""

    __slots__ = ("_counts", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._counts: dict[bytes, list[int]] = {}  # gets, hits, sets, deletes

    def reset(self) -> None:
        """Remove all counts."""
        self._counts.clear()

    def count_get(self, key: bytes, *, is_hit: bool) -> None:
        """Count a get of a key."""
        counts = self._of(key)
        counts[0] += 1
        counts[1] += is_hit

    def count_set(self, key: bytes) -> None:
        """Count data stored for a key."""
        self._of(key)[2] += 1

    def count_delete(self, key: bytes) -> None:
        """Count a delete of a key, found or not."""
        self._of(key)[3] += 1

    def _of(self, key: bytes) -> list[int]:
        prefix, delimiter, _ = key.partition(DELIMITER)
        counts = self._counts.get(prefix)
        if counts is None:
            counts = [0, 0, 0, 0]
            if delimiter and len(self._counts) < PREFIXES_MAX:
                self._counts[prefix] = counts
        return counts

    def lines(self) -> bytes:
        """A line for each prefix, in memcached's form."""
        lines = []
        for prefix, (gets, hits, sets, deletes) in self._counts.items():
            lines.append(b"PREFIX %b get %d hit %d set %d del %d\r\n" % (prefix, gets, hits, sets, deletes))
        return b"".join(lines)
