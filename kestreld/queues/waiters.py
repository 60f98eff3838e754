"""Consumers that wait for an item, in the order they came, and the deadlines at which they stop."""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from kestreld.errors import JournalCorrupt

if TYPE_CHECKING:
    from kestreld.queues.reader import Reader

IDLE_WAITERS_MAX: Final = 64  # waiters that are over are cleared out beyond this and twice those that still wait
PEEK: Final = 0
TAKE: Final = 1
OPEN: Final = 2


class Consumer(Protocol):
    """Whoever waits: told once, with the item or with None when there will be none."""

    def served(self, waiter: "Waiter", record: bytes | None) -> None: ...

    def refused(self, waiter: "Waiter", reason: str) -> None: ...


class Waiter:
    """One blocked get. `over` once it was served, has timed out or its client has gone.

    Who waits to see an item of a queue that is not there has no `reader`, but an `absence`.
    """

    __slots__ = ("absence", "consumer", "deadline_ms", "over", "reader", "want")

    def __init__(self, consumer: Consumer, reader: "Reader | None", want: int, deadline_ms: int) -> None:
        self.consumer = consumer
        self.reader = reader
        self.absence: Absence | None = None
        self.want = want
        self.deadline_ms = deadline_ms  # on the monotonic clock
        self.over = False

    def leave(self) -> None:
        """It has timed out, or its client has gone."""
        if self.reader is not None:
            self.reader.wait_queue.leave(self)
        elif self.absence is not None:
            self.absence.leave(self)


class Absence:
    """Those who wait to see an item of a queue that is not there: looking makes none."""

    def __init__(self, name: str, absences: "dict[str, Absence]") -> None:
        self._name = name
        self._absences = absences
        self._waiters: dict[Waiter, None] = {}
        absences[name] = self

    def add(self, waiter: Waiter) -> None:
        waiter.absence = self
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        if not waiter.over:
            waiter.over = True
            del self._waiters[waiter]
            if not self._waiters:
                del self._absences[self._name]

    def over(self, reader: "Reader") -> None:
        """The queue has come: they wait there."""
        del self._absences[self._name]
        for waiter in self._waiters:
            waiter.reader, waiter.absence = reader, None
            reader.wait_queue.add(waiter)

    def send_away(self) -> None:
        for waiter in list(self._waiters):
            self.leave(waiter)
            waiter.consumer.served(waiter, None)


class WaitQueue:
    """Those who wait at one reader, in the order they came."""

    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        self._waiters: deque[Waiter] = deque()
        self.waiting = 0

    def add(self, waiter: Waiter) -> None:
        if len(self._waiters) > 2 * self.waiting + IDLE_WAITERS_MAX:
            self._waiters = deque([one for one in self._waiters if not one.over])
        self._waiters.append(waiter)
        self.waiting += 1
        self._reader.queue.waiting += 1

    def leave(self, waiter: Waiter) -> None:
        """A waiter is served, gives up, or its client has gone."""
        if not waiter.over:
            waiter.over = True
            self.waiting -= 1
            self._reader.queue.waiting -= 1
            if not self.waiting:
                self._waiters.clear()

    def begin_again(self, waiters: list[Waiter]) -> None:
        """These wait: first those that had left the line already, then the others in their order."""
        order = {waiter: at for at, waiter in enumerate(self._waiters, 1)}
        for waiter in waiters:
            waiter.over = False
        self._waiters = deque(sorted(waiters, key=lambda one: order.get(one, 0)))
        self.waiting = len(waiters)
        self._reader.queue.count_waiters()

    def serve(self, now_ms: int) -> None:
        """Hand waiting items out: the head to every waiting peek, then items to the gets in their order."""
        try:
            self._serve(now_ms)
        except JournalCorrupt:
            return  # the queue has stopped, and with that sent everybody away

    def _serve(self, now_ms: int) -> None:
        record = self._reader.peek(now_ms)
        if record is None:
            return
        for waiter in [one for one in self._waiters if one.want == PEEK and not one.over]:
            self.leave(waiter)
            waiter.consumer.served(waiter, record)
        while self._waiters and record is not None:
            waiter = self._waiters.popleft()
            if not waiter.over:
                self.leave(waiter)
                waiter.consumer.served(waiter, record)
                record = self._reader.peek(now_ms)

    def send_away(self, reason: str | None) -> None:
        """End every wait: with nothing when the queue is deleted, with an error when it is stopped."""
        for waiter in list(self._waiters):
            if waiter.over:
                continue
            self.leave(waiter)
            if reason is None:
                waiter.consumer.served(waiter, None)
            else:
                waiter.consumer.refused(waiter, reason)


class Deadlines:
    """When the next waiter's patience ends. Served waiters stay in the heap until it has doubled, at the latest."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Waiter]] = []  # empty: nobody waits
        self._count = 0
        self._clear_out_at = IDLE_WAITERS_MAX

    def add(self, waiter: Waiter) -> None:
        if len(self.heap) >= self._clear_out_at:
            self.heap = [one for one in self.heap if not one[2].over]
            heapify(self.heap)
            self._clear_out_at = 2 * len(self.heap) + IDLE_WAITERS_MAX
        self._count += 1
        heappush(self.heap, (waiter.deadline_ms, self._count, waiter))

    def next_at_ms(self) -> int | None:
        """The earliest deadline of a waiter that still waits; None when nobody does."""
        while self.heap and self.heap[0][2].over:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def expire(self, now_ms: int) -> None:
        """Send every waiter whose deadline has come away with nothing."""
        while self.heap and self.heap[0][0] <= now_ms:
            waiter = heappop(self.heap)[2]
            if not waiter.over:
                waiter.leave()
                waiter.consumer.served(waiter, None)
