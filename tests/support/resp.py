"""A Redis client for tests: requests as lists of words, replies as values."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.support.waiting import PATIENCE_S


class Status(bytes):
    """A status reply."""


class ErrorReply(bytes):
    """An error reply, its code included."""


class NilArray:
    """The array that is none."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NilArray)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "NIL_ARRAY"


NIL_ARRAY: Final = NilArray()


def request(*words: bytes | str | int) -> bytes:
    """A command as an array of bulk strings."""
    as_bytes = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(as_bytes) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in as_bytes])


def replies_in(data: bytes) -> list[Any]:
    """All the replies of which these bytes consist."""
    replies, at = [], 0
    while at < len(data):
        reply, at = reply_at(data, at)
        replies.append(reply)
    return replies


def reply_at(data: bytes, at: int) -> tuple[Any, int]:
    """The reply that begins there, and where it ends. Raises ValueError where it is not all there."""
    end = data.index(b"\r\n", at)
    kind, rest, after = data[at : at + 1], data[at + 1 : end], end + 2
    assert kind in (b"+", b"-", b":", b"$", b"*"), data[at : at + 40]
    if kind == b"+" or kind == b"-":
        assert not {*b"\r\n"} & {*rest}, rest
        return (Status if kind == b"+" else ErrorReply)(rest), after
    number = int(rest)
    if kind == b":":
        return number, after
    if number < 0:
        return (None if kind == b"$" else NIL_ARRAY), after
    if kind == b"$":
        if len(data) < after + number + 2:
            raise ValueError("cut short")
        assert data[after + number : after + number + 2] == b"\r\n"
        return data[after : after + number], after + number + 2
    items = []
    for _ in range(number):
        item, after = reply_at(data, after)
        items.append(item)
    return items, after


class RespClient:
    """One connection."""

    def __init__(self, address: str, patience_s: float = PATIENCE_S) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def send(self, *words: bytes | str | int) -> None:
        self.socket.sendall(request(*words))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def __call__(self, *words: bytes | str | int) -> Any:
        """Send a command; its reply."""
        self.send(*words)
        return self.reply()

    def reply(self) -> Any:
        """The next reply: int, bytes, None, a list, Status, ErrorReply or NIL_ARRAY."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return Status(rest)
        if kind == b"-":
            return ErrorReply(rest)
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bulk(int(rest))
        assert kind == b"*", line
        return NIL_ARRAY if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def rest(self) -> list[Any]:
        """All replies until the server hangs up."""
        while data := self.socket.recv(65536):
            self._received += data
        received, self._received = self._received, b""
        return replies_in(received)

    def fields(self, *words: bytes | str | int) -> dict[str, Any]:
        """A reply of keys and values."""
        flat = self(*words)
        return {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}

    def job(self, queue: str, body: bytes | str = b"body", *options: str | int) -> bytes:
        """Add a job; its id."""
        reply = self("ADDJOB", queue, body, 0, *options)
        assert isinstance(reply, Status), reply
        return bytes(reply)

    def until_loaded(self) -> "RespClient":
        """Returns once the server has loaded its jobs."""
        until_s = time.monotonic() + PATIENCE_S
        while self("PING").startswith(b"LOADING"):
            assert time.monotonic() < until_s, f"its jobs are not loaded after {PATIENCE_S:g} s"
            time.sleep(0.01)
        return self

    def expect_silence(self, silence_ms: int) -> None:
        """Nothing comes for this long."""
        self.socket.settimeout(silence_ms / 1000)
        try:
            self._received += self.socket.recv(65536)
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(PATIENCE_S)
        assert self._received == b""

    def expect_end(self) -> None:
        """The server hangs up and says nothing more."""
        try:
            rest = self._received + self.socket.recv(65536)
        except ConnectionResetError:
            rest = self._received
        assert rest == b""

    def close(self) -> None:
        self.socket.close()

    def _line(self) -> bytes:
        while (at := self._received.find(b"\r\n")) < 0:
            self._receive()
        line, self._received = self._received[:at], self._received[at + 2 :]
        return line

    def _bulk(self, size_bytes: int) -> bytes:
        while len(self._received) < size_bytes + 2:
            self._receive()
        data, self._received = self._received[:size_bytes], self._received[size_bytes + 2 :]
        return data

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError("the server hung up")
        self._received += data


@contextmanager
def resp_client(address: str) -> Iterator[RespClient]:
    """A connection that ends with the block, to a server that has loaded its jobs."""
    client = RespClient(address)
    try:
        yield client.until_loaded()
    finally:
        client.close()
