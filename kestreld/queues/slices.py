"""Long work in slices that share one time budget, between turns: work on journals, and on all queues at once.

A piece of work is an iterator that yields often; the yielded value tells how to go on.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from kestreld.clock import Clock

WAITS: Final = 1  # nothing to do until something else has happened: the next work's turn
OVER: Final = 2  # the rest of this slice is given up

Work = Iterator[int | None]


class Slices:
    """All long work of an engine, in rotation. `wake` asks for `run` soon."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._work: deque[Work] = deque()

    def take_on(self, work: Work) -> None:
        """Add a piece of long work, to be done a slice at a time."""
        self._work.append(work)
        self._wake()

    def has(self, work: Work) -> bool:
        """True if the work has not ended yet."""
        return work in self._work

    @property
    def is_busy(self) -> bool:
        return bool(self._work)

    def run(self, until_us: int) -> None:
        """Work until the stopwatch says `until_us`, or all work waits; at least one step."""
        all_work, waiting = self._work, 0
        while len(all_work) > waiting:
            work = all_work[0]
            for step in work:
                if step == OVER or self._clock.stopwatch_us() >= until_us:
                    all_work.rotate(-1)
                    return
                if step == WAITS:
                    all_work.rotate(-1)
                    waiting += 1
                    break
            else:
                all_work.remove(work)
