"""A network that is slow and loses connections: what nodes send each other goes through here."""

import asyncio
import threading
from contextlib import suppress
from random import Random
from typing import Final

CHUNK_BYTES: Final = 1 << 16


class Forwarder:
    """Forwards from ports of its own to those of nodes. `delay_s` is the most that a piece takes longer; `loss` how
    likely it is, for each piece, that its connection breaks. A piece with `broken_by` in it breaks its connection, too,
    the next time that one comes.
    """

    def __init__(self, chance: Random) -> None:
        self.delay_s = 0.0
        self.loss = 0.0
        self.broken_by = b""
        self._connections = self._silent = 0  # how many there were, and how many of them are silent
        self._chance = chance
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._to: dict[int, int] = {}
        self._listeners: list[asyncio.Server] = []
        self._ways: set[asyncio.Future[None]] = set()  # of the connections, in either direction

    def forward(self, port: int, to_port: int) -> None:
        """From that port to that one."""
        self._to[port] = to_port
        asyncio.run_coroutine_threadsafe(self._serve(port), self._loop).result(10)

    def fall_silent(self) -> None:
        """Drop what comes on connections that there are now, which stay established. New ones are forwarded."""
        self._silent = self._connections

    async def _serve(self, port: int) -> None:
        self._listeners.append(
            await asyncio.start_server(lambda reader, writer: self._connected(port, reader, writer), "127.0.0.1", port)
        )

    async def _connected(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self._to[port])
        except OSError:
            writer.close()
            return
        self._connections += 1
        number = self._connections
        ways = [asyncio.ensure_future(self._pass_on(number, *way)) for way in ((reader, to), (there, writer))]
        self._ways.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._ways.difference_update(ways)
        for way in ways:
            way.cancel()
        for end in (writer, to):
            end.transport.abort()

    async def _pass_on(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if number <= self._silent:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s * self._chance.random())
                if self._chance.random() < self.loss:
                    return
                if self.broken_by and self.broken_by in data:
                    self.broken_by = b""
                    return
                writer.write(data)
                await writer.drain()
        while number <= self._silent:
            await asyncio.Event().wait()  # nor is it passed on that one end is gone

    async def _cut(self) -> None:
        """End all connections, and take no more."""
        for listener in self._listeners:
            listener.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
