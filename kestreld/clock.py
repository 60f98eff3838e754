"""Time, read once a turn: the only room that asks the system what time it is.

Wall time stamps items and expiry; monotonic time measures waits and time-outs, so a step of the system clock
never hangs or hurries one.
"""

import time
from typing import Final

# Of this module, a name is found sooner.
_wall_ns: Final = time.time_ns
_monotonic_ns: Final = time.monotonic_ns
_stopwatch_ns: Final = time.perf_counter_ns


def utc_text(wall_ms: int) -> str:
    """An instant as `2026-11-21T20:34:06.123Z`."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(wall_ms // 1000))}.{wall_ms % 1000:03}Z"


class Clock:
    """The instant of the current turn. `read` moves it; nothing else does."""

    def __init__(self) -> None:
        self.wall_ms: int = 0
        self.monotonic_ms: int = 0
        self.read()

    def read(self) -> None:
        """Take a new reading: milliseconds since the epoch, and since an arbitrary start."""
        self.wall_ms = _wall_ns() // 1_000_000
        self.monotonic_ms = _monotonic_ns() // 1_000_000

    def read_wall(self) -> int:
        """`read` of the milliseconds since the epoch only, which it returns."""
        self.wall_ms = now_ms = _wall_ns() // 1_000_000
        return now_ms

    def monotonic_up_ms(self) -> int:
        """This very instant, rounded up: what begins now and is over so long after it is never over too early.

        The turn began earlier, and its reading is rounded down.
        """
        return -(-_monotonic_ns() // 1_000_000)

    def stopwatch_us(self) -> int:
        """Microseconds on a clock of its own, for measuring how long something took."""
        return _stopwatch_ns() // 1_000
