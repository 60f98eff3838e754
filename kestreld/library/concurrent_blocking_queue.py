"""ConcurrentBlockingQueue: a BlockingQueue without a lock that any thread waits for.

Items and consumers stand in two lines. A thread that adds to either matches the heads of both for as long as both have
one. One thread at a time does that; another that comes meanwhile leaves a note that there is more to do, and continues.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock, Semaphore
from typing import TypeVar
from weakref import ref

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import IDLE_MAX, Consumer, FullPolicy, is_waiting, wait_until
from kestreld.library.deadline import checked_end
from kestreld.library.memory_queue import MemoryQueue

T = TypeVar("T")


class ConcurrentBlockingQueue(MemoryQueue[T]):
    """A BlockingQueue whose operations wait for no lock. `max_items` None = no limit."""

    def __init__(self, max_items: int | None = None, full_policy: FullPolicy = FullPolicy.REFUSE_PUTS) -> None:
        super().__init__(max_items, full_policy)
        self._free_slots = None if self._max_items is None else Semaphore(self._max_items)
        self._above: deque[None] = deque()  # a note for each item above the limit: items that were given back
        self._append = self._items.append
        self._takes_less = self._free_slots is not None  # a put may be refused: the queue is limited or closed
        self._clear_out_at = IDLE_MAX
        self._more_to_do: deque[None] = deque()  # notes; a deque, because its operations are atomic
        self._bringing_together = Lock()  # tried, never waited for

    def put(self, item: T) -> bool:
        if item is None:
            checks.not_none(item, "item")
        if self._takes_less and not self._claim_slot():
            return False
        self._count_put()
        self._append(item)
        if self._line:
            self._bring_together()
        return True

    def _claim_slot(self) -> bool:
        """Reserve room for one more item. False if there is none."""
        if self._is_closed:
            return False
        if self._free_slots is None:
            return True
        while not self._free_slots.acquire(blocking=False):
            if self._full_policy is FullPolicy.REFUSE_PUTS:
                return False
            if self._take() is not None:
                self._tasks.drop(1)
                self._release_slot()
        return True

    def _take(self) -> T | None:
        """Take the head item; its room is the caller's to release."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def _release_slot(self) -> None:
        if self._free_slots is None:
            return
        try:
            self._above.pop()
        except IndexError:
            self._free_slots.release()

    def _return(self, item: T) -> None:
        if self._free_slots is not None and not self._free_slots.acquire(blocking=False):
            self._above.append(None)
        self._items.appendleft(item)
        self._bring_together()

    def _return_now(self, item: T) -> bool:
        """Put an item back above the limit unless a consumer waits: the interrupted thread may be counting the room."""
        if any(map(is_waiting, self._line.copy())):
            return False
        if self._free_slots is not None:
            self._above.append(None)
        self._items.appendleft(item)
        self._bring_together()
        return True

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        end_at_ms = None if deadline_at_ms is None and timeout is None else checked_end(deadline_at_ms, timeout)
        consumer: Consumer[T] = Consumer(self._return, self._return_now, self._kept, self._count_miss)
        self._line.append(ref(consumer))
        self._bring_together()
        if end_at_ms is not None and not consumer.done():
            wait_until(consumer, end_at_ms)
        return consumer

    def _bring_together(self) -> None:
        self._more_to_do.append(None)
        # A note may be left just after the other thread has looked: so look once more after releasing.
        while self._more_to_do and self._bringing_together.acquire(blocking=False):
            try:
                while self._more_to_do:
                    self._more_to_do.clear()
                    self._serve()
            finally:
                self._bringing_together.release()

    def _serve(self) -> None:
        if len(self._line) > self._clear_out_at:
            self._clear_out()
        while self._items and self._line:
            consumer = self._line[0]()
            if consumer is None or not consumer.hold():
                self._line.popleft()
                continue
            item = self._take()
            if item is None:  # another thread has polled it
                consumer.let_go()
                break
            self._line.popleft()
            self._release_slot()
            consumer.set_result(item)
        if self._is_closed and not self._items:  # not before: remaining items can still be taken
            self.evict_waiters()

    def _clear_out(self) -> None:
        # Only those that were there: consumers that come meanwhile stay behind them.
        before = [self._line.popleft() for _ in range(len(self._line))]
        waiting = [one for one in before if is_waiting(one)]
        self._line.extendleft(reversed(waiting))
        self._clear_out_at = 2 * len(waiting) + IDLE_MAX

    def poll(self) -> T | None:
        try:
            item = self._items.popleft()
        except IndexError:
            self._count_miss()
            return None
        if self._free_slots is not None:
            self._release_slot()
        return item

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        checks.function(predicate, "predicate")
        while True:
            try:
                item = self._items[0]
            except IndexError:
                break
            if not predicate(item):
                break
            taken = self._take()
            if taken is item:
                self._release_slot()
                return item
            if taken is not None:
                self._items.appendleft(taken)  # another item has become the head since
        self._count_miss()
        return None

    def flush(self) -> int:
        dropped = 0
        while self._take() is not None:
            self._release_slot()
            dropped += 1
        self._tasks.drop(dropped)
        return dropped

    def evict_waiters(self) -> None:
        for consumer in self.awaited:
            consumer.give_up()

    def close(self) -> None:
        self._is_closed = self._takes_less = True
        self._bring_together()
