"""ClusterQueue: one queue on all servers of a cluster. Open reads stay on the connection that opened them."""

from collections.abc import Iterator
from contextlib import contextmanager

from kestreld import checks
from kestreld.client.connection import ClientConnection, queue_key, sendable
from kestreld.client.items import EXPIRY_RELATIVE_S_MAX, OpenItem
from kestreld.client.lease import SPAN_MS_MAX, ClusterLease, lease_span_ms
from kestreld.client.pool import ServerPool
from kestreld.client.server import OpenRead, Server, now_ms
from kestreld.clock import Clock
from kestreld.errors import InvalidValue, ServersAway


class ClusterQueue:
    """The queue of this name on all servers. Order is kept by each server, not between servers.

    Threads may share it. `wait_ms` 0 = do not wait, None = wait forever; `timeout` is the same in seconds.
    """

    def __init__(self, servers: ServerPool, name: str) -> None:
        """Raises BadQueueName."""
        self.name = name
        self._key = queue_key(name)
        self._servers = servers

    # Putting

    def put(
        self,
        data: bytes,
        expire_s: int = 0,
        *,
        delay: float = 0,
        key: str | bytes | None = None,
        once: bool = False,
    ) -> bool:
        """Add an item to a random server. False = the servers are full. `expire_s`: lifetime in seconds, 0 = unlimited.

        The item is not delivered before `delay` seconds from now. If a queue knows the `key`, the item counts as
        stored: the same key goes to the same server, as long as that can be reached. With `once` the put is repeated,
        within `patience_ms`, where a server was lost before it had answered: the item is stored once, by its `key` or
        by one that is drawn for this call. Raises ServersAway, ServerRefused (also for servers that know no delays and
        keys), or ConnectionLost: then the item may or may not be stored.
        """
        checks.switch(once, "once")
        data = sendable(data, expire_s)
        if expire_s > EXPIRY_RELATIVE_S_MAX:
            expire_s += Clock().wall_ms // 1000
        delay_ms = checks.seconds_ms(delay, "delay", SPAN_MS_MAX)
        item_key = (self._servers.drawn_key() if once else b"") if key is None else checks.key(key, "key")
        return self._servers.put(self._key, data, expire_s, delay_ms, item_key, repeats=once)

    def cancel(self, key: str | bytes) -> bool:
        """Drop the item that was put with a key, if it is not due yet. False = there is no such item.

        Raises ServersAway if some servers could not be asked, after asking the others.
        """
        item_key = checks.key(key, "key")
        cancelled, reasons = self._servers.each(lambda connection: connection.cancel(self._key, item_key))
        self._everywhere(reasons)
        return any(cancelled.values())

    # Getting

    def get(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> bytes | None:
        """Take a head item of any server. None if there is none.

        An item is confirmed after it has arrived, so that none is lost on the way. That is not repeated if there is no
        answer: the item, which its caller has, may then be delivered again, as the log says.
        """
        opened = self._open(_checked(wait_ms, timeout))
        if opened is None:
            return None
        opened.close_in_hand()
        return opened.item

    def peek(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> bytes | None:
        """Return a head item of any server without taking it. None if there is none."""
        return self._servers.first(self._peek_at, _checked(wait_ms, timeout))

    @contextmanager
    def read(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> Iterator[bytes | None]:
        """Take an item for a `with` block, None if there is none: confirmed if that succeeds, else the head again.

        Raises ConnectionLost at the end of the block if the item may be delivered again.
        """
        opened = self._open(_checked(wait_ms, timeout))
        if opened is None:
            yield None
            return
        with opened.used() as item:
            yield item
        opened.close()

    def lease(
        self,
        seconds: float,
        wait_ms: int | None = 0,
        *,
        timeout: float | None = None,
        heartbeat: bool = False,
        by: str | None = None,
    ) -> ClusterLease | None:
        """Lease a head item of any server for some seconds; any connection or thread may confirm it. None = no item.

        With `heartbeat` the lease is extended while its `with` block lasts. `by` is a name that servers show as the
        holder of the lease, in place of the client's address: from 1 to 64 printable ASCII characters, without blanks
        and `/`. Older servers are not told. Raises ServerRefused for servers that know no leases.
        """
        lease_ms, holder = lease_span_ms(seconds), checks.holder(by, "by")
        checks.switch(heartbeat, "heartbeat")

        def lease_at(server: Server, turn_ms: int) -> ClusterLease | None:
            def fetch(connection: ClientConnection) -> tuple[OpenItem | None, int]:
                connection.need_leases(self._key)
                sent_at_ms = now_ms()
                if not turn_ms:
                    return connection.lease(self._key, lease_ms, by=holder), sent_at_ms
                with self._servers.waiting.on(connection):
                    return connection.lease(self._key, lease_ms, turn_ms, holder), sent_at_ms

            opened, sent_at_ms = server.asked(fetch)
            if opened is None:
                return None
            return ClusterLease(
                server,
                self._key,
                self.name,
                opened,
                lease_ms,
                sent_at_ms,
                heartbeat=heartbeat,
                was_waited_for=turn_ms > 0,
            )

        return self._servers.first(lease_at, _checked(wait_ms, timeout))

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over items forever, or until the cluster is closed. One is confirmed when the next is requested.

        Leaving the loop gives the last item back.
        """
        while (opened := self._open(None)) is not None:
            with opened.used() as item:
                yield item
            opened.close_in_hand()

    def _open(self, wait_ms: int | None) -> OpenRead | None:
        return self._servers.first(self._open_at, wait_ms)

    def _open_at(self, server: Server, wait_ms: int) -> OpenRead | None:
        return server.opened(self._key, lambda connection: self._fetch(connection, b"/open", wait_ms))

    def _peek_at(self, server: Server, wait_ms: int) -> bytes | None:
        return server.asked(lambda connection: self._fetch(connection, b"/peek", wait_ms))

    def _fetch(self, connection: ClientConnection, option: bytes, wait_ms: int) -> bytes | None:
        if not wait_ms:
            return connection.fetch(self._key, option)
        with self._servers.waiting.on(connection):
            return connection.fetch(self._key, option, wait_ms)

    # The whole queue

    def flush(self) -> None:
        """Drop the waiting items on all servers. Raises ServersAway after flushing the others if some are away."""
        self._everywhere(self._servers.each(lambda connection: connection.flush(self._key))[1])

    def delete(self) -> bool:
        """Drop the queue on all servers. False = there was none.

        Raises ServersAway if some cannot be reached, after deleting on the others.
        """
        deleted, reasons = self._servers.each(lambda connection: connection.delete_queue(self._key))
        self._everywhere(reasons)
        return any(deleted.values())

    def _everywhere(self, reasons: dict[str, str]) -> None:
        if reasons:
            raise ServersAway(reasons)

    def stats(self) -> dict[str, dict[str, int | str]]:
        """Return the counters on each server that can be reached, by address; empty if it has no such queue."""
        return self._servers.each(lambda connection: connection.queue_stats(self._key))[0]


def _checked(wait_ms: float | None, timeout: float | None) -> int | None:
    """Return the wait in ms from one of the two arguments; None = forever."""
    if timeout is not None:
        if wait_ms != 0:
            raise InvalidValue("timeout", "None where there is a wait_ms", timeout)
        return round(checks.span_s(timeout, "timeout") * 1000)
    return None if wait_ms is None else checks.span_ms(wait_ms, "wait_ms")
