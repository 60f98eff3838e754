"""Worker: a thread that makes calls at their due times, for callbacks and timers."""

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from threading import Condition, Lock, Thread, current_thread
from typing import Final

from kestreld.clock import Clock
from kestreld.disk_threads import start
from kestreld.errors import ThreadDied
from kestreld.forks import restart_in_child

Call = Callable[[], object]
Death = Callable[[ThreadDied], object]
WAIT_MS_MAX: Final = 3_600_000  # waits for a lock have a maximum
CLEAR_OUT_AT: Final = 64  # unwanted calls are cleared out beyond this, and whenever the calls have doubled

log: Final = logging.getLogger("kestreld.library")


class Planned:
    """A call that is made unless it is `over` before; `at_death` is called instead if the thread has died."""

    __slots__ = ("at_death", "call", "over")

    def __init__(self, call: Call, at_death: Death | None) -> None:
        self.call = call
        self.at_death = at_death
        self.over = False


class Worker:
    """One thread, started with the first call. It ends with the process, or when it is stopped.

    An exception in a call ends the thread: `died` is called, and planning another call raises ThreadDied.
    """

    def __init__(self, name: str, died: Death | None = None) -> None:
        self._name = name
        self._died = died
        self._clock = Clock()
        self._stopping = False
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Start without calls and thread: the old ones are the parent's."""
        self._calls: list[tuple[int, int, Planned]] = []  # by instant on the monotonic clock, then as they came
        self._count = 0
        self._clear_out_at = CLEAR_OUT_AT
        # Taken directly, not through the condition: a signal handler that raises might leave that locked for good.
        self._lock = Lock()
        self._something_new = Condition(self._lock)
        self._thread: Thread | None = None
        self._problem: ThreadDied | None = None

    @property
    def is_current(self) -> bool:
        """True if this is called on the worker's thread."""
        return self._thread is current_thread()

    def soon(self, call: Call) -> None:
        """Make a call after those that are due already."""
        self.at(0, call)

    def settle(self, call: Call) -> None:
        """Make a call like `soon`, or at once in this thread if the worker's has died: somebody waits for it."""
        self.at(0, call, lambda _: call())

    def at(self, at_ms: int, call: Call, at_death: Death | None = None) -> Planned:
        """Make a call at a time of the monotonic clock. Calls after `stop` are dropped.

        Raises ThreadDied, unless there is `at_death`, which is called instead.
        """
        planned = Planned(call, at_death)
        if not self._is_planned(at_ms, planned) and (problem := self._problem) is not None:
            if at_death is None:
                raise problem
            at_death(problem)
        return planned

    def _is_planned(self, at_ms: int, planned: Planned) -> bool:
        with self._lock:
            if self._stopping or self._problem is not None:
                return False
            if len(self._calls) >= self._clear_out_at:
                self._calls = [one for one in self._calls if not one[2].over]
                heapify(self._calls)
                self._clear_out_at = 2 * len(self._calls) + CLEAR_OUT_AT
            self._count += 1
            heappush(self._calls, (at_ms, self._count, planned))
            if self._thread is None:
                thread = Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._thread = thread
            elif self._calls[0][1] == self._count:
                self._something_new.notify()
        return True

    def _run(self) -> None:
        try:
            while (planned := self._next()) is not None:
                if not planned.over:
                    planned.call()
        except BaseException as error:
            self._die(ThreadDied(self._name, repr(error)))
            raise

    def _die(self, problem: ThreadDied) -> None:
        with self._lock:
            self._problem = problem
            left, self._calls = sorted(self._calls), []
        log.error("%s", problem)
        if self._died is not None:
            self._died(problem)
        for _, _, planned in left:
            if planned.at_death is not None and not planned.over:
                planned.at_death(problem)

    def _next(self) -> Planned | None:
        with self._lock:
            while True:
                self._clock.read()
                now_ms = self._clock.monotonic_ms
                if self._calls and self._calls[0][0] <= now_ms:
                    return heappop(self._calls)[2]
                if self._stopping or not self.is_current:  # not current: its start was interrupted
                    return None
                left_ms = min(self._calls[0][0] - now_ms, WAIT_MS_MAX) if self._calls else None
                self._something_new.wait(None if left_ms is None else left_ms / 1000)

    def stop(self) -> None:
        """Make the calls that are due, but no others, and end the thread. Returns when it has ended."""
        with self._lock:
            self._stopping = True
            self._something_new.notify()
        if self._thread is not None and not self.is_current:
            self._thread.join()
