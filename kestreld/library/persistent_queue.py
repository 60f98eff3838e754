"""A durable queue in this process, under the names that Kestrel's guide gives it."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from kestreld.config import QueueConfig
from kestreld.library import spool as spools
from kestreld.library.item import QItem, item_from
from kestreld.library.spool import Spool
from kestreld.library.waits import Wait
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Waiter

_log: Final = logging.getLogger("kestreld.library")


class PersistentQueue:
    """One queue of a spool. Any number of threads, and event loops, may use it at once.

    What `add` has answered survives a kill -9; with `sync_journal_ms=0` in its configuration also a power cut. Every
    operation may raise JournalFailed when the disk takes nothing, and JournalCorrupt when the journal is damaged.
    Instants are in ms since the epoch, as in the guide; waits are measured on the monotonic clock all the same.
    """

    def __init__(self, persistence_path: str, name: str, config: QueueConfig | None = None) -> None:
        self.name = name
        self._path = persistence_path
        self._config = config if config is not None else QueueConfig()
        self._closed = False
        self._spool: Spool
        self._reader: Reader
        self._only: Reader | None
        self._opened: set[int] = set()  # xids
        self._waiting: dict[Wait, Waiter] = {}

    def setup(self) -> None:
        """Read its journal, or begin one. Queues of one path share a spool, within one process.

        Raises SpoolLocked with the pid of the process that has the spool, SpoolUnusable or BadQueueName.
        """
        self._spool, self._reader = spools.use(self._path, self.name, self._config, _log.warning)
        self._only = self._reader if self._reader.label else None

    # Adding

    def add(self, value: bytes, expiry: int = 0) -> bool:
        """Add an item that is of no use after `expiry` (0 = it always is). False when the queue is full or closed."""
        spool, queue = self._spool, self._reader.queue
        with spool.lock:
            if self._closed:
                return False
            spool.clock.read()
            stored = queue.put_with(value, expiry, 0, self._only)
            hold = spool.end_turn(queue)
        if hold is not None:
            hold.result()
        return stored

    def add_all(self, values: Iterable[bytes], expiry: int = 0) -> int:
        """Add items in one write, up to the first that is refused; how many were added."""
        spool, queue, added = self._spool, self._reader.queue, 0
        values = list(values)
        with spool.lock:
            if self._closed:
                return 0
            spool.clock.read()
            for value in values:
                if not queue.put_with(value, expiry, 0, self._only):
                    break
                added += 1
            hold = spool.end_turn(queue)
        if hold is not None:
            hold.result()
        return added

    # Removing

    def peek(self) -> QItem | None:
        """The head item, which stays. None when there is none."""
        return self._fetch(PEEK)

    def remove(self, transaction: bool = False) -> QItem | None:
        """Take the head item; None when there is none.

        In a transaction it is set aside only, until `confirm_remove` or `unremove` with its xid.
        """
        return self._fetch(OPEN if transaction else TAKE)

    def remove_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items in one write."""
        items: list[QItem] = []
        spool, queue = self._spool, self._reader.queue
        with spool.lock:
            if self._closed:
                return items
            spool.clock.read()
            while len(items) < limit and (item := self._take_now(TAKE)) is not None:
                items.append(item)
            hold = spool.end_turn(queue)
        if hold is not None:
            hold.result()
        return items

    def _fetch(self, want: int) -> QItem | None:
        spool = self._spool
        with spool.lock:
            if self._closed:
                return None
            spool.clock.read()
            item = self._take_now(want)
            hold = spool.end_turn(self._reader.queue)
        if hold is not None and item is not None:
            hold.result()
        return item

    def _take_now(self, want: int) -> QItem | None:
        """The head item as it is wanted, or None. With the lock held."""
        reader, now_ms = self._reader, self._spool.clock.wall_ms
        if reader.queue.stopped is not None:
            raise reader.queue.stopped
        if want == TAKE:
            record = reader.take(now_ms)
        elif want == PEEK:
            record = reader.peek(now_ms)
        else:
            opened = reader.open_read(now_ms)
            if opened is None:
                return None
            self._opened.add(opened[0])
            record = opened[1]
        return None if record is None else item_from(record, is_open=want == OPEN)

    def unremove(self, xid: int) -> None:
        """Back out: the item is the head again. An xid that is not open any more is nothing to do."""
        self._end_read(xid, is_done=False)

    def confirm_remove(self, xid: int) -> None:
        """The item is done. An xid that is not open any more is nothing to do."""
        self._end_read(xid, is_done=True)

    def _end_read(self, xid: int, *, is_done: bool) -> None:
        spool, reader = self._spool, self._reader
        with spool.lock:
            if xid not in self._opened:
                return
            self._opened.remove(xid)
            spool.clock.read()
            if is_done:
                reader.close(xid)
            else:
                reader.abort(xid, spool.clock.wall_ms)
            hold = spool.end_turn(reader.queue)
        if hold is not None:
            hold.result()

    # Waiting

    def remove_receive(self, deadline_at_ms: int, transaction: bool = False) -> QItem | None:
        """`remove`, waiting for an item until then."""
        return self._receive(deadline_at_ms, OPEN if transaction else TAKE)

    def peek_receive(self, deadline_at_ms: int) -> QItem | None:
        """`peek`, waiting for an item until then."""
        return self._receive(deadline_at_ms, PEEK)

    def _receive(self, deadline_at_ms: int, want: int) -> QItem | None:
        wait = self._wait(deadline_at_ms, want, None)
        try:
            return wait.result()
        finally:
            wait.cancel()  # an interrupted thread takes nothing

    def remove_react(self, deadline_at_ms: int, transaction: bool, react: Callable[[QItem | None], object]) -> None:
        """`remove_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._wait(deadline_at_ms, OPEN if transaction else TAKE, react)

    def peek_react(self, deadline_at_ms: int, react: Callable[[QItem | None], object]) -> None:
        """`peek_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._wait(deadline_at_ms, PEEK, react)

    async def remove_async(self, deadline_at_ms: int, transaction: bool = False) -> QItem | None:
        """`remove_receive` for a coroutine. One that is cancelled leaves the item where it was."""
        wait, item = self._wait(deadline_at_ms, OPEN, None), None
        delivered = False
        try:
            item = await wait
            delivered = True
        finally:
            if not delivered:
                wait.add_done_callback(lambda _: self._give_back(wait))
        if item is None or transaction:
            return item
        with self._spool.lock:
            self._spool.clock.read()
            self._opened.discard(item.xid)
            self._reader.close(item.xid)
            hold = self._spool.end_turn(self._reader.queue)
        if hold is not None:
            await hold
        return item._replace(xid=0)

    async def peek_async(self, deadline_at_ms: int) -> QItem | None:
        """`peek_receive` for a coroutine."""
        return await self._wait(deadline_at_ms, PEEK, None)

    def _give_back(self, wait: Wait) -> None:
        if not wait.cancelled() and wait.exception() is None and (item := wait.result()) is not None:
            self._spool.worker.soon(lambda: self.unremove(item.xid))

    def _wait(self, deadline_at_ms: int, want: int, react: Callable[[QItem | None], object] | None) -> Wait:
        """Take the item that is there, or join the line."""
        spool, reader = self._spool, self._reader
        worker = None if react is None else spool.worker

        def take(record: bytes) -> QItem:
            taken = item_from(record, is_open=False) if want == PEEK else self._take_now(want)
            assert taken is not None
            return taken

        wait = Wait(reader.queue, take, spool.served.append, worker)
        if react is not None:
            wait.add_done_callback(lambda _: react(wait.result()))
        with spool.lock:
            spool.clock.read()
            clock = spool.clock
            item = None if self._closed else self._take_now(want)
            left_ms = deadline_at_ms - clock.wall_ms
            if item is None and left_ms > 0 and not self._closed:
                waiter = Waiter(wait, reader, want, clock.monotonic_ms + left_ms)
                reader.line.add(waiter)
                spool.plan_deadline(waiter)
                self._waiting[wait] = waiter
                wait.add_done_callback(lambda _: self._over(wait))
            else:
                wait.set_running_or_notify_cancel()
                wait.item = item
                spool.served.append(wait)
            spool.end_turn()
        return wait

    def _over(self, wait: Wait) -> None:
        waiter = self._waiting.pop(wait)
        if wait.cancelled():
            with self._spool.lock:
                self._reader.line.leave(waiter)

    # The end

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let go of it. Those who wait get nothing, open reads return, and the spool is free with its last queue."""
        spool, reader = self._spool, self._reader
        with spool.lock:
            if self._closed:
                return
            self._closed = True
            spool.clock.read()
            reader.abort_all(list(self._opened), spool.clock.wall_ms)
            self._opened.clear()
            for wait, waiter in list(self._waiting.items()):
                if not waiter.over:
                    reader.line.leave(waiter)
                    wait.served(waiter, None)
            spool.end_turn()
        spools.let_go(spool)

    # Figures

    def __len__(self) -> int:
        """Items that wait; open reads do not count."""
        with self._spool.lock:
            self._reader.queue.fold()
            return self._reader.items
