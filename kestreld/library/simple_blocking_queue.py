"""A BlockingQueue with one lock around everything: the plain way, to compare others with."""

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import ref

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import IDLE_MAX, Consumer, FullPolicy, checked_limit, is_waiting, wait_until
from kestreld.library.deadline import checked_end
from kestreld.library.forked import refuse_in_child

T = TypeVar("T")


class SimpleBlockingQueue(Generic[T]):
    """See BlockingQueue. `max_items` None = unlimited."""

    def __init__(self, max_items: int | None = None, full_policy: FullPolicy = FullPolicy.REFUSE_PUTS) -> None:
        self._max_items = checked_limit(max_items)
        checks.instance(full_policy, FullPolicy, "full_policy")
        self._full_policy = full_policy
        self._lock = Lock()
        self._items: deque[T] = deque()
        self._line: deque[ref[Consumer[T]]] = deque()
        self._kept: set[Consumer[T]] = set()
        self._clear_out_at = IDLE_MAX
        self._is_closed = False
        refuse_in_child(self)

    def put(self, item: T) -> bool:
        if item is None:
            checks.not_none(item, "item")
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
            consumer = self._line.popleft()()
            if consumer is not None and consumer.hold():
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

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        end_at_ms = None if deadline_at_ms is None and timeout is None else checked_end(deadline_at_ms, timeout)
        with self._lock:
            if self._items:
                return Answer.of(self._items.popleft(), self._return, self._return_now)
            if self._is_closed:
                return Answer.of(None)
            if len(self._line) >= self._clear_out_at:
                self._line = deque([waiting for waiting in self._line if is_waiting(waiting)])
                self._clear_out_at = 2 * len(self._line) + IDLE_MAX
            consumer: Consumer[T] = Consumer(self._return, self._return_now, self._kept)
            self._line.append(ref(consumer))
        if end_at_ms is not None:
            wait_until(consumer, end_at_ms)
        return consumer

    def _return(self, item: T) -> None:
        """It is the head again, above the limit if need be, or somebody else's who waits."""
        with self._lock:
            consumer = self._next_consumer()
            if consumer is None:
                self._items.appendleft(item)
                return
        consumer.set_result(item)

    def _return_now(self, item: T) -> bool:
        """`_return` where the lock is free and nobody waits."""
        if self._lock.locked():  # perhaps by this thread; where it is by another one a moment later, that is brief
            return False
        with self._lock:
            if any(map(is_waiting, self._line)):
                return False
            self._items.appendleft(item)
            return True

    def poll(self) -> T | None:
        with self._lock:
            return self._items.popleft() if self._items else None

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        checks.function(predicate, "predicate")
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
        for waiting in evicted:
            if (consumer := waiting()) is not None:
                consumer.give_up()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self.evict_waiters()

    @property
    def awaited(self) -> list[Consumer[T]]:
        """The answers that are still to come, and some that are over."""
        return [consumer for waiting in self._line.copy() if (consumer := waiting()) is not None]

    @property
    def waiters(self) -> int:
        with self._lock:
            return sum(map(is_waiting, self._line))

    def __len__(self) -> int:
        return len(self._items)
