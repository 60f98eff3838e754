"""Slow disk calls out of the way: threads that only ever sit in a system call."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from kestreld.clock import Clock
from kestreld.files import FileLayer

THREADS: Final = 8  # so many journals can be on their way to the disk at a time

Work = Callable[[], None]
Finished = Callable[[OSError | None], None]


def start(thread: Thread) -> None:
    """Start a thread. Where a signal handler raises meanwhile `Thread.start` may raise an error of its own instead."""
    try:
        thread.start()
    except (KeyError, RuntimeError) as error:  # of its books, and of the lock of the event that it waits for
        raise error.__context__ or error from None


def _raise(error: BaseException) -> None:
    raise error


class ThreadedFiles(FileLayer):
    """The real disk, with threads for what would hold others up. `post` has a call made where the engine runs.

    Made for many short calls: handing one over and back costs a fifth of what an executor's future does.
    """

    def __init__(self, post: Callable[[Work], object], died: Callable[[BaseException], object] | None = None) -> None:
        """`died` is told where a thread ends by an exception; without it that is raised where the engine runs."""
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
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
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
        self._tasks.put(None)  # for the next one

    def _deliver(self) -> None:
        while self._over:
            finished, problem = self._over.popleft()
            self._under_way -= 1
            finished(problem)

    def stop(self, within_us: int | None = None) -> None:
        """Wait for what is under way; nothing is taken on afterwards.

        With a limit, what no thread has begun is left undone, and a call that takes longer goes on unheard.
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
        self._deliver()  # a loop that has ended tells nobody of a sync that failed
