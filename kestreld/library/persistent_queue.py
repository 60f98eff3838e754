"""A durable queue in this process, under the names that Kestrel's guide gives it."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from kestreld.config import QueueConfig
from kestreld.library import spool as spools
from kestreld.library.item import QItem
from kestreld.library.reading import Reading
from kestreld.library.spool import Spool
from kestreld.library.unopened import unopened
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE

log: Final = logging.getLogger("kestreld.library")


class PersistentQueue:
    """One queue of a spool. Any number of threads, and event loops, may use it at once.

    What `add` has answered survives a kill -9; with `sync_journal_ms=0` in its configuration also a power cut. Every
    operation may raise JournalFailed when the disk takes nothing, and JournalCorrupt when the journal is damaged;
    before `setup` it raises QueueNotOpen. Instants are in ms since the epoch, as in the guide; waits are measured on
    the monotonic clock all the same.
    """

    def __init__(self, persistence_path: str, name: str, config: QueueConfig | None = None) -> None:
        self.name = name
        self._path = persistence_path
        self._config = config if config is not None else QueueConfig()
        self._closed = False
        self._is_set_up = False
        self._spool: Spool = unopened(name)
        self._reading: Reading = unopened(name)
        self._reader: Reader = unopened(name)
        self._only: Reader | None = None

    def setup(self) -> None:
        """Read its journal, or begin one. Queues of one path share a spool, within one process.

        Raises SpoolLocked with the pid of the process that has the spool, SpoolUnusable or BadQueueName.
        """
        if self._is_set_up:
            return
        self._spool, self._reader = spools.use(
            self._path, self.name, self._config, log.warning, lambda spool: spool.adopt(self.name, self._config), None
        )
        self._reading = Reading(self._spool, self._reader)
        self._only = self._reader if self._reader.label else None
        self._is_set_up = True

    # Adding

    def add(self, value: bytes, expiry: int = 0) -> bool:
        """Add an item that is of no use after `expiry` (0 = it always is). False when the queue is full or closed."""
        return not self._closed and self._spool.put(self._reader.queue, value, expiry, self._only)

    def add_all(self, values: Iterable[bytes], expiry: int = 0) -> int:
        """Add items in one write, up to the first that is refused; how many were added."""
        return 0 if self._closed else self._spool.put_all(self._reader.queue, values, expiry, self._only)

    # Removing

    def peek(self) -> QItem | None:
        """The head item, which stays. None when there is none."""
        return self._reading.fetch(PEEK)

    def remove(self, transaction: bool = False) -> QItem | None:
        """Take the head item; None when there is none.

        In a transaction it is set aside only, until `confirm_remove` or `unremove` with its xid.
        """
        return self._reading.fetch(OPEN if transaction else TAKE)

    def remove_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items in one write."""
        return self._reading.take_all(limit)

    def flush(self) -> int:
        """Drop what waits, but not what is set aside; how many items."""
        return self._reading.flush()

    def unremove(self, xid: int) -> None:
        """Back out: the item is the head again. An xid that is not open any more is nothing to do."""
        self._reading.end_read(xid, is_done=False)

    def confirm_remove(self, xid: int) -> None:
        """The item is done. An xid that is not open any more is nothing to do."""
        self._reading.end_read(xid, is_done=True)

    # Waiting

    def remove_receive(self, deadline_at_ms: int, transaction: bool = False) -> QItem | None:
        """`remove`, waiting for an item until then."""
        return self._reading.receive(deadline_at_ms, OPEN if transaction else TAKE)

    def peek_receive(self, deadline_at_ms: int) -> QItem | None:
        """`peek`, waiting for an item until then."""
        return self._reading.receive(deadline_at_ms, PEEK)

    def remove_react(self, deadline_at_ms: int, transaction: bool, react: Callable[[QItem | None], object]) -> None:
        """`remove_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._reading.react(deadline_at_ms, OPEN if transaction else TAKE, react)

    def peek_react(self, deadline_at_ms: int, react: Callable[[QItem | None], object]) -> None:
        """`peek_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._reading.react(deadline_at_ms, PEEK, react)

    async def remove_async(self, deadline_at_ms: int, transaction: bool = False) -> QItem | None:
        """`remove_receive` for a coroutine. One that is cancelled leaves the item where it was."""
        return await self._reading.receive_async(deadline_at_ms, OPEN if transaction else TAKE)

    async def peek_async(self, deadline_at_ms: int) -> QItem | None:
        """`peek_receive` for a coroutine."""
        return await self._reading.receive_async(deadline_at_ms, PEEK)

    # The end

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let go of it. Those who wait get nothing, open reads return, and the spool is free with its last queue."""
        if not self._is_set_up:
            return
        with self._spool.lock:
            if self._closed:
                return
            self._closed = True
            self._spool.clock.read()
            self._reading.end()
            self._spool.end_turn()
        spools.let_go(self._spool)

    # Figures

    def __len__(self) -> int:
        """Items that wait; open reads do not count."""
        return len(self._reading)
