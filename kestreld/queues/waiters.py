"""Waiting gets: consumers that wait at a reader for an item, first come first served, until their deadline.

A waiter is told once, and then has left every queue it waited in. `waiting` of a family counts the waits on all its
readers, so that a put has one number to check.
"""

from collections import deque
from typing import Final, Protocol

from kestreld.errors import JournalCorrupt
from kestreld.queues.agenda import TimedWait

IDLE_WAITERS_MAX: Final = 64  # ended waiters are removed at twice the waiting ones plus this
PEEK: Final = 0
TAKE: Final = 1
OPEN: Final = 2


class Awaited:
    """A queue family as waiters see it."""

    # Queue, Reader and Journal have slots throughout: without them a turn of one item takes a tenth more CPU.
    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0  # number of waiters on all its readers


class Source:
    """A reader as waiters see it."""

    __slots__ = ("wait_queue",)

    def __init__(self, family: Awaited) -> None:
        self.wait_queue = WaitQueue(self, family)

    def peek(self, now_ms: int) -> bytes | None:
        """The head item, which stays where it is; None if nothing waits. Raises JournalCorrupt."""
        raise NotImplementedError


class Consumer(Protocol):
    """The client of a wait. One method is called, once; `served` gets None if there will be no item."""

    def served(self, waiter: "Waiter", record: bytes | None) -> None: ...

    def refused(self, waiter: "Waiter", reason: str) -> None: ...


class Waiter(TimedWait):
    """One blocked get.

    It may wait at several readers at once: the first that has an item for it becomes its `reader`, and it leaves the
    others. A peek at a queue that does not exist has no `reader`, but an `absence`.
    """

    __slots__ = ("absence", "consumer", "lines", "reader", "want")

    def __init__(self, consumer: Consumer, reader: Source | None, want: int, deadline_ms: int) -> None:
        super().__init__(deadline_ms)
        self.consumer = consumer
        self.reader = reader
        self.lines: tuple[WaitQueue, ...] = ()  # every queue that it waits in, if several
        self.absence: Absence | None = None
        self.want = want

    def fall_due(self, now_ms: int) -> None:
        """End the wait with nothing."""
        self.leave()
        self.consumer.served(self, None)

    def leave(self) -> None:
        if self.reader is not None:
            self.reader.wait_queue.leave(self)
        elif self.absence is not None:
            self.absence.leave(self)


class Absence:
    """Waiters for an item of a queue that does not exist: a peek creates none."""

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
        """Move the waiters to the queue, which now exists."""
        del self._absences[self._name]
        for waiter in self._waiters:
            waiter.reader, waiter.absence = reader, None
            reader.wait_queue.add(waiter)

    def send_away(self) -> None:
        for waiter in list(self._waiters):
            self.leave(waiter)
            waiter.consumer.served(waiter, None)


class WaitQueue:
    """Waiters at one reader, in the order in which they came."""

    __slots__ = ("_family", "_reader", "_waiters", "waiting")

    def __init__(self, reader: Source, family: Awaited) -> None:
        self._reader = reader
        self._family = family
        self._waiters: deque[Waiter] = deque()
        self.waiting = 0

    def add(self, waiter: Waiter) -> None:
        """Add a waiter, which may be waiting at other readers already."""
        if waiter.reader is not self._reader and waiter.reader is not None:
            waiter.lines = (*(waiter.lines or (waiter.reader.wait_queue,)), self)
        if len(self._waiters) > 2 * self.waiting + IDLE_WAITERS_MAX:
            self._waiters = deque([one for one in self._waiters if not one.over])
        self._waiters.append(waiter)
        self.waiting += 1
        self._family.waiting += 1

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter everywhere: it is served, has timed out, or its client has gone."""
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
        """Remove a waiter here if it waits elsewhere, too; False if it does not."""
        elsewhere = tuple([line for line in waiter.lines if line is not self])
        if not elsewhere:
            return False
        waiter.lines, waiter.reader = elsewhere, elsewhere[0]._reader
        self._waiters.remove(waiter)
        self._one_less()
        return True

    def begin_again(self, waiters: list[Waiter]) -> None:
        """Restore these waiters, here only: those that had left come first, then the others in their order.

        `Queue.count_waiters` comes next.
        """
        order = {waiter: at for at, waiter in enumerate(self._waiters, 1)}
        for waiter in waiters:
            waiter.over = False
        self._waiters = deque(sorted(waiters, key=lambda one: order.get(one, 0)))
        self.waiting = len(waiters)

    def serve(self, now_ms: int) -> None:
        """Hand out waiting items: the head to every waiting peek, then items to the gets in their order."""
        try:
            self._serve(now_ms)
        except JournalCorrupt:
            return  # the queue has stopped, which ended all waits

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
        """End every wait: with nothing if the queue was deleted (`reason` None), with an error if it was stopped.

        A waiter registered on several queues keeps waiting on the others.
        """
        for waiter in list(self._waiters):
            if waiter.over or self._leave_alone(waiter):
                continue
            self.leave(waiter)
            if reason is None:
                waiter.consumer.served(waiter, None)
            else:
                waiter.consumer.refused(waiter, reason)
