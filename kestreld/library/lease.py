"""An item for so long, whoever confirms it: it is not bound to a thread, a connection or the life of this process."""

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from weakref import ref

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import KestrelError, LeaseLost
from kestreld.library.futures import CommitFuture
from kestreld.library.handing_over import hand_over
from kestreld.library.item import QItem
from kestreld.library.reading import LEASED, Reading, token_of
from kestreld.library.worker import Planned
from kestreld.queues import leases
from kestreld.queues.reader import Reader

BEATS: Final = 3  # so often a lease is extended before it would be over
Failed = Callable[[QItem], bool]  # asked when an item has failed; True: it is dealt with


class Lease:
    """An item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These, and `extend`, are False, and do nothing, when it is over and somebody else has the item, or it is done.
    As long as the item waits again they do what they say. In a `with` block it is confirmed when the block succeeds,
    has failed when it raises an Exception, and is given back when it raises something else, Ctrl-C say.
    """

    def __init__(
        self, reading: Reading, item: QItem, token: int, lease_ms: int, *, heartbeat: bool, failed: Failed | None
    ) -> None:
        self.item = item
        self.token = token  # a number that stands for it, also when the queue is opened again
        self._reading = reading
        self._lease_ms = lease_ms
        self._heartbeat = heartbeat
        self._failed = failed
        self._is_ended = False
        self._is_beating = False
        self._beat: Planned | None = None

    # What becomes of it

    def confirm(self) -> bool:
        """The item is done."""
        return self._settled(*self._confirm())

    async def confirm_async(self) -> bool:
        """`confirm` for a coroutine. One that is cancelled meanwhile does not undo that."""
        is_good, hold = self._confirm()
        if hold is not None:
            await hold
        return is_good

    def extend(self, seconds: float) -> bool:
        """It lasts so long from now, also where that is shorter."""
        lease_ms = checked_lease_ms(seconds, self._reading.reader)
        return self._settled(
            *self._reading.with_lease(lambda reader, _: leases.extend(reader, self.token, lease_ms), self.token)
        )

    def give_back(self, delay: float = 0) -> bool:
        """The item waits again, before others, or is not delivered before `delay` seconds from now. Not a failure."""
        delay_ms = checks.seconds_ms(delay, "delay", self._reading.reader.config.max_delay_ms)
        return self._settled(*self._end(lambda reader, now: leases.give_back(reader, self.token, now, delay_ms)))

    def fail(self, *, reason: str | None = None) -> bool:
        """The item waits as `retry_delays_ms` say, or waits again at once, or goes to `move_failed_to`. It counts.

        The queue remembers the `reason`, a line of at most 200 bytes, where it has `retry_delays_ms` or `max_retries`.
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

        def beat() -> None:  # one that nobody has any more does not go on
            if (lease := weakly()) is not None:
                lease._beat_once()

        self._beat = worker.at(Clock().monotonic_ms + max(self._lease_ms // BEATS, 1), beat)

    def _beat_once(self) -> None:
        """On the worker. Whoever has it learns at the end that it is lost."""
        with suppress(KestrelError):
            if self._reading.with_lease(
                lambda reader, _: self._is_beating and leases.extend(reader, self.token, self._lease_ms), self.token
            )[0]:
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
    """Lease the head item, waiting for one until then (None = not at all)."""
    lease_ms = checked_lease_ms(seconds, reading.reader)
    checks.switch(heartbeat, "heartbeat")

    def fetch() -> Lease | None:
        return _lease_of(reading, reading.lease(lease_ms, end_at_ms), lease_ms, heartbeat=heartbeat, failed=failed)

    return hand_over(reading, fetch, LEASED)


async def lease_async(
    reading: Reading, seconds: float, end_at_ms: int | None, heartbeat: bool, failed: Failed | None = None
) -> Lease | None:
    """`lease_now` for a coroutine; without an end it waits forever."""
    lease_ms = checked_lease_ms(seconds, reading.reader)
    checks.switch(heartbeat, "heartbeat")
    item = await reading.lease_async(lease_ms, end_at_ms)
    return _lease_of(reading, item, lease_ms, heartbeat=heartbeat, failed=failed)


def confirm_lease(reading: Reading, token: int) -> bool:
    """What was leased by a token is done."""
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
