"""Commands by the prefix of their keys, for `stats detail`: what is before the first colon."""

from typing import Final

PREFIXES_MAX: Final = 2000
DELIMITER: Final = b":"


class Prefixes:
    """Counts of the first PREFIXES_MAX prefixes, as long as it is on. Keys without a colon are not counted."""

    __slots__ = ("_counts", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._counts: dict[bytes, list[int]] = {}  # gets, hits, sets, deletes

    def reset(self) -> None:
        """Forget them all."""
        self._counts.clear()

    def count_get(self, key: bytes, *, is_hit: bool) -> None:
        """A key that was asked for."""
        counts = self._of(key)
        counts[0] += 1
        counts[1] += is_hit

    def count_set(self, key: bytes) -> None:
        """Data that came for a key."""
        self._of(key)[2] += 1

    def count_delete(self, key: bytes) -> None:
        """A key that was deleted, whether it was there or not."""
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
        """One for each prefix, as memcached writes it."""
        lines = []
        for prefix, (gets, hits, sets, deletes) in self._counts.items():
            lines.append(b"PREFIX %b get %d hit %d set %d del %d\r\n" % (prefix, gets, hits, sets, deletes))
        return b"".join(lines)
