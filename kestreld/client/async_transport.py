"""AsyncTransport: one connection to a server in an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

from kestreld.client.access import (
    PORT_DEFAULT,
    RECEIVE_BYTES,
    SEND_BYTES,
    Login,
    ServerAddress,
    is_quiet,
    set_tcp_options,
)
from kestreld.client.transport import reason_of
from kestreld.errors import ConnectionLost, KestrelError, ServersAway

V = TypeVar("V")  # a reply


class AsyncTransport(Generic[V]):
    """Connection on which one task at a time asks for something. Whoever is interrupted there closes it."""

    port_default = PORT_DEFAULT  # for addresses without a port

    def __init__(
        self, address: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], timeout_ms: int
    ) -> None:
        self.address = address
        self._incoming, self._outgoing = streams
        self._timeout_ms = timeout_ms
        self._values: deque[V] = deque()
        self._begin()

    def _begin(self) -> None:
        """Make what reads replies."""
        raise NotImplementedError

    def _read(self, data: bytes) -> list[V]:
        """Return the replies that are complete. Raises UnexpectedReply."""
        raise NotImplementedError

    async def _enter(self, login: Login) -> None:
        """Introduce this client, and log in."""
        raise NotImplementedError

    @classmethod
    async def open(cls, address: str, login: Login, timeout_ms: int) -> Self:
        """Connect and log in. Raises ServersAway, LoginRefused or ServerUnfit."""
        place = ServerAddress.parse(address, cls.port_default)
        connection: Self | None = None
        is_in = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if place.path:
                    streams = await asyncio.open_unix_connection(place.path)
                else:
                    context = login.context if login.uses_tls(place) else None
                    streams = await asyncio.open_connection(place.host, place.port, ssl=context)
                connection = cls(address, streams, timeout_ms)
                if not place.path:
                    set_tcp_options(streams[1].get_extra_info("socket"))
                await connection._enter(login)
            is_in = True
            return connection
        except OSError as error:
            raise ServersAway({address: _reason_of(error, timeout_ms)}) from error
        finally:
            if connection is not None and not is_in:
                connection.close()

    @property
    def is_usable(self) -> bool:
        """True if, as far as can be told, the server is still at the other end."""
        is_open = not self._incoming.at_eof() and not self._outgoing.is_closing()
        return is_open and is_quiet(self._outgoing.get_extra_info("socket"))

    async def answer(self, data: bytes, wait_ms: int = 0) -> V:
        """Send a request and return the reply; the server may take `wait_ms` beyond the time-out."""
        return (await self.answers([data], self._timeout_ms + wait_ms))[0]

    async def answers(self, requests: Sequence[bytes], answer_ms: int) -> list[V]:
        """Send requests at once, and return the reply to each; the server may take `answer_ms`, not the time-out.

        That is for silence: a long request or reply lasts as long as bytes go or come.
        """
        try:
            async with asyncio.timeout(answer_ms / 1000) as limit:
                await self._send(b"".join(requests), lambda: _go_on(limit, answer_ms))
                while len(self._values) < len(requests):
                    await self._receive()
                    if len(self._values) < len(requests):
                        _go_on(limit, answer_ms)
        except OSError as error:
            raise ConnectionLost(self.address, _reason_of(error, answer_ms)) from error
        return [self._values.popleft() for _ in requests]

    async def _exchange(self, data: bytes) -> V:
        await self._send(data)
        while not self._values:
            await self._receive()
        return self._values.popleft()

    async def _send(self, data: bytes, go_on: Callable[[], None] | None = None) -> None:
        """Send data. `go_on` is called whenever a part of what is long is under way."""
        for start in range(0, len(data), SEND_BYTES):
            if start and go_on is not None:
                go_on()
            self._outgoing.write(data[start : start + SEND_BYTES])
            await self._outgoing.drain()

    async def _receive(self) -> None:
        received = await self._incoming.read(RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError(0, "it closed the connection")
        self._values += self._read(received)

    async def last_values(self) -> list[V]:
        """Return what the server may have sent before it learns that nobody waits, and close the connection."""
        try:
            if not self._outgoing.can_write_eof():
                return []
            async with asyncio.timeout(self._timeout_ms / 1000):
                self._outgoing.write_eof()
                while data := await self._incoming.read(RECEIVE_BYTES):
                    self._values += self._read(data)
            return [*self._values]
        except (OSError, KestrelError):
            return []
        finally:
            self.close()

    def close(self) -> None:
        """Close at once; bytes on their way are lost."""
        self._outgoing.transport.abort()


def _go_on(limit: asyncio.Timeout, span_ms: int) -> None:
    """Have a time-out begin again."""
    limit.reschedule(asyncio.get_running_loop().time() + span_ms / 1000)


def _reason_of(error: OSError, timeout_ms: int) -> str:
    """Return the reason for an error, for which asyncio has texts of its own."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return "connection refused" if isinstance(error, ConnectionRefusedError) else reason_of(error)
