"""One reader as the threads of this process use it: what they take, what they have set aside, and who waits."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from kestreld.errors import KestrelError
from kestreld.library.answer import Answer, Derived
from kestreld.library.item import QItem, item_from
from kestreld.library.spool import Spool
from kestreld.library.taking import Taking
from kestreld.library.waits import Hold, Wait
from kestreld.queues.alone import take_alone
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Waiter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """What there is to count of a reader. What is counted in totals is so since its spool was opened."""

    items: int  # that wait; open reads do not count
    data_bytes: int
    memory_items: int  # of those that wait
    memory_bytes: int
    open_items: int
    open_bytes: int
    put_items: int  # in total
    expired_items: int  # in total
    discarded_items: int  # in total
    age_ms: int  # how long the item had waited that was taken last; 0 when none waits
    waiters: int


class Reading:
    """What PersistentQueue and JournalReader do with their reader. `want` is one of PEEK, TAKE and OPEN.

    Once it is over it gives nothing. Everything may raise JournalFailed and JournalCorrupt.
    """

    def __init__(self, spool: Spool, reader: Reader) -> None:
        self.spool = spool
        self.reader = reader
        self.is_over = False
        self._opened: set[int] = set()  # xids
        self._waiting: dict[Wait, Waiter] = {}

    # At once

    def fetch(self, want: int) -> QItem | None:
        """The head item, or None when there is none."""
        spool, reader = self.spool, self.reader
        lock = spool.lock
        lock.acquire()  # `with` takes twice as long
        try:
            if self.is_over:
                return None
            if want == TAKE and not spool.crowded and (record := take_alone(reader)) is not None:
                if spool.commit.rolling:
                    spool.end_turn()
                return item_from(record, reader.retries, is_open=False)
            spool.clock.read()
            item = self._fetch_now(want)
            hold = spool.end_turn(reader.queue)
        finally:
            lock.release()
        if hold is not None and item is not None:
            hold.result()
        return item

    def take_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items in one write."""
        items: list[QItem] = []
        spool = self.spool
        with spool.lock:
            if self.is_over:
                return items
            spool.clock.read()
            while len(items) < limit and (item := self._fetch_now(TAKE)) is not None:
                items.append(item)
            hold = spool.end_turn(self.reader.queue)
        if hold is not None:
            hold.result()
        return items

    def take_if(self, is_wanted: Callable[[QItem], bool]) -> QItem | None:
        """Take the head item if it is as wanted, which is asked without the lock; otherwise it stays."""
        while (head := self._head()) is not None:
            if not is_wanted(item_from(head, self.reader.retries, is_open=False)):
                return None
            if (item := self._take_head(head)) is not None:
                return item
        return None

    def _head(self) -> bytes | None:
        spool = self.spool
        with spool.lock:
            if self.is_over or self.reader.deleted:
                return None
            spool.clock.read()
            head = self.reader.peek(spool.clock.wall_ms)
            spool.end_turn(self.reader.queue)
        return head

    def _take_head(self, record: bytes) -> QItem | None:
        """Take this item; None when it is the head no more."""
        spool = self.spool
        with spool.lock:
            if self.is_over:
                return None
            spool.clock.read()
            item = self._fetch_now(TAKE) if self.reader.peek(spool.clock.wall_ms) == record else None
            hold = spool.end_turn(self.reader.queue)
        if hold is not None and item is not None:
            hold.result()
        return item

    def _fetch_now(self, want: int) -> QItem | None:
        """The head item as it is wanted, or None. With the lock held."""
        reader, now_ms = self.reader, self.spool.clock.wall_ms
        if reader.queue.stopped is not None:
            raise reader.queue.stopped
        if reader.deleted:
            return None
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
        if record is None:
            return None
        return item_from(record, reader.retries, is_open=want == OPEN)

    # Open reads

    def end_read(self, xid: int, *, is_done: bool, has_failed: bool = False) -> bool:
        """An open read is done, or the head again; then `has_failed` counts one error more on it.

        False, and nothing to do, when it is not open any more.
        """
        with self.spool.lock:
            if xid not in self._opened:
                return False
            hold = self._close_now(xid) if is_done else self._abort_now(xid, has_failed=has_failed)
        if hold is not None:
            hold.result()
        return True

    def _close_now(self, xid: int) -> Hold | None:
        self._opened.remove(xid)
        self.spool.clock.read()
        self.reader.close(xid)
        return self.spool.end_turn(self.reader.queue)

    def _abort_now(self, xid: int, *, has_failed: bool) -> Hold | None:
        spool, reader = self.spool, self.reader
        self._opened.remove(xid)
        spool.clock.read()
        if has_failed and reader.config.max_retries is None:  # else the engine counts
            times = reader.retries.get(xid, 0) + 1
            reader.retries[xid] = times
            reader.queue.note_abort(reader, xid, times)
        reader.abort(xid, spool.clock.wall_ms)
        return spool.end_turn(reader.queue)

    def is_open(self, xid: int) -> bool:
        return xid in self._opened

    # Many items

    def flush(self) -> int:
        """Drop what waits, but not open reads; how many items."""
        return self._sweep(lambda reader: self.spool.collection.flush(reader.name))

    def discard_expired(self, limit: int) -> int:
        """Drop expired items at the head, at most `limit` (-1 = all); how many."""
        return self._sweep(lambda reader: reader.expire_heads(self.spool.clock.wall_ms, limit))

    def _sweep(self, drop: Callable[[Reader], int]) -> int:
        with self.spool.lock:
            if self.is_over or self.reader.deleted:
                return 0
            if self.reader.queue.stopped is not None:
                raise self.reader.queue.stopped
            self.spool.clock.read()
            dropped = drop(self.reader)
            hold = self.spool.end_turn(self.reader.queue)
        if hold is not None:
            hold.result()
        return dropped

    # Waiting

    def wait(self, deadline_at_ms: int | None, want: int) -> Wait:
        """Take the item that is there, or join the line until then (None = for ever).

        Its callbacks may be called with the lock held.
        """
        wait = self._make_wait(want, calls_back=False)
        self._begin(wait, deadline_at_ms, want)
        return wait

    def _make_wait(self, want: int, *, calls_back: bool) -> Wait:
        def take(record: bytes) -> QItem:
            peeked = item_from(record, self.reader.retries, is_open=False)
            taken = peeked if want == PEEK else self._fetch_now(want)
            assert taken is not None
            return taken

        spool, give_back = self.spool, self._give_back if want == OPEN else None
        return Wait(self.reader.queue, take, spool.served.append, spool.worker, give_back, calls_back=calls_back)

    def _give_back(self, item: QItem) -> None:
        """Nobody has had it: it is the head again, and no error is counted. It does not wait for the disk."""
        with self.spool.lock, suppress(KestrelError):  # the commit has reported it
            if item.xid in self._opened:
                self._abort_now(item.xid, has_failed=False)

    def _begin(self, wait: Wait, deadline_at_ms: int | None, want: int) -> None:
        spool, reader = self.spool, self.reader
        with spool.lock:
            spool.clock.read()
            clock = spool.clock
            item = None if self.is_over else self._fetch_now(want)
            left_ms = 1 if deadline_at_ms is None else deadline_at_ms - clock.wall_ms
            if item is None and left_ms > 0 and not (self.is_over or reader.deleted):
                waiter = Waiter(wait, reader, want, clock.monotonic_ms + left_ms)
                reader.line.add(waiter)
                if deadline_at_ms is not None:
                    spool.plan_deadline(waiter)
                self._waiting[wait] = waiter
                wait.add_done_callback(lambda _: self._waited(wait))
            else:
                wait.set_running_or_notify_cancel()
                wait.item = item
                spool.served.append(wait)
            spool.end_turn()

    def _waited(self, wait: Wait) -> None:
        waiter = self._waiting.pop(wait)
        if wait.cancelled():
            with self.spool.lock:
                self.reader.line.leave(waiter)

    def receive(self, deadline_at_ms: int, want: int) -> QItem | None:
        """`fetch`, waiting for an item until then."""
        wait = self.wait(deadline_at_ms, want)
        try:
            return wait.result()
        finally:
            wait.cancel()  # an interrupted thread takes nothing

    def react(self, deadline_at_ms: int, want: int, react: Callable[[QItem | None], object]) -> None:
        """`receive` without waiting: `react` is called with the outcome, on the worker."""
        wait = self._make_wait(want, calls_back=True)
        wait.add_done_callback(lambda _: react(wait.result()))
        self._begin(wait, deadline_at_ms, want)

    def answer(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """What is made of the item, which is set aside, at once if it is there; else its callbacks are called on the
        worker.
        """
        wait = self.wait(deadline_at_ms, OPEN)
        return self._settled_soon(wait, Derived(wait, made))

    def answer_taken(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """`answer` of an item that is done once somebody has it."""
        wait = self.wait(deadline_at_ms, OPEN)
        taken = Taking(wait, made, lambda item: self.end_read(item.xid, is_done=True), self.close_async)
        return self._settled_soon(wait, taken)

    def _settled_soon(self, wait: Wait, answer: Derived[QItem, T]) -> Derived[QItem, T]:
        if wait.done():
            answer.settle()
        else:
            wait.add_done_callback(lambda _: self.spool.worker.soon(answer.settle))
        return answer

    async def receive_async(self, deadline_at_ms: int | None, want: int) -> QItem | None:
        """`receive` for a coroutine. One that is cancelled leaves the item where it was."""
        item = await self.wait(deadline_at_ms, PEEK if want == PEEK else OPEN)
        if item is None or want != TAKE:
            return item
        return item._replace(xid=0) if await self.close_async(item) else None

    async def close_async(self, item: QItem) -> bool:
        """An open read is done, for a coroutine; False when it is not open any more.

        A coroutine that is cancelled while that goes to the disk leaves the item as the last one.
        """
        with self.spool.lock:
            if item.xid not in self._opened:
                return False
            hold = self._close_now(item.xid)
        if hold is None:
            return True
        is_there = False
        try:
            await hold
            is_there = True
        finally:
            if not is_there and not hold.has_failed:
                self._put_again(item)
        return True

    def _put_again(self, item: QItem) -> None:
        """An item whose end is in the journal already, for this reader. If that fails after all, so does this."""
        queue = self.reader.queue
        with self.spool.lock:
            if self.spool.is_over or self.reader.deleted:
                return
            self.spool.clock.read()
            if not queue.put_with(item.data, item.expiry, 0, self.reader):
                queue.report(f"{self.reader.name}: an item is lost: it was taken by a coroutine that was cancelled")
            self.spool.end_turn(queue)

    def evict(self) -> None:
        """Everybody who waits gets None."""
        with self.spool.lock:
            self.spool.clock.read()
            self._evict_now()
            self.spool.end_turn()

    def _evict_now(self) -> None:
        for wait, waiter in list(self._waiting.items()):
            if not waiter.over:
                self.reader.line.leave(waiter)
                wait.served(waiter, None)

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return len(self._waiting)

    # Figures

    def __len__(self) -> int:
        """Items that wait; open reads do not count."""
        with self.spool.lock:
            self.reader.queue.fold()
            return self.reader.items

    def figures(self) -> ReaderFigures:
        with self.spool.lock:
            reader = self.reader
            reader.queue.fold()
            return ReaderFigures(
                items=reader.items,
                data_bytes=reader.data_bytes,
                memory_items=len(reader.window),
                memory_bytes=reader.mem_bytes,
                open_items=len(reader.open),
                open_bytes=reader.open_bytes,
                put_items=reader.total_items,
                expired_items=reader.expired_items,
                discarded_items=reader.discarded,
                age_ms=reader.age_ms if reader.items else 0,
                waiters=reader.line.waiting,
            )

    # The end

    def end(self) -> None:
        """Open reads return, those who wait get None. With the lock held."""
        self.is_over = True
        self._evict_now()  # first, or they would be given what returns
        self.reader.abort_all(list(self._opened), self.spool.clock.wall_ms)
        self._opened.clear()
