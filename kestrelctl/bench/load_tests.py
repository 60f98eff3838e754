"""The load tests (flood, many-clients, put-many, packing, timeout, fanout), named as in Kestrel and libkestrel.

The fields of a test are its options, which commands/bench.py declares and explains. `queues` are flushed before the
run; items left in them are taken and checked after it.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from kestrelctl.bench.clients import Putter, Taker, putters
from kestrelctl.bench.ledger import DeliveryResult
from kestrelctl.bench.trial import Trial

PREFILL_IN_FLIGHT: Final = 64
FLOOD_WAIT_MS: Final = 250
CROWD_WAIT_MS: Final = 1000  # Kestrel's


@dataclass(frozen=True, slots=True, kw_only=True)
class OneQueue:
    """A test of one queue, which must deliver every item once unless the test overrides `verdict`."""

    queue: bytes

    @property
    def queues(self) -> list[bytes]:
        return [self.queue]

    def verdict(self, trial: Trial) -> DeliveryResult:
        return trial.ledger.verdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood(OneQueue):
    """Items through one queue, as fast as possible or at a rate."""

    name: ClassVar[str] = "flood"
    items: int | None  # None = for `run_ms`
    run_ms: int | None
    item_bytes: int
    prefill: int
    producers: int
    consumers: int
    rollup: int
    poll_percent: int
    target: int | None  # None = producers never slow down
    transactions: bool
    monitor: bool
    rate: float  # items a second; 0 = as fast as they can

    def run(self, trial: Trial) -> None:
        if self.prefill:
            trial.run([Putter(trial, self.queue, items=self.prefill, in_flight=PREFILL_IN_FLIGHT)], [], measured=False)
        trial.planned_items = self.prefill + (self.items or 0)
        trial.planned_ns = (self.run_ms or 0) * 1_000_000
        producers = putters(
            trial,
            self.queues * self.producers,
            items=self.items,
            rate=self.rate,
            in_flight=self.rollup,
            for_ms=self.run_ms,
            waiting_max=None if self.target is None else self.target + self.prefill,
        )

        def wait_ms() -> int:
            return 0 if trial.random.randrange(100) < self.poll_percent else FLOOD_WAIT_MS

        consumers = [
            Taker(
                trial,
                self.queue,
                wait_ms=wait_ms,
                in_flight=self.rollup,
                confirms=self.transactions,
                monitors=self.monitor,
            )
            for _ in range(self.consumers)
        ]
        trial.run(producers, consumers, leave=self.prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyClients(OneQueue):
    """One producer that puts items slowly, and many clients that wait for them."""

    name: ClassVar[str] = "many-clients"
    items: int
    item_bytes: int
    sleep_ms: int
    clients: int
    kill_percent: int
    transactions: bool
    monitor: bool

    def run(self, trial: Trial) -> None:
        trial.planned_items = self.items
        producer = Putter(trial, self.queue, items=self.items, interval_ns=self.sleep_ms * 1_000_000)
        crowd = [
            Taker(
                trial,
                self.queue,
                wait_ms=lambda: CROWD_WAIT_MS,
                confirms=self.transactions,
                monitors=self.monitor,
                kill_percent=self.kill_percent,
            )
            for _ in range(self.clients)
        ]
        trial.run([producer], crowd)

    def verdict(self, trial: Trial) -> DeliveryResult:
        # Items sent to a killed client are lost with it, except open reads.
        may_lose = 0 if self.transactions or self.monitor else trial.kills
        return trial.ledger.verdict(may_lose=may_lose, reorders=self.kill_percent > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutMany:
    """Many clients that put as fast as they can. Their items are taken and checked; with `get`, takes are measured."""

    name: ClassVar[str] = "put-many"
    prefix: bytes
    queue_count: int
    clients: int
    items: int
    item_bytes: int
    rollup: int
    cycles: int
    get: bool
    limit: int | None  # items that the server keeps of a queue before it drops the oldest; None = all
    rate: float

    @property
    def queues(self) -> list[bytes]:
        if self.queue_count == 1:
            return [self.prefix]
        return [b"%b%d" % (self.prefix, number) for number in range(self.queue_count)]

    def run(self, trial: Trial) -> None:
        trial.planned_items = self.items * self.cycles
        queues = [self.queues[number % self.queue_count] for number in range(self.clients)]
        for _ in range(self.cycles):
            trial.run(putters(trial, queues, items=self.items, rate=self.rate, in_flight=self.rollup), [])
            if self.get:
                trial.run([], [Taker(trial, queue, in_flight=self.rollup) for queue in queues])
            else:
                trial.drain(self.queues, to_the_end=False)

    def verdict(self, trial: Trial) -> DeliveryResult:
        return trial.ledger.verdict(drops_oldest=self.limit is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing(OneQueue):
    """A queue that has fallen behind and stays behind: cycles of puts and takes with pauses between them."""

    name: ClassVar[str] = "packing"
    items: int
    item_bytes: int
    pause_ms: int
    cycles: int
    transactions: bool
    monitor: bool

    def run(self, trial: Trial) -> None:
        trial.planned_items = self.items * (self.cycles + 1)
        trial.run([Putter(trial, self.queue, items=self.items)], [])
        for cycle in range(self.cycles):
            if cycle:
                trial.pause(self.pause_ms)
            consumer = Taker(trial, self.queue, confirms=self.transactions, monitors=self.monitor)
            trial.run([Putter(trial, self.queue, items=self.items)], [consumer], leave=self.items)
        trial.run([], [Taker(trial, self.queue, confirms=self.transactions, monitors=self.monitor)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout(OneQueue):
    """Items at a slow rate, and many readers that wait a short, random time for each."""

    name: ClassVar[str] = "timeout"
    run_ms: int
    item_bytes: int
    writers: int
    readers: int
    delay_ms: int
    low_ms: int
    high_ms: int

    def run(self, trial: Trial) -> None:
        trial.planned_ns = self.run_ms * 1_000_000
        rate = self.writers * 1000 / self.delay_ms
        writers = putters(trial, self.queues * self.writers, items=None, rate=rate, for_ms=self.run_ms)
        readers = [
            Taker(trial, self.queue, wait_ms=lambda: trial.random.randint(self.low_ms, self.high_ms))
            for _ in range(self.readers)
        ]
        trial.run(writers, readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout(OneQueue):
    """Items through a queue and all its children, each of which must deliver every item."""

    name: ClassVar[str] = "fanout"
    children: int
    items: int
    item_bytes: int
    producers: int
    consumers: int  # of each queue
    rollup: int
    transactions: bool
    rate: float

    @property
    def queues(self) -> list[bytes]:
        """The children, then the queue: in this order they can be deleted."""
        return [*(b"%b+%d" % (self.queue, number) for number in range(self.children)), self.queue]

    def run(self, trial: Trial) -> None:
        trial.create(self.queues)
        trial.planned_items = self.items
        producers = putters(
            trial, [self.queue] * self.producers, items=self.items, rate=self.rate, in_flight=self.rollup
        )
        consumers = [
            Taker(
                trial,
                queue,
                wait_ms=lambda: FLOOD_WAIT_MS,
                in_flight=self.rollup,
                confirms=self.transactions,
            )
            for queue in self.queues * self.consumers
        ]
        trial.run(producers, consumers)


LoadTest = Flood | ManyClients | PutMany | Packing | Timeout | Fanout
