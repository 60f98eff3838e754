"""How far a reader has come: what is open, what it has done since the last commit, and what a CHECKPOINT keeps of it.

The DONE records of a commit are made here, and what they say is forgotten when it is written, or undone when it fails.
Who takes items, opens and confirms them is in reader.py.
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
from kestreld.queues.window import Window
from kestreld.stats import Totals

RETRIES_FEW: Final = 64


class PendingTransfer:
    """An item on its way to another queue, and the commit there that the move waits for, if any."""

    __slots__ = ("destination", "found", "pending_commit", "record")

    def __init__(self, record: bytes, destination: Family) -> None:
        self.record = record
        self.destination = destination
        self.pending_commit: PendingCommit | None = None
        self.found = False

    def find_commit(self) -> None:
        """Called after the commit of the turn that moved it."""
        if not self.found:
            self.found = True
            self.pending_commit = self.destination.pending_commit


class Progress(Window):
    """What a reader has given out, and has finished beyond its position."""

    __slots__ = (
        "_retries_max", "aborted_items", "age_ms", "at_id", "closed", "counted_taken", "counts_errors", "dead_letters",
        "ended_items", "expired_items", "flushed", "gone", "in_flight", "keys", "label", "last_fetched",
        "move_refused", "moving", "open", "opened_items", "retries", "taken", "taken_items", "total_items",
    )  # fmt: skip

    def __init__(self, family: Family, label: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(family, full_name(family.name, label), number, at_id, config)
        self.label = label
        self.at_id = at_id  # the first id it receives

        self.open: dict[int, bytes] = {}
        self.keys: Keys | None = None  # that its items were put with; None = none ever was
        self.moving: list[PendingTransfer] = []
        self.retries: dict[int, int] = {}
        self.counts_errors = False
        self._retries_max = RETRIES_FEW  # with more of them, those of items that are done are forgotten

        # Since the last commit
        self.taken: list[bytes] = []
        self.counted_taken = 0
        self.closed: dict[int, bytes] = {}  # by item id
        self.in_flight: list[bytes] = []  # taken or closed by a commit that is not on disk yet
        self.gone: dict[Reason, list[bytes]] = {}
        self.flushed: list[Done] = []

        # Since the server started (the guide's lifetime); `ended` is of all time, for the CHECKPOINT
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

    # Open and on the move

    def _add_open(self, one: int, record: bytes) -> None:
        """Somebody has an item from now on."""
        self.open[one] = record
        self.open_bytes += len(record) - ITEM_HEADER_BYTES

    def _pop_open(self, one: int) -> bytes | None:
        """Nobody has an item any more; None if nobody had."""
        record = self.open.pop(one, None)
        if record is not None:
            self.open_bytes -= len(record) - ITEM_HEADER_BYTES
        return record

    def _take_from_open(self, opened: int) -> bytes | None:
        """An open read, or a lease, ends without its item being done; None if it was over."""
        record = self._pop_open(opened)
        if record is not None:
            self.aborted_items += 1
            if self.held is not None:
                self.held.end_lease(opened)
        return record

    def has_fetched(self, record: bytes) -> bool:
        """Whether somebody has been given an item since the last commit."""
        return item_id(record) in self.open or record in self.taken

    def has_last(self, record: bytes) -> bool:
        """Whether it holds an item that was put last."""
        if self.held is not None and self.held.has(item_id(record)):
            return True
        return bool(self.window) and self.window[-1] == record

    def _end(self, reason: Reason, record: bytes) -> None:
        self.family.mark_dirty()
        self.gone.setdefault(reason, []).append(record)

    def _move(self, record: bytes, destination: str, reason: Reason | None) -> bool:
        """Put an item that leaves on another queue; it is done here one commit later. False when refused.

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
                self.family.mark_dirty()

    def _on_the_move(self) -> list[bytes]:
        """Items put on another queue whose leaving this one is not written yet."""
        return [move.record for move in self.moving] + self.gone.get(Reason.MOVED, [])

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
        self._keep_open({one: record for one, record in self.open.items() if is_waiting(one)})

    def _keep_open(self, opened: dict[int, bytes]) -> None:
        self.open = opened
        self.open_bytes = data_bytes_of(opened.values())

    def _forget_retries(self) -> None:
        """Keep counts of items that are not done only."""
        is_left = self.not_done()
        self.retries = {one: times for one, times in self.retries.items() if is_left(one)}
        self._retries_max = 2 * len(self.retries) + RETRIES_FEW

    def not_done(self) -> Callable[[int], bool]:
        """Whether an item, by its id, is not done."""
        fresh, undone, held = self.fresh_id(), set(self._undone_ids()), self.held
        return lambda one: one >= fresh or one in undone or (held is not None and held.has(one))

    # Counting

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

    def totals(self) -> Totals:
        """What it has counted since the server started. `queue.flush_counters()` comes first."""
        parent_items = 0 if self.label else self.total_items
        return Totals(self.total_items, parent_items, self.taken_items + self.opened_items, self.expired_items)

    # The commit

    def done_records(self, at_ms: int) -> list[bytes]:
        """The DONE records of this commit."""
        made = []
        if self.taken:
            made.append(self._done(Reason.GOT, at_ms, self.taken, self._taken_ranges()))
        if self.closed:
            made.append(self._done(Reason.CONFIRMED, at_ms, self.closed.values(), ranges_of(sorted(self.closed))))
        for reason, records in self.gone.items():
            made.append(self._done(reason, at_ms, records, ranges_of(sorted(map(item_id, records)))))
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
        """The commit is written: forget what it said."""
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
        """The commit says what is done: it is held no more."""
        fresh = self.fresh_id()
        for records in (self.taken, self.closed.values(), *self.gone.values()):
            for one in map(item_id, records) if held.out or held.turns else ():
                if held.forget(one) and one >= fresh:
                    self.pass_over(one)
        held.committed()
        if self.family.sync_ms != 0:
            held.none_in_flight()

    def none_in_flight(self) -> None:
        """What it took by the commit under way to the disk is there, or goes there in another way."""
        self.in_flight = []
        if self.held is not None:
            self.held.none_in_flight()

    def undo(self, first_new_id: int) -> None:
        """The commit failed: its puts leave, its takes and closes return to the head; the rest stays done."""
        left = [*self.in_flight, *self.taken, *self.closed.values(), *[move.record for move in self.moving]]
        if self.held is not None:
            for record in self.in_flight:
                if self.held.remember(item_id(record)):
                    self.meet_again(item_id(record))
            self.held.undo_confirmed()
        self.taken, self.counted_taken, self.closed, self.moving, self.in_flight = [], 0, {}, [], []
        for opened in [opened for opened in self.open if opened >= first_new_id]:
            self._pop_open(opened)
            if self.held is not None:
                self.held.end_lease(opened)
        if self.keys is not None:
            self.keys.undo_from(first_new_id)
        self._undo_from(first_new_id, [record for record in left if item_id(record) < first_new_id])

    def forget_turn(self, held: Collection[int]) -> None:
        """Forget what a turn that was cut short has left. Of its open reads only `held` ones stay."""
        back = [record for one, record in self.open.items() if one not in held]
        self.open.update({one: record for one, record in self.closed.items() if one in held})
        self._keep_open({one: record for one, record in self.open.items() if one in held})
        if self.family.in_memory:
            self.return_lost([*back, *[move.record for move in self.moving]])
        self.taken, self.counted_taken, self.closed, self.gone, self.flushed, self.moving = [], 0, {}, {}, [], []
        self.last_fetched = None
        elsewhere = {*self.open, *map(item_id, self.window)} if self.family.in_memory else None
        if self.held is not None:
            self.held = self.held.renewed(self.open, elsewhere)
        if self.keys is not None and not self.family.in_memory:
            self.keys.undo_from(0)  # the journal will say them

    # How far it has come

    def state(self) -> ReaderState:
        """This reader as a CHECKPOINT keeps it. Between commits only."""
        journal = self.family.journal
        assert journal is not None
        if self.retries:
            self._forget_retries()
        fresh = self.fresh_id()
        undone_ids, retries, held, held_items, held_bytes = self._undone_ids(), self.retries, self.held, 0, 0
        if held is not None:
            # What DUE records are about, they say.
            described = held.described()
            out = [record for one, record in self._undone() if one in described] if described else []
            unnoted = [one for one in held.unnoted if one not in held.out]
            undone_ids = [one for one in undone_ids if one not in described] + unnoted
            retries = {one: times for one, times in retries.items() if not held.is_noted(one)}
            held_items = len(held.later) + len(held.ready) - len(unnoted) + len(out)
            held_bytes = held.data_bytes - held.unnoted_bytes() + data_bytes_of(out)
        undone = sorted(undone_ids)
        head = min(undone[0], fresh) if undone else fresh
        position = journal.position_before(head) if journal.segments else (0, 0)
        if not self.attached and head >= self.next_unread:
            position = max(position, (self.segment, self.offset))
        self._forget_passed(head)
        done = gaps(head, fresh, undone)
        for first, last in self.skip:
            if last >= fresh:
                # Since a repair open reads may be among them.
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
        """Ids not done below the fresh part of the window: open, come back, or on their way to another queue."""
        return [*self.open, *map(item_id, self._out_of_order())]

    def _undone(self) -> list[tuple[int, bytes]]:
        """Those with their records."""
        return [*self.open.items(), *[(item_id(record), record) for record in self._out_of_order()]]

    def _out_of_order(self) -> list[bytes]:
        """Items that came back, or are on their way to another queue."""
        return [*[self.window[index] for index in range(self.returned)], *self._on_the_move()]

    def unfinished(self) -> list[bytes]:
        """Items out of the window's order that are not done: open, come back, or on their way to another queue."""
        return [*self.open.values(), *self._out_of_order()]

    def ended_in_memory(self) -> list[bytes]:
        """Items that are done here, but not yet in the journal, or not yet on disk where that is asked for."""
        gone = [record for records in self.gone.values() for record in records]
        return [*self.taken, *self.closed.values(), *gone, *self.in_flight]

    def next_fresh(self) -> int:
        """The next id it has not seen yet."""
        return self.family.next_id if self.attached else self.next_unread

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
