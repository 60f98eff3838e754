"""What must not be done where it turns out to be due.

Garbage is collected at any moment, and whoever is interrupted by that may have the very lock that is needed then.
"""

import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from kestreld.disk_threads import start
from kestreld.forks import restart_in_child

Call = Callable[[], object]


class Afterwards:
    """A thread that makes calls in their order, started with the first. To ask for one takes no lock."""

    def __init__(self) -> None:
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Without calls and without a thread: those are the parent's."""
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, call: Call) -> None:
        """Have a call made soon; not any more at the end of the process."""
        self._calls.put(call)
        self._begin()

    def ready(self) -> Callable[[Call], object]:
        """A function in C that has a call made soon: nothing is interrupted in it."""
        self._begin()
        return self._calls.put

    def _begin(self) -> None:
        if self._thread is None and not sys.is_finalizing():
            thread = Thread(target=self._run, args=(self._calls,), name="what nobody took of queues", daemon=True)
            start(thread)
            self._thread = thread  # where this is cut short the next call starts another

    def _run(self, calls: SimpleQueue[Call]) -> None:
        try:
            while True:
                calls.get()()
        finally:
            self._thread = None  # the next call has another one


afterwards = Afterwards()
