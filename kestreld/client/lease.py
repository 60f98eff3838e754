"""ClusterLease: an item leased from a server of a cluster, to be confirmed on any connection to that server."""

from types import TracebackType
from typing import Final, Self

from kestreld import checks
from kestreld.client.items import OpenItem
from kestreld.client.server import Server
from kestreld.errors import LeaseLost

SPAN_MS_MAX: Final = 366 * 86_400_000  # servers allow less: max_lease, max_delay


class ClusterLease:
    """A leased item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These three, and `extend`, do nothing and return False if the lease is over and somebody else has the item, or if
    the item is done. They go to the server of the item, and raise ServersAway or ConnectionLost if it does not answer.
    In a `with` block the item is confirmed if the block succeeds, has failed if it raises an Exception, and is given
    back if it raises something else, such as Ctrl-C.
    """

    def __init__(self, server: Server, key: bytes, name: str, opened: OpenItem) -> None:
        self.item = opened.data
        self.token = opened.id  # the number that confirms the item on this server
        self.server = server.address
        self._server = server
        self._key = key
        self._name = name
        self._is_ended = False

    def confirm(self) -> bool:
        """Confirm the item: it is done."""
        return self._ended(self._server.asked(lambda connection: connection.confirm(self._key, self.token)))

    def extend(self, seconds: float) -> bool:
        """Let the lease last `seconds` from now, even if that is shorter."""
        lease_ms = lease_span_ms(seconds)
        return self._server.asked(lambda connection: connection.extend(self._key, self.token, lease_ms))

    def give_back(self, delay: float = 0) -> bool:
        """Return the item, before others, or to be delivered after `delay` seconds. Not a failure."""
        delay_ms = checks.seconds_ms(delay, "delay", SPAN_MS_MAX)
        return self._ended(self._server.asked(lambda one: one.give_back(self._key, self.token, delay_ms)))

    def fail(self, *, reason: str | None = None) -> bool:
        """Return the item as failed: it waits according to the queue's `retry_delays`, or is delivered again at once,
        or goes to `move_failed_to`.

        The queue remembers the `reason`, a line of at most 200 bytes, if it has `retry_delays` or `max_retries`. An
        older server refuses a reason.
        """
        failure = checks.reason(reason, "reason")
        return self._ended(self._server.asked(lambda connection: connection.fail(self._key, self.token, failure)))

    def _ended(self, is_good: bool) -> bool:
        self._is_ended = True
        return is_good

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ended:
            return
        if kind is None:
            if not self.confirm():
                raise LeaseLost(self._name)
        elif issubclass(kind, Exception):
            self.fail()
        else:
            self.give_back()

    def __repr__(self) -> str:
        return f"<ClusterLease {self.token} of {self._name!r} on {self.server}>"


def lease_span_ms(seconds: float) -> int:
    return checks.seconds_ms(seconds, "seconds", SPAN_MS_MAX, 1)
