"""A server of memcached's protocol in this process."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kestreld.cache.dictionary import Dictionary
from kestreld.net import Connection, Network
from kestreld.server.cache.protocol import Cache
from tests.support.server_here import ServerHere


class CacheHere:
    """It, its dictionary, and one client."""

    def __init__(self, folder: Path, memory_bytes: int = 64 << 20, item_size_max_bytes: int = 1 << 20) -> None:
        self.server = ServerHere(folder, "")
        self.dictionary = Dictionary(self.server.service.clock, memory_bytes, item_size_max_bytes)
        self.address = self.server.listen(Cache(self.server.service.state, self.dictionary))
        self.client = self.connect()

    def connect(self) -> Connection:
        host, _, port = self.address.rpartition(":")
        connection = Network().connect(host, int(port))
        self.server.run_until(lambda: self.server.network.is_connected(connection))
        return connection

    def ask(self, request: bytes, answer: bytes) -> None:
        """Send it, and have that for an answer and nothing else."""
        received = self.talk(request, answer_bytes=len(answer))
        assert received == answer

    def talk(self, request: bytes, *, answer_bytes: int = 1 << 40, until: bytes = b"no end") -> bytes:
        """What comes back, so much of it or up to an end, or all there is before the end of the connection."""
        received = bytearray()
        rest = memoryview(request)
        ended = False

        def is_done() -> bool:
            nonlocal rest, ended
            with suppress(BlockingIOError):
                while rest:
                    rest = rest[self.client.send(rest) :]
            with suppress(BlockingIOError):
                while chunk := self.client.recv(1 << 20):
                    received.extend(chunk)
                ended = True
            is_all = len(received) >= answer_bytes or received.endswith(until)
            return ended or (not rest and is_all)

        self.server.run_until(is_done)
        return bytes(received)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@contextmanager
def cache_server(folder: Path, memory_bytes: int = 64 << 20, item_size_max_bytes: int = 1 << 20) -> Iterator[CacheHere]:
    cache = CacheHere(folder, memory_bytes, item_size_max_bytes)
    try:
        yield cache
    finally:
        cache.close()
