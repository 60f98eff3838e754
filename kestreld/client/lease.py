"""ClusterLease: an item leased from a server of a cluster, kept and confirmed there over restarts of it."""

from threading import Event
from types import TracebackType
from typing import Self, TypeVar

from kestreld import checks
from kestreld.client.calls import Pause, carry_out
from kestreld.client.heartbeat import Heartbeat
from kestreld.client.keeper_calls import Kept
from kestreld.client.lease_calls import SPAN_MS_MAX, LeaseCalls, LeaseFace, lease_span_ms
from kestreld.client.pool_calls import PoolCall, Step
from kestreld.client.server import Server

T = TypeVar("T")


class _LeaseHeartbeat(Heartbeat):
    """A lease that the keeper of its server keeps."""

    def __init__(self, lease: LeaseCalls[Server]) -> None:
        self._keeper = lease.server.keeper
        self._kept = Kept(lease)

    def start(self) -> None:
        self._keeper.keep(self._kept)

    def stop(self) -> None:
        self._keeper.stop(self._kept, _pause)


class ClusterLease(LeaseFace[Server]):
    """A leased item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These three, and `extend`, do nothing and return False if the lease is over and somebody else has the item, or if
    the item is done. They go to the server of the item. While that is away, does not answer, or cannot write its
    journal, they are repeated over new connections, for the cluster's `outage_s` or until the time of the lease is
    over, whichever is later; then they raise ServersAway, ConnectionLost or ServerUnfit. Each is sent once at least.
    `is_unsure` is True after one of the three was not
    answered, until one is answered with True: if they are False meanwhile, the first has been carried out, or the item
    is lost.

    In a `with` block the item is confirmed if the block succeeds, has failed if it raises an Exception, and is given
    back, without repeating that, if it raises something else, such as Ctrl-C. With a heartbeat the lease is extended
    three times in each of its spans while the block lasts.
    """

    def __init__(self, calls: LeaseCalls[Server], *, heartbeat: bool = False) -> None:
        super().__init__(calls)
        self._has_heartbeat = heartbeat
        self._heartbeat: Heartbeat | None = None

    # Its end

    def confirm(self) -> bool:
        """Confirm the item: it is done."""
        return self._ended(self._calls.confirm())

    def give_back(self, delay: float = 0) -> bool:
        """Return the item, before others, or to be delivered after `delay` seconds. Not a failure."""
        return self._ended(self._calls.give_back(checks.seconds_ms(delay, "delay", SPAN_MS_MAX)))

    def fail(self, *, reason: str | None = None) -> bool:
        """Return the item as failed: it waits according to the queue's `retry_delays`, or is delivered again at once,
        or goes to `move_failed_to`.

        The queue remembers the `reason`, a line of at most 200 bytes, if it has `retry_delays` or `max_retries`. An
        older server refuses a reason.
        """
        return self._ended(self._calls.fail(checks.reason(reason, "reason")))

    def give_back_once(self) -> bool:
        """Return the item as `give_back` does, without repeating that: its holder must not wait for a server."""
        return self._ended(self._calls.give_back_once())

    def _ended(self, call: PoolCall[Server, T]) -> T:
        self._stop_beating()
        return carry_out(call, _take)

    # Its time

    def extend(self, seconds: float) -> bool:
        """Let the lease last `seconds` from now, even if that is shorter."""
        return carry_out(self._calls.extend(lease_span_ms(seconds)), _take)

    def beating(self) -> Heartbeat:
        """Return a heartbeat for a `with` block, which extends the lease until the end of the block or of the lease."""
        self._heartbeat = _LeaseHeartbeat(self._calls)
        return self._heartbeat

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
                    self._ended(self._calls.end_block(KeyboardInterrupt))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended(self._calls.end_block(kind))


def _take(step: Step[Server]) -> object:
    """Do a step in this thread."""
    if isinstance(step, Pause):
        _pause(step.seconds)
        return None
    return step.server.asked(step.do, is_urgent=step.is_urgent)


def _pause(seconds: float) -> None:
    Event().wait(seconds)
