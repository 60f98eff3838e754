"""Rate-limited log lines about other hosts, which must not be able to fill the log."""

from collections.abc import Callable
from typing import Final

from kestreld.clock import Clock

EVERY_MS: Final = 60_000
SUBJECTS_MAX: Final = 100


class RateLimitedLog:
    """Log lines limited to one per subject and minute, and to SUBJECTS_MAX subjects."""

    def __init__(self, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._report = report
        self._said_at_ms: dict[str, int] = {}

    def complain(self, subject: str, reason: str) -> None:
        """Log `reason`, unless a line about `subject` was logged within the last minute."""
        now_ms = self._clock.monotonic_ms
        at_ms = self._said_at_ms.get(subject)
        if at_ms is not None and now_ms - at_ms < EVERY_MS:
            return
        if at_ms is None and len(self._said_at_ms) >= SUBJECTS_MAX:
            self._said_at_ms = {one: at_ms for one, at_ms in self._said_at_ms.items() if now_ms - at_ms < EVERY_MS}
            if len(self._said_at_ms) >= SUBJECTS_MAX:
                return
        self._said_at_ms[subject] = now_ms
        self._report(reason)
