"""Virtual time: what is going to happen and when, and the event loop that one server process sees of it.

Nothing here waits: time jumps to the next thing that happens. What is due at one instant happens in the order in which
it was asked for.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any

from kestreld.server.loop import EVENTS_MAX
from tests.support.mortal_files import Killed


class Spinning(AssertionError):
    """Something happens again and again and time does not pass."""


class Timer:
    """Something that is going to happen, unless it is cancelled."""

    __slots__ = ("arguments", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Schedule:
    """All that is going to happen to servers, clients, networks and disks."""

    EVENTS_AN_INSTANT_MAX = 20_000

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0

    def after(self, delay_us: int, callback: Callable[..., object], *arguments: Any) -> Timer:
        timer = Timer(callback, arguments)
        self._count += 1  # equal times keep their order
        heappush(self._heap, (self.now_us + max(delay_us, 0), self._count, timer))
        return timer

    def run(self, until_us: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Let things happen until that instant, or until it is enough."""
        since_us, since = self.now_us, self.events
        while not enough():
            if not self._heap or self._heap[0][0] > until_us:
                self.now_us = max(self.now_us, until_us)
                return
            at_us, _, timer = heappop(self._heap)
            if timer.cancelled:
                continue
            self.events += 1
            if at_us > since_us:
                since_us, since = at_us, self.events
            elif self.events - since > self.EVENTS_AN_INSTANT_MAX:
                raise Spinning(f"{timer.callback!r} at {at_us} us")
            self.now_us = max(self.now_us, at_us)  # what was due while nothing ran is late
            timer.callback(*timer.arguments)


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. When the process is dead, nothing of what it had asked for happens any more."""

    def __init__(self, schedule: Schedule, chance: Random, died: Callable[[], None]) -> None:
        self._schedule = schedule
        self._chance = chance
        self._died = died
        self.alive = True
        self.readers: dict[int, Callable[[], object]] = {}  # by descriptor of a poller
        self._put_off: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None  # None = it is not stopped

    def stop(self) -> None:
        """SIGSTOP: nothing of it happens before `go_on`."""
        self._put_off = [] if self._put_off is None else self._put_off

    def go_on(self) -> None:
        """SIGCONT."""
        put_off, self._put_off = self._put_off, None
        for callback, arguments in put_off or []:
            self._schedule.after(0, self.run, callback, *arguments)

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """A step of the process, which may be its last."""
        if self._put_off is not None:
            self._put_off.append((callback, arguments))
        elif self.alive:
            try:
                callback(*arguments)
            except Killed:
                self.alive = False
                self._died()

    def time(self) -> float:
        return self._schedule.now_us / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> Timer:
        return self._schedule.after(0, self.run, callback, *arguments)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> Timer:
        return self._schedule.after(round(delay * 1_000_000), self.run, callback, *arguments)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def run_turns(self, poller: Any, turn: Callable[[list[tuple[int, int]]], object]) -> None:
        self.readers[poller.fileno()] = lambda: turn(poller.poll(0, EVENTS_MAX))

    def end_turns(self) -> None:
        self.readers.clear()

    def run_in_executor(  # type: ignore[override]
        self, executor: None, work: Callable[..., Any], *arguments: Any
    ) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.Future(loop=self)

        def finish() -> None:
            try:
                result = work(*arguments)
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._chance.uniform(0, 0.02), finish)
        return future

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            raise error
        raise AssertionError(context.get("message"))
