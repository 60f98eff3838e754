"""JournalReader: one reader of a JournaledQueue, with its own position, limits, expiry and error handling."""

from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.deadline import checked_deadline, checked_end
from kestreld.library.forked import refuse_in_child
from kestreld.library.handover import hand_over
from kestreld.library.item import QItem, item_from
from kestreld.library.lease import Lease, confirm_lease, lease_async, lease_now
from kestreld.library.loops import OpenReadBlock, OpenReadLoop, item_itself
from kestreld.library.managed import Counted
from kestreld.library.reading import ReaderFigures, Reading
from kestreld.library.spool import Spool
from kestreld.library.xid import is_own
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK

ErrorHandler = Callable[["JournalReader", QItem], bool]
ExpiredHandler = Callable[["JournalReader", QItem], object]


class JournalReader(Counted):
    """One reader of a JournaledQueue, made by `JournaledQueue.reader`. `get` sets an item aside as an open read, which
    `commit` or `unget` ends.

    The error handler is called in the thread that calls `unget`, with the item and its number of failures; True means
    that it has dealt with the item, which is done then. The other handler is called with expired items, on the queue's
    own thread.
    """

    def __init__(self, spool: Spool, reader: Reader, queue: object = None) -> None:
        self._reader = reader
        self._queue = queue  # in use for as long as this is
        self.reading = Reading(spool, reader)
        self._error_handler: ErrorHandler | None = None
        refuse_in_child(self)

    @property
    def name(self) -> str:
        """Name of the reader; "" is the default reader."""
        return self._reader.label

    @property
    def full_name(self) -> str:
        """Name by which a server knows the reader: `orders+audit`, or `orders` for the default reader."""
        return self._reader.name

    def handle(self, error_handler: ErrorHandler | None, on_expired: ExpiredHandler | None) -> None:
        """Set the handlers; None leaves a handler unchanged."""
        if error_handler is not None:
            self._error_handler = error_handler
        if on_expired is None:
            return

        def expired(record: bytes) -> None:
            item = item_from(record, self._reader.retries)
            told: Answer[None] = Answer()  # exceptions of callbacks are logged
            told.add_done_callback(lambda _: on_expired(self, item))
            self.reading.spool.worker.soon(lambda: told.set_result(None))

        self._reader.tell_expired(expired)

    # Items

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Set the head item aside, waiting for one until the deadline (ms since the epoch), or for `timeout` seconds.

        None if there is none. Without deadline and timeout it does not wait. Items that were given back come first.
        """
        if deadline_at_ms is None and timeout is None:
            return hand_over(self.reading, lambda: self.reading.fetch(OPEN))
        end_at_ms = checked_deadline(deadline_at_ms, timeout)
        return hand_over(self.reading, lambda: self.reading.receive(end_at_ms, OPEN))

    def get_nowait(self) -> QItem:
        """Set the head item aside as `get` does; raises queue.Empty if there is none."""
        item = self.get()
        if item is None:
            raise Empty
        return item

    def read(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> OpenReadBlock:
        """Return an item for a `with` block, None if there is none: committed if that succeeds, else passed to `unget`.

        Without a deadline or a timeout in seconds it does not wait.
        """
        end_at_ms = checked_end(deadline_at_ms, timeout)
        if end_at_ms is None:
            return OpenReadBlock(self.reading, lambda: self.reading.fetch(OPEN), self.unget)
        return OpenReadBlock(self.reading, lambda: self.reading.receive(end_at_ms, OPEN), self.unget)

    def __iter__(self) -> Iterator[QItem]:
        """Iterate over items as they come, until the queue is closed. An item is committed when the next is requested.

        Leaving the loop returns the last item to the head, which does not count as an error.
        """
        return OpenReadLoop(self.reading, item_itself)

    def __aiter__(self) -> AsyncIterator[QItem]:
        return OpenReadLoop(self.reading, item_itself)

    def get_later(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[QItem | None]:
        """Return an answer for `get`, which calls its callbacks when there is an item, or none in time.

        Without a deadline or a timeout it waits forever.
        """
        return self.reading.answer(checked_end(deadline_at_ms, timeout), lambda item: item)

    async def get_async(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Do `get` in a coroutine; without a deadline or a timeout it waits forever.

        If the coroutine is cancelled, the item stays in the queue.
        """
        return await self.reading.receive_async(checked_end(deadline_at_ms, timeout), OPEN)

    def lease(self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False) -> Lease | None:
        """Lease the head item for some seconds, waiting for one for `timeout` seconds (None = not at all); see Lease.

        With a heartbeat the lease is extended again and again while its `with` block runs. The error handler is called
        if the item fails, as with `unget`, but not if the lease expires.
        """
        return lease_now(self.reading, seconds, checked_end(None, timeout), heartbeat=heartbeat, failed=self._failed)

    async def lease_async(
        self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False
    ) -> Lease | None:
        """Do `lease` in a coroutine; without a timeout it waits forever. If cancelled, the item stays in the queue."""
        end_at_ms = checked_end(None, timeout)
        return await lease_async(self.reading, seconds, end_at_ms, heartbeat=heartbeat, failed=self._failed)

    def confirm_lease(self, token: int) -> bool:
        """Confirm the item of a lease, even one taken elsewhere or before a restart. False if the lease is over."""
        return confirm_lease(self.reading, token)

    def _failed(self, item: QItem) -> bool:
        return self._error_handler is not None and bool(self._error_handler(self, item))

    def peek(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Return the head item without taking it; otherwise like `get`."""
        if deadline_at_ms is None and timeout is None:
            return self.reading.fetch(PEEK)
        return self.reading.receive(checked_deadline(deadline_at_ms, timeout), PEEK)

    def commit(self, item: QItem) -> None:
        """Confirm an open read: the item is done. Does nothing for an item that is not open here."""
        checks.instance(item, QItem, "item")
        if is_own(item.xid, self.reading, self.full_name):
            self.reading.end_read(item.xid, is_done=True)

    def unget(self, item: QItem) -> None:
        """Give an open read back and count an error: it is the head again, unless the error handler deals with it.

        Does nothing for an item that is not open here.
        """
        checks.instance(item, QItem, "item")
        if not is_own(item.xid, self.reading, self.full_name):
            return
        is_done = False
        try:
            if self.reading.is_open(item.xid):
                is_done = self._failed(item._replace(error_count=item.error_count + 1))
        finally:
            self.reading.end_read(item.xid, is_done=is_done, has_failed=not is_done)

    def flush(self) -> int:
        """Drop the waiting items, but not open reads. Return how many."""
        return self.reading.flush()

    def discard_expired(self, limit: int = -1) -> int:
        """Drop expired items at the head, at most `limit`. Return how many. They are never delivered in any case."""
        return self.reading.discard_expired(checks.whole(limit, "limit", -1))

    def evict_waiters(self) -> None:
        """End all waits on this reader with None."""
        self.reading.evict()

    # Figures

    def __len__(self) -> int:
        """Number of waiting items; open reads do not count."""
        return len(self.reading)

    @property
    def waiters(self) -> int:
        """Number of waits on this reader."""
        return self.reading.waiting

    @property
    def figures(self) -> ReaderFigures:
        return self.reading.figures()

    def __repr__(self) -> str:
        state = "over" if self.reading.is_over else repr(self.reading)
        return f"<JournalReader {self.full_name!r}: {state}>"

    def end(self) -> None:
        """End the reader: it gives nothing any longer. With the engine's lock held."""
        self.reading.end()
