"""Memory used by jobs, estimated by their parts, and the levels at 75 % and 95 % of the maximum."""

from typing import Final

JOB_BYTES: Final = 340  # of a job with an empty body, with all references to it
BASE_BYTES: Final = 1 << 20  # of a store without jobs
DEFAULT_MAX_BYTES: Final = 1 << 30
LEVELS_PERCENT: Final = (0, 75, 95)  # by level


class Memory:
    """Memory that jobs use. `max_bytes` 0 = no job is refused or evicted."""

    __slots__ = ("_crowded_bytes", "_full_bytes", "delivered_once", "max_bytes", "peak_bytes", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = self.peak_bytes = BASE_BYTES
        self.delivered_once = 0  # jobs with a retry of 0 that a worker has had: they may be evicted
        self.set_max(DEFAULT_MAX_BYTES)

    def set_max(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._crowded_bytes = max_bytes * 3 // 4
        self._full_bytes = max_bytes * 95 // 100

    @property
    def level(self) -> int:
        """1 above 75 % of the maximum, 2 above 95 %, else 0."""
        used_bytes = self.used_bytes
        if used_bytes <= self._crowded_bytes:
            return 0
        return 1 if used_bytes <= self._full_bytes else 2

    @property
    def level_percent(self) -> int:
        """The highest of 75, 95 and 100 % of the maximum that is exceeded, else 0. Without a maximum 95."""
        return 100 if 0 < self.max_bytes < self.used_bytes else LEVELS_PERCENT[self.level]

    @property
    def is_full(self) -> bool:
        """True if jobs are to be evicted, and new ones refused if that is not enough."""
        return self.used_bytes > self._full_bytes and self.max_bytes > 0

    def add(self, body_bytes: int) -> None:
        self.used_bytes += JOB_BYTES + body_bytes

    def add_some(self, count: int, body_bytes: int) -> None:
        """Add `count` jobs whose bodies have `body_bytes` together."""
        self.used_bytes += count * JOB_BYTES + body_bytes

    def remove(self, body_bytes: int) -> None:
        used_bytes = self.used_bytes
        if used_bytes > self.peak_bytes:
            self.peak_bytes = used_bytes
        self.used_bytes = used_bytes - JOB_BYTES - body_bytes

    def clear(self) -> None:
        """Reset: there are no jobs any longer."""
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.used_bytes, self.delivered_once = BASE_BYTES, 0
