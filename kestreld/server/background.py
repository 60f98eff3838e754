"""Slow disk calls off the loop: threads that only ever sit in a system call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kestreld.files import FileLayer

THREADS: Final = 8  # so many journals can be on their way to the disk at a time


class LoopFiles(FileLayer):
    """The real disk, with threads for what would hold up a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="disk")

    def in_background(self, work: Callable[[], None], finished: Callable[[OSError | None], None]) -> None:
        def run() -> None:
            try:
                work()
            except OSError as error:
                self._loop.call_soon_threadsafe(finished, error)
            else:
                self._loop.call_soon_threadsafe(finished, None)

        self._threads.submit(run)

    def stop(self) -> None:
        """Wait for what is under way; nothing is taken on afterwards."""
        self._threads.shutdown(wait=True)
