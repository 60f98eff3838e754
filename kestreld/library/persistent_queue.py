"""PersistentQueue: a durable queue in this process, with the method names of Kestrel's guide."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from queue import Empty
from typing import Final, Self

from kestreld import checks
from kestreld.config.config import QueueConfig
from kestreld.library import spool as spools
from kestreld.library.arguments import NO_DELAY, checked_config, checked_name
from kestreld.library.deadline import checked_deadline, checked_end
from kestreld.library.forked import refuse_in_child
from kestreld.library.handover import hand_over
from kestreld.library.item import QItem
from kestreld.library.lease import Lease, confirm_lease, lease_async, lease_now
from kestreld.library.lifecycle import unopened, unwatch, watch
from kestreld.library.loops import OpenReadBlock, OpenReadLoop, item_itself
from kestreld.library.managed import Closing, Counted
from kestreld.library.reading import ReaderFigures, Reading
from kestreld.library.spool import Spool, put_timed
from kestreld.library.xid import is_own
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE

log: Final = logging.getLogger("kestreld.library")


class PersistentQueue(Closing, Counted):
    """One queue of a spool. Any number of threads and event loops may use it at once.

    Items for which `add` has returned True survive a kill -9, and with `sync_journal_ms=0` in the configuration also a
    power cut. Every operation may raise JournalFailed if the journal cannot be written, and JournalCorrupt if it is
    damaged; before `setup` it raises QueueNotOpen. Times are in ms since the epoch, as in the guide; waits are measured
    on the monotonic clock nevertheless.
    """

    def __init__(self, persistence_path: str, name: str, config: QueueConfig | None = None) -> None:
        """Raises BadQueueName."""
        self.name = checked_name(name)
        self._path = checks.path(persistence_path, "spool path")
        self._config = checked_config(config)
        self._closed = False
        self._is_set_up = False
        self._user = object()  # stands for this object, which may become garbage
        self._spool: Spool = unopened(name)
        self._reading: Reading = unopened(name)
        self._reader: Reader = unopened(name)
        self._only: Reader | None = None

    def setup(self) -> None:
        """Read the queue's journal, or begin one. Queues of one path share a spool within one process.

        Raises SpoolLocked with the pid of the process that has the spool, or SpoolUnusable.
        """
        if self._is_set_up:
            return
        self._spool, self._reader = spools.use(
            self._user,
            self._path,
            self.name,
            self._config,
            log.warning,
            lambda spool: spool.adopt(self.name, self._config),
            None,
        )
        self._reading = Reading(self._spool, self._reader)
        self._only = self._reader if self._reader.label else None
        self._is_set_up = True
        self._watch = watch(self, f"PersistentQueue {self.name!r} in {self._path!r}")
        refuse_in_child(self)

    def __enter__(self) -> Self:
        self.setup()
        return self

    # Adding

    def add(self, value: bytes, expiry: int = 0, *, delay: float = NO_DELAY, key: str | bytes | None = None) -> bool:
        """Add an item that expires at `expiry` (0 = never). False if the queue is full or closed.

        The item is not delivered before `delay` seconds from now. With a key it is added only once, however often it is
        sent: if there was an item with that key within `key_time_ms`, the result is True and nothing is added.
        """
        if delay is not NO_DELAY or key is not None:
            return not self._closed and put_timed(self._spool, self._reader, value, expiry, self._only, delay, key)
        return not self._closed and self._spool.put(self._reader.queue, value, expiry, self._only)

    def add_all(self, values: Iterable[bytes], expiry: int = 0) -> int:
        """Add items in one write, up to the first that is refused. Return how many were added."""
        return 0 if self._closed else self._spool.put_all(self._reader.queue, values, expiry, self._only)

    def put_nowait(
        self, value: bytes, expiry: int = 0, *, delay: float = NO_DELAY, key: str | bytes | None = None
    ) -> None:
        """Add an item as `add` does; raises queue.Full if it is refused, or QueueClosed."""
        self._must_be_stored(self.add(value, expiry, delay=delay, key=key))

    def cancel(self, key: str | bytes) -> bool:
        """Drop the item that was added with a key, if it is not due yet, and free the key. False if there is none."""
        known = checks.key(key, "key")
        return not self._closed and self._spool.cancel(self._reader, known)

    # Removing

    def peek(self) -> QItem | None:
        """Return the head item without taking it. None if there is none."""
        return self._reading.fetch(PEEK)

    def remove(self, transaction: bool = False) -> QItem | None:
        """Take the head item; None if there is none.

        In a transaction it is only set aside, until `confirm_remove` or `unremove` with its xid.
        """
        if transaction is False or not checks.switch(transaction, "transaction"):
            return self._reading.fetch(TAKE)
        return hand_over(self._reading, lambda: self._reading.fetch(OPEN))

    def get_nowait(self) -> QItem:
        """Take the head item as `remove` does; raises queue.Empty if there is none."""
        item = self.remove()
        if item is None:
            raise Empty
        return item

    def read(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> OpenReadBlock:
        """Return an item for a `with` block, None if there is none: done if that succeeds, the head again if it raises.

        Without a deadline or a timeout in seconds it does not wait.
        """
        end_at_ms, reading = checked_end(deadline_at_ms, timeout), self._reading
        if end_at_ms is None:
            return OpenReadBlock(reading, lambda: reading.fetch(OPEN), lambda item: self.unremove(item.xid))
        return OpenReadBlock(reading, lambda: reading.receive(end_at_ms, OPEN), lambda item: self.unremove(item.xid))

    def __iter__(self) -> Iterator[QItem]:
        """Iterate over items as they come, until the queue is closed. An item is done when the next is requested.

        Leaving the loop returns the last item to the head.
        """
        return OpenReadLoop(self._reading, item_itself)

    def __aiter__(self) -> AsyncIterator[QItem]:
        return OpenReadLoop(self._reading, item_itself)

    def remove_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items in one write."""
        return self._reading.take_all(checks.whole(limit, "limit"))

    def flush(self) -> int:
        """Drop the waiting items, but not those set aside. Return how many."""
        return self._reading.flush()

    def discard_expired(self, limit: int = -1) -> int:
        """Drop expired items at the head, at most `limit`. Return how many. They are never delivered in any case."""
        return self._reading.discard_expired(checks.whole(limit, "limit", -1))

    def unremove(self, xid: int) -> None:
        """Return an item that was set aside to the head. Does nothing for an xid that is not open here."""
        if is_own(xid, self._reading, self.name):
            self._reading.end_read(xid, is_done=False)

    def confirm_remove(self, xid: int) -> None:
        """Confirm an item that was set aside: it is done. Does nothing for an xid that is not open here."""
        if is_own(xid, self._reading, self.name):
            self._reading.end_read(xid, is_done=True)

    # Leases

    def lease(self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False) -> Lease | None:
        """Lease the head item for some seconds, waiting for one for `timeout` seconds (None = not at all); see Lease.

        With a heartbeat the lease is extended again and again while its `with` block runs.
        """
        return lease_now(self._reading, seconds, checked_end(None, timeout), heartbeat=heartbeat)

    async def lease_async(
        self, seconds: float, timeout: float | None = None, *, heartbeat: bool = False
    ) -> Lease | None:
        """Do `lease` in a coroutine; without a timeout it waits forever. If cancelled, the item stays in the queue."""
        return await lease_async(self._reading, seconds, checked_end(None, timeout), heartbeat=heartbeat)

    def confirm_lease(self, token: int) -> bool:
        """Confirm the item of a lease, even one taken elsewhere or before a restart. False if the lease is over."""
        return confirm_lease(self._reading, token)

    # Waiting

    def remove_receive(
        self, deadline_at_ms: int | None = None, transaction: bool = False, *, timeout: float | None = None
    ) -> QItem | None:
        """Take the head item as `remove` does, waiting for one until the deadline, or for `timeout` seconds."""
        end_at_ms = checked_deadline(deadline_at_ms, timeout)
        if not checks.switch(transaction, "transaction"):
            return self._reading.receive(end_at_ms, TAKE)
        return hand_over(self._reading, lambda: self._reading.receive(end_at_ms, OPEN))

    def peek_receive(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Return the head item as `peek` does, waiting for one until the deadline, or for `timeout` seconds."""
        return self._reading.receive(checked_deadline(deadline_at_ms, timeout), PEEK)

    def remove_react(self, deadline_at_ms: int, transaction: bool, react: Callable[[QItem | None], object]) -> None:
        """Do `remove_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        want = OPEN if checks.switch(transaction, "transaction") else TAKE
        self._reading.react(checked_deadline(deadline_at_ms), want, checks.function(react, "react"))

    def peek_react(self, deadline_at_ms: int, react: Callable[[QItem | None], object]) -> None:
        """Do `peek_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._reading.react(checked_deadline(deadline_at_ms), PEEK, checks.function(react, "react"))

    async def remove_async(
        self, deadline_at_ms: int | None = None, transaction: bool = False, *, timeout: float | None = None
    ) -> QItem | None:
        """Do `remove_receive` in a coroutine. If the coroutine is cancelled, the item stays in the queue."""
        want = OPEN if checks.switch(transaction, "transaction") else TAKE
        return await self._reading.receive_async(checked_deadline(deadline_at_ms, timeout), want)

    async def peek_async(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Do `peek_receive` in a coroutine."""
        return await self._reading.receive_async(checked_deadline(deadline_at_ms, timeout), PEEK)

    # The end

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the queue. Waits end with None, open reads return, and the spool is unlocked after its last queue."""
        if not self._is_set_up:
            return
        if not self._spool.is_closed:  # else another thread, or an interrupted call, has closed it
            with self._spool.closing_lock, self._spool.turn(self._reader.queue):
                self._closed = True
                self._reading.end()
                self._spool.end_turn()
        spools.let_go(self._user, self._spool)
        unwatch(self._watch)

    # Figures

    def __len__(self) -> int:
        """Number of waiting items; open reads do not count."""
        return len(self._reading)

    @property
    def figures(self) -> ReaderFigures:
        return self._reading.figures()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else f": {self._reading}" if self._is_set_up else ", not set up"
        return f"<PersistentQueue {self.name!r} in {self._path!r}{state}>"
