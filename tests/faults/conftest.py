"""What tests of real faults share: books of what was put, and what may be there after it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient


class Books:
    """What a client has been told of its puts and gets on one queue."""

    def __init__(self, queue: str = "q", size_bytes: int = 1000) -> None:
        self.queue = queue
        self.size_bytes = size_bytes
        self.numbers = count()
        self.stored: list[bytes] = []  # and not got
        self.unknown: set[bytes] = set()  # an error or no answer: there once, or not
        self.uncertain: list[bytes] = []  # got while the journal took nothing: may come again after a crash
        self.last_answer = b""

    def put(self, client: QueueClient) -> bool:
        """Put the next item; whether it is stored."""
        data = (b"%08d" % next(self.numbers)).ljust(self.size_bytes, b".")
        self.unknown.add(data)
        with suppress(ConnectionError):
            self.last_answer = client.offer(self.queue, data)
            if self.last_answer == b"STORED":
                self.unknown.remove(data)
                self.stored.append(data)
                return True
        return False

    def put_until_refused(self, port: int, most: int = 10_000) -> None:
        with QueueClient(port) as client:
            for _ in range(most):
                if not self.put(client):
                    return
        raise AssertionError(f"{most} puts were stored")

    def get(self, client: QueueClient) -> bytes:
        """The oldest item. While the journal takes nothing it may come again after a crash."""
        data = client.get(self.queue)
        assert data is not None
        if self.stored and data == self.stored[0]:
            self.stored.pop(0)
        else:
            assert data in self.unknown, "what comes was put, in order"
            self.unknown.remove(data)
        return data

    def agree_with(self, port: int) -> None:
        """All that was stored is there, once and in order; of the rest nothing that was not put."""
        with QueueClient(port) as client:
            found = client.drain(self.queue)
        assert found == sorted(set(found)), "once, in order"
        assert [data for data in self.stored if data not in set(found)] == [], "lost"
        assert set(found) - set(self.stored) <= self.unknown | set(self.uncertain), "never put, or confirmed"
        self.stored, self.unknown, self.uncertain = [], set(), []


@contextmanager
def served(daemon: Daemon, *queues: str) -> Iterator[None]:
    """Other queues hold an item each before the block, and take and give items after it."""
    with QueueClient(daemon.port) as client:
        for queue in queues:
            client.put(queue, b"before")
        yield
        for queue in queues:
            client.put(queue, b"after")
            assert client.get(queue) == b"before"
            assert client.get(queue) == b"after"


@contextmanager
def books_agree_after(folder: Path, *settings: str) -> Iterator[tuple[Daemon, Books]]:
    """A daemon and its books, which are right after what happens in the block, and a kill -9 after that."""
    books = Books()
    with running_daemon(folder, *settings) as daemon:
        yield daemon, books
        daemon.kill()
        daemon.start()
        books.agree_with(daemon.port)
        assert daemon.stop() == 0
