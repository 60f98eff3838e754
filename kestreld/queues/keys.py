"""Keys of items put on one queue: puts with a known key are refused until it is forgotten."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from xxhash import xxh3_128_digest

from kestreld.queues.sharded import ShardedDict

TIDY_MIN: Final = 1024
AT_ONCE: Final = 256


def digest_of(key: bytes) -> bytes:
    """Digest stored instead of a key: 128 bits."""
    return xxh3_128_digest(key)


class Keys:
    """Digests of keys, each with its item's id and the time until which it counts, on the monotonic clock."""

    __slots__ = ("_by_id", "_known", "_times", "forgotten", "refused")

    def __init__(self) -> None:
        self.refused = 0  # puts refused because their key was known
        self.forgotten = 0  # keys forgotten early because there were too many
        # Digests are numbers here, so that their parts and order are the same in each process.
        self._known: ShardedDict[int, tuple[int, int]] = ShardedDict()  # digest -> id, until
        self._times: list[tuple[int, int, int]] = []  # heap of until, id, digest; some are dead
        self._by_id: list[int] = []  # heap; some are dead

    def __len__(self) -> int:
        return len(self._known)

    def in_parts(self) -> Iterator[list[tuple[bytes, int, int]]]:
        """Digest, id and end time of every key, in batches. Keys added meanwhile may be missing."""
        for part in self._known.parts():
            items = list(part.items())
            for first in range(0, len(items), AT_ONCE):
                at_once = items[first : first + AT_ONCE]
                yield [(_bytes_of(number), one, until_ms) for number, (one, until_ms) in at_once]

    def find(self, digest: bytes, now_ms: int) -> int:
        """Id of the item that was put with a key; 0 = the key is free."""
        known = self._known.get(_number_of(digest))
        if known is None or known[1] <= now_ms:
            return 0
        return known[0]

    def refuse(self) -> None:
        """Count a put whose key was known."""
        self.refused += 1

    def remember(self, digest: bytes, one: int, until_ms: int, most: int) -> None:
        """Store a key until `until_ms`, or until there are more than `most`."""
        number = _number_of(digest)
        self._known[number] = (one, until_ms)
        heappush(self._times, (until_ms, one, number))
        heappush(self._by_id, one)
        if len(self._times) > most:
            while len(self) > most:
                until_ms, oldest, other = heappop(self._times)
                if self._known.get(other) == (oldest, until_ms):
                    self._known.pop(other)
                    self.forgotten += 1

    def forget(self, digest: bytes) -> None:
        """Free a key."""
        self._known.pop(_number_of(digest))

    def expire(self, now_ms: int, limit: int = 100) -> None:
        """Forget keys whose time is over, at most `limit`."""
        while self._times and self._times[0][0] <= now_ms and limit:
            until_ms, one, digest = heappop(self._times)
            if self._known.get(digest) == (one, until_ms):
                self._known.pop(digest)
            limit -= 1
        if len(self._by_id) > 2 * len(self._times) + TIDY_MIN:
            self._by_id = [one for _, one, _ in self._times]
            heapify(self._by_id)

    def undo_from(self, first_id: int) -> None:
        """Forget the keys of items from `first_id` on, whose puts were undone."""
        for part in self._known.parts():
            for digest in [digest for digest, (one, _) in part.items() if one >= first_id]:
                self._known.pop(digest)

    def lowest(self) -> int:
        """An id that no item with a key is below; 0 = there are no keys."""
        if not len(self):
            self._times, self._by_id = [], []
        return self._by_id[0] if self._by_id else 0


def _number_of(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(16, "big")
