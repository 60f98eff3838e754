"""Jobs that are over, for a while: what is still on its way about them must not bring them back."""

from collections import deque
from typing import Final

from kestreld.clock import Clock
from kestreld.jobs.table import Table

KEPT_MS: Final = 600_000
KEPT_MAX: Final = 100_000  # beyond that the oldest is forgotten
NO_END: Final = (0, "", False)
ELSEWHERE: Final = "elsewhere"  # another node has the job: to who waits for its end that is none


class Tombstones:
    """How jobs ended that are no longer here.

    One large dictionary would stop the node whenever it grows, and find its oldest entry behind all that were deleted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: Table[tuple[int, str, bool]] = Table()  # until when, how, and whether all know it
        self._order: deque[tuple[int, bytes]] = deque()  # until when, and whose, in the order of these times

    @property
    def count(self) -> int:
        """How many jobs are remembered."""
        return self._ends.count

    def add(self, job_id: bytes, end: str, *, is_known_to_all: bool = False) -> None:
        """This job is over. `is_known_to_all`: each node that held it has said that it knows."""
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
        """How it ended; "" = that is not known."""
        until_ms, end, _ = self._ends.get(job_id) or NO_END
        return end if until_ms > self._clock.monotonic_ms else ""

    def is_known_to_all(self, job_id: bytes) -> bool:
        """Whether no other node holds it any more, as far as that was noted here."""
        until_ms, _, is_known = self._ends.get(job_id) or NO_END
        return is_known and until_ms > self._clock.monotonic_ms

    def clear(self) -> None:
        self._ends = Table()
        self._order.clear()
