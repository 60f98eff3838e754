"""Retries: polling at growing intervals, because memcached sends no notifications."""

from threading import Event
from typing import Final

from kestreld import checks
from kestreld.clock import Clock

PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05


class Retries:
    """Polling until `timeout` seconds are over: None = forever, 0 = once."""

    def __init__(self, timeout: float | None) -> None:
        self._clock = Clock()
        self._until_ms = None
        if timeout is not None:
            self._until_ms = self._clock.monotonic_ms + int(checks.span_s(timeout, "timeout") * 1000)
        self._pause_s = PAUSE_S_MIN

    def wait(self) -> bool:
        """Pause, twice as long as the last time. False = the time is over."""
        pause_s = self._pause_s
        if self._until_ms is not None:
            self._clock.read()
            pause_s = min(pause_s, (self._until_ms - self._clock.monotonic_ms) / 1000)
            if pause_s <= 0:
                return False
        Event().wait(pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        return True
