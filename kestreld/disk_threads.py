"""Slow disk calls out of the way: threads that only ever sit in a system call."""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Final

from kestreld.files import FileLayer

THREADS: Final = 8  # so many journals can be on their way to the disk at a time

Work = Callable[[], None]
Finished = Callable[[OSError | None], None]


class ThreadedFiles(FileLayer):
    """The real disk, with threads for what would hold others up. `post` has a call made where the engine runs.

    Made for many short calls: handing one over and back costs a fifth of what an executor's future does.
    """

    def __init__(self, post: Callable[[Work], object]) -> None:
        self._post = post
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
            self._post(self._deliver)

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
