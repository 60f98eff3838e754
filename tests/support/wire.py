"""Raw bytes to and from a memcache port. Every wait has an end: a test that hears nothing fails, it does not hang."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import PATIENCE_S


class HungUp(AssertionError):
    """The server ended the connection where an answer was due."""


class WireClient:
    """One connection. `address` is a port of this machine, HOST:PORT or unix:PATH."""

    def __init__(self, address: int | str, patience_s: float = PATIENCE_S) -> None:
        self.received = b""  # received and not yet asked for
        if isinstance(address, str) and address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(patience_s)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, _, port = (
                f"127.0.0.1:{address}".rpartition(":") if isinstance(address, int) else address.rpartition(":")
            )
            self.socket = socket.create_connection((host.strip("[]"), int(port)), patience_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def expect(self, data: bytes) -> None:
        """The next bytes are these. Fails as soon as they cannot be."""
        while len(self.received) < len(data) and data.startswith(self.received):
            self._hear(data)
        assert self.received.startswith(data), f"expected {data[:200]!r}, heard {self.received[:200]!r}"
        self.received = self.received[len(data) :]

    def ask(self, request: bytes, answer: bytes) -> None:
        """Send one and expect the other."""
        self.send(request)
        self.expect(answer)

    def read_until(self, end: bytes) -> bytes:
        """Everything up to and including `end`."""
        while (at := self.received.find(end)) < 0:
            self._hear(end)
        data, self.received = self.received[: at + len(end)], self.received[at + len(end) :]
        return data

    def read_line(self) -> bytes:
        """The next line, without its end."""
        return self.read_until(b"\r\n")[:-2]

    def expect_eof(self) -> None:
        """The server hangs up and says nothing more."""
        try:
            rest = self.received + self.socket.recv(65536)
        except ConnectionResetError:
            rest = self.received
        assert rest == b""

    def expect_silence(self, silence_ms: int) -> None:
        """Nothing comes for this long: for what must not be answered, where no event can tell."""
        patience_s = self.socket.gettimeout()
        self.socket.settimeout(silence_ms / 1000)
        try:
            self.received += self.socket.recv(65536)
        except TimeoutError:
            pass
        else:
            raise AssertionError(f"expected silence, heard {self.received!r} (b'' is the end of the connection)")
        finally:
            self.socket.settimeout(patience_s)
        assert self.received == b""

    def end_input(self) -> None:
        """Send no more, but go on listening."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def _hear(self, waited_for: bytes) -> None:
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"waited for {waited_for!r}, heard {self.received!r}") from None
        if not data:
            raise HungUp(f"waited for {waited_for!r}, heard {self.received!r} and the end of the connection")
        self.received += data


@contextmanager
def connected(address: int | str, patience_s: float = PATIENCE_S) -> Iterator[WireClient]:
    """A connection that ends with the block."""
    client = WireClient(address, patience_s)
    try:
        yield client
    finally:
        client.close()
