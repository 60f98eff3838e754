"""Clients' own ids of jobs (ADDJOB ID): a second ADDJOB with the same id adds no second job."""

from collections import deque
from collections.abc import Iterator
from typing import Final

KEY_TIME_MS: Final = 300_000
KEYS_MAX: Final = 1_000_000  # of jobs that are gone
FORGOTTEN_AT_ONCE: Final = 100
BLOCK_KEYS_MAX: Final = 256
_MASK: Final = 1023  # of the index of parts: small dicts grow fast

Ended = tuple[int, bytes, bytes]  # expiry, key, the job's id


def key_in(queue: bytes, key: bytes) -> bytes:
    """Return the internal form of a client's own id: each queue has its own."""
    return b"%d:%b%b" % (len(queue), queue, key)


class ClientKeys:
    """Keys of existing jobs, and for five minutes those of jobs that are gone: KEYS_MAX of these at most.

    A key is the result of `key_in`.
    """

    __slots__ = ("_blocks", "_dropped", "_ended", "_ids")

    def __init__(self) -> None:
        self._ids: list[dict[bytes, bytes]] = []
        self._blocks: deque[deque[Ended]] = deque()  # of jobs that are gone, the oldest first; none is empty
        self._dropped = 0  # blocks
        self._ended = 0  # keys in all blocks

    def find(self, key: bytes, now_ms: int) -> bytes | None:
        """Return the id of the job that has or had this key, None if there is none."""
        self._forget(now_ms)
        return self._ids[hash(key) & _MASK].get(key) if self._ids else None

    def add(self, key: bytes, job_id: bytes) -> None:
        """Give a job this key."""
        if not self._ids:
            self._ids = [{} for _ in range(_MASK + 1)]
        self._ids[hash(key) & _MASK][key] = job_id

    def release(self, key: bytes, now_ms: int) -> None:
        """Keep the key for a while: its job is gone."""
        job_id = self._ids[hash(key) & _MASK].get(key) if self._ids else None
        if job_id is not None:
            self._end((now_ms + KEY_TIME_MS, key, job_id))

    def forget(self, key: bytes, job_id: bytes) -> None:
        """Free the key of a job that was never added."""
        part = self._ids[hash(key) & _MASK] if self._ids else {}
        if part.get(key) == job_id:
            del part[key]

    def remember(self, key: bytes, job_id: bytes, until_ms: int) -> None:
        """Restore from a log the key of a job that is gone."""
        if self.find(key, 0) is None:
            self.add(key, job_id)
            self._end((until_ms, key, job_id))

    def remembered(self) -> Iterator[list[Ended]]:
        """Iterate over the keys of jobs that are gone, a few at a time.

        Keys that are forgotten meanwhile may be included, and keys that are added may be missing.
        """
        number = self._dropped
        end = number + len(self._blocks)
        while number < end:
            yield list(self._blocks[number - self._dropped])
            number = max(number + 1, self._dropped)

    def drop(self) -> Iterator[None]:
        """Forget all keys, in short steps."""
        while self._blocks:
            self._ended -= len(self._blocks.popleft())
            self._dropped += 1
            yield
        while self._ids:
            self._ids.pop()
            yield

    def _end(self, ended: Ended) -> None:
        if not self._blocks or len(self._blocks[-1]) == BLOCK_KEYS_MAX:
            self._blocks.append(deque())
        self._blocks[-1].append(ended)
        self._ended += 1
        if self._ended > KEYS_MAX:
            self._forget_first()

    def _forget(self, now_ms: int) -> None:
        left = FORGOTTEN_AT_ONCE
        while left and self._ended and self._blocks[0][0][0] <= now_ms:
            self._forget_first()
            left -= 1

    def _forget_first(self) -> None:
        first = self._blocks[0]
        _, key, job_id = first.popleft()
        self._ended -= 1
        if not first:
            self._blocks.popleft()
            self._dropped += 1
        part = self._ids[hash(key) & _MASK]
        if part.get(key) == job_id:
            del part[key]
