"""SharedQueue: a durable queue that several processes share, with the operations of a PersistentQueue."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty
from threading import Lock, Thread, current_thread
from typing import Final
from weakref import WeakSet

from kestreld import checks
from kestreld.client.connection import WAIT_MS_MAX, ClientConnection
from kestreld.client.queue_talks import queue_key, sendable
from kestreld.client.server import OpenRead, Waiting
from kestreld.clock import Clock
from kestreld.errors import ConnectionLost, KestrelError, SpoolUnusable
from kestreld.forks import restart_in_child
from kestreld.library.answer import Answer
from kestreld.library.deadline import checked_deadline
from kestreld.library.item import QItem
from kestreld.library.managed import Closing, Counted
from kestreld.library.shared_spool import SharedSpool
from kestreld.library.worker import Worker
from kestreld.library.xid import Xid, is_own
from kestreld.queues.waiters import OPEN, PEEK, TAKE

PATIENCE_MS: Final = 60_000


def open_shared(
    path: str, name: str, *, config_path: str | None = None, patience_ms: int = PATIENCE_MS
) -> "SharedQueue":
    """Open a queue of a spool that other processes use, too; it is set up and ready for use.

    The spool's kestreld is joined, or started with the configuration at `config_path`. If anything else has the spool,
    the call waits up to `patience_ms`. Raises SpoolLocked, SpoolUnusable or BadQueueName.
    """
    queue = SharedQueue(path, name, config_path=config_path, patience_ms=patience_ms)
    queue.setup()
    return queue


class SharedQueue(Closing, Counted):
    """A queue like PersistentQueue, on the kestreld of its spool. `add_time` and `expiry` of its items are 0: a server
    does not report them.

    If the server dies it is started again. Operations that it has not answered raise ConnectionLost: after `add` the
    item may or may not be there, and after `confirm_remove` it may be delivered again.
    """

    def __init__(
        self, persistence_path: str, name: str, *, config_path: str | None = None, patience_ms: int = PATIENCE_MS
    ) -> None:
        """Raises BadQueueName, or SpoolUnusable."""
        self.name = name
        self._key = queue_key(name)
        self._spool = SharedSpool(
            checks.path(persistence_path, "spool path"),
            checks.path_or_none(config_path, "config_path"),
            checks.span_ms(patience_ms, "patience_ms"),
        )
        self._closed = False
        self._xids = itertools.count(1)
        self._opened: dict[int, OpenRead] = {}  # by xid
        self._pending: WeakSet[Answer[QItem | None]] = WeakSet()
        self._worker = Worker(f"queues in {persistence_path}")
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Start without waits and open reads: the old ones are the parent's."""
        for answer in list(self._pending):
            answer.refuse(self.name)
        self._lock = Lock()  # of `_waits`
        self._waits: set[Waiting] = set()
        self._threads: set[Thread] = set()

    def setup(self) -> None:
        """Join the spool's server, or start it. Raises SpoolLocked or SpoolUnusable."""
        self._spool.use(lambda server: None)

    # Adding

    def add(self, value: bytes, expiry: int = 0) -> bool:
        """Add an item that expires at `expiry` (ms since the epoch; 0 = never). False if the queue is full or closed.

        The server counts seconds: an expiry is rounded up to a whole second.
        """
        if self._closed:
            return False
        value, expire_s = sendable(value, checks.whole(expiry, "expiry")), _expire_s(expiry)
        return self._spool.use(lambda server: server.asked(lambda there: there.put(self._key, value, expire_s)))

    def add_all(self, values: Iterable[bytes], expiry: int = 0) -> int:
        """Add items one by one, up to the first that is refused. Return how many were added."""
        return sum(
            1 for _ in itertools.takewhile(lambda value: self.add(value, expiry), checks.several(values, "values"))
        )

    def put_nowait(self, value: bytes, expiry: int = 0) -> None:
        """Add an item as `add` does; raises queue.Full if it is refused, or QueueClosed."""
        self._must_be_stored(self.add(value, expiry))

    # Removing

    def peek(self) -> QItem | None:
        """Return the head item without taking it. None if there is none."""
        return self._receive(0, PEEK)

    def remove(self, transaction: bool = False) -> QItem | None:
        """Take the head item; None if there is none.

        In a transaction it is only set aside, until `confirm_remove` or `unremove` with its xid, or until this process
        or the server ends.
        """
        return self._receive(0, _fetch_mode(transaction))

    def get_nowait(self) -> QItem:
        """Take the head item as `remove` does; raises queue.Empty if there is none."""
        item = self.remove()
        if item is None:
            raise Empty
        return item

    def remove_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items, one by one."""
        items: list[QItem] = []
        checks.whole(limit, "limit")
        while len(items) < limit and (item := self.remove()) is not None:
            items.append(item)
        return items

    def flush(self) -> None:
        """Drop the waiting items, but not those set aside."""
        self._spool.use(lambda server: server.asked(lambda there: there.flush(self._key)))

    def discard_expired(self) -> int:
        """Drop expired items at the head. Return how many. They are never delivered in any case."""
        return self._spool.use(lambda server: server.asked(lambda there: there.flush_expired(self._key)))

    def unremove(self, xid: int) -> None:
        """Return an item that was set aside to the head. Does nothing for an xid that is not open here."""
        opened = self._opened.pop(xid, None) if is_own(xid, self, self.name) else None
        if opened is not None:
            opened.abort()

    def confirm_remove(self, xid: int) -> None:
        """Confirm an item that was set aside: it is done. Does nothing for an xid that is not open here."""
        opened = self._opened.pop(xid, None) if is_own(xid, self, self.name) else None
        if opened is not None:
            opened.close()

    # Waiting

    def remove_receive(
        self, deadline_at_ms: int | None = None, transaction: bool = False, *, timeout: float | None = None
    ) -> QItem | None:
        """Take the head item as `remove` does, waiting for one until the deadline, or for `timeout` seconds."""
        return self._receive(checked_deadline(deadline_at_ms, timeout), _fetch_mode(transaction))

    def peek_receive(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Return the head item as `peek` does, waiting for one until the deadline, or for `timeout` seconds."""
        return self._receive(checked_deadline(deadline_at_ms, timeout), PEEK)

    def remove_react(self, deadline_at_ms: int, transaction: bool, react: Callable[[QItem | None], object]) -> None:
        """Do `remove_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._react(checked_deadline(deadline_at_ms), _fetch_mode(transaction), checks.function(react, "react"))

    def peek_react(self, deadline_at_ms: int, react: Callable[[QItem | None], object]) -> None:
        """Do `peek_receive` without waiting: `react` is called with the outcome, on the queue's own thread."""
        self._react(checked_deadline(deadline_at_ms), PEEK, checks.function(react, "react"))

    async def remove_async(
        self, deadline_at_ms: int | None = None, transaction: bool = False, *, timeout: float | None = None
    ) -> QItem | None:
        """Do `remove_receive` in a coroutine. If the coroutine is cancelled, the item stays in the queue."""
        want = _fetch_mode(transaction)
        item = await self._wait(checked_deadline(deadline_at_ms, timeout), OPEN, None)
        if item is None or want == OPEN:
            return item
        self._opened.pop(item.xid).close_in_hand()
        return item._replace(xid=0)

    async def peek_async(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> QItem | None:
        """Do `peek_receive` in a coroutine."""
        return await self._wait(checked_deadline(deadline_at_ms, timeout), PEEK, None)

    def _react(self, deadline_at_ms: int, want: int, react: Callable[[QItem | None], object]) -> None:
        self._wait(deadline_at_ms, want, lambda answer: react(answer.result()))

    def _wait(
        self, deadline_at_ms: int, want: int, react: Callable[[Future[QItem | None]], object] | None
    ) -> Answer[QItem | None]:
        """Wait on a thread. With `react`, the answer is settled, and `react` called, on the queue's own thread."""
        answer: Answer[QItem | None] = Answer(lambda found: self.unremove(found.xid))
        waiting = Waiting()
        if react is not None:
            answer.add_done_callback(react)
        self._pending.add(answer)
        answer.add_done_callback(lambda _: waiting.end())  # a cancelled wait ends

        def wait() -> None:
            item: QItem | None = None
            problem: KestrelError | None = None
            try:
                item = self._receive_on(waiting, deadline_at_ms, want)
            except KestrelError as error:
                problem = error
            if react is None:
                self._settle(answer, item, problem)
            else:
                self._worker.settle(lambda: self._settle(answer, item, problem))
            self._threads.discard(current_thread())

        thread = Thread(target=wait, name=f"waiting for {self.name}", daemon=True)
        self._threads.add(thread)
        thread.start()
        return answer

    def _settle(self, answer: Answer[QItem | None], item: QItem | None, problem: KestrelError | None) -> None:
        if not answer.set_running_or_notify_cancel():
            if item is not None:
                self.unremove(item.xid)
        elif problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(item)

    def _receive(self, deadline_at_ms: int, want: int) -> QItem | None:
        return self._receive_on(Waiting(), deadline_at_ms, want)

    def _receive_on(self, waiting: Waiting, deadline_at_ms: int, want: int) -> QItem | None:
        """Receive an item; None if there is none until the deadline, or if the waiting is ended."""
        clock = Clock()
        until_ms = clock.monotonic_ms + deadline_at_ms - clock.wall_ms
        with self._lock:
            if self._closed:
                waiting.end()
            self._waits.add(waiting)
        try:
            while not waiting.is_over():
                clock.read()
                left_ms = min(max(0, until_ms - clock.monotonic_ms), WAIT_MS_MAX)
                try:
                    item = self._fetch(waiting, want, left_ms)
                except ConnectionLost:
                    continue  # nothing was taken: an item set aside for us returns
                clock.read()
                if item is not None or clock.monotonic_ms >= until_ms:
                    return item
        except SpoolUnusable:
            if not waiting.is_over():
                raise
        finally:
            with self._lock:
                self._waits.remove(waiting)
        return None

    def _fetch(self, waiting: Waiting, want: int, wait_ms: int) -> QItem | None:
        def fetch(connection: ClientConnection, option: bytes) -> bytes | None:
            with waiting.on(connection):
                return connection.fetch(self._key, option, wait_ms)

        if want == PEEK:
            seen = self._spool.use(lambda server: server.asked(lambda there: fetch(there, b"/peek")))
            return None if seen is None else QItem(0, 0, seen, 0)
        opened = self._spool.use(lambda server: server.opened(self._key, lambda there: fetch(there, b"/open")))
        if opened is None:
            return None
        xid: int = 0
        if want == TAKE:
            opened.close_in_hand()
        else:
            xid = Xid(next(self._xids), self)
            self._opened[xid] = opened
        return QItem(0, 0, opened.item, xid)

    # The end

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the queue: waits end with None, open reads return. The server keeps running."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for waiting in self._waits:
                waiting.end()
        self._spool.close()
        for thread in self._threads - {current_thread()}:
            thread.join()
        self._worker.stop()
        while self._opened:
            self._opened.popitem()[1].hang_up()

    # Figures

    def __len__(self) -> int:
        """Number of waiting items; open reads do not count."""
        stats = self._spool.use(lambda server: server.asked(lambda there: there.queue_stats(self._key)))
        return int(stats.get("items", 0))

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} in {self._spool.path!r}{', closed' if self._closed else ''}>"


def _fetch_mode(transaction: bool) -> int:
    return OPEN if checks.switch(transaction, "transaction") else TAKE


def _expire_s(expiry_at_ms: int) -> int:
    """Return the expiry as on the wire: 0 = never, -1 = already over, else seconds since the epoch."""
    if expiry_at_ms and expiry_at_ms <= Clock().wall_ms:
        return -1
    return -(-expiry_at_ms // 1000)
