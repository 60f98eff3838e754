"""A thread that makes calls in the order in which they fall due: callbacks, timers."""

from collections.abc import Callable
from heapq import heappop, heappush
from threading import Condition, Thread, current_thread

from kestreld.clock import Clock

Call = Callable[[], object]


class Worker:
    """One thread, started with the first call. It ends with the process, or when it is told to stop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clock = Clock()
        self._calls: list[tuple[int, int, Call]] = []  # by instant on the monotonic clock, then as they came
        self._count = 0
        self._something_new = Condition()
        self._thread: Thread | None = None
        self._stopping = False

    def soon(self, call: Call) -> None:
        """Make a call after those that are due already."""
        self.at(0, call)

    def at(self, at_ms: int, call: Call) -> None:
        """Make a call at an instant of the monotonic clock. None is made any more once it is told to stop."""
        with self._something_new:
            if self._stopping:
                return
            self._count += 1
            heappush(self._calls, (at_ms, self._count, call))
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._calls[0][1] == self._count:
                self._something_new.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Call | None:
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
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()
