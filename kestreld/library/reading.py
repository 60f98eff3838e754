"""Reading: use of one reader by the threads of this process, with items taken, open reads, leases and waits."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import get_ident
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

from kestreld.errors import KestrelError
from kestreld.journal.records import item_id
from kestreld.library.ack_on_receive import AckOnReceive
from kestreld.library.answer import Answer, Derived
from kestreld.library.futures import CommitFuture, ItemFuture, Seat
from kestreld.library.item import QItem, item_from
from kestreld.library.spool import Spool
from kestreld.library.xid import Xid
from kestreld.queues import leases
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Waiter

T = TypeVar("T")
HOLDER: Final = "this process"  # of leases
WAITS: Final = -1  # in place of a thread: an ItemFuture has it
LEASED: Final = -2  # the caller has it, and does not have to give it back


def token_of(item: QItem) -> int:
    """Return the token of the item's lease; 0 = it is not leased."""
    return item.xid.token if isinstance(item.xid, Xid) else 0


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """Figures of a reader. Totals count since its spool was opened."""

    items: int  # waiting; open reads do not count
    data_bytes: int
    memory_items: int  # of the waiting items
    memory_bytes: int
    open_items: int
    open_bytes: int
    put_items: int  # in total
    expired_items: int  # in total
    discarded_items: int  # in total
    age_ms: int  # time that the last taken item had waited; 0 if none waits
    waiters: int
    oldest_ms: int = 0  # time that the head item has waited; 0 if none waits
    hits: int = 0  # in total: items that were taken or set aside
    misses: int = 0  # in total: gets of this object that ended without an item
    delayed_items: int = 0  # put for later; they do not count as waiting, nor do retrying ones
    retrying_items: int = 0  # failed items that wait according to retry_delays_ms
    leased_items: int = 0  # of open_items
    expired_leases: int = 0  # in total
    keys: int = 0  # that are remembered


class Reading:
    """Operations of PersistentQueue and JournalReader on their reader. `want` is one of PEEK, TAKE and OPEN.

    Once `is_over` it gives nothing. Every operation may raise JournalFailed and JournalCorrupt.
    """

    def __init__(self, spool: Spool, reader: Reader) -> None:
        self.spool = spool
        self.reader = reader
        reader.count_errors()  # they are shown to users
        self.is_over = False
        self._turn = spool.turn(reader.queue)
        # xid -> the thread that has yet to hand it over; 0 = somebody has it; below LEASED = a loop or block has it
        self.opened: dict[int, int] = {}
        self.held_by_loops: dict[int, Any] = {}  # number in `opened` -> the item that the loop holds or has left
        self.left: deque[Any] = deque()  # of loops that are gone
        self._misses = count()
        self._waiting: WeakKeyDictionary[ItemFuture, Waiter] = WeakKeyDictionary()
        self._kept: set[Any] = set()  # answers that are awaited or have callbacks, kept alive
        self.on_its_way: dict[int, int] = {}  # thread -> open read that it may have yet to hand over; 0 = none
        self._at_risk: list[bytes] = []  # items without a journal that this turn moves between window and open reads
        spool.readings[self] = None

    # At once

    def fetch(self, want: int) -> QItem | None:
        """Return the head item, peeked, taken or opened; None if there is none."""
        spool, reader = self.spool, self.reader
        if want == OPEN:
            self.return_late(get_ident())
        with spool.lock:
            if spool.cut_short is not None:
                spool.renew()
            if self.is_over:
                return None
            if self.left:
                self._return_left_in_turn()
            is_over = False
            try:
                if want == TAKE and not spool.crowded and (record := reader.take_at_once()) is not None:
                    if spool.commit.rolling:
                        spool.end_turn()
                    is_over = True
                    return item_from(record, reader.retries)
                spool.clock.read()
                item = self._fetch_now(want) if want != OPEN else self._open_now(get_ident())
                if item is None and want != PEEK:
                    next(self._misses)
                hold = spool.end_turn(reader.queue)
                is_over = True
            except KestrelError:
                is_over = True
                raise
            finally:
                if not is_over:
                    spool.cut_short = reader.queue
        if hold is not None and item is not None:
            hold.result()
        return item

    def take_all(self, limit: int) -> list[QItem]:
        """Take up to `limit` items in one write."""
        items: list[QItem] = []
        spool = self.spool
        with spool.lock, self._turn:
            if self.is_over:
                return items
            self._return_left()
            while len(items) < limit and (item := self._fetch_now(TAKE)) is not None:
                items.append(item)
            hold = spool.end_turn(self.reader.queue)
        if hold is not None:
            hold.result()
        return items

    def take_if(self, is_wanted: Callable[[QItem], bool]) -> QItem | None:
        """Take the head item if `is_wanted`, which is called without the lock, is true for it; else the item stays."""
        while (head := self._head()) is not None:
            if not is_wanted(item_from(head, self.reader.retries)):
                return None
            if (item := self._take_head(head)) is not None:
                return item
        return None

    def _head(self) -> bytes | None:
        spool = self.spool
        with spool.lock, self._turn:
            if self.is_over or self.reader.deleted:
                return None
            self._return_left()
            head = self.reader.peek(spool.clock.wall_ms)
            spool.end_turn(self.reader.queue)
        return head

    def _take_head(self, record: bytes) -> QItem | None:
        """Take this item; None if it is no longer the head."""
        spool = self.spool
        with spool.lock, self._turn:
            if self.is_over:
                return None
            item = self._fetch_now(TAKE) if self.reader.peek(spool.clock.wall_ms) == record else None
            hold = spool.end_turn(self.reader.queue)
        if hold is not None and item is not None:
            hold.result()
        return item

    def _fetch_now(self, want: int) -> QItem | None:
        """Peek or take the head item; None if there is none. With the lock held."""
        reader = self.reader
        record = self._peek_now()
        if record is None:
            return None
        if want == TAKE:
            record = reader.take(self.spool.clock.wall_ms)
            assert record is not None
        return item_from(record, reader.retries)

    def _peek_now(self) -> bytes | None:
        reader = self.reader
        if reader.queue.stopped is not None:
            raise reader.queue.stopped
        return None if reader.deleted else reader.peek(self.spool.clock.wall_ms)

    def _open_now(self, thread: int, lease_ms: int = 0) -> QItem | None:
        """Set the head item aside, for a thread that has to hand it over. With the lock held.

        With `lease_ms` it is leased for that time, and its xid has the token.
        """
        reader = self.reader
        record = self._peek_now()
        if record is None:
            return None
        xid = item_id(record)
        self.on_its_way[thread] = xid
        self._at_risk = [record] if reader.queue.in_memory else []
        if reader.slow:
            reader.open_read(self.spool.clock.wall_ms)
        else:
            reader.open_head()
        self.opened[xid] = thread
        self._at_risk = []
        if not lease_ms and (limit_ms := reader.config.open_transaction_timeout_ms):
            reader.limit_open(xid, limit_ms, HOLDER, lambda: self._lost(xid))
        item = item_from(record, reader.retries, self)
        if lease_ms:
            assert isinstance(item.xid, Xid)
            item.xid.token = leases.begin(reader, xid, lease_ms, HOLDER)
        return item

    def _lost(self, xid: int) -> None:
        """Forget an open read that was open for too long."""
        self.opened.pop(xid, None)

    # Leases

    def lease(self, lease_ms: int, end_at_ms: int | None) -> QItem | None:
        """Lease the head item, waiting for one until `end_at_ms`; None = not at all."""
        if end_at_ms is not None:
            return self.receive(end_at_ms, OPEN, lease_ms)
        spool, me = self.spool, get_ident()
        self.return_late(me)
        with spool.lock, self._turn:
            if self.is_over:
                return None
            self._return_left()
            item = self._open_now(me, lease_ms)
            if item is None:
                next(self._misses)
            hold = spool.end_turn(self.reader.queue)
        if hold is not None and item is not None:
            hold.result()
        return item

    def with_lease(self, act: Callable[[Reader, int], bool], token: int) -> tuple[bool, CommitFuture | None]:
        """Call `act` in a turn, on what the token leases. Return its result, and the commit's future to wait for."""
        reader, one = self.reader, leases.item_of(token)
        with self.spool.lock, self._turn:
            if self.is_over or reader.deleted:
                return False, None
            if reader.queue.stopped is not None:
                raise reader.queue.stopped
            self._note_risk([one])
            is_good = act(reader, self.spool.clock.wall_ms)
            self._at_risk = []
            return is_good, self.spool.end_turn(reader.queue)

    # Open reads

    def end_read(self, xid: int, *, is_done: bool, has_failed: bool = False, holder: int = 0) -> bool:
        """End an open read: the item is done, or the head again; `has_failed` then counts one more error for it.

        Returns False, and does nothing, if it is no longer open, or not `holder`'s.
        """
        with self.spool.lock, self._turn:
            if xid not in self.opened or (holder and self.opened[xid] != holder):
                return False
            hold = self._close_now(xid) if is_done else self._abort_now(xid, has_failed=has_failed)
        if hold is not None:
            hold.result()
        return True

    def _close_now(self, xid: int) -> CommitFuture | None:
        del self.opened[xid]
        self.reader.close(xid)
        return self.spool.end_turn(self.reader.queue)

    def _abort_now(self, xid: int, *, has_failed: bool, is_counted: bool = True) -> CommitFuture | None:
        spool, reader = self.spool, self.reader
        self._note_risk([xid])
        del self.opened[xid]
        config = reader.config
        if has_failed and config.max_retries is None and not config.retry_delays_ms:  # else the engine counts
            times = reader.retries.get(xid, 0) + 1
            reader.retries[xid] = times
            reader.queue.note_abort(reader.number, xid, times)
        if reader.is_leased(xid):
            reader.give_back(xid, spool.clock.wall_ms)
        else:
            reader.abort_all([xid], spool.clock.wall_ms, is_counted=is_counted)
        self._at_risk = []
        return spool.end_turn(reader.queue)

    async def end_read_async(self, xid: int, holder: int) -> None:
        """Confirm an open read of `holder` in a coroutine. Cancelling the coroutine meanwhile does not undo it."""
        with self.spool.lock, self._turn:
            hold = self._close_now(xid) if self.opened.get(xid) == holder else None
        if hold is not None:
            await hold

    def _return_left(self) -> None:
        """Return the open reads of loops that were left. In a turn."""
        while self.left:
            held = self.left[0]
            if held.xid and self.opened.get(held.xid) == held.holder:
                with suppress(KestrelError):  # the commit has reported it
                    self._abort_now(held.xid, has_failed=False, is_counted=False)
            self.held_by_loops.pop(held.holder, None)
            self.left.popleft()

    def _return_left_in_turn(self) -> None:
        with self._turn:
            self._return_left()

    def look_for_left(self) -> None:
        """Return the open reads of loops that were left, unless that is done already. It does not wait for the disk."""
        with suppress(KestrelError), self.spool.lock:
            if self.left:
                self._return_left_in_turn()

    def is_open(self, xid: int) -> bool:
        return xid in self.opened

    def return_late(self, thread: int) -> None:
        """Return an open read whose return a second exception has prevented."""
        if thread not in self.on_its_way:
            self.on_its_way[thread] = 0
        elif self.on_its_way[thread]:
            self.return_to_queue(thread)

    def return_to_queue(self, thread: int) -> None:
        """Return an item that a thread has opened and not handed over to the head. It does not wait for the disk."""
        if xid := self.on_its_way.get(thread, 0):
            with self.spool.lock, self._turn, suppress(KestrelError):
                if self.opened.get(xid) == thread:
                    self._abort_now(xid, has_failed=False, is_counted=False)
        self.on_its_way[thread] = 0

    def _note_risk(self, xids: list[int]) -> None:
        if self.reader.queue.in_memory:
            self._at_risk = [self.reader.open[xid] for xid in xids if xid in self.reader.open]

    def held(self) -> set[int]:
        """Return the xids of open reads that somebody has."""
        if self.is_over:
            return set()
        served = {wait.item.xid for wait in list(self._waiting) if wait.item is not None and not wait.is_abandoned}
        return {xid for xid, thread in self.opened.items() if thread != WAITS or xid in served}

    def resume(self, is_waiting: Callable[[Reader, int], bool]) -> list[Waiter]:
        """Continue after the queue was rebuilt: waits that were served keep their items. Return the other waiters."""
        reader, again = self.reader, list[Waiter]()
        if reader.queue.in_memory:
            reader.return_lost(self._at_risk)
        self._at_risk = []
        self.opened = {xid: thread for xid, thread in self.opened.items() if xid in reader.open}
        for wait, waiter in list(self._waiting.items()):
            waiter.over = True  # even if interrupted before it was in line or while it was served; not if in `again`
            if wait.done():
                wait.tell_again()
            elif reader.queue.stopped is not None:
                wait.settle(reader.queue.stopped)
            elif reader.deleted or self.is_over or wait.is_abandoned:
                wait.forget_item()
                wait.settle(None)
            elif wait.pending_commit is not None:
                if not wait.pending_commit.pending:
                    wait.released(wait.pending_commit.failure)
            elif wait.has_item(waiter.want, self.opened, is_waiting, reader):
                wait.settle(None)
            else:
                wait.forget_item()
                again.append(waiter)
        return again

    # Many items

    def flush(self) -> int:
        """Drop the waiting items, but not open reads. Return how many."""
        return self._sweep(lambda reader: self.spool.collection.flush(reader.name))

    def discard_expired(self, limit: int) -> int:
        """Drop expired items at the head, at most `limit` (-1 = all). Return how many."""
        return self._sweep(lambda reader: reader.expire_heads(self.spool.clock.wall_ms, limit))

    def _sweep(self, drop: Callable[[Reader], int]) -> int:
        with self.spool.lock, self._turn:
            if self.is_over or self.reader.deleted:
                return 0
            if self.reader.queue.stopped is not None:
                raise self.reader.queue.stopped
            self._return_left()
            dropped = drop(self.reader)
            hold = self.spool.end_turn(self.reader.queue)
        if hold is not None:
            hold.result()
        return dropped

    # Waiting

    def wait(self, deadline_at_ms: int | None, want: int, lease_ms: int = 0) -> ItemFuture:
        """Return a future for the head item, waiting for one until the deadline (None = forever).

        Its callbacks may be called with the lock held.
        """
        wait = self._make_wait(want, lease_ms, calls_back=False)
        self._begin(wait, deadline_at_ms, want)
        return wait

    def _make_wait(self, want: int, lease_ms: int = 0, *, calls_back: bool) -> ItemFuture:
        def take(record: bytes) -> QItem:
            taken = self._fetch_now(want) if want != OPEN else self._open_now(WAITS, lease_ms)
            assert taken is not None
            return taken

        spool, give_back = self.spool, self._give_back if want == OPEN else None
        queue, ended = self.reader.queue, spool.served.append
        return ItemFuture(queue, take, ended, spool.worker, give_back, self._kept, calls_back=calls_back)

    def _give_back(self, item: QItem) -> None:
        """Return an item that reached nobody to the head, without counting an error. It does not wait for the disk."""
        with suppress(KestrelError), self.spool.lock, self._turn:  # the commit has reported it
            if token := token_of(item):
                leases.give_back(self.reader, token, self.spool.clock.wall_ms)
                self.spool.end_turn(self.reader.queue)
            elif item.xid in self.opened:
                self._abort_now(item.xid, has_failed=False, is_counted=False)

    def _begin(self, wait: ItemFuture, deadline_at_ms: int | None, want: int) -> None:
        has_begun = False
        try:
            self._join(wait, deadline_at_ms, want)
            has_begun = True
        finally:
            if not has_begun:
                wait.abandon()

    def _join(self, wait: ItemFuture, deadline_at_ms: int | None, want: int) -> None:
        spool, reader = self.spool, self.reader
        with spool.lock, self._turn:
            clock = spool.clock
            if self.left:
                self._return_left()
            head = None if self.is_over else self._peek_now()
            left_ms = 1 if deadline_at_ms is None else deadline_at_ms - clock.wall_ms
            until_ms = clock.monotonic_ms + left_ms
            if head is None and left_ms > 0 and not (self.is_over or reader.deleted):
                waiter = self._seat(wait, want, until_ms)
                reader.wait_queue.add(waiter)
                if deadline_at_ms is not None:
                    spool.plan_deadline(waiter)
                spool.end_turn()
                return
            # Until this turn is over nobody else knows of the wait: if interrupted, the item is nobody's.
            wait.served(None, head)
            spool.end_turn()
            if wait.item is None and want != PEEK:
                next(self._misses)
            if not wait.done():
                self._seat(wait, want, until_ms).over = True
            elif wait.item is not None:
                self._is_handed_over(wait.item)

    def _seat(self, wait: ItemFuture, want: int, until_ms: int) -> Waiter:
        """Register a wait that is not settled yet."""
        seat = Seat(wait, self._left)
        waiter = seat.waiter = Waiter(seat, self.reader, want, until_ms)
        self._waiting[wait] = waiter
        self.spool.pending.add(wait)
        wait.when_settled(self._waited)
        return waiter

    def _is_handed_over(self, item: QItem) -> None:
        if self.opened.get(item.xid) == WAITS:
            if token_of(item):
                del self.opened[item.xid]
            else:
                self.opened[item.xid] = 0

    def _left(self, waiter: Waiter) -> None:
        with suppress(KestrelError), self.spool.lock, self._turn:
            self.reader.wait_queue.leave(waiter)

    def _waited(self, wait: Any) -> None:
        waiter = self._waiting.pop(wait, None)
        if waiter is None:
            return
        if isinstance(waiter.consumer, Seat):
            waiter.consumer.settled()
        if wait.item is not None:
            self._is_handed_over(wait.item)
        elif waiter.want != PEEK and not (wait.cancelled() or wait.exception()):
            next(self._misses)
        if wait.cancelled():
            with self.spool.lock, self._turn:
                self.reader.wait_queue.leave(waiter)

    def receive(self, deadline_at_ms: int | None, want: int, lease_ms: int = 0) -> QItem | None:
        """Return the head item, waiting for one until the deadline (None = forever)."""
        wait, me, is_there = self._make_wait(want, lease_ms, calls_back=False), get_ident(), False
        if want == OPEN:
            self.return_late(me)
        self._begin(wait, deadline_at_ms, want)
        try:
            item = wait.result()
            is_there = True
        finally:
            if not is_there:
                wait.abandon()  # an interrupted thread takes nothing
        if want == OPEN and item is not None:
            self.on_its_way[me] = item.xid
            self.opened[item.xid] = me
        return item

    def react(self, deadline_at_ms: int, want: int, react: Callable[[QItem | None], object]) -> None:
        """Call `react` with the result of `receive`, on the worker, without waiting."""
        wait = self._make_wait(want, calls_back=True)
        wait.add_done_callback(lambda done: react(done.result()))
        self._begin(wait, deadline_at_ms, want)

    def answer(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """Return an answer that `made` makes of the item, which is set aside.

        It is settled at once if the item is there; else its callbacks are called on the worker.
        """
        wait = self.wait(deadline_at_ms, OPEN)
        return self._settled_soon(wait, Derived(wait, made, self._kept))

    def answer_taken(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """Return an answer like `answer`, whose item is done once somebody has received it."""
        wait = self.wait(deadline_at_ms, OPEN)
        taken = AckOnReceive(
            wait, made, lambda item: self.end_read(item.xid, is_done=True), self.close_async, self._kept
        )
        return self._settled_soon(wait, taken)

    def _settled_soon(self, wait: ItemFuture, answer: Derived[QItem, T]) -> Derived[QItem, T]:
        if wait.done():
            answer.settle()
        else:
            self.spool.pending.add(answer)
            weakly = ref(answer)

            def settle() -> None:
                if (found := weakly()) is not None:
                    found.settle()

            wait.when_settled(lambda _: self.spool.worker.settle(settle))
        return answer

    async def receive_async(self, deadline_at_ms: int | None, want: int) -> QItem | None:
        """Do `receive` in a coroutine. If the coroutine is cancelled, the item stays in the queue."""
        item = await self.wait(deadline_at_ms, PEEK if want == PEEK else OPEN)
        if item is None or want != TAKE:
            return item
        return item._replace(xid=0) if await self.close_async(item) else None

    async def lease_async(self, lease_ms: int, deadline_at_ms: int | None) -> QItem | None:
        """Do `lease` in a coroutine; without a deadline it waits forever."""
        return await self.wait(deadline_at_ms, OPEN, lease_ms)

    async def close_async(self, item: QItem) -> bool:
        """Confirm an open read in a coroutine; False if it is no longer open.

        If the coroutine is cancelled during the sync, the item becomes the last of the queue.
        """
        with self.spool.lock, self._turn:
            if item.xid not in self.opened:
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
        """Put an item again for this reader, whose end is in the journal already. If that end fails, so does this."""
        queue = self.reader.queue
        with self.spool.lock, self._turn:
            if self.spool.is_over or self.reader.deleted:
                return
            if not queue.put_with(item.data, item.expiry, 0, self.reader):
                queue.report(f"{self.reader.name}: item lost: it was taken by a cancelled coroutine")
            self.spool.end_turn(queue)

    def evict(self) -> None:
        """End all waits with None."""
        with self.spool.lock, self._turn:
            self._evict_now()
            self.spool.end_turn()

    def _evict_now(self) -> None:
        for wait, waiter in list(self._waiting.items()):
            if not waiter.over:
                self.reader.wait_queue.leave(waiter)
                wait.served(waiter, None)

    @property
    def waiting(self) -> int:
        """Number of waits here."""
        return len(self._waiting)

    # Figures

    def __len__(self) -> int:
        """Number of waiting items; open reads do not count."""
        with self.spool.lock, self._turn:
            self._return_left()
            self.reader.queue.flush_counters()
            return self.reader.items

    def __repr__(self) -> str:
        """Show counters as far as they are up to date, without the lock, which may be taken."""
        return f"{self.reader.items} items, {len(self.reader.open)} open, {self.waiting} waiters"

    def figures(self) -> ReaderFigures:
        with self.spool.lock, self._turn:
            reader = self.reader
            self._return_left()
            reader.queue.flush_counters()
            oldest_at_ms = reader.oldest_at_ms() if reader.items else 0
            held = reader.held
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
                waiters=reader.wait_queue.waiting,
                oldest_ms=max(self.spool.clock.wall_ms - oldest_at_ms, 0) if oldest_at_ms else 0,
                hits=reader.taken_items + reader.opened_items,
                misses=int(repr(self._misses)[len("count(") : -1]),
                delayed_items=len(held.later) - len(held.failed) if held is not None else 0,
                retrying_items=len(held.failed) if held is not None else 0,
                leased_items=held.leased if held is not None else 0,
                expired_leases=held.expired_leases if held is not None else 0,
                keys=len(reader.keys) if reader.keys is not None else 0,
            )

    # The end

    def end(self) -> None:
        """End use of the reader: open reads return, and waits end with None. With the lock held."""
        self.is_over = True
        self._evict_now()  # first, or the waits would be given what returns
        self._note_risk(list(self.opened))
        self.reader.abort_all(list(self.opened), self.spool.clock.wall_ms, is_counted=False)
        self.opened.clear()
        self._at_risk = []
        self.spool.readings.pop(self, None)
