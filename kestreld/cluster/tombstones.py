"""Tombstones: jobs that ended here lately, so that messages still on their way do not bring them back."""

from collections import deque
from typing import Final

from kestreld.clock import Clock
from kestreld.jobs.table import Table

KEPT_MS: Final = 600_000
KEPT_MAX: Final = 100_000  # beyond that the oldest is forgotten
NO_END: Final = (0, "", False)
ELSEWHERE: Final = "elsewhere"  # another node has the job: not an end for waiting clients


class Tombstones:
    """Ends of jobs that are no longer here.

    In parts: one large dictionary would block the node when it grows, and its oldest entry be behind deleted ones.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: Table[tuple[int, str, bool]] = Table()  # expiry, end, and whether all know it
        self._order: deque[tuple[int, bytes]] = deque()  # expiry and job id, in order of expiry

    @property
    def count(self) -> int:
        """Number of jobs that are remembered."""
        return self._ends.count

    def add(self, job_id: bytes, end: str, *, is_known_to_all: bool = False) -> None:
        """Remember the end of a job. `is_known_to_all`: each node that held the job has confirmed that it knows."""
        now_ms = self._clock.monotonic_ms
        until_ms = now_ms + KEPT_MS
        if self._ends.get(job_id) is not None:
            self._ends.remove(job_id)
        self._ends.add(job_id, (until_ms, end, is_known_to_all))
        self._order.append((until_ms, job_id))
        for _ in range(2):  # one more than came
            until_ms, oldest = self._order[0]
            if until_ms > now_ms and len(self._order) <= KEPT_MAX:
                break
            self._order.popleft()
            known = self._ends.get(oldest)
            if known is not None and known[0] == until_ms:
                self._ends.remove(oldest)

    def has(self, job_id: bytes) -> bool:
        return self.end_of(job_id) != ""

    def end_of(self, job_id: bytes) -> str:
        """Return the end of a job; "" = not known."""
        until_ms, end, _ = self._ends.get(job_id) or NO_END
        return end if until_ms > self._clock.monotonic_ms else ""

    def is_known_to_all(self, job_id: bytes) -> bool:
        """Return True if, as far as was noted here, no other node holds the job any longer."""
        until_ms, _, is_known = self._ends.get(job_id) or NO_END
        return is_known and until_ms > self._clock.monotonic_ms

    def clear(self) -> None:
        self._ends = Table()
        self._order.clear()
