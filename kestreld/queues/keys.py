"""The keys that were put on one queue with items, and are refused again until they are forgotten."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from xxhash import xxh3_128_digest

from kestreld.queues.parted import PartedDict

TIDY_MIN: Final = 1024
AT_ONCE: Final = 256


def digest_of(key: bytes) -> bytes:
    """What is remembered of a key: 128 bits."""
    return xxh3_128_digest(key)


class Keys:
    """Digests of keys, each with the id of its item and until when it counts, on the monotonic clock."""

    __slots__ = ("_by_id", "_known", "_times", "forgotten", "refused")

    def __init__(self) -> None:
        self.refused = 0  # puts, since their keys were known
        self.forgotten = 0  # before their time, for there were too many
        # Digests are numbers here: in which part and order they are is the same in each process.
        self._known: PartedDict[int, tuple[int, int]] = PartedDict()  # digest -> id, until
        self._times: list[tuple[int, int, int]] = []  # heap of until, id, digest; some are dead
        self._by_id: list[int] = []  # heap; some are dead

    def __len__(self) -> int:
        return len(self._known)

    def in_parts(self) -> Iterator[list[tuple[bytes, int, int]]]:
        """Digest, id and until when of every key, some at a time. What is new meanwhile may be missing."""
        for part in self._known.parts():
            items = list(part.items())
            for first in range(0, len(items), AT_ONCE):
                at_once = items[first : first + AT_ONCE]
                yield [(_bytes_of(number), one, until_ms) for number, (one, until_ms) in at_once]

    def find(self, digest: bytes, now_ms: int) -> int:
        """The id of the item that was put with a key; 0 = it is free."""
        known = self._known.get(_number_of(digest))
        if known is None or known[1] <= now_ms:
            return 0
        return known[0]

    def refuse(self) -> None:
        """A put is refused, or stored before."""
        self.refused += 1

    def remember(self, digest: bytes, one: int, until_ms: int, most: int) -> None:
        """A key counts until then, or until there are more than `most`."""
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
        """A key is free again."""
        self._known.pop(_number_of(digest))

    def expire(self, now_ms: int, limit: int = 100) -> None:
        """Forget those whose time is over, so many at most."""
        while self._times and self._times[0][0] <= now_ms and limit:
            until_ms, one, digest = heappop(self._times)
            if self._known.get(digest) == (one, until_ms):
                self._known.pop(digest)
            limit -= 1
        if len(self._by_id) > 2 * len(self._times) + TIDY_MIN:
            self._by_id = [one for _, one, _ in self._times]
            heapify(self._by_id)

    def undo_from(self, first_id: int) -> None:
        """Items from that id on were never put."""
        for part in self._known.parts():
            for digest in [digest for digest, (one, _) in part.items() if one >= first_id]:
                self._known.pop(digest)

    def lowest(self) -> int:
        """An id that none of the items is below; 0 = there are no keys."""
        if not len(self):
            self._times, self._by_id = [], []
        return self._by_id[0] if self._by_id else 0


def _number_of(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(16, "big")
