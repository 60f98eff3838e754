"""ClusterQueue: one queue on all servers of a cluster. Open reads stay on the connection that opened them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from kestreld import checks
from kestreld.client.calls import documented
from kestreld.client.lease import ClusterLease
from kestreld.client.pool import ServerPool
from kestreld.client.pool_calls import Open, PoolCall
from kestreld.client.queue_calls import QueueCalls, checked_wait
from kestreld.client.server import OpenRead, Server

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    call: Callable[Concatenate[QueueCalls[Server], P], PoolCall[Server, T]],
) -> "Callable[Concatenate[ClusterQueue, P], T]":
    """Make a call a method, which carries it out."""

    def method(self: "ClusterQueue", /, *args: P.args, **options: P.kwargs) -> T:
        return self._servers.carry_out(call(self._calls, *args, **options))

    return documented(method, call)


class ClusterQueue:
    """The queue of this name on all servers. Order is kept by each server, not between servers.

    Threads may share it. `wait_ms` 0 = do not wait, None = wait forever; `timeout` is the same in seconds.
    """

    def __init__(self, servers: ServerPool, name: str) -> None:
        """Raises BadQueueName."""
        self.name = name
        self._servers = servers
        self._calls = QueueCalls(servers.calls, name)

    put = _in_thread(QueueCalls[Server].put)
    cancel = _in_thread(QueueCalls[Server].cancel)
    get = _in_thread(QueueCalls[Server].get)
    peek = _in_thread(QueueCalls[Server].peek)
    flush = _in_thread(QueueCalls[Server].flush)
    flush_counted = _in_thread(QueueCalls[Server].flush_counted)
    delete = _in_thread(QueueCalls[Server].delete)
    stats = _in_thread(QueueCalls[Server].stats)

    @contextmanager
    def read(self, wait_ms: int | None = 0, *, timeout: float | None = None) -> Iterator[bytes | None]:
        """Take an item for a `with` block, None if there is none: confirmed if that succeeds, else the head again.

        Raises ConnectionLost at the end of the block if the item may be delivered again.
        """
        opened = self._open(checked_wait(wait_ms, timeout))
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
        holder of the lease, in place of the client's: from 1 to 64 printable ASCII characters, without blanks and `/`.
        Older servers are not told. A lease whose reply is lost is given back once its server can be reached, but not
        one with a `by`, which others may have, too. Raises ServerRefused for servers that know no leases.
        """
        checks.switch(heartbeat, "heartbeat")
        request, is_handed_over = self._calls.lease_request(by), False
        try:
            found = self._servers.carry_out(self._calls.lease(seconds, wait_ms, timeout, request))
            lease = None if found is None else ClusterLease(found, heartbeat=heartbeat)
            is_handed_over = True
            return lease
        finally:
            if not is_handed_over:  # Ctrl-C, say
                request.drop()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over items forever, or until the cluster is closed. One is confirmed when the next is requested.

        Leaving the loop gives the last item back.
        """
        while (opened := self._open(None)) is not None:
            with opened.used() as item:
                yield item
            opened.close_in_hand()

    def _open(self, wait_ms: int | None) -> OpenRead | None:
        return self._servers.carry_out(self._calls.opened(Open, wait_ms))  # type: ignore[no-any-return]
