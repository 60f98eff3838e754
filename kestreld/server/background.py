"""Slow disk calls off the loop: threads that only ever sit in a system call."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar

from kestreld.files import FileLayer

THREADS: Final = 8  # so many journals can be on their way to the disk at a time

T = TypeVar("T")
THOUGHTS_MAX: Final = 64

Work = Callable[[], None]
Finished = Callable[[OSError | None], None]


class LoopFiles(FileLayer):
    """The real disk, with threads for what would hold up a turn.

    Made for many short calls: handing one over and back costs a fifth of what an executor's future does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: SimpleQueue[tuple[Work, Finished] | None] = SimpleQueue()
        self._over: deque[tuple[Finished, OSError | None]] = deque()
        self._threads: list[Thread] = []
        self._under_way = 0

    def in_background(self, work: Work, finished: Finished) -> None:
        self._under_way += 1
        if self._under_way > len(self._threads) < THREADS:
            thread = Thread(target=self._run, name=f"disk {len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put((work, finished))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, finished = task
            problem: OSError | None = None
            try:
                work()
            except OSError as error:
                problem = error
            self._over.append((finished, problem))
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._over:
            finished, problem = self._over.popleft()
            self._under_way -= 1
            finished(problem)

    def stop(self) -> None:
        """Wait for what is under way; nothing is taken on afterwards."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()


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
