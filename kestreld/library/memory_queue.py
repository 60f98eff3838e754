"""MemoryQueue: the base of the queues in memory, with queue.Queue's methods, loops and figures."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from queue import Empty
from typing import Generic, TypeVar
from weakref import ref

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import Consumer, FullPolicy, checked_limit, is_waiting
from kestreld.library.forked import refuse_in_child
from kestreld.library.managed import Closing, Counted
from kestreld.library.tasks import Tasks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Figures of a queue in memory. Totals are of its lifetime."""

    items: int  # waiting
    waiters: int
    put_items: int  # in total, including `put_head`
    hits: int  # in total: items that were taken
    misses: int  # in total: gets and polls that ended without an item
    dropped_items: int  # in total: flushed, or to make room
    unfinished_tasks: int  # items for which `task_done` has not been called


class ItemLoop(Generic[T]):
    """Iterator over the items of a queue as they come, until the queue is closed and empty."""

    def __init__(self, get: Callable[[], Answer[T | None]]) -> None:
        self._get = get

    def __iter__(self) -> Iterator[T]:
        return self

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    def __next__(self) -> T:
        if (item := self._get().result()) is None:
            raise StopIteration
        return item

    async def __anext__(self) -> T:
        if (item := await self._get()) is None:
            raise StopAsyncIteration
        return item


class MemoryQueue(Closing, Counted, Generic[T]):
    """Base of the queues in memory. Items and waiting consumers stand in two lines."""

    def __init__(self, max_items: int | None = None, full_policy: FullPolicy = FullPolicy.REFUSE_PUTS) -> None:
        self._max_items = checked_limit(max_items)
        checks.instance(full_policy, FullPolicy, "full_policy")
        self._full_policy = full_policy
        self._items: deque[T] = deque()
        self._line: deque[ref[Consumer[T]]] = deque()
        self._kept: set[Consumer[T]] = set()
        self._tasks = Tasks()
        self._count_put = self._tasks.count_put
        self._misses = count()
        self._count_miss = self._misses.__next__
        self._is_closed = False
        refuse_in_child(self)

    def put(self, item: T) -> bool:
        """Add an item: see BlockingQueue, also for `get`, `poll` and `close`."""
        raise NotImplementedError

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        raise NotImplementedError

    def poll(self) -> T | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def put_head(self, item: T) -> None:
        """Give an item back: it becomes the head, even of a full or closed queue."""
        checks.not_none(item, "item")
        self._count_put()
        self._return(item)

    def _return(self, item: T) -> None:
        """Make the item the head again, above the limit if necessary, or hand it to a waiting consumer."""
        raise NotImplementedError

    # As queue.Queue has it

    def put_nowait(self, item: T) -> None:
        """Add an item as `put` does; raises queue.Full if the queue is full, or QueueClosed."""
        self._must_be_stored(self.put(item))

    def get_nowait(self) -> T:
        """Take an item as `poll` does; raises queue.Empty if there is none."""
        item = self.poll()
        if item is None:
            raise Empty
        return item

    def full(self) -> bool:
        """Return True if the queue has `max_items`."""
        return self._max_items is not None and len(self) >= self._max_items

    def task_done(self) -> None:
        """Mark an item that was taken as dealt with. Raises TaskUnknown if that was done for all items put."""
        self._tasks.finish()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `task_done` has been called for every item that was put. False after `timeout` seconds.

        Items that were flushed, or dropped to make room, need no call.
        """
        return self._tasks.join(timeout)

    # Loops

    def __iter__(self) -> Iterator[T]:
        """Take items as they come, until the queue is closed and empty, or its waiters are evicted."""
        return ItemLoop(self.get)

    def __aiter__(self) -> AsyncIterator[T]:
        return ItemLoop(self.get)

    # Figures

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def awaited(self) -> list[Consumer[T]]:
        """Answers that are still to come, and some that are settled."""
        return [consumer for waiting in self._line.copy() if (consumer := waiting()) is not None]

    @property
    def waiters(self) -> int:
        """Number of waiting consumers."""
        return sum(map(is_waiting, self._line.copy()))

    @property
    def figures(self) -> MemoryFigures:
        items, put_items, dropped_items = len(self), self._tasks.put_items, self._tasks.dropped_items
        return MemoryFigures(
            items=items,
            waiters=self.waiters,
            put_items=put_items,
            hits=max(put_items - items - dropped_items, 0),
            misses=int(repr(self._misses)[len("count(") : -1]),
            dropped_items=dropped_items,
            unfinished_tasks=self._tasks.unfinished,
        )

    def __len__(self) -> int:
        """Number of waiting items."""
        return len(self._items)

    def __repr__(self) -> str:
        limit = "" if self._max_items is None else f" of {self._max_items}"
        closed = ", closed" if self._is_closed else ""
        return f"<{type(self).__name__}: {len(self)}{limit} items, {self.waiters} waiters{closed}>"
