"""KestrelCluster: several independent kestrelds used as one. Items go to, and come from, any of them."""

from collections.abc import Iterable
from random import Random
from types import TracebackType

from kestreld import checks
from kestreld.client.access import checked_addresses, checked_login
from kestreld.client.connection import ClientConnection
from kestreld.client.pool import ServerPool
from kestreld.client.queue import ClusterQueue
from kestreld.client.server import Server


class KestrelCluster:
    """A client of kestrelds. Threads may share it, and so may forked processes: each has connections of its own.

    Servers that are away are skipped and tried again, at longer and longer intervals. Every operation raises
    ServersAway once all servers have been away for `patience_ms`; a read also raises it when its own wait is over.
    """

    def __init__(
        self,
        servers: Iterable[str],
        *,
        user: str = "",
        password: str = "",
        tls: bool = False,
        ca: str = "",
        cert: str = "",
        key: str = "",
        timeout_ms: int = 5000,
        patience_ms: int = 5000,
        chance: Random | None = None,
    ) -> None:
        """`servers`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Does not connect yet.

        Raises ValueError for an invalid address, OSError for certificate files that cannot be used.
        """
        patience_ms = checks.span_ms(patience_ms, "patience_ms")
        login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        checks.whole(timeout_ms, "timeout_ms", 1)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        addresses = checked_addresses(servers, login, "servers")
        own = chance if chance is not None else Random()
        made = [Server(address, login, timeout_ms, own) for address in addresses]
        self._pool = ServerPool(made, patience_ms, own, is_chance_ours=chance is None)

    @property
    def patience_ms(self) -> int:
        return self._pool.calls.patience_ms

    @patience_ms.setter
    def patience_ms(self, patience_ms: int) -> None:
        self._pool.calls.patience_ms = patience_ms

    @property
    def is_closed(self) -> bool:
        return self._pool.is_closed

    def close(self) -> None:
        """Close all connections. Reads that wait return None; open reads can still be confirmed."""
        self._pool.close()

    def queue(self, name: str) -> ClusterQueue:
        """Return the queue of this name. Raises BadQueueName."""
        return ClusterQueue(self._pool, name)

    def stats(self) -> dict[str, dict[str, int | str]]:
        """Return the counters of each server that can be reached, by address. Raises ServersAway if there is none."""
        return self._pool.carry_out(self._pool.calls.each(ClientConnection.server_stats))[0]

    def __enter__(self) -> "KestrelCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
