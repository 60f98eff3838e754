"""QueueCalls: what a client can do with one queue on several servers. See calls.py: nothing is sent from here."""

from random import SystemRandom
from typing import Any, Final, Generic, TypeVar

from kestreld import checks
from kestreld.client.items import EXPIRY_RELATIVE_S_MAX
from kestreld.client.lease_calls import SPAN_MS_MAX, LeaseCalls, lease_span_ms
from kestreld.client.own_leases import LeaseRequest
from kestreld.client.pool_calls import AnyServer, Ask, Open, PoolCall, PoolCalls, Take, talking
from kestreld.client.queue_talks import QueueTalks, Talk, queue_key, sendable
from kestreld.clock import Clock
from kestreld.errors import InvalidValue, ServersAway

S = TypeVar("S", bound=AnyServer)
_drawn: Final = SystemRandom()  # no two clients draw the same key, whatever generator they were given


class QueueCalls(Generic[S]):
    """What can be done with the queue of a name on all servers."""

    def __init__(self, pool: PoolCalls[S], name: str) -> None:
        """Raises BadQueueName."""
        self.name = name
        self.key = queue_key(name)
        self._pool = pool

    # Putting

    def put(
        self,
        data: bytes,
        expire_s: int = 0,
        *,
        delay: float = 0,
        key: str | bytes | None = None,
        once: bool = False,
    ) -> PoolCall[S, bool]:
        """Add an item to a random server. False = the servers are full. `expire_s`: lifetime in seconds, 0 = unlimited.

        The item is not delivered before `delay` seconds from now. If a queue knows the `key`, the item counts as
        stored: the same key goes to the same server, as long as that can be reached. With `once` the put is repeated,
        within `outage_s`, where a server was lost before it had answered: the item is stored once, by its `key` or
        by one that is drawn for this call. Raises ServersAway, ServerRefused (also for servers that know no delays and
        keys), or ConnectionLost: then the item may or may not be stored.
        """
        checks.switch(once, "once")
        data = sendable(data, expire_s)
        if expire_s > EXPIRY_RELATIVE_S_MAX:
            expire_s += Clock().wall_ms // 1000
        delay_ms = checks.seconds_ms(delay, "delay", SPAN_MS_MAX)
        item_key = b"" if key is None else checks.key(key, "key")
        if once and not item_key:
            item_key = b"%032x" % _drawn.getrandbits(128)
        put = talking(lambda talks: talks.put(self.key, data, expire_s, delay_ms=delay_ms, item_key=item_key))
        return self._pool.put(put, item_key, repeats=once)

    def cancel(self, key: str | bytes) -> PoolCall[S, bool]:
        """Drop the item that was put with a key, if it is not due yet. False = there is no such item.

        Raises ServersAway if some servers could not be asked, after asking the others.
        """
        item_key = checks.key(key, "key")
        cancelled: dict[str, bool] = yield from self._everywhere(lambda talks: talks.cancel(self.key, item_key))
        return any(cancelled.values())

    # Getting

    def get(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> PoolCall[S, bytes | None]:
        """Take a head item of any server. None if there is none.

        An item is confirmed after it has arrived, so that none is lost on the way. That is not repeated if there is no
        answer: the item, which its caller has, may then be delivered again, as the log says.
        """
        return self.opened(Take, checked_wait(wait_ms, timeout))

    def opened(self, kind: type[Open[S]], wait_ms: int | None) -> PoolCall[S, Any]:
        """Return the outcome of the first step of this kind that has one."""

        def step_of(server: S, turn_ms: int) -> "Open[S]":
            fetch = talking(lambda talks: talks.fetch(self.key, b"/open", turn_ms))
            return kind(server, fetch, turn_ms, key=self.key)

        return self._pool.first(step_of, wait_ms)

    def peek(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> PoolCall[S, bytes | None]:
        """Return a head item of any server without taking it. None if there is none."""

        def step_of(server: S, turn_ms: int) -> "Ask[S]":
            return Ask(server, talking(lambda talks: talks.fetch(self.key, b"/peek", turn_ms)), turn_ms)

        return self._pool.first(step_of, checked_wait(wait_ms, timeout))

    def lease_request(self, by: str | None) -> LeaseRequest:
        """Return what a call of `lease` needs. Its caller drops it, unless the lease has reached its user."""
        return LeaseRequest(self.key, checks.holder(by, "by") or self._pool.name.text, is_own=by is None)

    def lease(
        self, seconds: float, wait_ms: int | None, timeout: float | None, request: LeaseRequest
    ) -> PoolCall[S, LeaseCalls[S] | None]:
        """Lease a head item of any server for some seconds."""
        lease_ms = lease_span_ms(seconds)

        def step_of(server: S, turn_ms: int) -> "Ask[S]":
            def lease(talks: QueueTalks) -> "Talk[LeaseCalls[S] | None]":
                yield from talks.need_leases(self.key)
                opened = yield from request.lease(server.own_leases, talks, lease_ms, turn_ms)
                if opened is None:
                    return None
                return LeaseCalls(
                    server,
                    self.key,
                    self.name,
                    opened,
                    lease_ms,
                    request.sent_at_ms,
                    was_waited_for=turn_ms > 0,
                    outage_ms=self._pool.outage_ms,
                )

            return Ask(server, talking(lease), turn_ms, leases_from=self.key)

        found = yield from self._pool.first(step_of, checked_wait(wait_ms, timeout))
        if found is None and self._pool.is_closed():  # the wait was cut short, maybe when an item was on its way
            yield from self._pool.settle()
        return found  # type: ignore[no-any-return]

    # The whole queue

    def flush(self) -> PoolCall[S, None]:
        """Drop the waiting items on all servers. Raises ServersAway after flushing the others if some are away."""
        yield from self._everywhere(lambda talks: talks.flush(self.key))

    def flush_counted(self) -> PoolCall[S, int]:
        """Flush, and return how many items were dropped on all servers. Raises as `flush`.

        A server that is too old to say raises LeasesUnknown or UnknownCommand, and keeps its items.
        """
        counts: dict[str, int] = yield from self._everywhere(lambda talks: talks.flush_counted(self.key))
        return sum(counts.values())

    def delete(self) -> PoolCall[S, bool]:
        """Drop the queue on all servers. False = there was none.

        Raises ServersAway if some cannot be reached, after deleting on the others.
        """
        deleted: dict[str, bool] = yield from self._everywhere(lambda talks: talks.delete_queue(self.key))
        return any(deleted.values())

    def stats(self) -> PoolCall[S, dict[str, dict[str, int | str]]]:
        """Return the counters on each server that can be reached, by address; empty if it has no such queue."""
        return (yield from self._pool.each(talking(lambda talks: talks.queue_stats(self.key))))[0]

    def _everywhere(self, talk_of: Any) -> PoolCall[S, dict[str, Any]]:
        answers, reasons = yield from self._pool.each(talking(talk_of))
        if reasons:
            raise ServersAway(reasons)
        return answers


def checked_wait(wait_ms: float | None, timeout: float | None) -> int | None:
    """Return the wait in ms from one of the two arguments; None = forever."""
    if timeout is not None:
        if wait_ms != 0:
            raise InvalidValue("timeout", "None where there is a wait_ms", timeout)
        return round(checks.span_s(timeout, "timeout") * 1000)
    return None if wait_ms is None else checks.span_ms(wait_ms, "wait_ms")
