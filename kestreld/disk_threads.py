"""File layer with threads for slow disk calls, such as syncs, that would delay the engine."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from kestreld.clock import Clock
from kestreld.files import FileLayer

THREADS: Final = 8  # so many journals can be synced at the same time

Work = Callable[[], None]
Finished = Callable[[OSError | None], None]


def start(thread: Thread) -> None:
    """Start a thread. If a signal handler raises meanwhile, raise its exception instead of `Thread.start`'s own."""
    try:
        thread.start()
    except (KeyError, RuntimeError) as error:  # of its records, and of the lock of the event that it waits for
        raise error.__context__ or error from None


def _raise(error: BaseException) -> None:
    raise error


class ThreadedFiles(FileLayer):
    """The real file system, with threads for slow calls; `post` has a function called where the engine runs.

    Designed for many short calls: handing one over and back costs a fifth of an executor's future.
    """

    def __init__(self, post: Callable[[Work], object], died: Callable[[BaseException], object] | None = None) -> None:
        """`died` is called if a thread ends with an exception; by default, that is raised where the engine runs."""
        self._post = post
        self._died = died if died is not None else lambda error: post(partial(_raise, error))
        self._tasks: SimpleQueue[tuple[Work, Finished] | None] = SimpleQueue()
        self._over: deque[tuple[Finished, OSError | None]] = deque()
        self._threads: list[Thread] = []
        self._under_way = 0
        self._clock = Clock()

    def in_time(self, work: Work, within_us: int | None) -> bool:
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                outcome.put(error)
            else:
                outcome.put(None)

        Thread(target=run, name="disk, in time", daemon=True).start()
        try:
            problem = outcome.get(timeout=None if within_us is None else within_us / 1_000_000)
        except Empty:
            return False
        if problem is not None:
            raise problem
        return True

    def in_background(self, work: Work, finished: Finished) -> None:
        if not self.takes_calls:
            return
        self._under_way += 1
        if self._under_way > len(self._threads) < THREADS:
            thread = Thread(target=self._run, name=f"disk {len(self._threads) + 1}", daemon=True)
            start(thread)
            self._threads.append(thread)
        self._tasks.put((work, finished))

    def _run(self) -> None:
        try:
            self._make_calls()
        except BaseException as error:
            self._died(error)
            raise

    def _make_calls(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, finished = task
            problem: OSError | None = None
            try:
                work()
            except OSError as error:
                problem = error
            self._over.append((finished, problem))
            self._post(self._deliver)
        self._tasks.put(None)  # for the next thread

    def _deliver(self) -> None:
        while self._over:
            finished, problem = self._over.popleft()
            self._under_way -= 1
            finished(problem)

    def stop(self, within_us: int | None = None) -> None:
        """Wait for all calls made so far; later ones are ignored.

        With a limit, calls that no thread has begun are dropped, and a call that takes longer continues unobserved.
        """
        self.takes_calls = False
        if within_us is not None:
            with suppress(Empty):
                while True:
                    self._tasks.get_nowait()
        self._tasks.put(None)
        until_us = None if within_us is None else self._clock.stopwatch_us() + within_us
        for thread in self._threads:
            thread.join(None if until_us is None else max(until_us - self._clock.stopwatch_us(), 0) / 1_000_000)
        self._deliver()  # a loop that has ended no longer reports a failed sync
