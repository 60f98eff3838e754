"""Lease: an item taken for a limited time, bound to no thread, connection or process, and its heartbeat."""

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from weakref import ref

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import JournalFailed, KestrelError, LeaseLost
from kestreld.library.futures import CommitFuture
from kestreld.library.handover import hand_over
from kestreld.library.item import QItem
from kestreld.library.reading import LEASED, Reading, token_of
from kestreld.library.worker import Planned
from kestreld.queues import leases
from kestreld.queues.reader import Reader

BEATS: Final = 3  # extensions in the time of one lease
Failed = Callable[[QItem], bool]  # called when an item has failed; True = it has dealt with the item


class Lease:
    """A leased item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These three, and `extend`, do nothing and return False if the lease is over and somebody else has the item, or if
    the item is done. While the item waits again they still work. In a `with` block the item is confirmed if the block
    succeeds, has failed if it raises an Exception, and is given back if it raises something else, such as Ctrl-C.
    """

    def __init__(
        self, reading: Reading, item: QItem, token: int, lease_ms: int, *, heartbeat: bool, failed: Failed | None
    ) -> None:
        self.item = item
        self.token = token  # the number that confirms the item, even after the queue is opened again
        self._reading = reading
        self._lease_ms = lease_ms
        self._heartbeat = heartbeat
        self._failed = failed
        self._is_ended = False
        self._is_beating = False
        self._beat: Planned | None = None

    # Its end

    def confirm(self) -> bool:
        """Confirm the item: it is done."""
        return self._settled(*self._confirm())

    async def confirm_async(self) -> bool:
        """Do `confirm` in a coroutine. Cancelling the coroutine meanwhile does not undo it."""
        is_good, hold = self._confirm()
        if hold is not None:
            await hold
        return is_good

    def extend(self, seconds: float) -> bool:
        """Let the lease last `seconds` from now, even if that is shorter."""
        lease_ms = checked_lease_ms(seconds, self._reading.reader)
        return self._settled(
            *self._reading.with_lease(lambda reader, _: leases.extend(reader, self.token, lease_ms), self.token)
        )

    def give_back(self, delay: float = 0) -> bool:
        """Return the item, before others, or to be delivered after `delay` seconds. Not a failure."""
        delay_ms = checks.seconds_ms(delay, "delay", self._reading.reader.config.max_delay_ms)
        return self._settled(*self._end(lambda reader, now: leases.give_back(reader, self.token, now, delay_ms)))

    def fail(self, *, reason: str | None = None) -> bool:
        """Return the item as failed: it waits according to `retry_delays_ms`, or is delivered again at once, or goes to
        `move_failed_to`. If the reader's error handler deals with the item, it is confirmed instead.

        The queue remembers the `reason`, a line of at most 200 bytes, if it has `retry_delays_ms` or `max_retries`.
        """
        failure = checks.reason(reason, "reason")
        if self._failed is not None and not self._is_ended:
            failed = self.item._replace(error_count=self.item.error_count + 1)
            if self._failed(failed):
                return self.confirm()
        return self._settled(*self._end(lambda reader, now: leases.fail(reader, self.token, now, failure)))

    def _confirm(self) -> tuple[bool, CommitFuture | None]:
        return self._end(lambda reader, _: leases.confirm(reader, self.token))

    def _end(self, act: Callable[[Reader, int], bool]) -> tuple[bool, CommitFuture | None]:
        self._stop_beating()
        outcome = self._reading.with_lease(act, self.token)
        self._is_ended = True
        return outcome

    def _settled(self, is_good: bool, hold: CommitFuture | None) -> bool:
        if hold is not None:
            hold.result()
        return is_good

    # The block

    def __enter__(self) -> Self:
        if self._heartbeat:
            is_begun = False
            try:
                self._is_beating = True
                self._beat_on()
                is_begun = True
            finally:
                if not is_begun:
                    with suppress(KestrelError):
                        self.give_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_beating()
        if self._is_ended:
            return
        if kind is None:
            self._must_be_confirmed(self.confirm())
        elif issubclass(kind, Exception):
            self.fail()
        else:
            self.give_back()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._is_ended:
            self.__exit__(kind, error, trace)
        else:
            self._must_be_confirmed(await self.confirm_async())

    def _must_be_confirmed(self, is_confirmed: bool) -> None:
        if not is_confirmed:
            raise LeaseLost(self._reading.reader.name)

    # The heartbeat

    def _beat_on(self) -> None:
        worker, weakly = self._reading.spool.worker, ref(self)

        def beat() -> None:  # stops when the lease is garbage
            if (lease := weakly()) is not None:
                lease._beat_once()

        self._beat = worker.at(Clock().monotonic_ms + max(self._lease_ms // BEATS, 1), beat)

    def _beat_once(self) -> None:
        """Extend the lease, on the worker. If it is lost, its holder learns that at the end.

        A disk that takes nothing ends no lease: it goes on in memory.
        """
        with suppress(KestrelError):  # the queue has stopped
            try:
                is_good, _ = self._reading.with_lease(
                    lambda reader, _: self._is_beating and leases.extend(reader, self.token, self._lease_ms), self.token
                )
            except JournalFailed:
                is_good = self._is_beating
            if is_good:
                self._beat_on()

    def _stop_beating(self) -> None:
        self._is_beating = False
        if self._beat is not None:
            self._beat.over = True

    def __repr__(self) -> str:
        return f"<Lease {self.token} of {self._reading.reader.name!r}>"


def checked_lease_ms(seconds: float, reader: Reader) -> int:
    return checks.seconds_ms(seconds, "seconds", reader.config.max_lease_ms, 1)


def lease_now(
    reading: Reading, seconds: float, end_at_ms: int | None, heartbeat: bool, failed: Failed | None = None
) -> Lease | None:
    """Lease the head item, waiting for one until `end_at_ms` (None = not at all)."""
    lease_ms = checked_lease_ms(seconds, reading.reader)
    checks.switch(heartbeat, "heartbeat")

    def fetch() -> Lease | None:
        return _lease_of(reading, reading.lease(lease_ms, end_at_ms), lease_ms, heartbeat=heartbeat, failed=failed)

    return hand_over(reading, fetch, LEASED)


async def lease_async(
    reading: Reading, seconds: float, end_at_ms: int | None, heartbeat: bool, failed: Failed | None = None
) -> Lease | None:
    """Do `lease_now` in a coroutine; without an end it waits forever."""
    lease_ms = checked_lease_ms(seconds, reading.reader)
    checks.switch(heartbeat, "heartbeat")
    item = await reading.lease_async(lease_ms, end_at_ms)
    return _lease_of(reading, item, lease_ms, heartbeat=heartbeat, failed=failed)


def confirm_lease(reading: Reading, token: int) -> bool:
    """Confirm the item that was leased with a token."""
    checks.whole(token, "token", 1)
    is_good, hold = reading.with_lease(lambda reader, _: leases.confirm(reader, token), token)
    if hold is not None:
        hold.result()
    return is_good


def _lease_of(
    reading: Reading, item: QItem | None, lease_ms: int, *, heartbeat: bool, failed: Failed | None
) -> Lease | None:
    if item is None:
        return None
    return Lease(reading, item._replace(xid=0), token_of(item), lease_ms, heartbeat=heartbeat, failed=failed)
