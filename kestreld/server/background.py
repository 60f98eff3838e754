"""Slow thinking off the loop: a thread for what lets go of Python while it takes its time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
THOUGHTS_MAX: Final = 64


class Thinker:
    """A thread for what takes the processor long and lets go of Python meanwhile, such as comparing passwords.

    One, so that those who ask for much of it wait for one another and nobody else for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> bool:
        """Have `work` done and `done` told on the loop. False when too much waits already."""
        if self._waiting >= THOUGHTS_MAX:
            return False
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "passwords")
        self._waiting += 1

        def finished(future: "asyncio.Future[T]") -> None:
            self._waiting -= 1
            if not future.cancelled():
                done(future.result())

        self._loop.run_in_executor(self._executor, work).add_done_callback(finished)
        return True

    def stop(self) -> None:
        """Nothing that has not begun is begun any more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
