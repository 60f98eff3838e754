"""Listener at an address of the cluster bus, to which other nodes connect."""

from collections.abc import Callable

from kestreld.net import Connection, ListeningSocket
from kestreld.server.listener import BoundListener
from kestreld.server.rate_limited_log import RateLimitedLog
from kestreld.server.turn import Turn


class BusListener(BoundListener):
    """A listener at one address. `accept` gets each connection and the IP addresses of both ends, the other first."""

    def __init__(
        self,
        bound: ListeningSocket,
        turn: Turn,
        accept: Callable[[Connection, str, str], None],
        counts: Callable[[], int],
        complaints: RateLimitedLog,
        *,
        is_tls: bool,
    ) -> None:
        """`counts` returns the number of connections that this listener answers for."""
        super().__init__(bound, turn, is_tls=is_tls)
        self._accept = accept
        self._counts = counts
        self._complaints = complaints

    def receive(self, connection: Connection) -> None:
        try:
            local_host = self.bound.local_of(connection)
        except OSError:  # it has gone already
            connection.close()
        else:
            self._accept(connection, self.bound.peer, local_host)

    def complain(self, reason: str) -> None:
        self._complaints.complain(self.address, f"cluster bus at {self.address}: {reason}")

    def connections(self) -> int:
        return self._counts()
