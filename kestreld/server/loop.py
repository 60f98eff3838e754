"""asyncio's event loop on the poller of the data ports: turns run between its own rounds.

One system call waits for both. Events of the data ports are handled at once, turn after turn; asyncio has its round
when something of its own is ready or due.
"""

import asyncio
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from selectors import EpollSelector, SelectorKey
from typing import Final, TypeVarTuple

from kestreld import net
from kestreld.clock import Clock
from kestreld.net import Events, Poller

EVENTS_MAX: Final = 256
Turn = Callable[[Events], None]
Ts = TypeVarTuple("Ts")


class TurnSelector(EpollSelector):
    """The selector of asyncio, whose epoll object is one descriptor of the poller."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.asked = False  # a turn has scheduled something on asyncio's loop
        self._clock = clock
        self._poller: Poller | None = None
        self._turn: Turn = lambda events: None

    def run_turns(self, poller: Poller, turn: Turn) -> None:
        poller.register(self.fileno(), net.READABLE)
        self._poller, self._turn = poller, turn

    def end_turns(self) -> None:
        self._poller = None

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Run turns until asyncio has something ready, a turn has called its loop, or `timeout` s have passed."""
        if self._poller is None:
            return super().select(timeout)
        poll, turn, clock, own = self._poller.poll, self._turn, self._clock, self.fileno()
        self.asked = False
        until_ms = -1 if timeout is None else clock.monotonic_ms + int(timeout * 1000)
        left_s = -1 if timeout is None else max(timeout, 0)
        while events := poll(left_s, EVENTS_MAX):
            turn(events)
            if self.asked or self._poller is None:
                break
            for fd, _ in events:
                if fd == own:
                    return super().select(0)
            if timeout is not None:
                left_s = (until_ms - clock.monotonic_ms) / 1000
                if left_s <= 0:
                    break
        return []


class TurnLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that runs the turns of a server between its own rounds."""

    def __init__(self, clock: Clock) -> None:
        self._turns = TurnSelector(clock)
        super().__init__(self._turns)

    def run_turns(self, poller: Poller, turn: Turn) -> None:
        """Call `turn` with the poller's events whenever there are any; `turn` reads the clock."""
        self._turns.run_turns(poller, turn)

    def end_turns(self) -> None:
        self._turns.end_turns()

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        self._turns.asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        self._turns.asked = True
        return super().call_at(when, callback, *args, context=context)
