"""One reader as the threads of this process use it: what they take, what they have set aside, and who waits."""

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
WAITS: Final = -1  # in place of a thread: a Wait has it
LEASED: Final = -2  # whoever asked for it has it, and is not asked to give it back


def token_of(item: QItem) -> int:
    """The token of the lease that it is; 0 = it is none."""
    return item.xid.token if isinstance(item.xid, Xid) else 0


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
    oldest_ms: int = 0  # how long the head item has waited; 0 when none waits
    hits: int = 0  # in total: items that were taken or set aside
    misses: int = 0  # in total: gets of this object that ended without one
    delayed_items: int = 0  # put for later; they do not count as waiting, nor do retrying ones
    retrying_items: int = 0  # failed ones that wait as retry_delays_ms say
    leased_items: int = 0  # of open_items
    expired_leases: int = 0  # in total
    keys: int = 0  # that are remembered


class Reading:
    """What PersistentQueue and JournalReader do with their reader. `want` is one of PEEK, TAKE and OPEN.

    Once it is over it gives nothing. Everything may raise JournalFailed and JournalCorrupt.
    """

    def __init__(self, spool: Spool, reader: Reader) -> None:
        self.spool = spool
        self.reader = reader
        reader.count_errors()  # users are shown them
        self.is_over = False
        self._turn = spool.turn(reader.queue)
        # xid -> the thread that has yet to hand it over; 0 = somebody has it; below LEASED = a loop or block has it
        self.opened: dict[int, int] = {}
        self.held_by_loops: dict[int, Any] = {}  # what each has or has left, by its number in `opened`
        self.left: deque[Any] = deque()  # those of loops that are gone
        self._misses = count()
        self._waiting: WeakKeyDictionary[ItemFuture, Waiter] = WeakKeyDictionary()
        self._kept: set[Any] = set()  # answers that are awaited or have callbacks
        self.on_its_way: dict[int, int] = {}  # thread -> the open read that it may have yet to hand over; 0 = none
        self._at_risk: list[bytes] = []  # items without a journal that this turn moves between window and open reads
        spool.readings[self] = None

    # At once

    def fetch(self, want: int) -> QItem | None:
        """The head item, or None when there is none."""
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
        """Take the head item if it is as wanted, which is asked without the lock; otherwise it stays."""
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
        """Take this item; None when it is the head no more."""
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
        """The head item as it is wanted, or None. With the lock held."""
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

        A lease where it is for so long only: its token is in the xid.
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
        """An open read was open for too long."""
        self.opened.pop(xid, None)

    # Leases

    def lease(self, lease_ms: int, end_at_ms: int | None) -> QItem | None:
        """Lease the head item, waiting for one until then; None = it does not wait."""
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
        """Do something with what is leased by a token; whether it was, and what is to be waited for."""
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
        """An open read is done, or the head again; then `has_failed` counts one error more on it.

        False, and nothing to do, when it is not open any more, or not that of `holder`.
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
        """Its open read is done, for a coroutine. One that is cancelled meanwhile does not undo that."""
        with self.spool.lock, self._turn:
            hold = self._close_now(xid) if self.opened.get(xid) == holder else None
        if hold is not None:
            await hold

    def _return_left(self) -> None:
        """Give back what loops had that were left. In a turn."""
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
        """`_return_left` where nobody else has done so. It does not wait for the disk."""
        with suppress(KestrelError), self.spool.lock:
            if self.left:
                self._return_left_in_turn()

    def is_open(self, xid: int) -> bool:
        return xid in self.opened

    def return_late(self, thread: int) -> None:
        """Return what a second exception has kept from returning."""
        if thread not in self.on_its_way:
            self.on_its_way[thread] = 0
        elif self.on_its_way[thread]:
            self.return_to_queue(thread)

    def return_to_queue(self, thread: int) -> None:
        """What a thread has opened and not handed over is the head again. It does not wait for the disk."""
        if xid := self.on_its_way.get(thread, 0):
            with self.spool.lock, self._turn, suppress(KestrelError):
                if self.opened.get(xid) == thread:
                    self._abort_now(xid, has_failed=False, is_counted=False)
        self.on_its_way[thread] = 0

    def _note_risk(self, xids: list[int]) -> None:
        if self.reader.queue.in_memory:
            self._at_risk = [self.reader.open[xid] for xid in xids if xid in self.reader.open]

    def held(self) -> set[int]:
        """The open reads that somebody has."""
        if self.is_over:
            return set()
        served = {wait.item.xid for wait in list(self._waiting) if wait.item is not None and not wait.is_abandoned}
        return {xid for xid, thread in self.opened.items() if thread != WAITS or xid in served}

    def resume(self, is_waiting: Callable[[Reader, int], bool]) -> list[Waiter]:
        """Its queue has been rebuilt: who was being served has what is his, the others wait on; these."""
        reader, again = self.reader, list[Waiter]()
        if reader.queue.in_memory:
            reader.return_lost(self._at_risk)
        self._at_risk = []
        self.opened = {xid: thread for xid, thread in self.opened.items() if xid in reader.open}
        for wait, waiter in list(self._waiting.items()):
            waiter.over = True  # also one cut short on its way to the line, or while it was served; `again` are not
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
        """Drop what waits, but not open reads; how many items."""
        return self._sweep(lambda reader: self.spool.collection.flush(reader.name))

    def discard_expired(self, limit: int) -> int:
        """Drop expired items at the head, at most `limit` (-1 = all); how many."""
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
        """Take the item that is there, or join the line until then (None = forever).

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
        """Nobody has had it: it is the head again, and no error is counted. It does not wait for the disk."""
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
            # Until this turn is over nobody else knows of it: where it is cut short, the item is nobody's.
            wait.served(None, head)
            spool.end_turn()
            if wait.item is None and want != PEEK:
                next(self._misses)
            if not wait.done():
                self._seat(wait, want, until_ms).over = True
            elif wait.item is not None:
                self._is_handed_over(wait.item)

    def _seat(self, wait: ItemFuture, want: int, until_ms: int) -> Waiter:
        """Keep account of one that is not settled yet."""
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
        """`fetch`, waiting for an item until then (None = forever)."""
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
        """`receive` without waiting: `react` is called with the outcome, on the worker."""
        wait = self._make_wait(want, calls_back=True)
        wait.add_done_callback(lambda done: react(done.result()))
        self._begin(wait, deadline_at_ms, want)

    def answer(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """What is made of the item, which is set aside, at once if it is there; else its callbacks are called on the
        worker.
        """
        wait = self.wait(deadline_at_ms, OPEN)
        return self._settled_soon(wait, Derived(wait, made, self._kept))

    def answer_taken(self, deadline_at_ms: int | None, made: Callable[[QItem], T]) -> Answer[T | None]:
        """`answer` of an item that is done once somebody has it."""
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
        """`receive` for a coroutine. One that is cancelled leaves the item where it was."""
        item = await self.wait(deadline_at_ms, PEEK if want == PEEK else OPEN)
        if item is None or want != TAKE:
            return item
        return item._replace(xid=0) if await self.close_async(item) else None

    async def lease_async(self, lease_ms: int, deadline_at_ms: int | None) -> QItem | None:
        """`lease` for a coroutine; without a deadline it waits forever."""
        return await self.wait(deadline_at_ms, OPEN, lease_ms)

    async def close_async(self, item: QItem) -> bool:
        """An open read is done, for a coroutine; False when it is not open any more.

        A coroutine that is cancelled while that goes to the disk leaves the item as the last one.
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
        """An item whose end is in the journal already, for this reader. If that fails after all, so does this."""
        queue = self.reader.queue
        with self.spool.lock, self._turn:
            if self.spool.is_over or self.reader.deleted:
                return
            if not queue.put_with(item.data, item.expiry, 0, self.reader):
                queue.report(f"{self.reader.name}: item lost: it was taken by a cancelled coroutine")
            self.spool.end_turn(queue)

    def evict(self) -> None:
        """Everybody who waits gets None."""
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
        """How many wait here."""
        return len(self._waiting)

    # Figures

    def __len__(self) -> int:
        """Items that wait; open reads do not count."""
        with self.spool.lock, self._turn:
            self._return_left()
            self.reader.queue.flush_counters()
            return self.reader.items

    def __repr__(self) -> str:
        """Without the lock, which may be taken: as far as it is counted."""
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
        """Open reads return, those who wait get None. With the lock held."""
        self.is_over = True
        self._evict_now()  # first, or they would be given what returns
        self._note_risk(list(self.opened))
        self.reader.abort_all(list(self.opened), self.spool.clock.wall_ms, is_counted=False)
        self.opened.clear()
        self._at_risk = []
        self.spool.readings.pop(self, None)
