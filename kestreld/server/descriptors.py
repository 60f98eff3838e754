"""Shares of the process's file descriptors for data ports, admin port and journals."""

from typing import Final

# Percent of the descriptors that kestreld does not need itself; the rest is for short-lived needs.
CONNECTIONS_SHARE: Final = 60
ADMIN_SHARE: Final = 10
LENDABLE_SHARE: Final = 90
PASSING_LEAST: Final = 8


class Descriptors:
    """Limits: `connections_max` of data ports, `admin_max` of the admin port, `lendable` of both and journals."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.set_aside(0)

    def set_aside(self, own: int) -> None:
        """Compute the limits, with `own` descriptors reserved for kestreld itself."""
        left = max(self._limit - own, 1)
        self.connections_max = max(left * CONNECTIONS_SHARE // 100, 1)
        self.admin_max = max(left * ADMIN_SHARE // 100, 2)
        self.lendable = min(left * LENDABLE_SHARE // 100, left - PASSING_LEAST)
