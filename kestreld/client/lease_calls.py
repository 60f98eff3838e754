"""LeaseCalls: the rules of a leased item: what is asked of its server, how often, and what the answers mean.

Its calls do no I/O: see calls.py.
"""

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kestreld import checks
from kestreld.client.absence import now_ms
from kestreld.client.calls import Pause
from kestreld.client.heartbeat import pauses_ms
from kestreld.client.items import OpenItem
from kestreld.client.pool_calls import PAUSE_MS, AnyServer, Ask, PoolCall, talking
from kestreld.client.queue_talks import QueueTalks, Talk
from kestreld.errors import (
    ConnectionLost,
    HolderSilent,
    KestrelError,
    LeaseLost,
    LoginRefused,
    ServersAway,
    ServerUnfit,
    UnexpectedReply,
)

SPAN_MS_MAX: Final = 366 * 86_400_000  # servers allow less: max_lease, max_delay
BEATS: Final = 3  # extensions in the time of one lease
UNSURE: Final = "done, or lost: a request to confirm the item was not answered, and then its token was not known"

_log: Final = logging.getLogger("kestreld.client")
S = TypeVar("S", bound=AnyServer)


class LeaseCalls(Generic[S]):
    """A leased item until its end, as ClusterLease documents it. Whoever has it stops the heartbeat before an end."""

    def __init__(
        self,
        server: S,
        key: bytes,
        name: str,
        opened: OpenItem,
        lease_ms: int,
        sent_at_ms: int,
        *,
        was_waited_for: bool = False,
        outage_ms: int = 0,
    ) -> None:
        """`sent_at_ms`: the time on the monotonic clock just before the request was sent.

        Of an item that was waited for longer than for a beat, it is too early: the lease is counted from now, and as
        the server has counted since a little earlier, the first beat is due at once. `outage_ms`: for how long each
        call goes on through an outage, also beyond the time of the lease, as a restarted server lets leases go on.
        """
        self.item = opened.data
        self.token = opened.id
        self.deliveries = opened.deliveries
        self.server = server
        self.name = name
        self.is_unsure = False
        self.is_ended = False
        self._key = key
        self._lease_ms = lease_ms
        came_at_ms = now_ms()
        self.is_late = was_waited_for and came_at_ms - sent_at_ms > lease_ms // BEATS  # the first beat is due
        self.until_ms = (came_at_ms if self.is_late else sent_at_ms) + lease_ms  # by our clock
        self._outage_ms = outage_ms
        self._beating: Perseverance | None = None  # while beats fail
        self._is_gone = False  # the server has said that it does not know the token
        server.own_leases.is_had_by(self.token, self)

    @property
    def is_lost(self) -> bool:
        """True if somebody else may have the item."""
        return self._is_gone or (not self.is_ended and now_ms() >= self.until_ms)

    # Its end

    def confirm(self) -> PoolCall[S, bool]:
        return self._end(lambda talks: talks.confirm(self._key, self.token))

    def give_back(self, delay_ms: int = 0) -> PoolCall[S, bool]:
        return self._end(lambda talks: talks.give_back(self._key, self.token, delay_ms))

    def fail(self, failure: str = "") -> PoolCall[S, bool]:
        return self._end(lambda talks: talks.fail(self._key, self.token, failure))

    def give_back_once(self) -> PoolCall[S, bool]:
        """`give_back` without repeating it: its holder must not wait for a server."""
        return self._end(lambda talks: talks.give_back(self._key, self.token), repeats=False)

    def _end(self, talk_of: Callable[[QueueTalks], Talk[bool]], *, repeats: bool = True) -> PoolCall[S, bool]:
        def attempt() -> "PoolCall[S, bool]":
            try:
                is_good: bool = yield Ask(self.server, talking(talk_of), is_urgent=True)
            except KestrelError as problem:
                self.is_unsure = self.is_unsure or _may_be_done(problem)
                raise
            return is_good

        is_good = yield from self._repeated(attempt, repeats=repeats)
        self.is_unsure = self.is_unsure and not is_good
        self._is_gone = self._is_gone or not (is_good or self.is_unsure or self.is_ended)
        self.is_ended = True
        self.server.own_leases.is_over(self.token)
        return is_good

    def end_block(self, failure: type[BaseException] | None) -> PoolCall[S, None]:
        """End the lease at the end of a block: confirm the item, or say that it has failed, or give it back.

        Raises LeaseLost if the block has succeeded and the item may be somebody else's. That an item could not be given
        back is only logged: the exception that led here says more.
        """
        if self.is_ended:
            return
        if failure is None:
            yield from self._must_be_confirmed()
            return
        try:
            yield from self.fail() if issubclass(failure, Exception) else self.give_back_once()
        except KestrelError as problem:
            _log.warning(
                "%s: the item of the lease %d comes again when that is over: %s", self.name, self.token, problem
            )

    def _must_be_confirmed(self) -> PoolCall[S, None]:
        if self._is_gone:
            raise LeaseLost(self.name)
        try:
            is_confirmed = yield from self.confirm()
        except KestrelError as problem:
            if not _may_pass(problem):
                raise
            words = "done, or lost" if self.is_unsure else "the lease was over before the item could be confirmed"
            raise LeaseLost(self.name, f"{words}: {problem}", is_unsure=self.is_unsure) from problem
        if not is_confirmed:
            raise LeaseLost(self.name, UNSURE if self.is_unsure else "", is_unsure=self.is_unsure)

    # Its time

    def extend(self, lease_ms: int) -> PoolCall[S, bool]:
        def attempt() -> "PoolCall[S, bool]":
            talk = talking(lambda talks: self._extended(talks, lease_ms))
            return (yield Ask(self.server, talk, is_urgent=True))  # type: ignore[no-any-return]

        return self._repeated(attempt)

    def _extended(self, talks: QueueTalks, lease_ms: int) -> Talk[bool]:
        until_ms = now_ms() + lease_ms
        self.until_ms = min(self.until_ms, until_ms)  # as long as there is no answer
        is_good = yield from talks.extend(self._key, self.token, lease_ms)
        if is_good:
            self.until_ms = until_ms
        else:
            self._is_gone = self._is_gone or not (self.is_unsure or self.is_ended)
        return is_good

    def _repeated(self, attempt: Callable[[], PoolCall[S, bool]], *, repeats: bool = True) -> PoolCall[S, bool]:
        """Return the server's answer, if need be after asking again: see Perseverance."""
        persevering: Perseverance | None = None
        while True:
            try:
                return (yield from attempt())
            except KestrelError as problem:
                if not repeats or not _may_pass(problem):
                    raise
                persevering = persevering or Perseverance(self._outage_ms)
                if (pause_ms := persevering.pause_ms(self.until_ms, self.server)) is None:
                    raise
            yield Pause(pause_ms / 1000)

    # The heartbeat

    @property
    def beat_ms(self) -> int:
        """Time between two beats, ms."""
        return self._lease_ms // BEATS

    def next_beat_ms(self) -> int:
        """Return the time until the next beat is due, ms."""
        return 0 if self.is_late else max(self.until_ms - self._lease_ms + self.beat_ms - now_ms(), 1)

    def beat(self, talks: QueueTalks) -> Talk[int | None]:
        """Extend the lease. Return the ms until the next beat is due; None = the lease is over, or lost."""
        try:
            is_good = yield from self._extended(talks, self._lease_ms)
        except KestrelError as problem:
            self._beating = self._beating or Perseverance(self._outage_ms)
            is_outage = not isinstance(problem, HolderSilent)
            if (pause_ms := self._beating.pause_ms(self.until_ms, self.server, is_outage=is_outage)) is not None:
                return pause_ms
            _log.warning("%s: the lease %d is over and was not extended: %s", self.name, self.token, problem)
            return None
        self.is_late, self._beating = False, None
        return self.next_beat_ms() if is_good else None


class Perseverance:
    """How long one call for a lease is repeated, from its first failure on: for the time of an outage, or until the
    lease is over by our clock, whichever is later.
    """

    def __init__(self, outage_ms: int) -> None:
        self._end_ms = now_ms() + outage_ms
        self._pauses_ms = pauses_ms()

    def pause_ms(self, until_ms: int, server: AnyServer, *, is_outage: bool = True) -> int | None:
        """Return the time until the next attempt, if there may be one, for a lease that is over at `until_ms`.

        Without an outage there is none beyond that.
        """
        now, next_try_at_ms = now_ms(), server.next_try_at_ms
        left_ms = (max(until_ms, self._end_ms) if is_outage else until_ms) - now
        if left_ms <= 0:
            return None
        pause_ms = next(self._pauses_ms)
        if next_try_at_ms > now:  # it may be back then: the rest of a whole pause would be too long
            pause_ms = min(pause_ms, next_try_at_ms + PAUSE_MS - now)
        return min(pause_ms, left_ms)


class LeaseFace(Generic[S]):
    """What is known of a leased item, without the means to carry out its calls."""

    def __init__(self, calls: LeaseCalls[S]) -> None:
        self._calls = calls

    @property
    def item(self) -> bytes:
        return self._calls.item

    @property
    def token(self) -> int:
        """The number that confirms the item on its server."""
        return self._calls.token

    @property
    def deliveries(self) -> int | None:
        """Number of times that the item was delivered from this queue before, as its server knows; None = it does not
        say, as it is older.
        """
        return self._calls.deliveries

    @property
    def server(self) -> str:
        return self._calls.server.address

    @property
    def is_unsure(self) -> bool:
        return self._calls.is_unsure

    @property
    def is_lost(self) -> bool:
        """True if somebody else may have the item: its server has said so, or the time of the lease is over.

        In the latter case the item can be confirmed as long as nobody has taken it.
        """
        return self._calls.is_lost

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of {self._calls.name!r} on {self.server}>"


def _may_pass(problem: KestrelError) -> bool:
    """Return True if the server may answer otherwise when it is asked again."""
    if isinstance(problem, LoginRefused):
        return "SERVER_ERROR" in problem.reason  # too many logins: all its clients come back at once
    if isinstance(problem, ServerUnfit):  # too many clients, or a disk that fails
        return not isinstance(problem, UnexpectedReply) and not problem.reason.startswith("corrupt ")
    return isinstance(problem, (ServersAway, ConnectionLost))


def _may_be_done(problem: KestrelError) -> bool:
    """Return True if the server may have done what it was asked for."""
    return isinstance(problem, ConnectionLost) or (
        isinstance(problem, ServerUnfit) and problem.reason.startswith("journal ")
    )


def lease_span_ms(seconds: float) -> int:
    return checks.seconds_ms(seconds, "seconds", SPAN_MS_MAX, 1)
