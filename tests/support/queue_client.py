"""A WireClient that knows the queue commands; every byte of an answer is still looked at."""

import socket
from types import TracebackType
from typing import Final

from tests.support.waiting import PATIENCE_S, until
from tests.support.wire import HungUp, WireClient

PUTS_AT_ONCE: Final = 100
GETS_MAX: Final = 200


class QueueClient(WireClient):
    """One connection, closed at the end of a `with` block."""

    def __enter__(self) -> "QueueClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Bytes

    def read(self, size_bytes: int) -> bytes:
        """So many bytes."""
        parts, missing = [self.received], size_bytes - len(self.received)
        while missing > 0:
            data = self.socket.recv(1 << 16)
            if not data:
                heard_bytes = size_bytes - missing
                raise HungUp(f"waited for {size_bytes} bytes, heard {heard_bytes} and the end of the connection")
            parts.append(data)
            missing -= len(data)
        heard = b"".join(parts)
        self.received = heard[size_bytes:]
        return heard[:size_bytes]

    def read_all(self) -> bytes:
        """All that comes until the server hangs up."""
        parts = [self.received]
        self.received = b""
        try:
            while data := self.socket.recv(1 << 16):
                parts.append(data)
        except ConnectionResetError:
            pass  # hung up with input unread
        return b"".join(parts)

    def expect_line(self, start: bytes) -> bytes:
        """The next line, which starts with `start`."""
        line = self.read_line()
        assert line.startswith(start), line
        return line

    def expect_end(self, answer: bytes = b"") -> None:
        """`answer` is the last that comes: the server hangs up."""
        got = self.read_all()
        assert got == answer, got[:200]

    def expect_nothing_more(self) -> None:
        """All that was sent has been carried out and its answers read: the next answer is a VERSION's."""
        self.send(b"version\r\n")
        self.expect_line(b"VERSION ")

    def expect_no_answer_yet(self) -> None:
        assert self.received == b""
        self.socket.setblocking(False)
        try:
            answer = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        finally:
            self.socket.settimeout(PATIENCE_S)
        raise AssertionError(f"answered {answer!r}")

    # Commands

    def do(self, line: bytes, answer: bytes) -> None:
        """Send a command line and expect exactly `answer`."""
        self.ask(line + b"\r\n", answer)

    def put(self, queue: str, *items: bytes, expiry_s: int = 0, flags: int = 0) -> None:
        """SET items, all of which are stored."""
        for first in range(0, len(items), PUTS_AT_ONCE):
            some = items[first : first + PUTS_AT_ONCE]
            self.send(b"".join([_set(queue, data, expiry_s, flags) for data in some]))
            self.expect(b"STORED\r\n" * len(some))

    def offer(self, queue: str, data: bytes, *, expiry_s: int = 0, flags: int = 0) -> bytes:
        """SET one item; the answer's line."""
        self.send(_set(queue, data, expiry_s, flags))
        return self.read_line()

    def ask_for(self, key: str) -> None:
        """Send a GET of a key, options included. `read_value` reads its answer."""
        self.send(b"get %b\r\n" % key.encode("latin-1"))

    def get(self, key: str) -> bytes | None:
        """GET a key, options included; the item's data, or None for a plain END."""
        self.ask_for(key)
        return self.read_value()

    def read_value(self) -> bytes | None:
        """One answer to a GET of one key."""
        line = self.read_line()
        if line == b"END":
            return None
        words = line.split(b" ")
        assert words[0] == b"VALUE", line
        data = self.read(int(words[3]))
        self.expect(b"\r\nEND\r\n")
        return data

    def drain(self, key: str) -> list[bytes]:
        """GET a key until nothing comes: one by one at first, and of many items some at once."""
        taken: list[bytes] = []
        line = b"get %b\r\n" % key.encode("latin-1")
        while True:
            gets = min(max(len(taken) // 10, 1), GETS_MAX)
            self.send(line * gets)
            got = [data for data in [self.read_value() for _ in range(gets)] if data is not None]
            taken += got
            if len(got) < gets:
                return taken

    def stats(self) -> dict[str, str]:
        """STATS by name."""
        self.send(b"stats\r\n")
        lines = self.read_until(b"END\r\n").decode("latin-1").splitlines()[:-1]
        return {name: value for _, name, value in (line.split(" ", 2) for line in lines)}

    def queue_stats(self, queue: str) -> dict[str, str]:
        """DUMP_STATS of one queue by name; empty when there is no such queue."""
        self.send(b"dump_stats %b\r\n" % queue.encode("latin-1"))
        blocks = self.read_until(b"\r\nEND\r\n").decode("latin-1")  # of all queues in Kestrel 1
        block = blocks.partition(f"queue '{queue}' {{\r\n")[2].partition("}\r\n")[0]
        return dict(line.strip().split("=", 1) for line in block.splitlines())

    def until(self, queue: str, **figures: object) -> None:
        """Go on once these are the queue's figures."""
        wanted = {name: str(value) for name, value in figures.items()}
        until(lambda: wanted.items() <= self.queue_stats(queue).items(), f"{queue} to have {wanted}")

    def items(self, queue: str) -> int:
        """How many items wait; a queue that does not exist has none."""
        return int(self.queue_stats(queue).get("items", 0))


def slow_reader(port: int, receive_bytes: int) -> QueueClient:
    """A client whose machine takes in little before it is read."""
    client = QueueClient(port)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    return client


def _set(queue: str, data: bytes, expiry_s: int, flags: int) -> bytes:
    return b"set %b %d %d %d\r\n%b\r\n" % (queue.encode("latin-1"), flags, expiry_s, len(data), data)
