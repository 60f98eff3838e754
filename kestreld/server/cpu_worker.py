"""One thread for CPU-bound work that releases the GIL: password checks."""

import asyncio
import ipaddress
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

JOBS_MAX: Final = 64  # of one origin
NETWORK_BITS: Final = 64  # of an IPv6 address: one machine may use any of those with the same prefix

Job = tuple[Callable[[], bool], Callable[[bool], None]]


class CpuWorker:
    """A thread for CPU-bound work that releases the GIL: comparing passwords.

    It is one thread, so that heavy users of it delay only each other. Origins take turns: one job of each, then the
    next of each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: dict[str, deque[Job]] = {}  # by origin, the next to have a turn first
        self._is_busy = False

    def run(self, origin: str, work: Callable[[], bool], done: Callable[[bool], None]) -> bool:
        """Run `work` in the thread, then `done` on the loop. Returns False if too many jobs of this origin wait."""
        jobs = self._waiting.setdefault(origin, deque())
        if len(jobs) >= JOBS_MAX:
            return False
        jobs.append((work, done))
        if not self._is_busy:
            self._begin_next()
        return True

    def _begin_next(self) -> None:
        origin = next(iter(self._waiting), None)
        self._is_busy = origin is not None
        if origin is None:
            return
        jobs = self._waiting.pop(origin)
        work, done = jobs.popleft()
        if jobs:
            self._waiting[origin] = jobs  # behind all others
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "passwords")

        def finished(future: "asyncio.Future[bool]") -> None:
            if not future.cancelled():
                self._begin_next()
                done(future.result())

        self._loop.run_in_executor(self._executor, work).add_done_callback(finished)

    def stop(self) -> None:
        """Drop all jobs that have not begun."""
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def origin_of(address: str) -> str:
    """Return the origin that a client's IP address counts as, for IPv6 its network; "" on a Unix socket."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, ipaddress.IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - NETWORK_BITS))
