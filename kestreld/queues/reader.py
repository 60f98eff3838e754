"""A reader: a named position on a journal, its window of items, and what it has done since the last commit."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container
from itertools import islice
from typing import TYPE_CHECKING, Final

from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    ID_OFFSET,
    Done,
    Kind,
    Range,
    ReaderState,
    Reason,
    done_record,
    ended_record,
    got_record,
    item_add_at_ms,
    item_data,
    item_flags,
    item_id,
    merged,
    unpack_id,
    unpack_id_and_add,
)
from kestreld.queues.commit import Committed, PendingCommit
from kestreld.queues.item import ITEM_HEADER_BYTES, has_metadata, is_expired
from kestreld.queues.window import Window
from kestreld.stats import Totals

if TYPE_CHECKING:  # see window.py
    from kestreld.queues.queue import Queue

RETRIES_FEW: Final = 64
_GOT: Final = int(Reason.GOT)


class PendingTransfer:
    """An item on its way to another queue, and the commit there that the move waits for, if any."""

    __slots__ = ("destination", "found", "pending_commit", "record")

    def __init__(self, record: bytes, destination: "Queue") -> None:
        self.record = record
        self.destination = destination
        self.pending_commit: PendingCommit | None = None
        self.found = False

    def find_commit(self) -> None:
        """Called after the commit of the turn that moved it."""
        if not self.found:
            self.found = True
            self.pending_commit = self.destination.pending_commit


class Reader(Window):
    """A queue as clients see it: `orders` (label "") or the fanout queue `orders+audit` (label "audit")."""

    __slots__ = (
        "_retries_max", "aborted_items", "age_ms", "at_id", "closed", "counted_taken", "deleted", "discarded",
        "ended_items", "expired_items", "flushed", "flushes", "gone", "in_flight", "label", "last_fetched",
        "move_refused", "moving", "on_expired", "open", "opened_items", "retries", "taken", "taken_items",
        "total_items",
    )  # fmt: skip

    def __init__(self, queue: "Queue", label: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(queue, full_name(queue.name, label), number, at_id, config)
        self.label = label
        self.at_id = at_id  # the first id it receives
        self.deleted = False

        self.open: dict[int, bytes] = {}
        self.moving: list[PendingTransfer] = []
        self.retries: dict[int, int] = {}
        self._retries_max = RETRIES_FEW  # with more of them, those of items that are done are forgotten

        # Since the last commit
        self.taken: list[bytes] = []
        self.counted_taken = 0
        self.closed: dict[int, bytes] = {}  # by item id
        self.in_flight: list[bytes] = []  # taken or closed by a commit that is not on disk yet
        self.gone: dict[Reason, list[bytes]] = {}
        self.flushed: list[Done] = []

        self.on_expired: Callable[[bytes], None] | None = None  # told of each item that expires and moves nowhere

        # Since the server started (the guide's lifetime); `ended` is of all time, for the CHECKPOINT
        self.total_items = 0
        self.expired_items = 0
        self.discarded = 0
        self.move_refused = 0
        self.opened_items = 0
        self.taken_items = 0
        self.aborted_items = 0
        self.flushes = 0
        self.ended_items = [0] * len(Reason)
        self.last_fetched: bytes | None = None
        self.age_ms = 0

    def rename(self, label: str) -> None:
        """Go by another name, and keep position, number and open reads. Its journal learns of it by a CHECKPOINT."""
        del self.queue.readers[self.label]
        self.label, self.name = label, full_name(self.queue.name, label)
        self.queue.readers[label] = self

    def restore(self, known: ReaderState, is_lost: Callable[[int], bool]) -> None:
        """Be where a journal says. `is_lost` says of an open read whether the journal has it no more."""
        self.ended_items, self.retries = known.ended, known.retries
        opened = [len(record) - ITEM_HEADER_BYTES for one, record in self.open.items() if not is_lost(one)]
        if known.items > len(opened):
            assert self.queue.journal is not None
            position = max((known.segment, known.offset), self.queue.journal.position_before(known.head))
            self.behind_items, self.behind_bytes = known.items - len(opened), known.data_bytes - sum(opened)
            self.skip = merged([*known.done, *((one, one) for one in self.open)]) if self.open else known.done
            self.resume_at(*position, known.head)
        else:
            self.next_unread = self.queue.next_id

    def drop(self) -> None:
        """It is no more: who waits gets nothing, its open reads belong to nobody."""
        self.deleted = True
        self.wait_queue.send_away(None)

    def stop(self, problem: JournalCorrupt) -> None:
        """Its journal cannot be trusted: it gives nothing, and who waits gets an error."""
        self.window.clear()
        self.returned = 0
        self.slow = True
        self.wait_queue.send_away(f"corrupt {problem}")

    def tell_expired(self, on_expired: Callable[[bytes], None]) -> None:
        """Call this for each item that expires from now on and moves nowhere."""
        self.on_expired = on_expired

    # What is there

    def is_full(self) -> bool:
        config = self.config
        if config.max_items is not None and self.items >= config.max_items:
            return True
        return config.max_size_bytes is not None and self.data_bytes >= config.max_size_bytes

    def configure(self, config: QueueConfig) -> None:
        self.config = config
        self.max_age_ms = config.max_age_ms or 0
        self.refresh_fast_path()
        self.queue.review_next_put()  # there may be less than was found

    # Fetching

    def peek(self, now_ms: int) -> bytes | None:
        self.expire_heads(now_ms)
        return self.window[0] if self.window or self.fill() else None

    def take(self, now_ms: int) -> bytes | None:
        """Remove the head item for good. None when there is none. Raises JournalCorrupt."""
        record = self._pop(now_ms)
        if record is not None:
            self.queue.mark_dirty()
            self.taken.append(record)
        return record

    def take_at_once(self) -> bytes | None:
        """`take` and its commit: a turn in which nothing else goes on. A hot copy of these two; see `put_at_once`.

        None, with nothing done, when there is nothing, or where that takes a turn. Raises JournalFailed as a turn does.
        """
        if self.slow or not self.window or self.deleted:
            return None
        queue, record = self.queue, self.window[0]
        size, now_ms = len(record) - ITEM_HEADER_BYTES, queue.clock.read_wall()
        found, add_at_ms = unpack_id_and_add(record)
        if not queue.append_at_once(got_record(self.number, now_ms, size, found), queue.next_id):
            return None
        self.window.popleft()
        self.mem_bytes -= size
        self.taken_items += 1
        self.ended_items[_GOT] += 1
        self.last_fetched = None
        self.age_ms = now_ms - add_at_ms if now_ms > add_at_ms else 0
        if len(queue.readers) > 1:
            for other in queue.readers.values():
                if other.last_fetched is not None:
                    other.committed(now_ms)
        if queue.followers:
            queue.tell_followers()
        return record

    def open_read(self, now_ms: int) -> tuple[int, bytes] | None:
        """Set the head item aside until `close` or `abort`; its id and record. Not journaled."""
        record = self._pop(now_ms)
        return self._set_aside(record) if record is not None else None

    def open_head(self) -> tuple[int, bytes]:
        """`open_read` where the window is known to have an item and not to be `slow`."""
        return self._set_aside(self.window.popleft())

    def _set_aside(self, record: bytes) -> tuple[int, bytes]:
        opened: int = unpack_id(record, ID_OFFSET)[0]
        size = len(record) - ITEM_HEADER_BYTES
        self.mem_bytes -= size
        self.open[opened] = record
        self.open_bytes += size
        self.opened_items += 1
        self.last_fetched = record
        return opened, record

    def close(self, opened: int) -> None:
        """Confirm an open read: the item is done."""
        record = self.open.pop(opened, None)
        if record is None:
            return  # undone by a failed commit
        self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        if not self.queue.dirty:
            self.queue.mark_dirty()
        self.closed[opened] = record
        if self.retries:
            self.retries.pop(opened, None)

    def abort(self, opened: int, now_ms: int) -> None:
        """Give an open read back: it becomes the head, or moves on when it has come back too often."""
        self.abort_all([opened], now_ms)

    def abort_all(self, opened: list[int], now_ms: int) -> None:
        """Give open reads back in one step: they are at the head in queue order before anybody who waits is served."""
        back = [record for one in sorted(opened) if (record := self._come_back(one, now_ms)) is not None]
        for record in reversed(back):
            self.put_back(record)
        if back and self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def _come_back(self, opened: int, now_ms: int) -> bytes | None:
        """Take an item out of the open reads; None when it does not return to the queue."""
        record = self.open.pop(opened, None)
        if record is None:
            return None
        self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        self.aborted_items += 1
        if self.deleted or (self.config.max_retries is not None and self._give_up(opened, record, now_ms)):
            return None
        return record

    def _give_up(self, opened: int, record: bytes, now_ms: int) -> bool:
        """Count an abort; True when the item went to move_failed_to instead of the head."""
        times = self.retries.get(opened, 0) + 1
        self.retries[opened] = times
        if len(self.retries) > self._retries_max:
            self._forget_retries()
        assert self.config.max_retries is not None
        if times <= self.config.max_retries or not self.config.move_failed_to:
            self.queue.note_abort(self, opened, times)
            return False
        if not self._move(record, self.config.move_failed_to):
            self.queue.note_abort(self, opened, times)
            return False
        return True  # counted on, should the move fail

    def _move(self, record: bytes, destination: str) -> bool:
        """Put an item that leaves on another queue; it is done here one commit later. False when refused."""
        taker = self.queue.mover(destination, item_data(record), item_flags(record))
        if taker is None:
            self.move_refused += 1
            return False
        self.queue.note_move()
        self.moving.append(PendingTransfer(record, taker))
        return True

    def _forget_retries(self) -> None:
        """Keep counts of items that are not done only."""
        fresh, undone = self.fresh_id(), set(self._undone_ids())
        self.retries = {one: times for one, times in self.retries.items() if one >= fresh or one in undone}
        self._retries_max = 2 * len(self.retries) + RETRIES_FEW

    def _pop(self, now_ms: int) -> bytes | None:
        """Remove the first item that is not expired from the window, filling it first if need be."""
        self.expire_heads(now_ms)
        if not self.window and not self.fill():
            return None
        record = self.window.popleft()
        if self.slow:
            self.left_front(record)
        return record

    def expire_heads(self, now_ms: int, limit: int = -1) -> int:
        """Remove expired items from the head, moving them on if so configured; how many. Only heads expire."""
        if not self.metadata_items and not self.max_age_ms and (self.window or self.attached):
            return 0
        count = 0
        while count != limit and (self.window or self.fill()):
            record = self.window[0]
            if not is_expired(record, self.max_age_ms, now_ms):
                break
            self.window.popleft()
            self.left_front(record)
            self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
            count += 1
            self.expired_items += 1
            destination = self.config.move_expired_to
            if destination is None or not self._move(record, destination):
                self._end(Reason.EXPIRED, record)
                if self.on_expired is not None:
                    self.on_expired(record)
        return count

    def discard_head(self) -> bool:
        """Drop the oldest waiting item to make room. False when there is none."""
        if not self.window and not self.fill():
            return False
        record = self.window.popleft()
        self.left_front(record)
        self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
        self.discarded += 1
        self._end(Reason.DISCARDED, record)
        return True

    def _end(self, reason: Reason, record: bytes) -> None:
        self.queue.mark_dirty()
        self.gone.setdefault(reason, []).append(record)

    def flush(self, now_ms: int) -> int:
        """Drop every waiting item but not open reads; how many there were."""
        self.queue.flush_counters()
        items, data_bytes = self.items, self.data_bytes
        self.flushes += 1
        if items:
            self.queue.mark_dirty()
            first = self._lowest_waiting()
            kept = sorted([*self.open, *map(item_id, self._on_the_move())])
            ranges = _gaps(first, self.queue.next_id, kept)
            self.flushed.append(Done(self.number, Reason.FLUSHED, now_ms, items, data_bytes, ranges))
        self.window.clear()
        self.attach_at_end()
        return items

    # The commit

    def flush_counters(self) -> None:
        """Count what was taken since the last call out of the window's bytes."""
        count = len(self.taken) - self.counted_taken
        if count:
            taken = self.taken[self.counted_taken :] if self.counted_taken else self.taken
            self.mem_bytes -= sum(map(len, taken)) - count * ITEM_HEADER_BYTES
            self.counted_taken = len(self.taken)
            self.taken_items += count
            self.last_fetched = taken[-1]

    def count_puts(self, items: int, data_bytes: int) -> None:
        """So much was put for it."""
        self.total_items += items
        if self.attached:
            self.mem_bytes += data_bytes
        else:
            self.behind_items += items
            self.behind_bytes += data_bytes

    def done_records(self, at_ms: int) -> list[bytes]:
        """The DONE records of this commit."""
        made = []
        if self.taken:
            made.append(self._done(Reason.GOT, at_ms, self.taken, self._taken_ranges()))
        if self.closed:
            made.append(self._done(Reason.CONFIRMED, at_ms, self.closed.values(), _ranges(sorted(self.closed))))
        for reason, records in self.gone.items():
            made.append(self._done(reason, at_ms, records, _ranges(sorted(map(item_id, records)))))
        if self.flushed:
            for done in self.flushed:
                self.ended_items[Reason.FLUSHED] += done.items
                made.append(done_record(done))
        return made

    def _taken_ranges(self) -> list[Range]:
        first, last = item_id(self.taken[0]), item_id(self.taken[-1])
        if self.taken_in_order and last - first + 1 == len(self.taken):
            return [(first, last)]
        return _ranges(sorted(map(item_id, self.taken)))

    def _done(self, reason: Reason, at_ms: int, records: Collection[bytes], ranges: list[Range]) -> bytes:
        count = len(records)
        self.ended_items[reason] += count
        data_bytes = sum(map(len, records)) - count * ITEM_HEADER_BYTES
        return ended_record(self.number, reason, at_ms, count, data_bytes, ranges)

    def committed(self, now_ms: int) -> None:
        """The commit is written: forget what it said."""
        if self.last_fetched is not None:
            self.age_ms = max(now_ms - item_add_at_ms(self.last_fetched), 0)
            self.last_fetched = None
        if self.queue.sync_ms == 0:
            self.in_flight = [*self.taken, *self.closed.values()]
        if self.taken:
            self.taken = []
            self.counted_taken = 0
        self.taken_in_order = True
        if self.closed:
            self.closed = {}
        if self.gone:
            self.gone = {}
        if self.flushed:
            self.flushed = []

    def none_in_flight(self) -> None:
        """What it took by the commit under way to the disk is there, or goes there in another way."""
        self.in_flight = []

    def settle_moves(self, failed: Container[Committed]) -> None:
        """Items moved to other queues are done here once they are written there, and on disk where that is asked for;
        back where that failed.
        """
        moving, self.moving = self.moving, []
        for move in reversed(moving):
            move.find_commit()
            pending_commit = move.pending_commit
            if move.destination in failed or (pending_commit is not None and pending_commit.failure is not None):
                self.put_back(move.record)
            elif pending_commit is not None and pending_commit.pending:
                self.moving.insert(0, move)
            else:
                self.gone.setdefault(Reason.MOVED, []).append(move.record)
                self.queue.mark_dirty()

    def undo(self, first_new_id: int) -> None:
        """The commit failed: its puts leave, its takes and closes return to the head; the rest stays done."""
        left = [*self.in_flight, *self.taken, *self.closed.values(), *[move.record for move in self.moving]]
        back = [record for record in left if item_id(record) < first_new_id]
        self.closed, self.moving, self.in_flight = {}, [], []
        self.taken, self.counted_taken, self.taken_in_order = [], 0, True
        for opened in [opened for opened in self.open if opened >= first_new_id]:
            self.open_bytes -= len(self.open.pop(opened)) - ITEM_HEADER_BYTES
        back += [self.window[index] for index in range(self.returned) if item_id(self.window[index]) < first_new_id]
        fresh = [record for record in islice(self.window, self.returned, None) if item_id(record) < first_new_id]
        back.sort(key=item_id)
        self.window = deque(back + fresh)
        self.returned = len(back)
        self.mem_bytes = sum(map(len, self.window)) - len(self.window) * ITEM_HEADER_BYTES
        self.metadata_items = sum(map(has_metadata, self.window))
        self.next_unread = min(self.next_unread, first_new_id)
        self.refresh_fast_path()
        self.undo_detaching()

    def forget_turn(self, held: Collection[int]) -> None:
        """Forget what a turn that was cut short has left. Of its open reads only `held` ones stay."""
        back = [record for one, record in self.open.items() if one not in held]
        self.open.update({one: record for one, record in self.closed.items() if one in held})
        self.open = {one: record for one, record in self.open.items() if one in held}
        self.open_bytes = sum(map(len, self.open.values())) - len(self.open) * ITEM_HEADER_BYTES
        if self.queue.in_memory:
            self.return_lost([*back, *[move.record for move in self.moving]])
        self.taken, self.counted_taken, self.closed, self.gone, self.flushed, self.moving = [], 0, {}, {}, [], []
        self.last_fetched = None

    def return_lost(self, records: list[bytes]) -> None:
        """Make items the head again, in their order, where they neither wait already nor are open."""
        known = {*self.open, *map(item_id, self.window)}
        for record in sorted(records, key=item_id, reverse=True):
            if item_id(record) not in known:
                self.put_back(record)

    def forget_done(self, is_waiting: Callable[[int], bool]) -> None:
        """Forget the open reads that are done."""
        self.open = {one: record for one, record in self.open.items() if is_waiting(one)}
        self.open_bytes = sum(map(len, self.open.values())) - len(self.open) * ITEM_HEADER_BYTES

    def has_fetched(self, record: bytes) -> bool:
        """Whether somebody has been given an item since the last commit."""
        return item_id(record) in self.open or record in self.taken

    def totals(self) -> Totals:
        """What it has counted since the server started. `queue.flush_counters()` comes first."""
        parent_items = 0 if self.label else self.total_items
        return Totals(self.total_items, parent_items, self.taken_items + self.opened_items, self.expired_items)

    def state(self) -> ReaderState:
        """This reader as a CHECKPOINT keeps it. Between commits only."""
        journal = self.queue.journal
        assert journal is not None
        if self.retries:
            self._forget_retries()
        fresh = self.fresh_id()
        undone = sorted(self._undone_ids())
        head = min(undone[0], fresh) if undone else fresh
        position = journal.position_before(head) if journal.segments else (0, 0)
        if not self.attached and head >= self.next_unread:
            position = max(position, (self.segment, self.offset))
        passed = sum(1 for one in self.skip if one[1] < head)
        del self.skip[:passed]
        self.skip_at = max(self.skip_at - passed, 0)
        done = _gaps(head, fresh, undone)
        for first, last in self.skip:
            if first >= fresh:
                # Since a repair open reads may be among them.
                done += _gaps(first, last + 1, undone[bisect_left(undone, first) : bisect_right(undone, last)])
        moved = self._on_the_move()
        return ReaderState(
            self.number,
            Kind.QUEUE,
            self.label,
            self.at_id,
            head,
            position[0],
            position[1],
            self.items + len(self.open) + len(moved),
            self.data_bytes + self.open_bytes + sum(map(len, moved)) - len(moved) * ITEM_HEADER_BYTES,
            list(self.ended_items),
            done,
            dict(self.retries),
        )

    def _undone_ids(self) -> list[int]:
        """Ids not done below the fresh part of the window: open, come back, or on their way to another queue."""
        return list(map(item_id, self.unfinished()))

    def unfinished(self) -> list[bytes]:
        """Items out of the window's order that are not done: open, come back, or on their way to another queue."""
        back = [self.window[index] for index in range(self.returned)]
        return [*self.open.values(), *back, *self._on_the_move()]

    def ended_in_memory(self) -> list[bytes]:
        """Items that are done here, but not yet in the journal, or not yet on disk where that is asked for."""
        gone = [record for records in self.gone.values() for record in records]
        return [*self.taken, *self.closed.values(), *gone, *self.in_flight]

    def _on_the_move(self) -> list[bytes]:
        """Items put on another queue whose leaving this one is not written yet."""
        return [move.record for move in self.moving] + self.gone.get(Reason.MOVED, [])

    def next_fresh(self) -> int:
        """The next id it has not seen yet."""
        return self.queue.next_id if self.attached else self.next_unread

    def fresh_id(self) -> int:
        """The next id it has not delivered to anybody yet."""
        return item_id(self.window[self.returned]) if len(self.window) > self.returned else self.next_fresh()

    def head(self) -> int:
        """The lowest id not done."""
        fresh = self.fresh_id()
        return (
            min(self._undone_ids(), default=fresh) if self.open or self.returned or self.moving or self.gone else fresh
        )

    def _lowest_waiting(self) -> int:
        fresh = self.fresh_id()
        return min([fresh, *(item_id(self.window[index]) for index in range(self.returned))])


class Stream:
    """A reader that is a position only: no window, no limits, no expiry; not a queue to clients."""

    __slots__ = ("at_id", "ended_items", "head", "name", "number")

    def __init__(self, name: str, number: int, at_id: int, known: ReaderState | None = None) -> None:
        self.name = name
        self.number = number
        self.at_id = at_id
        self.head = at_id if known is None else known.head
        self.ended_items = [0] * len(Reason) if known is None else known.ended

    def advance(self, through: int, at_ms: int) -> bytes:
        """It is done with everything up to and including `through`; the record that says so."""
        done = Done(self.number, Reason.CONFIRMED, at_ms, 0, 0, [(self.head, through)])
        self.head = through + 1
        return done_record(done)

    def state(self) -> ReaderState:
        return ReaderState(self.number, Kind.STREAM, self.name, self.at_id, self.head, ended=list(self.ended_items))


def full_name(family: str, label: str) -> str:
    return f"{family}+{label}" if label else family


def _ranges(ids: list[int]) -> list[Range]:
    """Ids in rising order as ranges."""
    first = last = ids[0]
    if ids[-1] - first + 1 == len(ids):
        return [(first, ids[-1])]
    made: list[Range] = []
    for one in ids[1:]:
        if one == last + 1:
            last = one
        else:
            made.append((first, last))
            first = last = one
    made.append((first, last))
    return made


def _gaps(first: int, end: int, kept: list[int]) -> list[Range]:
    """The ids from `first` up to but not including `end`, less `kept` (in order), as ranges."""
    made: list[Range] = []
    for one in kept:
        if first <= one < end:
            if first < one:
                made.append((first, one - 1))
            first = one + 1
    if first < end:
        made.append((first, end - 1))
    return made
