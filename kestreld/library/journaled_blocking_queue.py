"""BlockingQueues on a JournaledQueue with one reader: plain, or with a transaction for each item."""

from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty
from reprlib import repr as shortened
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.deadline import checked_end
from kestreld.library.forked import refuse_in_child
from kestreld.library.handover import hand_over
from kestreld.library.item import QItem
from kestreld.library.journal_reader import JournalReader
from kestreld.library.loops import OpenReadLoop
from kestreld.library.managed import Closing, Counted
from kestreld.library.memory_queue import ItemLoop
from kestreld.library.reading import ReaderFigures
from kestreld.queues.waiters import OPEN, TAKE

T = TypeVar("T")


class _JournaledQueue(Protocol):
    def put(self, data: bytes) -> bool: ...

    def reader(self) -> JournalReader: ...

    def close(self) -> None: ...

    @property
    def is_closed(self) -> bool: ...


class _OneReader(Closing, Counted, Generic[T]):
    """The base of both. Items are bytes in the journal, by `encode` and `decode`. `close` closes the queue."""

    def __init__(self, queue: _JournaledQueue, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        """Raises ReaderUnknown for a queue whose readers have names."""
        self._queue = queue
        checks.function(encode, "encode")
        checks.function(decode, "decode")
        self._encode = encode
        self._decode = decode
        self._reader = queue.reader()
        self._reading = self._reader.reading
        refuse_in_child(self)

    def put(self, item: T) -> bool:
        """Add an item, or hand it to the consumer that has waited longest. False if the queue is full or closed."""
        return self._queue.put(self._encode(item))

    def put_nowait(self, item: T) -> None:
        """Add an item as `put` does; raises queue.Full if it is refused, or QueueClosed."""
        self._must_be_stored(self.put(item))

    def flush(self) -> int:
        """Drop all waiting items. Return how many there were."""
        return self._reader.flush()

    def evict_waiters(self) -> None:
        """End all waits with None."""
        self._reader.evict_waiters()

    def close(self) -> None:
        """Close the queue. Waits end with None; the items are there when it is opened again."""
        self._queue.close()

    @property
    def is_closed(self) -> bool:
        return self._queue.is_closed

    @property
    def figures(self) -> ReaderFigures:
        return self._reader.figures

    def discard_expired(self, limit: int = -1) -> int:
        """Drop expired items at the head, at most `limit` (-1 = all). Return how many."""
        return self._reader.discard_expired(limit)

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else f": {self._reading}"
        return f"<{type(self).__name__} {self._reader.full_name!r}{state}>"

    @property
    def waiters(self) -> int:
        """Number of waiting consumers."""
        return self._reader.waiters

    def __len__(self) -> int:
        """Number of waiting items."""
        return len(self._reader)


class JournaledBlockingQueue(_OneReader[T]):
    """A durable BlockingQueue: an item is done once handed out. When closed it gives none: they stay in the journal."""

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        """Return an answer for the next item. It is None if there is no item until the deadline (ms since the epoch),
        or for `timeout` seconds; without either it waits forever.
        """
        return self._reading.answer_taken(checked_end(deadline_at_ms, timeout), self._decoded)

    def poll(self) -> T | None:
        """Take the next item, None if there is none."""
        item = self._reading.fetch(TAKE)
        return None if item is None else self._decode(item.data)

    def get_nowait(self) -> T:
        """Take the next item; raises queue.Empty if there is none."""
        item = self._reading.fetch(TAKE)
        if item is None:
            raise Empty
        return self._decode(item.data)

    def __iter__(self) -> Iterator[T]:
        """Iterate over items as they come, until the queue is closed. An item is done when the next is requested.

        Leaving the loop returns the last item to the head.
        """
        return OpenReadLoop(self._reading, self._decoded)

    def __aiter__(self) -> AsyncIterator[T]:
        return OpenReadLoop(self._reading, self._decoded)

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        """Take the next item if there is one and `predicate` is true for it, else None; the item stays then."""
        checks.function(predicate, "predicate")
        item = self._reading.take_if(lambda item: predicate(self._decode(item.data)))
        return None if item is None else self._decode(item.data)

    def _decoded(self, item: QItem) -> T:
        return self._decode(item.data)


class Transaction(Generic[T]):
    """An item that is set aside until `commit` or `rollback` is called; a second call does nothing."""

    def __init__(self, item: T, end: Callable[[bool], None]) -> None:
        self.item = item
        self._end = end

    def commit(self) -> None:
        """Confirm the item: it is done."""
        self._end(True)

    def rollback(self) -> None:
        """Return the item to the head."""
        self._end(False)

    def __enter__(self) -> T:
        return self.item

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit if the block succeeds, roll back if it raises."""
        self._end(kind is None)

    def __repr__(self) -> str:
        return f"<Transaction of {shortened(self.item)}>"


class TransactionalJournaledBlockingQueue(_OneReader[T]):
    """A durable BlockingQueue that hands out Transactions instead of items."""

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[Transaction[T] | None]:
        """Return an answer for the next item's transaction. It is None if there is no item until the deadline (ms since
        the epoch), or for `timeout` seconds; without either it waits forever.
        """
        return self._reading.answer(checked_end(deadline_at_ms, timeout), self._transaction)

    def poll(self) -> Transaction[T] | None:
        """Return a transaction for the next item, None if there is none."""
        return hand_over(self._reading, self._poll)

    def get_nowait(self) -> Transaction[T]:
        """Return a transaction for the next item; raises queue.Empty if there is none."""
        transaction = self.poll()
        if transaction is None:
            raise Empty
        return transaction

    def __iter__(self) -> Iterator[Transaction[T]]:
        """Iterate over transactions for items as they come, until the queue is closed. The caller ends each of them."""
        return ItemLoop(self.get)

    def __aiter__(self) -> AsyncIterator[Transaction[T]]:
        return ItemLoop(self.get)

    def _poll(self) -> Transaction[T] | None:
        item = self._reading.fetch(OPEN)
        return None if item is None else self._transaction(item)

    def _transaction(self, item: QItem) -> Transaction[T]:
        def end(is_done: bool) -> None:
            if is_done:
                self._reader.commit(item)
            else:
                self._reader.unget(item)

        is_decoded = False
        try:
            found = self._decode(item.data)
            is_decoded = True
        finally:
            if not is_decoded:
                end(False)
        return Transaction(found, end)
