"""Consumers that wait for an item, in the order they came, until their patience ends."""

from collections import deque
from typing import Final, Protocol

from kestreld.errors import JournalCorrupt
from kestreld.queues.agenda import TimedWait

IDLE_WAITERS_MAX: Final = 64  # waiters that are over are cleared out beyond this and twice those that still wait
PEEK: Final = 0
TAKE: Final = 1
OPEN: Final = 2


class Awaited:
    """A queue family, as far as those who wait know it."""

    # Queue, Reader and Journal have slots throughout: without them a turn of one item takes a tenth more CPU.
    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0  # on all its readers


class Source:
    """What is waited at: a reader, as far as those who wait know it."""

    __slots__ = ("wait_queue",)

    def __init__(self, family: Awaited) -> None:
        self.wait_queue = WaitQueue(self, family)

    def peek(self, now_ms: int) -> bytes | None:
        """The head item, left where it is. None when there is none. Raises JournalCorrupt."""
        raise NotImplementedError


class Consumer(Protocol):
    """Whoever waits: told once, with the item or with None when there will be none."""

    def served(self, waiter: "Waiter", record: bytes | None) -> None: ...

    def refused(self, waiter: "Waiter", reason: str) -> None: ...


class Waiter(TimedWait):
    """One blocked get.

    It may wait at several readers at once: the first that has an item for it is its `reader` from then on, and it has
    left the others. Who waits to see an item of a queue that is not there has no `reader`, but an `absence`.
    """

    __slots__ = ("absence", "consumer", "lines", "reader", "want")

    def __init__(self, consumer: Consumer, reader: Source | None, want: int, deadline_ms: int) -> None:
        super().__init__(deadline_ms)
        self.consumer = consumer
        self.reader = reader
        self.lines: tuple[WaitQueue, ...] = ()  # all that it stands in, if these are several
        self.absence: Absence | None = None
        self.want = want

    def fall_due(self, now_ms: int) -> None:
        """It goes away with nothing."""
        self.leave()
        self.consumer.served(self, None)

    def leave(self) -> None:
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

    def over(self, reader: Source) -> None:
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

    __slots__ = ("_family", "_reader", "_waiters", "waiting")

    def __init__(self, reader: Source, family: Awaited) -> None:
        self._reader = reader
        self._family = family
        self._waiters: deque[Waiter] = deque()
        self.waiting = 0

    def add(self, waiter: Waiter) -> None:
        """One comes to wait, here beside where it waits already."""
        if waiter.reader is not self._reader and waiter.reader is not None:
            waiter.lines = (*(waiter.lines or (waiter.reader.wait_queue,)), self)
        if len(self._waiters) > 2 * self.waiting + IDLE_WAITERS_MAX:
            self._waiters = deque([one for one in self._waiters if not one.over])
        self._waiters.append(waiter)
        self.waiting += 1
        self._family.waiting += 1

    def leave(self, waiter: Waiter) -> None:
        """A waiter is served, gives up, or its client has gone: it waits nowhere any more."""
        if not waiter.over:
            waiter.over = True
            self._one_less()
            for line in waiter.lines:
                if line is not self:
                    line._one_less()

    def _one_less(self) -> None:
        self.waiting -= 1
        self._family.waiting -= 1
        if not self.waiting:
            self._waiters.clear()

    def _leave_alone(self, waiter: Waiter) -> bool:
        """Have one that waits elsewhere too wait here no more; False when it does not."""
        elsewhere = tuple([line for line in waiter.lines if line is not self])
        if not elsewhere:
            return False
        waiter.lines, waiter.reader = elsewhere, elsewhere[0]._reader
        self._waiters.remove(waiter)
        self._one_less()
        return True

    def begin_again(self, waiters: list[Waiter]) -> None:
        """These wait, and nowhere else: first those that had left the line already, then the others in their order.

        `Queue.count_waiters` comes next.
        """
        order = {waiter: at for at, waiter in enumerate(self._waiters, 1)}
        for waiter in waiters:
            waiter.over = False
        self._waiters = deque(sorted(waiters, key=lambda one: order.get(one, 0)))
        self.waiting = len(waiters)

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
            waiter.reader = self._reader
            self.leave(waiter)
            waiter.consumer.served(waiter, record)
        while self._waiters and record is not None:
            waiter = self._waiters.popleft()
            if not waiter.over:
                waiter.reader = self._reader
                self.leave(waiter)
                waiter.consumer.served(waiter, record)
                record = self._reader.peek(now_ms)

    def send_away(self, reason: str | None) -> None:
        """End every wait: with nothing when the queue is deleted, with an error when it is stopped.

        Who waits elsewhere too goes on there.
        """
        for waiter in list(self._waiters):
            if waiter.over or self._leave_alone(waiter):
                continue
            self.leave(waiter)
            if reason is None:
                waiter.consumer.served(waiter, None)
            else:
                waiter.consumer.refused(waiter, reason)
