"""Slow disk calls off the loop: a thread that only ever sits in a system call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kestreld.files import FileLayer


class LoopFiles(FileLayer):
    """The real disk, with a thread for what would hold up a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")

    def in_background(self, work: Callable[[], None], finished: Callable[[OSError | None], None]) -> None:
        def run() -> None:
            try:
                work()
            except OSError as error:
                self._loop.call_soon_threadsafe(finished, error)
            else:
                self._loop.call_soon_threadsafe(finished, None)

        self._thread.submit(run)

    def stop(self) -> None:
        """Wait for what is under way; nothing is taken on afterwards."""
        self._thread.shutdown(wait=True)
