"""A clock that stands still until a test moves it."""

from kestreld.clock import Clock

START_WALL_MS = 1_700_000_000_000
START_MONOTONIC_MS = 5_000


class FakeClock(Clock):
    """`wall_ms` and `monotonic_ms` may be set; reading the clock changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_ms = START_WALL_MS
        self.monotonic_ms = START_MONOTONIC_MS

    def read(self) -> None:
        """Time stands still."""

    def read_wall(self) -> int:
        return self.wall_ms

    def monotonic_up_ms(self) -> int:
        return self.monotonic_ms

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms

    def stopwatch_us(self) -> int:
        return self.monotonic_ms * 1000
