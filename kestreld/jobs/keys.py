"""The clients' own ids of jobs: ADDJOB with one that is known makes no second job."""

from collections import deque
from collections.abc import Iterator
from typing import Final

KEY_TIME_MS: Final = 300_000
KEYS_MAX: Final = 1_000_000  # of jobs that are gone
FORGOTTEN_AT_ONCE: Final = 100
_MASK: Final = 1023  # of the parts: none of them takes long to grow


class ClientKeys:
    """Keys of jobs that there are, and for five minutes of those that there were; of these only so many."""

    __slots__ = ("_ended", "_ids")

    def __init__(self) -> None:
        self._ids: list[dict[bytes, bytes]] = []
        self._ended: deque[tuple[int, bytes, bytes]] = deque()  # when to forget it, the key, the job's id

    def find(self, key: bytes, now_ms: int) -> bytes | None:
        """The id of the job that has or had this key."""
        self._forget(now_ms)
        return self._ids[hash(key) & _MASK].get(key) if self._ids else None

    def add(self, key: bytes, job_id: bytes) -> None:
        """A job has it from now on."""
        if not self._ids:
            self._ids = [{} for _ in range(_MASK + 1)]
        self._ids[hash(key) & _MASK][key] = job_id

    def release(self, key: bytes, now_ms: int) -> None:
        """The job that has it is gone: it is remembered for a while."""
        job_id = self._ids[hash(key) & _MASK].get(key) if self._ids else None
        if job_id is not None:
            self._ended.append((now_ms + KEY_TIME_MS, key, job_id))
            if len(self._ended) > KEYS_MAX:
                self._forget_first()

    def remember(self, key: bytes, job_id: bytes, until_ms: int) -> None:
        """The key of a job that is gone, as a log says."""
        if self.find(key, 0) is None:
            self.add(key, job_id)
            self._ended.append((until_ms, key, job_id))

    def remembered(self) -> Iterator[tuple[bytes, bytes, int]]:
        """The keys of jobs that are gone, with the id, and until when. Nothing may change meanwhile."""
        for until_ms, key, job_id in self._ended:
            yield key, job_id, until_ms

    def _forget(self, now_ms: int) -> None:
        left = FORGOTTEN_AT_ONCE
        while left and self._ended and self._ended[0][0] <= now_ms:
            self._forget_first()
            left -= 1

    def _forget_first(self) -> None:
        _, key, job_id = self._ended.popleft()
        part = self._ids[hash(key) & _MASK]
        if part.get(key) == job_id:
            del part[key]
