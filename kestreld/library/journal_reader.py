"""A reader of a JournaledQueue: a position of its own on the journal, with its limits, expiry and error handling."""

from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty

from kestreld import checks
from kestreld.library.answer import Answer
from kestreld.library.deadline import checked_deadline, checked_end
from kestreld.library.forked import refuse_in_child
from kestreld.library.handing_over import hand_over
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
    """`get` sets an item aside as an open read, which `commit` or `unget` ends. Asked for by `JournaledQueue.reader`.

    The error handler is called by the thread that ungets, with the item and how often it has failed: True means that
    the item is dealt with and done. The other handler is told, on the queue's own thread, of items that expire.
    """

    def __init__(self, spool: Spool, reader: Reader, queue: object = None) -> None:
        self._reader = reader
        self._queue = queue  # in use for as long as this is
        self.reading = Reading(spool, reader)
        self._error_handler: ErrorHandler | None = None
        refuse_in_child(self)

    @property
    def name(self) -> str:
        """Its name; "" is the default reader's."""
        return self._reader.label

    @property
    def full_name(self) -> str:
        """The name by which a server knows it: `orders+audit`, or `orders` of the default reader."""
        return self._reader.name

    def handle(self, error_handler: ErrorHandler | None, on_expired: ExpiredHandler | None) -> None:
        """Have these called from now on; None leaves what there is."""
        if error_handler is not None:
            self._error_handler = error_handler
        if on_expired is None:
            return

        def expired(record: bytes) -> None:
            item = item_from(record, self._reader.retries)
            told: Answer[None] = Answer()  # what a callback raises is logged
            told.add_done_callback(lambda _: on_expired(self, item))
            self.reading.spool.worker.soon(lambda: told.set_result(None))

        self._reader.tell_expired(expired)

    # Items

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Set the head item aside, waiting for one until the deadline (ms since the epoch), or for `timeout` seconds.

        None when there is none. Without either it does not wait. Items that were given back come before others.
        """
        if deadline_at_ms is None and timeout is None:
            return hand_over(self.reading, lambda: self.reading.fetch(OPEN))
        end_at_ms = checked_deadline(deadline_at_ms, timeout)
        return hand_over(self.reading, lambda: self.reading.receive(end_at_ms, OPEN))

    def get_nowait(self) -> QItem:
        """`get` that raises queue.Empty when there is none."""
        item = self.get()
        if item is None:
            raise Empty
        return item

    def read(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> OpenReadBlock:
        """An item for a `with` block, None when there is none: committed when that succeeds, else `unget`.

        Without a deadline or a timeout in seconds it does not wait.
        """
        end_at_ms = checked_end(deadline_at_ms, timeout)
        if end_at_ms is None:
            return OpenReadBlock(self.reading, lambda: self.reading.fetch(OPEN), self.unget)
        return OpenReadBlock(self.reading, lambda: self.reading.receive(end_at_ms, OPEN), self.unget)

    def __iter__(self) -> Iterator[QItem]:
        """Items as they come, each committed when the next is asked for, until the queue is closed.

        Whoever leaves the loop gives the item back, which is the head again; that is no error of the item's.
        """
        return OpenReadLoop(self.reading, item_itself)

    def __aiter__(self) -> AsyncIterator[QItem]:
        return OpenReadLoop(self.reading, item_itself)

    def get_later(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[QItem | None]:
        """`get` without waiting for it: the answer comes, and its callbacks are called, when there is one.

        Without a deadline or a timeout it waits forever.
        """
        return self.reading.answer(checked_end(deadline_at_ms, timeout), lambda item: item)

    async def get_async(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """`get` for a coroutine; without a deadline or a timeout it waits forever.

        One that is cancelled leaves the item where it was.
        """
        return await self.reading.receive_async(checked_end(deadline_at_ms, timeout), OPEN)

    def lease(self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False) -> Lease | None:
        """Take the head item for so long, waiting for one for `timeout` seconds (None = not at all); see Lease.

        With a heartbeat it is extended again and again while its `with` block runs. When it fails the error handler
        is asked, as with `unget`; not when its time is over.
        """
        return lease_now(self.reading, seconds, checked_end(None, timeout), heartbeat=heartbeat, failed=self._failed)

    async def lease_async(
        self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False
    ) -> Lease | None:
        """`lease` for a coroutine; without a timeout it waits forever. One that is cancelled leaves the item."""
        end_at_ms = checked_end(None, timeout)
        return await lease_async(self.reading, seconds, end_at_ms, heartbeat=heartbeat, failed=self._failed)

    def confirm_lease(self, token: int) -> bool:
        """The item of a lease is done, whoever took it, also before a restart; False when the lease was over before."""
        return confirm_lease(self.reading, token)

    def _failed(self, item: QItem) -> bool:
        return self._error_handler is not None and bool(self._error_handler(self, item))

    def peek(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """The head item, which stays; as `get` otherwise."""
        if deadline_at_ms is None and timeout is None:
            return self.reading.fetch(PEEK)
        return self.reading.receive(checked_deadline(deadline_at_ms, timeout), PEEK)

    def commit(self, item: QItem) -> None:
        """The item is done. One that is not open here is nothing to do."""
        checks.instance(item, QItem, "item")
        if is_own(item.xid, self.reading, self.full_name):
            self.reading.end_read(item.xid, is_done=True)

    def unget(self, item: QItem) -> None:
        """Give it back, one error richer: it is the head again unless the error handler deals with it.

        One that is not open here is nothing to do.
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
        """Drop what waits, but not open reads; how many items."""
        return self.reading.flush()

    def discard_expired(self, limit: int = -1) -> int:
        """Drop expired items at the head, at most `limit`; how many. Nothing that has expired is delivered anyway."""
        return self.reading.discard_expired(checks.whole(limit, "limit", -1))

    def evict_waiters(self) -> None:
        """Everybody who waits here gets None."""
        self.reading.evict()

    # Figures

    def __len__(self) -> int:
        """Items that wait; open reads do not count."""
        return len(self.reading)

    @property
    def waiters(self) -> int:
        """How many wait here."""
        return self.reading.waiting

    @property
    def figures(self) -> ReaderFigures:
        return self.reading.figures()

    def __repr__(self) -> str:
        state = "over" if self.reading.is_over else repr(self.reading)
        return f"<JournalReader {self.full_name!r}: {state}>"

    def end(self) -> None:
        """It gives nothing any more. With the engine's lock held."""
        self.reading.end()
