"""A thread that makes calls in the order in which they fall due: callbacks, timers."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from threading import Condition, Thread, current_thread
from typing import Final

from kestreld.clock import Clock

Call = Callable[[], object]
CLEAR_OUT_AT: Final = 64  # calls that nobody wants any more are cleared out beyond this, and whenever they have doubled


class Planned:
    """A call that will be made unless it is `over` before."""

    __slots__ = ("call", "over")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.over = False


class Worker:
    """One thread, started with the first call. It ends with the process, or when it is told to stop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clock = Clock()
        self._calls: list[tuple[int, int, Planned]] = []  # by instant on the monotonic clock, then as they came
        self._count = 0
        self._clear_out_at = CLEAR_OUT_AT
        self._something_new = Condition()
        self._thread: Thread | None = None
        self._stopping = False

    @property
    def is_current(self) -> bool:
        """Whether it is what runs this."""
        return self._thread is current_thread()

    def soon(self, call: Call) -> None:
        """Make a call after those that are due already."""
        self.at(0, call)

    def at(self, at_ms: int, call: Call) -> Planned:
        """Make a call at an instant of the monotonic clock. None is made any more once it is told to stop."""
        planned = Planned(call)
        with self._something_new:
            if self._stopping:
                return planned
            if len(self._calls) >= self._clear_out_at:
                self._calls = [one for one in self._calls if not one[2].over]
                heapify(self._calls)
                self._clear_out_at = 2 * len(self._calls) + CLEAR_OUT_AT
            self._count += 1
            heappush(self._calls, (at_ms, self._count, planned))
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._calls[0][1] == self._count:
                self._something_new.notify()
        return planned

    def _run(self) -> None:
        while (planned := self._next()) is not None:
            if not planned.over:
                planned.call()

    def _next(self) -> Planned | None:
        with self._something_new:
            while True:
                self._clock.read()
                now_ms = self._clock.monotonic_ms
                if self._calls and self._calls[0][0] <= now_ms:
                    return heappop(self._calls)[2]
                if self._stopping:
                    return None
                self._something_new.wait((self._calls[0][0] - now_ms) / 1000 if self._calls else None)

    def stop(self) -> None:
        """Make the calls that are due, none that are not, and end. Returns when that is so."""
        with self._something_new:
            self._stopping = True
            self._something_new.notify()
        if self._thread is not None and not self.is_current:
            self._thread.join()
