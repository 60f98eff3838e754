"""ClusterLease: an item leased from a server of a cluster, kept and confirmed there over restarts of it."""

import logging
from collections.abc import Callable
from threading import Event
from types import TracebackType
from typing import Final, Self
from weakref import ref

from kestreld import checks
from kestreld.client.connection import ClientConnection
from kestreld.client.heartbeat import Heartbeat, pauses_ms
from kestreld.client.items import OpenItem
from kestreld.client.server import Server, now_ms
from kestreld.errors import (
    ConnectionLost,
    KestrelError,
    LeaseLost,
    LoginRefused,
    ServersAway,
    ServerUnfit,
    UnexpectedReply,
)

SPAN_MS_MAX: Final = 366 * 86_400_000  # servers allow less: max_lease, max_delay
BEATS: Final = 3  # extensions in the time of one lease

_log: Final = logging.getLogger("kestreld.client")


class ClusterLease:
    """A leased item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These three, and `extend`, do nothing and return False if the lease is over and somebody else has the item, or if
    the item is done. They go to the server of the item. While that is away, does not answer, or cannot write its
    journal, they are repeated over new connections until the time of the lease is over; then they raise ServersAway,
    ConnectionLost or ServerUnfit. Each is sent once at least. `is_unsure` is True after one of the three was not
    answered, until one is answered with True: if they are False meanwhile, the first has been carried out, or the item
    is lost.

    In a `with` block the item is confirmed if the block succeeds, has failed if it raises an Exception, and is given
    back, without repeating that, if it raises something else, such as Ctrl-C. With a heartbeat the lease is extended
    three times in each of its spans while the block lasts.
    """

    def __init__(
        self,
        server: Server,
        key: bytes,
        name: str,
        opened: OpenItem,
        lease_ms: int,
        sent_at_ms: int,
        *,
        heartbeat: bool = False,
        was_waited_for: bool = False,
    ) -> None:
        """`sent_at_ms`: the time on the monotonic clock just before the request was sent.

        Of an item that was waited for longer than for a beat, it is too early: the lease is counted from now, and as
        the server has counted since a little earlier, the first beat is due at once.
        """
        self.item = opened.data
        self.token = opened.id  # the number that confirms the item on this server
        self.server = server.address
        self.is_unsure = False
        self._server = server
        self._key = key
        self._name = name
        self._lease_ms = lease_ms
        came_at_ms = now_ms()
        self._is_late = was_waited_for and came_at_ms - sent_at_ms > lease_ms // BEATS  # the first beat is due
        self._until_ms = (came_at_ms if self._is_late else sent_at_ms) + lease_ms  # by our clock
        self._has_heartbeat = heartbeat
        self._heartbeat: Heartbeat | None = None
        self._pauses_ms = pauses_ms()  # between beats that fail
        self._is_ended = False
        self._is_gone = False  # the server has said that it does not know the token

    @property
    def is_lost(self) -> bool:
        """True if somebody else may have the item: its server has said so, or the time of the lease is over.

        In the latter case the item can be confirmed as long as nobody has taken it.
        """
        return self._is_gone or (not self._is_ended and now_ms() >= self._until_ms)

    # Its end

    def confirm(self) -> bool:
        """Confirm the item: it is done."""
        return self._end(lambda connection: connection.confirm(self._key, self.token))

    def give_back(self, delay: float = 0) -> bool:
        """Return the item, before others, or to be delivered after `delay` seconds. Not a failure."""
        delay_ms = checks.seconds_ms(delay, "delay", SPAN_MS_MAX)
        return self._end(lambda connection: connection.give_back(self._key, self.token, delay_ms))

    def fail(self, *, reason: str | None = None) -> bool:
        """Return the item as failed: it waits according to the queue's `retry_delays`, or is delivered again at once,
        or goes to `move_failed_to`.

        The queue remembers the `reason`, a line of at most 200 bytes, if it has `retry_delays` or `max_retries`. An
        older server refuses a reason.
        """
        failure = checks.reason(reason, "reason")
        return self._end(lambda connection: connection.fail(self._key, self.token, failure))

    def give_back_once(self) -> bool:
        """Return the item as `give_back` does, without repeating that: its holder must not wait for a server."""
        return self._end(lambda connection: connection.give_back(self._key, self.token), repeats=False)

    def _end(self, ask: Callable[[ClientConnection], bool], *, repeats: bool = True) -> bool:
        def ask_and_note(connection: ClientConnection) -> bool:
            try:
                return ask(connection)
            except KestrelError as problem:
                self.is_unsure = self.is_unsure or _may_be_done(problem)
                raise

        self._stop_beating()
        is_good = self._asked(ask_and_note, repeats=repeats)
        self.is_unsure = self.is_unsure and not is_good
        self._is_gone = self._is_gone or not (is_good or self.is_unsure or self._is_ended)
        self._is_ended = True
        return is_good

    # Its time

    def extend(self, seconds: float) -> bool:
        """Let the lease last `seconds` from now, even if that is shorter."""
        lease_ms = lease_span_ms(seconds)
        return self._asked(lambda connection: self._extended(connection, lease_ms))

    def _extended(self, connection: ClientConnection, lease_ms: int) -> bool:
        until_ms = now_ms() + lease_ms
        self._until_ms = min(self._until_ms, until_ms)  # as long as there is no answer
        is_good = connection.extend(self._key, self.token, lease_ms)
        if is_good:
            self._until_ms = until_ms
        else:
            self._is_gone = self._is_gone or not (self.is_unsure or self._is_ended)
        return is_good

    def _asked(self, ask: Callable[[ClientConnection], bool], *, repeats: bool = True) -> bool:
        """Return the server's answer, if need be after asking again until the time of the lease is over."""
        pauses = pauses_ms()
        while True:
            try:
                return self._server.asked(ask, is_urgent=True)
            except KestrelError as problem:
                left_ms = self._until_ms - now_ms()
                if not repeats or left_ms <= 0 or not _may_pass(problem):
                    raise
            Event().wait(min(next(pauses), left_ms) / 1000)

    # The heartbeat

    def beating(self) -> Heartbeat:
        """Return a heartbeat for a `with` block, which extends the lease until the end of the block or of the lease."""
        weakly = ref(self)

        def beat() -> float | None:  # stops when the lease is garbage
            return None if (lease := weakly()) is None else lease._beat()

        self._heartbeat = Heartbeat(f"heartbeat of {self.token} of {self._name}", beat, self._next_beat_s())
        return self._heartbeat

    def _next_beat_s(self) -> float:
        since_ms = self._until_ms - self._lease_ms
        return 0 if self._is_late else max(since_ms + self._lease_ms // BEATS - now_ms(), 1) / 1000

    def _beat(self) -> float | None:
        """Extend the lease. Return the seconds until the next beat is due; None = the lease is over, or lost."""
        try:
            is_good = self._server.asked(lambda connection: self._extended(connection, self._lease_ms), is_urgent=True)
        except KestrelError as problem:
            left_ms = self._until_ms - now_ms()
            if left_ms > 0:
                return min(next(self._pauses_ms), left_ms) / 1000
            _log.warning("%s: the lease %d is over and was not extended: %s", self._name, self.token, problem)
            return None
        self._is_late, self._pauses_ms = False, pauses_ms()
        return self._next_beat_s() if is_good else None

    def _stop_beating(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # The block

    def __enter__(self) -> Self:
        if self._has_heartbeat:
            is_begun = False
            try:
                self.beating().start()
                is_begun = True
            finally:
                if not is_begun:
                    self._end_failed_block(self.give_back_once)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_beating()
        if self._is_ended:
            return
        if kind is None:
            self._must_be_confirmed()
        else:
            self._end_failed_block(self.fail if issubclass(kind, Exception) else self.give_back_once)

    def _must_be_confirmed(self) -> None:
        if self._is_gone:
            raise LeaseLost(self._name)
        try:
            is_confirmed = self.confirm()
        except KestrelError as problem:
            if not _may_pass(problem):
                raise
            words = "done, or lost" if self.is_unsure else "the lease was over before the item could be confirmed"
            raise LeaseLost(self._name, f"{words}: {problem}", is_unsure=self.is_unsure) from problem
        if not is_confirmed:
            raise LeaseLost(self._name, UNSURE if self.is_unsure else "", is_unsure=self.is_unsure)

    def _end_failed_block(self, end: Callable[[], bool]) -> None:
        """End the lease. A failure is only logged: the exception that led here says more."""
        try:
            end()
        except KestrelError as problem:
            _log.warning(
                "%s: the item of the lease %d comes again when that is over: %s", self._name, self.token, problem
            )

    def __repr__(self) -> str:
        return f"<ClusterLease {self.token} of {self._name!r} on {self.server}>"


UNSURE: Final = "done, or lost: a request to confirm the item was not answered, and then its token was not known"


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
