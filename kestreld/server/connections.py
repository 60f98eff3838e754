"""Connections with a callback, input to reread or a rate limit, which sessions use like plain sockets."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kestreld.net import Connection
from kestreld.server.accounts import Meter
from kestreld.server.command_handler import READ_BYTES

if TYPE_CHECKING:
    from kestreld.server.session import Session
    from kestreld.server.turn import Turn


def _nobody_asks() -> None:
    """Do nothing: there is nobody to tell that a connection is closed."""


class HeldConnection:
    """A connection that calls `closed` when it is closed. Receiving and sending cost nothing extra."""

    def __init__(self, connection: Connection, closed: Callable[[], object] = _nobody_asks) -> None:
        self._connection = connection
        self.closed = closed
        self.recv = connection.recv
        self.send = connection.send
        self.shutdown = connection.shutdown
        self.fileno = connection.fileno

    def close(self) -> None:
        self._connection.close()
        closed, self.closed = self.closed, _nobody_asks
        closed()


class RereadConnection:
    """A connection some of whose input has been read already, and is received first."""

    def __init__(self, connection: Connection, rest: bytes) -> None:
        self._connection = connection
        self._rest = rest
        self.send = connection.send
        self.shutdown = connection.shutdown
        self.close = connection.close
        self.fileno = connection.fileno

    def recv(self, size_bytes: int, /) -> bytes:
        if not self._rest:
            return self._connection.recv(size_bytes)
        data, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return data


class MeteredConnection:
    """A connection that is not read while its user has used up their bytes."""

    def __init__(self, connection: Connection, meter: Meter, turn: "Turn", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._meter = meter
        self._turn = turn
        self._loop = loop
        self._is_paused = False
        self.session: Session | None = None
        self.shutdown = connection.shutdown
        self.fileno = connection.fileno

    def recv(self, size_bytes: int, /) -> bytes:
        # While it is paused, only a hang-up causes a call.
        if not self._is_paused and (wait_ms := self._meter.wait_ms()):
            self._is_paused = True
            self._turn.poller.modify(self.fileno(), 0)
            self._loop.call_later(wait_ms / 1000, self._go_on)
            raise BlockingIOError
        data = self._connection.recv(min(size_bytes, READ_BYTES))  # the user's bytes are exceeded by one read at most
        self._meter.spend(len(data))
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        sent = self._connection.send(data)
        self._meter.spend(sent)
        return sent

    def close(self) -> None:
        self._connection.close()
        self.session = None

    def _go_on(self) -> None:
        self._is_paused = False
        if self.session is not None and not self.session.closed:
            self._turn.poller.modify(self.session.fd, self.session.interest)
