"""The last minutes of every queue, in columns: 5,000 queues for 300 looks are 24 MB."""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tui.figures import QueueRow

LOOKS_MAX: Final = 300
SERIES: Final = ("items", "in_per_s", "out_per_s", "oldest_ms")
UNKNOWN: Final = math.nan


@dataclass(slots=True)
class _Look:
    at_ms: int
    places: dict[str, int]  # where a queue is in the columns; shared by looks at the same queues
    columns: dict[str, "array[float]"]


class History:
    """What was seen of the queues of one server, or of the sum of several."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=LOOKS_MAX)
        self._names: list[str] = []

    def append(self, at_ms: int, rows: Sequence[QueueRow]) -> None:
        names = [row.queue for row in rows]
        if not self._looks or names != self._names:
            self._names, places = names, {name: place for place, name in enumerate(names)}
        else:
            places = self._looks[-1].places
        columns = {
            "items": array("f", [UNKNOWN if row.items is None else row.items for row in rows]),
            "in_per_s": array("f", [UNKNOWN if row.in_per_s is None else row.in_per_s for row in rows]),
            "out_per_s": array("f", [UNKNOWN if row.out_per_s is None else row.out_per_s for row in rows]),
            "oldest_ms": array("f", [UNKNOWN if row.oldest_ms is None else row.oldest_ms for row in rows]),
        }
        self._looks.append(_Look(at_ms, places, columns))

    def clear(self) -> None:
        self._looks.clear()

    def series(self, queue: str, column: str, looks: int) -> list[float]:
        """The last so many values of one of SERIES, oldest first; NaN where it was not known."""
        count = len(self._looks)
        values = []
        for number in range(max(0, count - looks), count):
            look = self._looks[number]
            place = look.places.get(queue)
            values.append(UNKNOWN if place is None else look.columns[column][place])
        return values

    def span_ms(self, looks: int) -> int:
        """How much time the last so many looks cover."""
        if len(self._looks) < 2:
            return 0
        return self._looks[-1].at_ms - self._looks[max(0, len(self._looks) - looks)].at_ms
