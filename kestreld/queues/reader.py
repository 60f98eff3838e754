"""A reader: a named position on a journal, and the clients' operations on its items, from taking to leasing.

Its base classes have the rest: reader_window.py the items waiting in memory and on disk, reader_progress.py those taken
and done, reader_due_items.py items with a time or an owner of their own.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    ID_OFFSET,
    Done,
    Key,
    ReaderState,
    Reason,
    got_record,
    item_id,
    merged,
    unpack_id,
    unpack_id_and_add,
)
from kestreld.queues.family import full_name
from kestreld.queues.held import Lease
from kestreld.queues.id_ranges import gaps, waiting_in
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.keys import Keys, digest_of
from kestreld.queues.reader_due_items import ReaderDueItems

# queue.py, queue_puts.py and this file import one another: a family has readers, and a reader has its family.
if TYPE_CHECKING:
    from kestreld.queues.queue import Queue

_GOT: Final = int(Reason.GOT)


class Reader(ReaderDueItems):
    """A queue as clients see it: `orders` (label "") or the fanout queue `orders+audit` (label "audit")."""

    __slots__ = ("discarded", "flushes", "found_nothing", "on_expired", "queue", "reads_seen", "unread_since_ms")

    def __init__(self, queue: "Queue", label: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(queue, label, number, at_id, config)
        self.queue = queue  # `family` once more, as the type that others than readers use
        self.on_expired: Callable[[bytes], None] | None = None  # called for each item that expires and is not moved
        self.discarded = 0
        self.flushes = 0
        self.found_nothing = False  # somebody has asked for an item in vain since `was_read`
        self.reads_seen = 0
        self.unread_since_ms = -1  # on the monotonic clock, if `idle_delete` is set; -1 = from the next look on

    def rename(self, label: str) -> None:
        """Change the name, but not position, number and open reads. `Queue.rename_reader` calls this."""
        self.label, self.name = label, full_name(self.queue.name, label)

    def restore(self, known: ReaderState, is_lost: Callable[[int], bool]) -> None:
        """Restore the state that a journal says. `is_lost` is True for an open item that the journal has lost."""
        self.ended_items, self.retries = known.ended, known.retries
        opened = [
            len(record) - ITEM_HEADER_BYTES
            for one, record in self.open.items()
            if one not in known.due and not is_lost(one)
        ]
        if known.due or self.held is not None:
            self._restore_held(known.due)
            self.held_items().have_stayed(waiting_in(known))
        if known.keys:
            self._restore_keys(known.keys)
        if known.items > len(opened):
            assert self.queue.journal is not None
            position = max((known.segment, known.offset), self.queue.journal.position_before(known.head))
            self.behind_items, self.behind_bytes = known.items - len(opened), known.data_bytes - sum(opened)
            self.skip = merged([*known.done, *((one, one) for one in self.open)]) if self.open else known.done
            self.resume_at(*position, known.head)
        else:
            self.next_unread = self.queue.next_id

    def _restore_keys(self, known: list[Key]) -> None:
        clock = self.queue.clock
        self.keys = Keys() if self.keys is None else self.keys
        for key in known:
            left_ms = min(key.until_ms - clock.wall_ms, key.until_ms - key.at_ms)
            if left_ms > 0:
                self.keys.remember(key.digest, key.item_id, clock.monotonic_ms + left_ms, self.config.max_keys)

    def drop(self) -> None:
        """Stop serving: the queue was deleted. Waiters get nothing; open reads belong to nobody."""
        self.deleted = True
        if self.held is not None:
            self.held.stop()
        self.wait_queue.send_away(None)

    def stop(self, problem: JournalCorrupt) -> None:
        """Serve nothing more, because the journal cannot be trusted. Waiters get an error."""
        if self.held is not None:
            self.held.stop()
            self.held.drop_waiting()
        self.window.clear()
        self.returned = 0
        self.slow = True
        self.wait_queue.send_away(problem.with_remedy(f"corrupt {problem}"))

    def tell_expired(self, on_expired: Callable[[bytes], None]) -> None:
        """Have `on_expired` called for each item that expires from now on and is not moved."""
        self.on_expired = on_expired

    def configure(self, config: QueueConfig) -> None:
        if config.idle_delete_ms != self.config.idle_delete_ms:
            self.unread_since_ms = -1
        self.config = config
        self.max_age_ms = config.max_age_ms or 0
        if self.held is not None and config.journal_leases != self.held.writes_leases:
            self.write_leases(is_wanted=config.journal_leases)
        self.refresh_fast_path()
        self.queue.reattach()  # there may be less space than the last check found

    # Keys

    def find_key(self, key: bytes) -> int:
        """Id of the item that was put with a key which still counts; 0 = there is none."""
        return 0 if self.keys is None else self.keys.find(digest_of(key), self.queue.clock.monotonic_ms)

    def remember_key(self, key: bytes, one: int, delay_ms: int) -> None:
        """Remember the key of an item that was just put. The commit of the put writes it as well."""
        if self.keys is None:
            self.keys = Keys()
        digest, left_ms = digest_of(key), delay_ms + self.config.key_time_ms
        now_ms = self.queue.clock.monotonic_ms
        self.keys.expire(now_ms)
        self.keys.remember(digest, one, now_ms + left_ms, self.config.max_keys)
        self.queue.note_key(self, digest, one, left_ms)

    def cancel(self, key: bytes) -> bool:
        """Drop the item of a key for every reader that has it and for which it is not due yet. Raises JournalCorrupt.

        True if there was such a reader; then the key is free again.
        """
        one = self.find_key(key)
        readers = self.queue.readers.values() if one else ()
        waiting = [reader for reader in readers if reader.held is not None and one in reader.held.later]
        if waiting:
            self.queue.do_whole(partial(self._cancel, one, digest_of(key), waiting))
        return bool(waiting)

    def _cancel(self, one: int, digest: bytes, waiting: list["Reader"]) -> None:
        for reader in waiting:
            if one in reader.held_items().later:
                reader.withdraw(one, Reason.DISCARDED)
        if self.keys is not None:
            self.keys.forget(digest)
            self.queue.note_key(self, digest, one, 0)

    # Taking

    def peek(self, now_ms: int) -> bytes | None:
        self.expire_heads(now_ms)
        return self.window[0] if self.window or self.fill() else None

    def take(self, now_ms: int) -> bytes | None:
        """Remove the head item for good. None if nothing waits. Raises JournalCorrupt."""
        record = self._pop(now_ms)
        if record is not None:
            self.queue.mark_dirty()
            self.taken.append(record)
        return record

    def take_at_once(self) -> bytes | None:
        """`take` and its commit, a whole turn: a hot copy of both; see `QueuePuts.put_at_once`.

        None, with nothing done, if nothing waits or more than one write is needed. Raises JournalFailed as a turn does.
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
        """`open_read` for a window that is known to have an item and not to be `slow`."""
        return self._set_aside(self.window.popleft())

    def lease(self, now_ms: int, lease_ms: int, holder: str, lost: Callable[[], None] | None = None) -> bytes | None:
        """Lease the head item for `lease_ms`; no connection owns it. None if nothing waits. Raises JournalCorrupt."""
        found = self.open_read(now_ms)
        if found is not None:
            self.begin_lease(found[0], lease_ms, holder, lost)
        return None if found is None else found[1]

    def lease_head(self, lease_ms: int, holder: str) -> tuple[int, Lease, bytes]:
        """`open_head` and `begin_lease`, a hot copy of both; id, lease and record."""
        record = self.window.popleft()
        key: Any = unpack_id(record, ID_OFFSET)[0]  # as an object: compiled, each use of an int makes one
        opened: int = key
        size = len(record) - ITEM_HEADER_BYTES
        self.mem_bytes -= size
        self.open[key] = record
        self.open_bytes += size
        self.opened_items += 1
        self.last_fetched = record
        held = self.held if self.held is not None else self.held_items()
        if not self.queue.leasing and held.writes_leases:
            self.queue.mark_leased()
        return opened, held.begin_lease(opened, self.queue.clock.monotonic_up_ms(), lease_ms, holder, None), record

    def _set_aside(self, record: bytes) -> tuple[int, bytes]:
        opened: int = unpack_id(record, ID_OFFSET)[0]
        size = len(record) - ITEM_HEADER_BYTES
        self.mem_bytes -= size
        self.open[opened] = record
        self.open_bytes += size
        self.opened_items += 1
        self.last_fetched = record
        return opened, record

    def _pop(self, now_ms: int) -> bytes | None:
        """Remove the first item that is not expired from the window, filling the window first if necessary."""
        self.expire_heads(now_ms)
        if not self.window and not self.fill():
            self.found_nothing = True
            return None
        record = self.window.popleft()
        if self.slow:
            self.left_front(record)
        return record

    # Open reads

    def close(self, opened: int) -> None:
        """Confirm an open read: the item is done."""
        key: Any = opened
        record = self.open.pop(key, None)
        if record is None:
            return  # undone by a failed commit
        self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        if not self.queue.dirty:
            self.queue.mark_dirty()
        self.closed[key] = record
        if self.retries:
            self.retries.pop(opened, None)
        if self.held is not None:
            self.held.confirm_lease(opened)

    def abort(self, opened: int, now_ms: int) -> None:
        """Return an open read: it becomes the head, waits for its retry, or moves if it was returned too often."""
        self.abort_all([opened], now_ms)

    def abort_all(self, opened: list[int], now_ms: int, *, is_counted: bool = True) -> None:
        """Return open reads in one step: all are at the head in queue order before a waiter is served."""
        back = [record for one in sorted(opened) if (record := self._come_back(one, is_counted)) is not None]
        for record in reversed(back):
            self.put_back(record)
        if back and self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def _come_back(self, opened: int, is_counted: bool) -> bytes | None:
        """Take an item out of the open reads; None if it does not return to the queue."""
        record = self._take_from_open(opened)
        if record is None or self.deleted:
            return None
        is_counted = is_counted and (self.config.max_retries is not None or bool(self.config.retry_delays_ms))
        return None if is_counted and self._has_failed(opened, record) else record

    def send_on(self, one: int, destination: str) -> bool | None:
        """Put a waiting item on another queue, as a client would. False if that queue refuses it.

        None if the item does not wait. Raises JournalCorrupt.
        """
        if (self.held is not None and one in self.held.later) or (record := self.pull_out(one)) is None:
            return None
        self._pop_open(one)
        if self._move(record, destination, None):
            return True
        self.come_back(one, record, self.queue.clock.wall_ms)
        return False

    def was_read(self) -> bool:
        """True if somebody has read here, or has tried to, since the last call, or is about to.

        Waits, open reads and leases are that; a peek that does not wait is not.
        """
        reads = self.taken_items + self.opened_items
        is_used = bool(self.wait_queue.waiting or self.open or self.taken or self.found_nothing)
        was_read, self.reads_seen, self.found_nothing = is_used or reads != self.reads_seen, reads, False
        return was_read

    def count_unread_from(self, now_ms: int) -> None:
        """Have `idle_delete` count from now on (monotonic)."""
        self.unread_since_ms = now_ms

    # Leaving without being taken

    def is_full(self) -> bool:
        """True if the items that wait, with those not due yet, reach a limit."""
        config, items, data_bytes = self.config, self.items, self.data_bytes
        if self.held is not None:
            items += len(self.held.later)
            data_bytes += self.held.later_bytes
        if config.max_items is not None and items >= config.max_items:
            return True
        return config.max_size_bytes is not None and data_bytes >= config.max_size_bytes

    def expire_heads(self, now_ms: int, limit: int = -1) -> int:
        """Remove expired items from the head, or move them as configured; returns their number. Only heads expire."""
        held = self.held
        if held is not None:
            self._feed(held)
        if not self.metadata_items and not self.max_age_ms and (self.window or self.attached):
            return 0
        count = 0
        while count != limit and (self.window or self.fill()):
            if not self._is_expired(self.window[0], now_ms):
                break
            record = self._take_front()
            count += 1
            self.expired_items += 1
            destination = self.config.move_expired_to
            if destination is None or not self._move(record, destination, Reason.EXPIRED):
                self._end(Reason.EXPIRED, record)
                if self.on_expired is not None:
                    self.on_expired(record)
            if held is not None:
                self._feed(held)
        return count

    def discard_head(self) -> bool:
        """Drop the oldest waiting item to make room. False if nothing waits."""
        if self.held is not None:
            self._feed(self.held)
        if not self.window and not self.fill():
            return False
        record = self._take_front()
        self.discarded += 1
        self._end(Reason.DISCARDED, record)
        return True

    def flush(self, now_ms: int) -> int:
        """Drop every waiting item, but not open reads, and forget the keys; returns the number of items."""
        return self.queue.do_whole(partial(self._drop_waiting, now_ms, Reason.FLUSHED))

    def discard_waiting(self, now_ms: int) -> int:
        """`flush`, but for keys."""
        return self.queue.do_whole(partial(self._drop_waiting, now_ms, Reason.DISCARDED))

    def _drop_waiting(self, now_ms: int, reason: Reason) -> int:
        self.queue.flush_counters()
        items, data_bytes = self.items, self.data_bytes
        is_flush = reason == Reason.FLUSHED
        self.flushes += is_flush
        kept = sorted([*self.open, *map(item_id, self._on_the_move())])
        first = self._lowest_waiting()
        if self.held is not None:
            items += len(self.held.later)
            data_bytes += self.held.later_bytes
            first = min(first, self.held.lowest() or first)
            self.held.drop_waiting(kept)
        has_keys = is_flush and bool(self.keys)
        if is_flush:
            self.keys = None
        if items or has_keys:
            self.queue.mark_dirty()
            ranges = gaps(first, self.queue.next_id, kept) if items else []
            self.flushed.append(Done(self.number, reason, now_ms, items, data_bytes, ranges))
        self.window.clear()
        self.attach_at_end()
        return items
