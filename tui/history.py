"""The last minutes of every queue, stored in columns: 5,000 queues with 300 samples take 24 MB."""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tui.queue_rows import QueueRow
from tui.states import GROWING, OK

SAMPLES_MAX: Final = 300
SERIES: Final = ("items", "in_per_s", "out_per_s", "oldest_ms")
UNKNOWN: Final = math.nan
_GROWING_STEPS: Final = 3
_GROWING_STEP_SAMPLES: Final = 4


@dataclass(slots=True)
class _Sample:
    at_ms: int
    indexes: dict[str, int]  # of queues in the columns; shared by samples with the same queues
    columns: dict[str, "array[float]"]


class History:
    """Samples of the queues of one server, or of the sum of several."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self._names: list[str] = []

    def append(self, at_ms: int, rows: Sequence[QueueRow]) -> None:
        names = [row.queue for row in rows]
        if not self._samples or names != self._names:
            self._names, indexes = names, {name: index for index, name in enumerate(names)}
        else:
            indexes = self._samples[-1].indexes
        columns = {
            name: array("f", [UNKNOWN if value is None else value for value in map(attrgetter(name), rows)])
            for name in SERIES
        }
        self._samples.append(_Sample(at_ms, indexes, columns))

    def mark_growing(self, rows: Sequence[QueueRow]) -> None:
        """Mark queues whose depth rose in each of the last steps. `rows` are those appended last."""
        at = range(-1 - _GROWING_STEPS * _GROWING_STEP_SAMPLES, 0, _GROWING_STEP_SAMPLES)
        if len(self._samples) < -at[0]:
            return
        samples = [self._samples[place] for place in at]
        if samples[0].indexes is samples[-1].indexes:  # the same queues in the same places
            depths = zip(*[sample.columns["items"] for sample in samples], strict=True)
        else:
            depths = zip(*[[_depth(sample, row.queue) for row in rows] for sample in samples], strict=True)
        for row, (first, second, third, now) in zip(rows, depths, strict=True):
            if row.state == GROWING:
                row.state = OK
            if first < second < third < now and row.state == OK and row.in_per_s:
                row.state = GROWING

    def clear(self) -> None:
        self._samples.clear()

    def series(self, queue: str, column: str, samples: int) -> list[float]:
        """The last values of one of SERIES, oldest first; NaN = unknown."""
        count = len(self._samples)
        values = []
        for number in range(max(0, count - samples), count):
            sample = self._samples[number]
            index = sample.indexes.get(queue)
            values.append(UNKNOWN if index is None else sample.columns[column][index])
        return values

    def span_ms(self, samples: int) -> int:
        """Time that the last samples cover, ms."""
        if len(self._samples) < 2:
            return 0
        return self._samples[-1].at_ms - self._samples[max(0, len(self._samples) - samples)].at_ms


def _depth(sample: _Sample, queue: str) -> float:
    index = sample.indexes.get(queue)
    return UNKNOWN if index is None else sample.columns["items"][index]
