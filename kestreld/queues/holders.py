"""Who holds leases, as the LEASE records of one segment refer to them: by a number that a HOLDER record gives."""

from typing import Final

from kestreld.journal.records import HOLDERS_MAX, LEASES_MAX, holder_record

NAMES_MAX: Final = LEASES_MAX  # of which the numbers are remembered; beyond it all are given anew


class Holders:
    """Numbers of holders in one segment. The latest HOLDER record with a number counts."""

    __slots__ = ("_last", "numbers")

    def __init__(self) -> None:
        self.numbers = {"": 0}  # of names with a HOLDER record; 0 = not known
        self._last = 0

    def number(self, name: str, parts: list[bytes]) -> int:
        """Number of a holder; the HOLDER record is added to `parts` if the segment has none yet."""
        number = self.numbers.get(name)
        if number is None:
            if len(self.numbers) > NAMES_MAX:
                self.numbers = {"": 0}
            number = self.numbers[name] = self._last = self._last % HOLDERS_MAX + 1
            parts.append(holder_record(number, name))
        return number
