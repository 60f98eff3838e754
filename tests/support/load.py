"""Clients at work on one queue, and what each has been told."""

import threading
from typing import Final

from tests.support.queue_client import QueueClient
from tests.support.wire import HungUp

WRITERS: Final = 3
READERS: Final = 3


class Load:
    """Writers and reliable readers that go on until the server hangs up on them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.closing: set[bytes] = set()  # a close was sent and not answered
        self.problems: list[str] = []
        self._begun = threading.Barrier(WRITERS + READERS + 1)
        tasks = [(self._write, number) for number in range(WRITERS)] + [(self._read, 0)] * READERS
        self._threads = [threading.Thread(target=task, args=(number,), daemon=True) for task, number in tasks]
        for thread in self._threads:
            thread.start()
        self._begun.wait(60)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client has not ended 60 s after the server"
        assert self.problems == []

    def _write(self, writer: int) -> None:
        with QueueClient(self.port) as client:
            self._begun.wait(60)
            try:
                for number in range(1_000_000):
                    data = b"%d-%06d" % (writer, number)
                    self.sent.add(data)
                    client.put("q", data)
                    self.stored.add(data)
            except (ConnectionError, HungUp):
                pass
            except AssertionError as problem:
                self.problems.append(str(problem))

    def _read(self, _: int) -> None:
        with QueueClient(self.port) as client:
            self._begun.wait(60)
            item: bytes | None = None
            try:
                while True:
                    if item is not None:
                        self.closing.add(item)
                    came = client.get("q/close/open/t=50")
                    if item is not None:
                        self.closing.remove(item)
                        self.confirmed.add(item)
                    item = came
            except (ConnectionError, HungUp):
                pass
            except AssertionError as problem:
                self.problems.append(str(problem))
