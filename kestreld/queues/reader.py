"""A reader: a named position on a journal, its window of items, and what it has done since the last commit."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    ID_OFFSET,
    Done,
    Due,
    Key,
    Kind,
    Origin,
    Range,
    ReaderState,
    Reason,
    Why,
    done_record,
    ended_record,
    got_record,
    item_add_at_ms,
    item_data,
    item_expire_at_ms,
    item_flags,
    item_id,
    merged,
    unpack_id,
    unpack_id_and_add,
)
from kestreld.queues.commit import Committed, PendingCommit
from kestreld.queues.held import Held, lease_of
from kestreld.queues.item import ITEM_HEADER_BYTES, has_metadata, is_expired
from kestreld.queues.keys import Keys, digest_of
from kestreld.queues.window import Window
from kestreld.stats import Totals

if TYPE_CHECKING:  # see window.py
    from kestreld.queues.queue import Queue

RETRIES_FEW: Final = 64
READ_AHEAD_BYTES: Final = 64 * 1024  # half a millisecond of small items
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
        "_retries_max", "aborted_items", "age_ms", "at_id", "closed", "counted_taken", "dead_letters", "deleted",
        "discarded", "ended_items", "expired_items", "flushed", "flushes", "gone", "in_flight", "keys", "label",
        "last_fetched", "move_refused", "moving", "on_expired", "open", "opened_items", "retries", "taken",
        "taken_items", "total_items",
    )  # fmt: skip

    def __init__(self, queue: "Queue", label: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(queue, full_name(queue.name, label), number, at_id, config)
        self.label = label
        self.at_id = at_id  # the first id it receives
        self.deleted = False

        self.open: dict[int, bytes] = {}
        self.keys: Keys | None = None  # that its items were put with; None = none ever was
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
        self.dead_letters = 0  # sent to move_expired_to or move_failed_to
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
        opened = [
            len(record) - ITEM_HEADER_BYTES
            for one, record in self.open.items()
            if one not in known.due and not is_lost(one)
        ]
        if known.due or self.held is not None:
            self._restore_held(known.due)
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

    def _restore_held(self, due: dict[int, Due]) -> None:
        """Hold back what a journal says is held: all of it in the journal only, for now. Leases that run go on."""
        clock = self.queue.clock
        self.held = held = self._new_held() if self.held is None else self.held.renewed(self.open, None)
        for one, known in due.items():
            left_ms = known.left_ms(clock.wall_ms)
            due_at_ms = clock.monotonic_ms + left_ms
            if known.attempts:
                self.retries[one] = known.attempts
            if one in self.open:
                held.out[one] = due_at_ms
                if known.why == Why.LEASED:
                    held.noted_leases[one] = known.lease
            else:
                held.hold(one, None, known.data_bytes, due_at_ms, has_failed=known.why == Why.FAILED)
                if known.why == Why.LEASED and left_ms:
                    self._restore_lease(held, one, known.lease)
        held.fall_due(clock.monotonic_ms)

    def _restore_lease(self, held: Held, one: int, attempt: int) -> None:
        """A lease goes on that ran when the server stopped."""
        with suppress(JournalCorrupt):  # the queue has stopped
            record, ends_at_ms = self._read_back(held, one), held.due_of(held.later[one])
            held.go_out(one)
            self.open[one] = record
            self.open_bytes += len(record) - ITEM_HEADER_BYTES
            held.lease(one, lease_of(attempt, self.queue.clock.monotonic_ms, ends_at_ms, ""))
            held.noted_leases[one] = attempt

    def note_leases(self) -> None:
        """Have the journal say which leases run: the server is about to stop, and they are to go on."""
        held = self.held
        for one, leased in held.leases.items() if held is not None else ():
            if leased.attempt >= 0 and held is not None:
                record, is_first = self.open[one], not held.is_noted(one)
                held.take_note_of(one, leased.ends_at_ms)
                self._note(record, leased.ends_at_ms, Why.LEASED, is_first=is_first, lease=leased.attempt)

    def _restore_keys(self, known: list[Key]) -> None:
        clock = self.queue.clock
        self.keys = Keys() if self.keys is None else self.keys
        for key in known:
            left_ms = min(key.until_ms - clock.wall_ms, key.until_ms - key.at_ms)
            if left_ms > 0:
                self.keys.remember(key.digest, key.item_id, clock.monotonic_ms + left_ms, self.config.max_keys)

    # Keys

    def find_key(self, key: bytes) -> int:
        """The id of the item that was put with a key which still counts; 0 = there is none."""
        return 0 if self.keys is None else self.keys.find(digest_of(key), self.queue.clock.monotonic_ms)

    def remember_key(self, key: bytes, one: int, delay_ms: int) -> None:
        """An item was just put with a key. The commit of the put says so, too."""
        if self.keys is None:
            self.keys = Keys()
        digest, left_ms = digest_of(key), delay_ms + self.config.key_time_ms
        now_ms = self.queue.clock.monotonic_ms
        self.keys.expire(now_ms)
        self.keys.remember(digest, one, now_ms + left_ms, self.config.max_keys)
        self.queue.note_key(self, digest, one, left_ms)

    def is_leased(self, one: int) -> bool:
        """Whether it is set aside for somebody until a time, whose connection does not matter."""
        leased = None if self.held is None else self.held.leases.get(one)
        return leased is not None and leased.attempt >= 0

    def drop(self) -> None:
        """It is no more: who waits gets nothing, its open reads belong to nobody."""
        self.deleted = True
        if self.held is not None:
            self.held.stop()
        self.wait_queue.send_away(None)

    def stop(self, problem: JournalCorrupt) -> None:
        """Its journal cannot be trusted: it gives nothing, and who waits gets an error."""
        if self.held is not None:
            self.held.stop()
            self.held.drop_waiting()
        self.window.clear()
        self.returned = 0
        self.slow = True
        self.wait_queue.send_away(f"corrupt {problem}")

    def tell_expired(self, on_expired: Callable[[bytes], None]) -> None:
        """Call this for each item that expires from now on and moves nowhere."""
        self.on_expired = on_expired

    # What is there

    def is_full(self) -> bool:
        """Whether it has as much as it may: what waits, and what is not due yet."""
        config, items, data_bytes = self.config, self.items, self.data_bytes
        if self.held is not None:
            items += len(self.held.later)
            data_bytes += self.held.data_bytes - self.held.ready_bytes
        if config.max_items is not None and items >= config.max_items:
            return True
        return config.max_size_bytes is not None and data_bytes >= config.max_size_bytes

    def configure(self, config: QueueConfig) -> None:
        self.config = config
        self.max_age_ms = config.max_age_ms or 0
        self.refresh_fast_path()
        self.queue.review_next_put()  # there may be less than was found

    # What is held back

    def _new_held(self) -> Held:
        return Held(self.queue.agenda, self._fall_due, self.queue.clock.wall_ms)

    def held_items(self) -> Held:
        """What it holds back: from the first time on that there is anything."""
        if self.held is None:
            self.held = self._new_held()
        return self.held

    def hold(self, record: bytes, due_at_ms: int, why: Why) -> None:
        """Keep an item, which is in no window, from being delivered before then. `Queue.note_due` comes next."""
        held, one, size = self.held_items(), item_id(record), len(record) - ITEM_HEADER_BYTES
        is_noted = held.is_noted(one)
        fits = self.queue.journal is None or self.mem_bytes + size <= self.room_bytes()
        held.hold(one, record if fits else None, size, due_at_ms, has_failed=why == Why.FAILED)
        if not is_noted and self.queue.journal is not None:
            held.unnoted.add(one)

    def hold_new(self, record: bytes, due_at_ms: int) -> None:
        """`hold` an item that was just put."""
        self.total_items += 1
        self.hold(record, due_at_ms, Why.DELAYED)

    def _hold_again(self, record: bytes, delay_ms: int, why: Why) -> None:
        """Hold back an item that somebody had."""
        one, due_at_ms = item_id(record), self.queue.clock.monotonic_ms + delay_ms
        is_first = self.held is None or not self.held.is_noted(one)
        self.hold(record, due_at_ms, why)
        self._note(record, due_at_ms, why, is_first=is_first)

    def _note(self, record: bytes, due_at_ms: int, why: Why, *, is_first: bool, lease: int = 0) -> None:
        one, size = item_id(record), len(record) - ITEM_HEADER_BYTES
        attempts, held = self.retries.get(one, 0), self.held_items()
        if one in held.out:
            held.out[one] = due_at_ms
        if why == Why.LEASED:
            held.noted_leases[one] = lease
        elif held.noted_leases:
            held.noted_leases.pop(one, None)
        self.queue.note_due([self], self.number, one, due_at_ms, size, why, attempts, lease, is_first=is_first)

    def _fall_due(self, one: int, is_later: bool) -> None:
        now_ms = self.queue.clock.wall_ms
        if is_later:
            self.make_ready(one, now_ms)
        else:
            self.end_lease(one, now_ms)

    def make_ready(self, one: int, now_ms: int) -> None:
        """A later item is to be delivered now, before what waits."""
        held = self.held_items()
        held.make_ready(one)
        self._before_what_waits(one)
        if self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def run_now(self, one: int, now_ms: int) -> None:
        """A later item is to be delivered now, whenever it was due. The next commit says so."""
        held, due_at_ms = self.held_items(), self.queue.clock.monotonic_ms
        why = Why.FAILED if one in held.failed else Why.DELAYED
        size, is_first = held.size_of(held.later[one]), one in held.unnoted
        held.bring_forward(one, due_at_ms)
        attempts = self.retries.get(one, 0)
        self.queue.note_due([self], self.number, one, due_at_ms, size, why, attempts, is_first=is_first)
        self.make_ready(one, now_ms)

    def come_back(self, one: int, record: bytes, now_ms: int) -> None:
        """An item that is in no window is ready: before what waits, by id among its like."""
        self.held_items().come_in(one, record, self.queue.clock.monotonic_ms)
        self._before_what_waits(one)
        if self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def _before_what_waits(self, one: int) -> None:
        held = self.held_items()
        self.slow = True
        if held.fed > one and self.returned == 1 and item_id(self.window[0]) == held.fed:
            record = self.window.popleft()
            self.left_front(record)
            self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
            held.come_in(held.fed, record, self.queue.clock.monotonic_ms)
            self.slow = True

    def _feed(self, held: Held) -> None:
        """Make the first ready item the head, unless something that came back is."""
        if self.returned or not (one := held.first_ready()):
            return
        value = held.ready[one]
        record = held.record_of(value) if held.is_in_memory(value) else self._read_back(held, one)
        self.put_back(record)  # first: it is lost where this is cut short, and there is no journal
        held.send_out(one)

    def _read_back(self, held: Held, wanted: int) -> bytes:
        """The record of an item that only the journal has. A JournalCorrupt stops the queue."""
        queue = self.queue
        unwritten = wanted - (queue.next_id - len(queue.pending))
        if unwritten >= 0:
            return queue.pending[unwritten]
        journal, room_bytes = queue.journal, self.room_bytes() - self.mem_bytes
        assert journal is not None
        try:
            records = journal.puts(wanted, READ_AHEAD_BYTES)
            found, wanted_record = next(records, (0, b""))
            if found != wanted:
                raise JournalCorrupt(journal.folder, 0, f"item {wanted} is missing")
            # Others that are ready may stand right behind it.
            looked_bytes = 0
            for found, record in records if len(held.ready) > 1 else ():
                size = len(record) - ITEM_HEADER_BYTES
                value = held.ready.get(found)
                if value is not None and not held.is_in_memory(value) and size <= room_bytes:
                    held.keep_in_memory(found, record)
                    room_bytes -= size
                looked_bytes += len(record)
                if looked_bytes >= READ_AHEAD_BYTES:
                    break
        except JournalCorrupt as problem:
            queue.stop(problem)
            raise
        return wanted_record

    def _is_expired(self, record: bytes, now_ms: int) -> bool:
        """By its client's expiry, or by max_age, which counts from when it was due."""
        if self.held is None or (due_at_ms := self.held.out.get(item_id(record))) is None:
            return is_expired(record, self.max_age_ms, now_ms)
        clock = self.queue.clock
        is_too_old = self.max_age_ms and clock.monotonic_ms - due_at_ms > self.max_age_ms
        return bool(is_too_old) or 0 < item_expire_at_ms(record) < now_ms

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

    def lease_head(self, lease_ms: int, holder: str) -> tuple[int, int, bytes]:
        """`open_head` and `begin_lease`, a hot copy of both; id, attempt and record."""
        record = self.window.popleft()
        opened: int = unpack_id(record, ID_OFFSET)[0]
        size = len(record) - ITEM_HEADER_BYTES
        self.mem_bytes -= size
        self.open[opened] = record
        self.open_bytes += size
        self.opened_items += 1
        self.last_fetched = record
        held = self.held if self.held is not None else self.held_items()
        return opened, held.begin_lease(opened, self.queue.clock.monotonic_ms, lease_ms, holder, None), record

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
        if self.held is not None:
            self.held.confirm_lease(opened)

    def abort(self, opened: int, now_ms: int) -> None:
        """Give an open read back: it becomes the head, or waits, or moves on when it has come back too often."""
        self.abort_all([opened], now_ms)

    def abort_all(self, opened: list[int], now_ms: int, *, is_counted: bool = True) -> None:
        """Give open reads back in one step: they are at the head in queue order before anybody who waits is served."""
        back = [record for one in sorted(opened) if (record := self._come_back(one, is_counted)) is not None]
        for record in reversed(back):
            self.put_back(record)
        if back and self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def _come_back(self, opened: int, is_counted: bool) -> bytes | None:
        """Take an item out of the open reads; None when it does not return to the queue."""
        record = self._take_from_open(opened)
        if record is None or self.deleted:
            return None
        is_counted = is_counted and (self.config.max_retries is not None or bool(self.config.retry_delays_ms))
        return None if is_counted and self._has_failed(opened, record) else record

    def _take_from_open(self, opened: int) -> bytes | None:
        record = self.open.pop(opened, None)
        if record is not None:
            self.open_bytes -= len(record) - ITEM_HEADER_BYTES
            self.aborted_items += 1
            if self.held is not None:
                self.held.end_lease(opened)
        return record

    def _has_failed(self, one: int, record: bytes) -> bool:
        """Count a failure; True when the item does not return now: it went to move_failed_to, or waits."""
        queue, config = self.queue, self.config
        times = self.retries.get(one, 0) + 1
        self.retries[one] = times
        if len(self.retries) > self._retries_max:
            self._forget_retries()
        is_over = config.max_retries is not None and times > config.max_retries
        if is_over and config.move_failed_to and self._move(record, config.move_failed_to, Reason.MOVED):
            return True  # counted on, should the move fail
        if delays_ms := config.retry_delays_ms:
            self._hold_again(record, delays_ms[min(times, len(delays_ms)) - 1], Why.FAILED)
            return True
        if self.held is not None and self.held.is_described(one):
            self._note(record, queue.clock.monotonic_ms, Why.FAILED, is_first=False)
        else:
            queue.note_abort(self, one, times)
        return False

    # Leases

    def lease(self, now_ms: int, lease_ms: int, holder: str, lost: Callable[[], None] | None = None) -> bytes | None:
        """Set the head item aside for so long, whoever confirms it. None when there is none. Raises JournalCorrupt."""
        found = self.open_read(now_ms)
        if found is not None:
            self.begin_lease(found[0], lease_ms, holder, lost)
        return None if found is None else found[1]

    def begin_lease(self, one: int, lease_ms: int, holder: str, lost: Callable[[], None] | None = None) -> int:
        """An open read is a lease from now on, which ends by itself after so long: `lost` is told of that.

        Which attempt of the item's it is.
        """
        return self.held_items().begin_lease(one, self.queue.clock.monotonic_ms, lease_ms, holder, lost)

    def limit_open(self, one: int, limit_ms: int, holder: str, lost: Callable[[], None]) -> None:
        """An open read stays one, but ends by itself after so long. `lost` is told of that."""
        now_ms = self.queue.clock.monotonic_ms
        self.held_items().lease(one, lease_of(-1, now_ms, now_ms + limit_ms, holder, lost))

    def extend_lease(self, one: int, lease_ms: int) -> None:
        self.held_items().extend(one, self.queue.clock.monotonic_ms + lease_ms)

    def end_lease(self, one: int, now_ms: int) -> None:
        """A lease has run out, which counts as a failure."""
        held = self.held_items()
        lease = held.leases[one]
        held.expired_leases += 1
        self.fail(one, now_ms)
        if lease.lost is not None:
            lease.lost()

    def fail(self, one: int, now_ms: int) -> None:
        """Whoever has an item has failed with it: it waits as `retry_delays` say, or comes back now, or moves on."""
        record = self._take_from_open(one)
        if record is not None and not self.deleted and not self._has_failed(one, record):
            self.come_back(one, record, now_ms)

    def give_back(self, one: int, now_ms: int, delay_ms: int = 0) -> None:
        """Whoever has an item does not want it, now or for so long. That is not counted."""
        record = self._take_from_open(one)
        if record is None or self.deleted:
            return
        if delay_ms:
            self._hold_again(record, delay_ms, Why.DELAYED)
        else:
            if self.held is not None and self.held.is_described(one):  # the journal may say that it is leased
                self._note(record, self.queue.clock.monotonic_ms, Why.DELAYED, is_first=False)
            self.come_back(one, record, now_ms)

    def pull_out(self, one: int) -> bytes | None:
        """Set aside an item that waits, wherever it does; None when it does not. Raises JournalCorrupt."""
        held = self.held_items()
        value = held.ready.get(one) or held.later.get(one)
        if value is not None:
            record: bytes | None = held.record_of(value) if held.is_in_memory(value) else self._read_back(held, one)
            assert record is not None
            self.open[one] = record  # first, as above
            held.go_out(one)
        elif (record := self._pull_from_window(one) or self._pull_from_disk(one)) is not None and one not in held.out:
            held.take_note_of(one, self.queue.clock.monotonic_ms)
        if record is not None:
            self.open[one] = record
            self.open_bytes += len(record) - ITEM_HEADER_BYTES
        return record

    def cancel(self, key: bytes) -> bool:
        """Drop the item of a key here, and for the other readers that have it too, wherever it is not due yet.

        Whether it was so anywhere; then the key is free again. Raises JournalCorrupt.
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

    def withdraw(self, one: int, reason: Reason) -> None:
        """An item that is later or ready is done. Raises JournalCorrupt where it has to be read back, and cannot."""
        held = self.held_items()
        value = held.ready.get(one) or held.later[one]
        record = held.record_of(value) if held.is_in_memory(value) else self._read_back(held, one)
        held.go_out(one)
        self._end(reason, record)

    def send_on(self, one: int, destination: str) -> bool | None:
        """Put an item that waits on another queue, as a client would. False when that refuses it.

        None when the item does not wait. Raises JournalCorrupt.
        """
        if (self.held is not None and one in self.held.later) or (record := self.pull_out(one)) is None:
            return None
        del self.open[one]
        self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        if self._move(record, destination, None):
            return True
        self.come_back(one, record, self.queue.clock.wall_ms)
        return False

    def _move(self, record: bytes, destination: str, reason: Reason | None) -> bool:
        """Put an item that leaves on another queue; it is done here one commit later. False when refused.

        With a `reason` it is a dead letter there.
        """
        one, origin = item_id(record), None
        if reason is not None:
            before = self.queue.origins.get(one)
            put_at_ms = item_add_at_ms(record) if before is None else before.put_at_ms
            origin = Origin(0, reason, self.retries.get(one, 0), put_at_ms, self.name)
        taker = self.queue.mover(destination, item_data(record), item_flags(record), origin)
        if taker is None:
            self.move_refused += 1
            return False
        self.queue.note_move()
        self.moving.append(PendingTransfer(record, taker))
        self.dead_letters += reason is not None
        return True

    def _forget_retries(self) -> None:
        """Keep counts of items that are not done only."""
        fresh, undone, held = self.fresh_id(), set(self._undone_ids()), self.held
        self.retries = {
            one: times
            for one, times in self.retries.items()
            if one >= fresh or one in undone or (held is not None and held.has(one))
        }
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
        held = self.held
        if held is not None:
            self._feed(held)
        if not self.metadata_items and not self.max_age_ms and (self.window or self.attached):
            return 0
        count = 0
        while count != limit and (self.window or self.fill()):
            record = self.window[0]
            if not self._is_expired(record, now_ms):
                break
            self.window.popleft()
            self.left_front(record)
            self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
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
        """Drop the oldest waiting item to make room. False when there is none."""
        if self.held is not None:
            self._feed(self.held)
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
        return self.queue.do_whole(partial(self._flush, now_ms))

    def _flush(self, now_ms: int) -> int:
        self.queue.flush_counters()
        items, data_bytes = self.items, self.data_bytes
        self.flushes += 1
        kept = sorted([*self.open, *map(item_id, self._on_the_move())])
        first = self._lowest_waiting()
        if self.held is not None:
            items += len(self.held.later)
            data_bytes += self.held.data_bytes - self.held.ready_bytes
            first = min(first, self.held.lowest() or first)
            self.held.drop_waiting(kept)
        has_keys, self.keys = bool(self.keys), None
        if items or has_keys:
            self.queue.mark_dirty()
            ranges = _gaps(first, self.queue.next_id, kept) if items else []
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

    def done_of_held(self, at_ms: int) -> list[bytes]:
        """The DONE records of this commit that no CHECKPOINT stands for: what DUE and KEY records are about."""
        made = [done_record(Done(self.number, done.reason, at_ms, 0, 0, done.ranges)) for done in self.flushed]
        if self.held is not None:
            records = [*self.taken, *self.closed.values(), *[record for one in self.gone.values() for record in one]]
            ids = sorted([one for one in map(item_id, records) if self.held.is_described(one)])
            if ids:
                made.append(done_record(Done(self.number, Reason.CONFIRMED, at_ms, 0, 0, _ranges(ids))))
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
        held = self.held
        if held is not None and (held.out or held.turns or held.settling):
            self._forget_held(held)
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

    def _forget_held(self, held: Held) -> None:
        """The commit says what is done: it is held no more."""
        fresh = self.fresh_id()
        for records in (self.taken, self.closed.values(), *self.gone.values()):
            for one in map(item_id, records) if held.out or held.turns else ():
                if held.forget(one) and one >= fresh:
                    self.pass_over(one)
        held.committed()
        if self.queue.sync_ms != 0:
            held.none_in_flight()

    def none_in_flight(self) -> None:
        """What it took by the commit under way to the disk is there, or goes there in another way."""
        self.in_flight = []
        if self.held is not None:
            self.held.none_in_flight()

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
        if self.held is not None:
            for record in self.in_flight:
                if self.held.remember(item_id(record)):
                    self.meet_again(item_id(record))
            self.held.undo_confirmed()
        back = [record for record in left if item_id(record) < first_new_id]
        self.closed, self.moving, self.in_flight = {}, [], []
        self.taken, self.counted_taken, self.taken_in_order = [], 0, True
        for opened in [opened for opened in self.open if opened >= first_new_id]:
            self.open_bytes -= len(self.open.pop(opened)) - ITEM_HEADER_BYTES
            if self.held is not None:
                self.held.end_lease(opened)
        back += [self.window[index] for index in range(self.returned) if item_id(self.window[index]) < first_new_id]
        fresh = [record for record in islice(self.window, self.returned, None) if item_id(record) < first_new_id]
        if self.keys is not None:
            self.keys.undo_from(first_new_id)
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
        elsewhere = {*self.open, *map(item_id, self.window)} if self.queue.in_memory else None
        if self.held is not None:
            self.held = self.held.renewed(self.open, elsewhere)
        if self.keys is not None and not self.queue.in_memory:
            self.keys.undo_from(0)  # the journal will say them

    def return_lost(self, records: list[bytes]) -> None:
        """Make items the head again, in their order, where they neither wait already nor are open."""
        known = {*self.open, *map(item_id, self.window)}
        if self.held is not None:
            known.update(self.held.later, self.held.ready)
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

    def has_last(self, record: bytes) -> bool:
        """Whether it holds an item that was put last."""
        if self.held is not None and self.held.has(item_id(record)):
            return True
        return bool(self.window) and self.window[-1] == record

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
        undone_ids, retries, held, held_items, held_bytes = self._undone_ids(), self.retries, self.held, 0, 0
        if held is not None:
            # What DUE records are about, they say.
            out = [record for record in self.unfinished() if held.is_described(item_id(record))]
            unnoted = [one for one in held.unnoted if one not in held.out]
            undone_ids = [one for one in undone_ids if not held.is_described(one)] + unnoted
            retries = {one: times for one, times in retries.items() if not held.is_noted(one)}
            held_items = len(held.later) + len(held.ready) - len(unnoted) + len(out)
            held_bytes = held.data_bytes - held.unnoted_bytes() + sum(map(len, out)) - len(out) * ITEM_HEADER_BYTES
        undone = sorted(undone_ids)
        head = min(undone[0], fresh) if undone else fresh
        position = journal.position_before(head) if journal.segments else (0, 0)
        if not self.attached and head >= self.next_unread:
            position = max(position, (self.segment, self.offset))
        passed = sum(1 for one in self.skip if one[1] < head)
        del self.skip[:passed]
        self.skip_at = max(self.skip_at - passed, 0)
        done = _gaps(head, fresh, undone)
        for first, last in self.skip:
            if last >= fresh:
                # Since a repair open reads may be among them.
                first = max(first, fresh)
                done += _gaps(first, last + 1, undone[bisect_left(undone, first) : bisect_right(undone, last)])
        moved = self._on_the_move()
        items, data_bytes = self.items + len(self.open) + len(moved), self.data_bytes + self.open_bytes
        data_bytes += sum(map(len, moved)) - len(moved) * ITEM_HEADER_BYTES
        if held is not None:
            items += len(held.later) - held_items
            data_bytes += held.data_bytes - held.ready_bytes - held_bytes
        return ReaderState(
            self.number,
            Kind.QUEUE,
            self.label,
            self.at_id,
            head,
            position[0],
            position[1],
            items,
            data_bytes,
            list(self.ended_items),
            done,
            dict(retries),
            held_items,
            held_bytes,
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
        head = self.fresh_id()
        if self.open or self.returned or self.moving or self.gone:
            head = min([head, *self._undone_ids()])
        return min(head, self.held_from() or head)

    def held_from(self) -> int:
        """The lowest id that a DUE record is about, or a KEY that still counts; 0 = none is."""
        held = 0 if self.held is None else self.held.lowest()
        keys = 0 if self.keys is None else self.keys.lowest()
        return min(held, keys) if held and keys else held or keys

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
