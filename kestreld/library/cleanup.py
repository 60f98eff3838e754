"""A thread for clean-up that becomes due during garbage collection or when a coroutine is dropped.

Garbage is collected at any moment, and the interrupted thread may hold the very lock that the clean-up needs.
"""

import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from kestreld.disk_threads import start
from kestreld.forks import restart_in_child

Call = Callable[[], object]


class CleanupThread:
    """A thread that makes calls in order, started with the first. Requesting a call takes no lock."""

    def __init__(self) -> None:
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Start without calls and thread: the old ones are the parent's."""
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, call: Call) -> None:
        """Have a call made soon; calls at the end of the process are dropped."""
        self._calls.put(call)
        self._begin()

    def ready(self) -> Callable[[Call], object]:
        """Return a function in C that has a call made soon, so that no signal handler interrupts it."""
        self._begin()
        return self._calls.put

    def _begin(self) -> None:
        if self._thread is None and not sys.is_finalizing():
            thread = Thread(target=self._run, args=(self._calls,), name="what nobody took of queues", daemon=True)
            start(thread)
            self._thread = thread  # if this is interrupted, the next call starts another

    def _run(self, calls: SimpleQueue[Call]) -> None:
        try:
            while True:
                calls.get()()
        finally:
            self._thread = None  # the next call has another one


cleanup = CleanupThread()
