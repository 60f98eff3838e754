"""Progress of a reader: its open reads, the items done since the last commit, and its state in a CHECKPOINT.

`taken`, `closed`, `gone` and `flushed` collect done items; `done_records` makes the commit's DONE records of them,
and they are cleared once it is written. If the commit fails, or later its sync (`in_flight`), takes and closes return
to the window; expired, discarded, flushed and moved items stay done. An item that is not done is in one place: waiting
in the window or on disk, held back, open, or moving to another queue. A move is done here one commit after the put
there. All ids below `head` are done, and `state` is exact between commits only.

The clients' operations on items (take, open, confirm) are in reader.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container
from typing import Final

from kestreld.config.config import QueueConfig
from kestreld.journal.records import (
    Done,
    Kind,
    Origin,
    Range,
    ReaderState,
    Reason,
    done_record,
    ended_record,
    item_add_at_ms,
    item_data,
    item_flags,
    item_id,
)
from kestreld.queues.commit import Committed, PendingCommit
from kestreld.queues.family import Family, full_name
from kestreld.queues.held import Held
from kestreld.queues.id_ranges import gaps, ranges_of
from kestreld.queues.item import ITEM_HEADER_BYTES, data_bytes_of
from kestreld.queues.keys import Keys
from kestreld.queues.reader_window import ReaderWindow
from kestreld.stats import Totals

RETRIES_FEW: Final = 64


class PendingTransfer:
    """An item moving to another queue, and the commit there that the move waits for, if any."""

    __slots__ = ("destination", "found", "pending_commit", "record")

    def __init__(self, record: bytes, destination: Family) -> None:
        self.record = record
        self.destination = destination
        self.pending_commit: PendingCommit | None = None
        self.found = False

    def find_commit(self) -> None:
        """Find the destination's commit. Called after the commit of the turn that moved the item."""
        if not self.found:
            self.found = True
            self.pending_commit = self.destination.pending_commit


class ReaderProgress(ReaderWindow):
    """Items that a reader has given out, and those finished beyond its position."""

    __slots__ = (
        "_retries_max", "aborted_items", "age_ms", "at_id", "closed", "counted_taken", "counts_errors", "dead_letters",
        "ended_items", "expired_items", "flushed", "gone", "in_flight", "keys", "label", "last_fetched",
        "move_refused", "moving", "open", "opened_items", "retries", "taken", "taken_items", "total_items",
    )  # fmt: skip

    def __init__(self, family: Family, label: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(family, full_name(family.name, label), number, at_id, config)
        self.label = label
        self.at_id = at_id  # the first id that this reader receives

        self.open: dict[int, bytes] = {}
        self.keys: Keys | None = None  # of its items; None = no item ever had a key
        self.moving: list[PendingTransfer] = []
        self.retries: dict[int, int] = {}
        self.counts_errors = False
        self._retries_max = RETRIES_FEW  # with more counts, those of items that are done are dropped

        # Since the last commit
        self.taken: list[bytes] = []
        self.counted_taken = 0
        self.closed: dict[int, bytes] = {}  # confirmed items by id
        self.in_flight: list[bytes] = []  # taken or closed by a commit that is not on disk yet
        self.gone: dict[Reason, list[bytes]] = {}
        self.flushed: list[Done] = []

        # Since the server started (Kestrel's lifetime); `ended_items` is of all time, for the CHECKPOINT
        self.total_items = 0
        self.expired_items = 0
        self.move_refused = 0
        self.dead_letters = 0  # sent to move_expired_to or move_failed_to
        self.opened_items = 0
        self.taken_items = 0
        self.aborted_items = 0
        self.ended_items = [0] * len(Reason)
        self.last_fetched: bytes | None = None
        self.age_ms = 0

    # Open and moving items

    def _add_open(self, one: int, record: bytes) -> None:
        """Record that somebody has an item from now on."""
        self.open[one] = record
        self.open_bytes += len(record) - ITEM_HEADER_BYTES

    def _pop_open(self, one: int) -> bytes | None:
        """Remove an item from the open ones; None if it was not open."""
        record = self.open.pop(one, None)
        if record is not None:
            self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        return record

    def _take_from_open(self, opened: int, *, was_delivered: bool = True) -> bytes | None:
        """End an open read or lease without its item being done; None if it was over."""
        record = self._pop_open(opened)
        if record is not None:
            self.aborted_items += 1
            if self.held is not None:
                self.held.end_lease(opened, was_delivered=was_delivered)
        return record

    def has_fetched(self, record: bytes) -> bool:
        """True if the item is open, or was taken since the last commit."""
        return item_id(record) in self.open or record in self.taken

    def has_last(self, record: bytes) -> bool:
        """True if the item, which was put last, has reached this reader."""
        if self.held is not None and self.held.has(item_id(record)):
            return True
        return bool(self.window) and self.window[-1] == record

    def _end(self, reason: Reason, record: bytes) -> None:
        self.family.mark_dirty()
        self.gone.setdefault(reason, []).append(record)

    def _move(self, record: bytes, destination: str, reason: Reason | None) -> bool:
        """Put an item on another queue; it is done here one commit later. False if it is refused there.

        With a `reason` it is a dead letter there.
        """
        one, origin = item_id(record), None
        if reason is not None:
            before = self.family.origins.get(one)
            put_at_ms = item_add_at_ms(record) if before is None else before.put_at_ms
            failure = self.family.failure_of(self.number, one)
            origin = Origin(0, reason, self.retries.get(one, 0), put_at_ms, self.name, failure)
        taker = self.family.mover(destination, item_data(record), item_flags(record), origin)
        if taker is None:
            self.move_refused += 1
            return False
        self.family.note_move()
        self.moving.append(PendingTransfer(record, taker))
        self.dead_letters += reason is not None
        return True

    def settle_moves(self, failed: Container[Committed]) -> None:
        """Mark moved items done once they are written there, or on disk if asked for; return them if that failed."""
        moving, self.moving = self.moving, []
        for move in reversed(moving):
            move.find_commit()
            pending_commit = move.pending_commit
            if move.destination in failed or (pending_commit is not None and pending_commit.failure is not None):
                self.put_back(move.record)
                self._has_stayed(move)
            elif pending_commit is not None and pending_commit.pending:
                self.moving.insert(0, move)
            else:
                self.gone.setdefault(Reason.MOVED, []).append(move.record)
                self.family.mark_dirty()

    def _has_stayed(self, move: PendingTransfer) -> None:
        if self.held is not None:
            self.held.has_stayed(item_id(move.record))

    def _on_the_move(self) -> list[bytes]:
        """Items put on another queue whose DONE here is not written yet."""
        return [move.record for move in self.moving] + self.gone.get(Reason.MOVED, [])

    def return_lost(self, records: list[bytes]) -> None:
        """Make items the head again, in their order, unless they wait or are open."""
        known = {*self.open, *map(item_id, self.window)}
        if self.held is not None:
            known.update(self.held.later, self.held.ready)
        for record in sorted(records, key=item_id, reverse=True):
            if item_id(record) not in known:
                self.put_back(record)

    def forget_done(self, is_waiting: Callable[[int], bool]) -> None:
        """Keep only the open reads that are not done according to `is_waiting`."""
        self._keep_open({one: record for one, record in self.open.items() if is_waiting(one)})

    def _keep_open(self, opened: dict[int, bytes]) -> None:
        self.open = opened
        self.open_bytes = data_bytes_of(opened.values())

    def _forget_retries(self) -> None:
        """Drop the failure counts of items that are done."""
        is_left = self.not_done()
        self.retries = {one: times for one, times in self.retries.items() if is_left(one)}
        self._retries_max = 2 * len(self.retries) + RETRIES_FEW

    def not_done(self) -> Callable[[int], bool]:
        """Return a function of an id that is True if the item is not done."""
        fresh, undone, held = self.fresh_id(), set(self._undone_ids()), self.held
        return lambda one: one >= fresh or one in undone or (held is not None and held.has(one))

    # Counting

    def flush_counters(self) -> None:
        """Count the items taken since the last call, and subtract them from the window's bytes."""
        count = len(self.taken) - self.counted_taken
        if count:
            taken = self.taken[self.counted_taken :] if self.counted_taken else self.taken
            self.mem_bytes -= sum(map(len, taken)) - count * ITEM_HEADER_BYTES
            self.counted_taken = len(self.taken)
            self.taken_items += count
            self.last_fetched = taken[-1]

    def count_puts(self, items: int, data_bytes: int) -> None:
        """Count items that were put for this reader."""
        self.total_items += items
        if self.attached:
            self.mem_bytes += data_bytes
        else:
            self.behind_items += items
            self.behind_bytes += data_bytes

    def count_passed_on(self, items: int) -> None:
        """Count items that only children keep."""
        self.total_items += items

    def totals(self) -> Totals:
        """Counters since the server started. Call `queue.flush_counters()` first."""
        parent_items = 0 if self.label else self.total_items
        return Totals(self.total_items, parent_items, self.taken_items + self.opened_items, self.expired_items)

    # The commit

    def done_records(self, at_ms: int) -> list[bytes]:
        """DONE records of this commit."""
        made = []
        if self.taken:
            made.append(self._done(Reason.GOT, at_ms, self.taken, self._taken_ranges()))
        if self.closed:
            made.append(self._done(Reason.CONFIRMED, at_ms, self.closed.values(), ranges_of(sorted(self.closed))))
        for reason, records in self.gone.items():
            made.append(self._done(reason, at_ms, records, ranges_of(sorted(map(item_id, records)))))
        if self.flushed:
            for done in self.flushed:
                self.ended_items[done.reason] += done.items
                made.append(done_record(done))
        return made

    def done_of_held(self, at_ms: int) -> list[bytes]:
        """DONE records of this commit for items with DUE, LEASE or KEY records, which no CHECKPOINT can replace."""
        made = [done_record(Done(self.number, done.reason, at_ms, 0, 0, done.ranges)) for done in self.flushed]
        if self.held is not None:
            records = [*self.taken, *self.closed.values(), *[record for one in self.gone.values() for record in one]]
            ids = sorted([one for one in map(item_id, records) if self.held.may_be_described(one)])
            if ids:
                made.append(done_record(Done(self.number, Reason.CONFIRMED, at_ms, 0, 0, ranges_of(ids))))
        return made

    def _taken_ranges(self) -> list[Range]:
        first, last = item_id(self.taken[0]), item_id(self.taken[-1])
        if self.taken_in_order and last - first + 1 == len(self.taken):
            return [(first, last)]
        return ranges_of(sorted(map(item_id, self.taken)))

    def _done(self, reason: Reason, at_ms: int, records: Collection[bytes], ranges: list[Range]) -> bytes:
        count = len(records)
        self.ended_items[reason] += count
        data_bytes = sum(map(len, records)) - count * ITEM_HEADER_BYTES
        return ended_record(self.number, reason, at_ms, count, data_bytes, ranges)

    def committed(self, now_ms: int) -> None:
        """Clear the changes of the commit: they are written."""
        if self.last_fetched is not None:
            self.age_ms = max(now_ms - item_add_at_ms(self.last_fetched), 0)
            self.last_fetched = None
        held = self.held
        if held is not None and (held.out or held.turns or held.settling):
            self._forget_held(held)
        if self.family.sync_ms == 0:
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
        """Release held items that are done by this commit."""
        fresh, is_final = self.fresh_id(), self.family.sync_ms != 0
        for ids in (map(item_id, self.taken), self.closed, *(map(item_id, records) for records in self.gone.values())):
            if not (held.out or held.turns):
                break
            if is_final:
                passed = held.forget_for_good(ids, fresh)
            else:
                passed = [one for one in ids if held.forget(one) and one >= fresh]
            for one in passed:
                self.pass_over(one)
        held.committed()
        if is_final:
            held.none_in_flight()

    def none_in_flight(self) -> None:
        """Clear the changes of the commit being synced: they are on disk, or get there in another way."""
        self.in_flight = []
        if self.held is not None:
            self.held.none_in_flight()

    def undo(self, first_new_id: int) -> None:
        """Undo a failed commit: its puts leave, its takes and closes return to the head; all else stays done."""
        left = [*self.in_flight, *self.taken, *self.closed.values(), *[move.record for move in self.moving]]
        if self.held is not None:
            for record in self.in_flight:
                if self.held.remember(item_id(record)):
                    self.meet_again(item_id(record))
            self.held.undo_confirmed()
        for move in self.moving:
            self._has_stayed(move)
        self.taken, self.counted_taken, self.closed, self.moving, self.in_flight = [], 0, {}, [], []
        for opened in [opened for opened in self.open if opened >= first_new_id]:
            self._pop_open(opened)
            if self.held is not None:
                self.held.end_lease(opened)
        if self.keys is not None:
            self.keys.undo_from(first_new_id)
        self._undo_from(first_new_id, [record for record in left if item_id(record) < first_new_id])

    def forget_turn(self, held: Collection[int]) -> None:
        """Forget the state left by an interrupted turn. Of the open reads only those in `held` stay open."""
        back = [record for one, record in self.open.items() if one not in held]
        self.open.update({one: record for one, record in self.closed.items() if one in held})
        self._keep_open({one: record for one, record in self.open.items() if one in held})
        if self.family.in_memory:
            self.return_lost([*back, *[move.record for move in self.moving]])
            for move in self.moving:
                self._has_stayed(move)
        self.taken, self.counted_taken, self.closed, self.gone, self.flushed, self.moving = [], 0, {}, {}, [], []
        self.last_fetched = None
        elsewhere = {*self.open, *map(item_id, self.window)} if self.family.in_memory else None
        if self.held is not None:
            self.held = self.held.renewed(self.open, elsewhere)
        if self.keys is not None and not self.family.in_memory:
            self.keys.undo_from(0)  # the journal has them

    # Position

    def state(self) -> ReaderState:
        """State of this reader for a CHECKPOINT. Call it between commits only."""
        journal = self.family.journal
        assert journal is not None
        if self.retries:
            self._forget_retries()
        fresh = self.fresh_id()
        undone_ids, retries, held, held_items, held_bytes = self._undone_ids(), self.retries, self.held, 0, 0
        if held is not None:
            # DUE and LEASE records describe these items.
            described = held.described_of(self.open.keys())
            is_all = len(described) == len(self.open)
            open_bytes = self.open_bytes if is_all else data_bytes_of([*map(self.open.__getitem__, described)])
            out = [record for record in self._out_of_order() if held.is_described(item_id(record))]
            unnoted = [one for one in held.unnoted if one not in held.out]
            undone_ids = [] if is_all else list(self.open.keys() - described)
            undone_ids += [one for one in map(item_id, self._out_of_order()) if not held.is_described(one)] + unnoted
            # DUE records have the counts of what they are about, LEASE records have not.
            retries = {one: times for one, times in retries.items() if one in held.leases or not held.is_noted(one)}
            held_items = len(held.later) + len(held.ready) - len(unnoted) + len(described) + len(out)
            held_bytes = held.data_bytes - held.unnoted_bytes() + open_bytes + data_bytes_of(out)
        undone = sorted(undone_ids)
        head = min(undone[0], fresh) if undone else fresh
        position = journal.position_before(head) if journal.segments else (0, 0)
        if not self.attached and head >= self.next_unread:
            position = max(position, (self.segment, self.offset))
        self._forget_passed(head)
        done = gaps(head, fresh, undone)
        for first, last in self.skip:
            if last >= fresh:
                # After a repair open reads may be among them.
                first = max(first, fresh)
                done += gaps(first, last + 1, undone[bisect_left(undone, first) : bisect_right(undone, last)])
        moved = self._on_the_move()
        items = self.items + len(self.open) + len(moved)
        data_bytes = self.data_bytes + self.open_bytes + data_bytes_of(moved)
        if held is not None:
            items += len(held.later) - held_items
            data_bytes += held.later_bytes - held_bytes
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
        """Ids not done below the fresh part of the window: open, returned, or moving to another queue."""
        return [*self.open, *map(item_id, self._out_of_order())]

    def _out_of_order(self) -> list[bytes]:
        """Items that came back, or are moving to another queue."""
        return [*[self.window[index] for index in range(self.returned)], *self._on_the_move()]

    def unfinished(self) -> list[bytes]:
        """Items out of the window's order that are not done: open, returned, or moving to another queue."""
        return [*self.open.values(), *self._out_of_order()]

    def ended_in_memory(self) -> list[bytes]:
        """Items done here whose DONE is not written yet, or not on disk yet if replies wait for that."""
        gone = [record for records in self.gone.values() for record in records]
        return [*self.taken, *self.closed.values(), *gone, *self.in_flight]

    def next_fresh(self) -> int:
        """First id that has not reached the window yet."""
        return self.family.next_id if self.attached else self.next_unread

    def fresh_id(self) -> int:
        """First id not delivered in order yet: the first fresh one in the window, or `next_fresh`."""
        return item_id(self.window[self.returned]) if len(self.window) > self.returned else self.next_fresh()

    def head(self) -> int:
        """Lowest id that is not done, or that a DUE record or a KEY that counts is about."""
        head = self.fresh_id()
        if self.open or self.returned or self.moving or self.gone:
            head = min([head, *self._undone_ids()])
        return min(head, self.held_from() or head)

    def held_from(self) -> int:
        """An id that no DUE record and no KEY that counts is below; 0 = there are none."""
        held = 0 if self.held is None else self.held.lowest()
        keys = 0 if self.keys is None else self.keys.lowest()
        return min(held, keys) if held and keys else held or keys

    def _lowest_waiting(self) -> int:
        fresh = self.fresh_id()
        return min([fresh, *(item_id(self.window[index]) for index in range(self.returned))])
