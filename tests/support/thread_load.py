"""Kestrel's and libkestrel's load tests on any queue that threads share, by the account of `kestrelctl bench`."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kestrelctl.bench.items import ItemMaker
from kestrelctl.bench.ledger import DeliveryResult, Ledger

FLOOD_WAIT_MS: Final = 250
CROWD_WAIT_MS: Final = 1000
LEDGER_LOOK_S: Final = 0.001


class LoadQueue(Protocol):
    """What a load test needs of a queue."""

    def put(self, item: bytes) -> bool:
        """False = refused."""

    def get(self, wait_ms: int) -> bytes | None:
        """The head item, waited for; 0 = not."""


class ThreadLoad:
    """One run. Each writer and each reader is a thread."""

    def __init__(self, queue: LoadQueue, item_bytes: int, seed: int = 1, quiet_s: float = 60) -> None:
        """What has not come `quiet_s` after the latest is lost."""
        self._queue = queue
        self._quiet_s = quiet_s
        self._ledger = Ledger(ItemMaker(seed, item_bytes))
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._last_arrival_s = time.monotonic()
        self._wrong: list[BaseException] = []  # what threads have died of
        self._readers = 0

    def flood(
        self, *, writers: int, readers: int, items: int, poll_percent: int = 25, target: int = 10_000
    ) -> DeliveryResult:
        """`items` of each writer, as fast as it goes, at most `target` underway; so many gets in 100 do not wait."""

        def wait_ms() -> int:
            return 0 if self._random.randrange(100) < poll_percent else FLOOD_WAIT_MS

        self._run(writers, lambda count: count < items, readers, wait_ms, target=target)
        return self._ledger.verdict()

    def put(self, *, threads: int, items: int, cycles: int) -> DeliveryResult:
        """Many put at once; what they have put is taken and looked at after each cycle."""
        for _ in range(cycles):
            self._run(threads, lambda count: count < items, 0, lambda: 0)
            self._run(0, lambda _: False, 1, lambda: 0)
        return self._ledger.verdict()

    def timeout(
        self, *, writers: int, readers: int, run_ms: int, delay_ms: int, low_ms: int, high_ms: int
    ) -> DeliveryResult:
        """Items at a slow rate, while a stampede of readers waits a short and random time for each."""
        end_s = time.monotonic() + run_ms / 1000

        def may_go_on(_: int) -> bool:
            time.sleep(delay_ms / 1000)
            return time.monotonic() < end_s

        self._run(writers, may_go_on, readers, lambda: self._random.randint(low_ms, high_ms))
        return self._ledger.verdict()

    def many_clients(self, *, clients: int, items: int, sleep_ms: int, wait_ms: int = CROWD_WAIT_MS) -> DeliveryResult:
        """One producer lets items trickle, and a crowd of waiting clients gets them."""

        def may_go_on(count: int) -> bool:
            time.sleep(sleep_ms / 1000)
            return count < items

        self._run(1, may_go_on, clients, lambda: wait_ms)
        return self._ledger.verdict()

    def _run(
        self,
        writers: int,
        may_go_on: Callable[[int], bool],
        readers: int,
        wait_ms: Callable[[], int],
        target: int | None = None,
    ) -> None:
        """Until all is written and, where there are readers, read."""
        self._ledger.readers_have_left()
        writing = self._threads(writers, lambda: self._write(may_go_on, target))
        reading = self._threads(readers, lambda: self._read(wait_ms, writing))
        for thread in writing + reading:
            thread.start()
        for thread in writing + reading:
            thread.join()
        if self._wrong:
            raise self._wrong[0]

    def _threads(self, count: int, work: Callable[[], None]) -> list[threading.Thread]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._wrong.append(error)
                raise

        return [threading.Thread(target=run) for _ in range(count)]

    def _write(self, may_go_on: Callable[[int], bool], target: int | None) -> None:
        count = 0
        with self._lock:
            writer = self._ledger.new_writer()
        while may_go_on(count) and not self._wrong:
            with self._lock:
                is_ahead = target is not None and self._ledger.missing >= target
                item = b"" if is_ahead else self._ledger.next_item(writer, 0)
            if is_ahead:
                time.sleep(LEDGER_LOOK_S)
                continue
            stored = self._queue.put(item)
            with self._lock:
                self._ledger.answered(writer, count, stored=stored)
            count += 1

    def _read(self, wait_ms: Callable[[], int], writing: Sequence[threading.Thread]) -> None:
        with self._lock:
            reader = self._readers
            self._readers += 1
        while not self._wrong:
            is_written = not any(thread.is_alive() for thread in writing)
            item = self._queue.get(wait_ms())
            with self._lock:
                if item is not None:
                    self._ledger.arrival(item, reader)
                    self._last_arrival_s = time.monotonic()
                elif is_written and (
                    not self._ledger.missing or time.monotonic() > self._last_arrival_s + self._quiet_s
                ):
                    return
