"""Wall and monotonic time, read once a turn; the only module that reads the system's clocks.

Wall time stamps items and expiry; monotonic time measures waits and time-outs, so a step of the system clock neither
delays nor hurries one.
"""

import time
from typing import Final

# A global of this module is looked up faster than an attribute of `time`.
_wall_ns: Final = time.time_ns
_monotonic_ns: Final = time.monotonic_ns
_stopwatch_ns: Final = time.perf_counter_ns


def monotonic_ms() -> int:
    """Read the monotonic clock only, for who has no turns: milliseconds since an arbitrary start."""
    return _monotonic_ns() // 1_000_000


def utc_text(wall_ms: int) -> str:
    """Format an instant as `2026-11-21T20:34:06.123Z`."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(wall_ms // 1000))}.{wall_ms % 1000:03}Z"


class Clock:
    """The time of the current turn, which changes only by `read` and `read_wall`."""

    def __init__(self) -> None:
        self.wall_ms: int = 0
        self.monotonic_ms: int = 0
        self.read()

    def read(self) -> None:
        """Read both clocks: milliseconds since the epoch, and since an arbitrary start."""
        self.wall_ms = _wall_ns() // 1_000_000
        self.monotonic_ms = _monotonic_ns() // 1_000_000

    def read_wall(self) -> int:
        """Read the wall clock only; returns milliseconds since the epoch."""
        self.wall_ms = now_ms = _wall_ns() // 1_000_000
        return now_ms

    def monotonic_up_ms(self) -> int:
        """Read the monotonic clock now, in ms rounded up, so that a time limit that starts now does not end too early.

        `monotonic_ms` is not suitable: it was read earlier in the turn and rounded down.
        """
        return -(-_monotonic_ns() // 1_000_000)

    def stopwatch_us(self) -> int:
        """Return microseconds on a separate clock, for measuring durations."""
        return _stopwatch_ns() // 1_000
