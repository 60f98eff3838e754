"""An item of a cluster for so long: confirmed on any connection, by the server that gave the token."""

from types import TracebackType
from typing import Final, Self

from kestreld import checks
from kestreld.client.items import OpenItem
from kestreld.client.server import Server
from kestreld.errors import LeaseLost

SPAN_MS_MAX: Final = 366 * 86_400_000  # servers allow less: max_lease, max_delay


class ClusterLease:
    """An item, until `confirm`, `give_back` or `fail`, or until its time is over, which counts as a failure.

    These, and `extend`, are False, and do nothing, when it is over and somebody else has the item, or it is done. They
    go to the server that the item is from, and raise ServersAway or ConnectionLost where it does not answer. In a
    `with` block it is confirmed when the block succeeds, has failed when it raises an Exception, and is given back when
    it raises something else, Ctrl-C say.
    """

    def __init__(self, server: Server, key: bytes, name: str, opened: OpenItem) -> None:
        self.item = opened.data
        self.token = opened.id  # a number that stands for it on this server
        self.server = server.address
        self._server = server
        self._key = key
        self._name = name
        self._is_ended = False

    def confirm(self) -> bool:
        """The item is done."""
        return self._ended(self._server.asked(lambda connection: connection.confirm(self._key, self.token)))

    def extend(self, seconds: float) -> bool:
        """It lasts so long from now, also where that is shorter."""
        lease_ms = lease_span_ms(seconds)
        return self._server.asked(lambda connection: connection.extend(self._key, self.token, lease_ms))

    def give_back(self, delay: float = 0) -> bool:
        """The item waits again, before others, or is not delivered before `delay` seconds from now. Not a failure."""
        delay_ms = checks.seconds_ms(delay, "delay", SPAN_MS_MAX)
        return self._ended(self._server.asked(lambda one: one.give_back(self._key, self.token, delay_ms)))

    def fail(self, *, reason: str | None = None) -> bool:
        """The item waits as `retry_delays` of its queue say, or waits again at once, or goes to `move_failed_to`.

        The queue remembers the `reason`, a line of at most 200 bytes, where it has `retry_delays` or `max_retries`.
        An older server refuses it.
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
