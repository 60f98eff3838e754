"""How many of the descriptors that the process may have clients may hold, and journals beside them."""

from typing import Final

# Of a hundred that kestreld does not need itself; what is left beyond these is for passing needs.
CONNECTIONS_SHARE: Final = 60
ADMIN_SHARE: Final = 10
LENDABLE_SHARE: Final = 90
PASSING_LEAST: Final = 8


class Descriptors:
    """`connections_max` of the data port, `admin_max` of the admin port, `lendable` for them and journals together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.set_aside(0)

    def set_aside(self, own: int) -> None:
        """kestreld itself needs so many."""
        left = max(self._limit - own, 1)
        self.connections_max = max(left * CONNECTIONS_SHARE // 100, 1)
        self.admin_max = max(left * ADMIN_SHARE // 100, 2)
        self.lendable = min(left * LENDABLE_SHARE // 100, left - PASSING_LEAST)
