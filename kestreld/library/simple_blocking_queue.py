"""SimpleBlockingQueue: a BlockingQueue with one lock around everything, as a baseline for comparisons."""

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import TypeVar
from weakref import ref

from kestreld import checks
from kestreld.errors import QueueInUse
from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import IDLE_MAX, Consumer, FullPolicy, is_waiting, wait_until
from kestreld.library.deadline import checked_end
from kestreld.library.memory_queue import MemoryQueue

T = TypeVar("T")


class SimpleBlockingQueue(MemoryQueue[T]):
    """A BlockingQueue with one lock. `max_items` None = no limit."""

    def __init__(self, max_items: int | None = None, full_policy: FullPolicy = FullPolicy.REFUSE_PUTS) -> None:
        super().__init__(max_items, full_policy)
        self._lock = RLock()  # re-entered only by a predicate
        self._is_asking = False
        self._append = self._items.append
        self._takes_less = self._max_items is not None  # a put may fail: limited, closed, or asking
        self._clear_out_at = IDLE_MAX

    def put(self, item: T) -> bool:
        if item is None:
            checks.not_none(item, "item")
        with self._lock:
            if not self._line and not self._takes_less:
                self._count_put()
                self._append(item)
                return True
            self._refuse()
            if self._is_closed:
                return False
            consumer = self._next_consumer()
            if consumer is None and not self._has_room():
                return False
            self._count_put()
            if consumer is None:
                self._append(item)
                return True
        consumer.set_result(item)
        return True

    def _refuse(self) -> None:
        """Raise QueueInUse within a predicate."""
        if self._is_asking:
            raise QueueInUse(repr(self))

    def _next_consumer(self) -> Consumer[T] | None:
        while self._line:
            consumer = self._line.popleft()()
            if consumer is not None and consumer.hold():
                return consumer
        return None

    def _has_room(self) -> bool:
        if self._max_items is not None and len(self._items) >= self._max_items:
            if self._full_policy is FullPolicy.REFUSE_PUTS:
                return False
            while len(self._items) >= self._max_items:  # may be more, after an item was given back
                self._items.popleft()
                self._tasks.drop(1)
        return True

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        end_at_ms = None if deadline_at_ms is None and timeout is None else checked_end(deadline_at_ms, timeout)
        with self._lock:
            if self._is_asking:
                self._refuse()
            if self._items:
                return Answer.of(self._items.popleft(), self._return, self._return_now)
            if self._is_closed:
                self._count_miss()
                return Answer.of(None)
            if len(self._line) >= self._clear_out_at:
                self._line = deque([waiting for waiting in self._line if is_waiting(waiting)])
                self._clear_out_at = 2 * len(self._line) + IDLE_MAX
            consumer: Consumer[T] = Consumer(self._return, self._return_now, self._kept, self._count_miss)
            self._line.append(ref(consumer))
        if end_at_ms is not None:
            wait_until(consumer, end_at_ms)
        return consumer

    def put_head(self, item: T) -> None:
        with self._lock:
            self._refuse()
        super().put_head(item)

    def _return(self, item: T) -> None:
        with self._lock:
            consumer = self._next_consumer()
            if consumer is None:
                self._items.appendleft(item)
                return
        consumer.set_result(item)

    def _return_now(self, item: T) -> bool:
        """Put an item back, if the lock is free and no consumer waits."""
        if self._is_asking or self._lock._is_owned():  # type: ignore[attr-defined]  # for longer, or by this thread
            return False
        with self._lock:
            if any(map(is_waiting, self._line)):
                return False
            self._items.appendleft(item)
            return True

    def poll(self) -> T | None:
        with self._lock:
            if self._is_asking:
                self._refuse()
            if items := self._items:
                return items.popleft()
        self._count_miss()
        return None

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        """See BlockingQueue. Raises QueueInUse if the predicate uses the queue, which is locked meanwhile."""
        checks.function(predicate, "predicate")
        with self._lock:
            self._refuse()
            if self._items and self._is_wanted(predicate, self._items[0]):
                return self._items.popleft()
        self._count_miss()
        return None

    def _is_wanted(self, predicate: Callable[[T], bool], item: T) -> bool:
        takes_less = self._takes_less
        try:
            self._is_asking = self._takes_less = True
            return bool(predicate(item))
        finally:
            self._is_asking, self._takes_less = False, takes_less

    def flush(self) -> int:
        with self._lock:
            self._refuse()
            dropped = len(self._items)
            self._items.clear()
        self._tasks.drop(dropped)
        return dropped

    def evict_waiters(self) -> None:
        with self._lock:
            self._refuse()
            evicted, self._line = self._line, deque()
        for waiting in evicted:
            if (consumer := waiting()) is not None:
                consumer.give_up()

    def close(self) -> None:
        with self._lock:
            self._refuse()
            self._is_closed = self._takes_less = True
        self.evict_waiters()
