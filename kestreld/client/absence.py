"""Absence: whether a server is left out, why, and when it is tried again.

It knows no connections, threads or tasks.
"""

import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from kestreld.clock import monotonic_ms
from kestreld.errors import ConnectionLost, KestrelError, ServersAway, ServerUnfit

DELAY_MS: Final = 100  # before the second attempt; it doubles with each
DELAY_MS_MAX: Final = 2000
# Clients that have lost it at the same moment come back at different ones; none of them later than `DELAY_MS_MAX`
# after the server is ready, the attempt itself included.
SHARES: Final = (0.5, 0.9)

_log: Final = logging.getLogger("kestreld.client")


now_ms: Final = monotonic_ms


class Absence:
    """The state of one server: it is used, or left out from `begin` to `end`. Whoever shares it locks it."""

    def __init__(self, address: str, timeout_ms: int, chance: Random) -> None:
        self._address = address
        self._timeout_ms = timeout_ms
        self._chance = chance
        self._problem: Callable[[], KestrelError] | None = None  # while it is left out
        self._delay_ms = 0
        self._next_try_at_ms = 0

    @property
    def next_try_at_ms(self) -> int:
        """Time of the next try on the monotonic clock, ms; 0 = the server is not left out."""
        return self._next_try_at_ms if self._problem is not None else 0

    def problem(self) -> KestrelError | None:
        """Return what to raise for an operation while the server is left out, else None."""
        problem = self._problem
        return None if problem is None else problem()

    def is_due_to(self, problem: KestrelError) -> bool:
        """Return True if a server is to be left out that has failed so: it does not answer, or refuses everything."""
        return self._meaning(problem) is not None

    def begin(self, problem: KestrelError, answer_ms: int = 0) -> bool:
        """Leave the server out because of a problem. False = it is left out already, or need not be.

        `answer_ms`: the time in which it had to answer, 0 = the time-out.
        """
        if self._problem is not None or (meaning := self._meaning(problem, answer_ms)) is None:
            return False
        self._problem, reason = meaning
        _log.warning("%s is away: %s", self._address, reason)
        self._plan(DELAY_MS)
        return True

    def go_on(self) -> None:
        """Plan the next try at a longer interval: the server was tried, and is not back."""
        self._plan(2 * self._delay_ms)

    def end(self) -> None:
        """Use the server again."""
        if self._problem is not None:
            self._problem = None
            _log.info("%s is back", self._address)

    def _plan(self, delay_ms: int) -> None:
        self._delay_ms = min(delay_ms, DELAY_MS_MAX)
        self._next_try_at_ms = now_ms() + round(self._delay_ms * self._chance.uniform(*SHARES))

    def _meaning(self, problem: KestrelError, answer_ms: int = 0) -> tuple[Callable[[], KestrelError], str] | None:
        """Return what to raise meanwhile, and why; None if the server need not be left out."""
        if isinstance(problem, ServersAway):
            return partial(ServersAway, problem.reasons), problem.reasons[self._address]
        if isinstance(problem, ConnectionLost) and isinstance(problem.__cause__, TimeoutError):
            reason = f"no answer within {answer_ms or self._timeout_ms} ms"
            return partial(ServersAway, {self._address: reason}), reason
        if isinstance(problem, ServerUnfit) and not problem.is_of_queue:
            return partial(ServerUnfit, self._address, problem.reason), problem.reason
        return None
