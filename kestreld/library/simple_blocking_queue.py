"""A BlockingQueue with one lock around everything: the plain way, to compare others with."""

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import IDLE_MAX, Consumer, FullPolicy, checked_limit, wait_until

T = TypeVar("T")


class SimpleBlockingQueue(Generic[T]):
    """See BlockingQueue. `max_items` None = unlimited."""

    def __init__(self, max_items: int | None = None, full_policy: FullPolicy = FullPolicy.REFUSE_PUTS) -> None:
        self._max_items = checked_limit(max_items)
        self._full_policy = full_policy
        self._lock = Lock()
        self._items: deque[T] = deque()
        self._line: deque[Consumer[T]] = deque()
        self._clear_out_at = IDLE_MAX
        self._is_closed = False

    def put(self, item: T) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            consumer = self._next_consumer()
            if consumer is None:
                return self._keep(item)
        consumer.set_result(item)
        return True

    def _next_consumer(self) -> Consumer[T] | None:
        while self._line:
            consumer = self._line.popleft()
            if consumer.hold():
                return consumer
        return None

    def _keep(self, item: T) -> bool:
        if self._max_items is not None and len(self._items) >= self._max_items:
            if self._full_policy is FullPolicy.REFUSE_PUTS:
                return False
            while len(self._items) >= self._max_items:  # more than that where one was given back
                self._items.popleft()
        self._items.append(item)
        return True

    def get(self, deadline_at_ms: int | None = None) -> Answer[T | None]:
        with self._lock:
            if self._items:
                return Answer.of(self._items.popleft(), self._return)
            if self._is_closed:
                return Answer.of(None)
            if len(self._line) >= self._clear_out_at:
                self._line = deque([waiting for waiting in self._line if not waiting.done()])
                self._clear_out_at = 2 * len(self._line) + IDLE_MAX
            consumer: Consumer[T] = Consumer(self._return)
            self._line.append(consumer)
        if deadline_at_ms is not None:
            wait_until(consumer, deadline_at_ms)
        return consumer

    def _return(self, item: T) -> None:
        """It is the head again, above the limit if need be, or somebody else's who waits."""
        with self._lock:
            consumer = self._next_consumer()
            if consumer is None:
                self._items.appendleft(item)
                return
        consumer.set_result(item)

    def poll(self) -> T | None:
        return self.poll_if(lambda item: True)

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        with self._lock:
            return self._items.popleft() if self._items and predicate(self._items[0]) else None

    def flush(self) -> int:
        with self._lock:
            dropped = len(self._items)
            self._items.clear()
            return dropped

    def evict_waiters(self) -> None:
        with self._lock:
            evicted, self._line = self._line, deque()
        for consumer in evicted:
            consumer.give_up()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self.evict_waiters()

    @property
    def waiters(self) -> int:
        with self._lock:
            return sum(not consumer.done() for consumer in self._line)

    def __len__(self) -> int:
        return len(self._items)
