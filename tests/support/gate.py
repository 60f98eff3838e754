"""A way to a port of this machine that breaks on request, in the ways in which networks and servers do."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.support.ports import free_port

CHUNK_BYTES: Final = 1 << 16
AT_ONCE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class _Passage:
    """A connection of a client, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.is_silent = False  # nothing passes any more, and neither end learns of it

    def reset(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            end.transport.abort()


class Gate:
    """Passes connections on to a port, from one of its own."""

    def __init__(self, to_port: int) -> None:
        self.port = free_port()
        self.withheld = threading.Event()  # what `withhold` was asked for has come
        self._to_port = to_port
        self._what = b""
        self._passages: set[_Passage] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.open()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def withhold(self, what: bytes) -> None:
        """Let the next piece with this in it, of either side, not pass, and nothing after it on its connection."""
        self.withheld.clear()
        self._what = what

    def open(self) -> None:
        """Take connections."""

        async def listen() -> None:
            self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def reset(self) -> None:
        """Reset all connections."""
        self._in_loop(lambda: [passage.reset() for passage in self._passages])

    def go_silent(self) -> None:
        """Let nothing pass on the present connections, without a word to either end. New ones are sound."""

        def silence() -> None:
            for passage in self._passages:
                passage.is_silent = True

        self._in_loop(silence)

    def shut(self) -> None:
        """Refuse connections, and reset those there are: as a server that is gone."""

        def shut() -> None:
            assert self._listener is not None
            self._listener.close()
            for passage in self._passages:
                passage.reset()

        self._in_loop(shut)

    def close(self) -> None:
        self.shut()

        async def end() -> None:
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _in_loop(self, act: Callable[[], Any]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _connected(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            replies, server = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            client.transport.abort()
            return
        passage = _Passage(client, server)
        self._passages.add(passage)
        await asyncio.gather(self._pass(passage, reader, server), self._pass(passage, replies, client))
        self._passages.discard(passage)
        passage.reset()

    async def _pass(self, passage: _Passage, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._what and self._what in data:
                    self._what, passage.is_silent = b"", True
                    self.withheld.set()
                if not passage.is_silent:
                    target.write(data)
                    await target.drain()
        if not passage.is_silent:
            target.transport.abort()
