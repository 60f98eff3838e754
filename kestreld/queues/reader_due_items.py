"""Scheduling of a reader's delayed, retried and leased items: what becomes of each when its time comes.

held.py has the items that are held back, and their times; here they fall due, return to the window, fail and wait
again, or are done.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from kestreld.config.config import LEASE_GRACE_MS_MIN
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    LAST_ATTEMPT,
    LEASE_MS_MAX,
    LEASES_MAX,
    LEASES_VERSION,
    Due,
    Reason,
    Why,
    item_expire_at_ms,
    item_id,
    lease_entry,
    lease_record,
    pack_lease,
    with_deliveries,
)
from kestreld.queues.held import ATTEMPT_MAX, Held, Lease, lease_of
from kestreld.queues.holders import Holders
from kestreld.queues.item import ITEM_HEADER_BYTES, is_expired
from kestreld.queues.reader_progress import ReaderProgress

_IS_COUNTED: Final = ATTEMPT_MAX + 1  # in the `lease` of a DUE record: a failure of this attempt was counted before
READ_AHEAD_BYTES: Final = 64 * 1024  # half a millisecond of small items
NEAR_IDS: Final = 64  # so near the item before, an item is not looked for anew


def _in_parts(leases: dict[int, Lease]) -> list[dict[int, Lease]]:
    """Leases for one LEASE record each."""
    if len(leases) <= LEASES_MAX:
        return [leases]
    left = iter(leases.items())
    return [dict(islice(left, LEASES_MAX)) for _ in range(0, len(leases), LEASES_MAX)]


class ReaderDueItems(ReaderProgress):
    """A reader's items that have a time or an owner of their own."""

    __slots__ = ()

    def next_due_at_ms(self) -> int:
        """Instant of the wall clock at which the next item is due or lease ends; 0 = nothing is held."""
        due_ms, clock = self.held.next_at_ms() if self.held is not None else None, self.family.clock
        return clock.wall_ms - clock.monotonic_ms + due_ms if due_ms is not None else 0

    # Startup and stop

    def _restore_held(self, due: dict[int, Due]) -> None:
        """Hold the items that a journal says are held, none of them in memory yet.

        Leases go on that ran when the server stopped: their ends would have been written, those by time too.
        """
        clock, is_start = self.family.clock, self.held is None
        self.held = held = self._new_held() if self.held is None else self.held.renewed(self.open, None)
        leases: list[tuple[int, Due, int]] = []  # id, and time left
        now_ms, wall_ms = clock.monotonic_ms, clock.wall_ms
        for one, known in due.items():
            left_ms = known.left_ms(wall_ms)
            if known.attempts > self.retries.get(one, 0):
                self.retries[one] = known.attempts
            if one in self.open:
                held.out[one] = now_ms + left_ms
                continue
            is_running = known.why == Why.LEASED and (is_start or left_ms > 0)
            if known.why == Why.LEASED or known.lease & LAST_ATTEMPT:
                is_counted = known.why != Why.LEASED or known.lease & _IS_COUNTED
                before = max(known.deliveries, self.retries.get(one, 0) - bool(is_counted))
                held.go_on_from(one, known.lease & ATTEMPT_MAX, before, is_over=not is_running)
            if not is_running:
                held.hold(one, None, known.data_bytes, now_ms + left_ms, has_failed=known.why == Why.FAILED)
                continue
            leases.append((one, known, left_ms))
        if leases:
            leases.sort(key=itemgetter(0))
            with suppress(JournalCorrupt):  # the queue has stopped
                self._restore_leases(held, leases, self.config.lease_grace_ms if is_start else LEASE_GRACE_MS_MIN)
        if held.unwritten_leases:
            self.family.mark_leased()
        held.fall_due(now_ms)

    def _restore_leases(self, held: Held, leases: list[tuple[int, Due, int]], least_ms: int) -> None:
        """Resume leases for `least_ms` at least, in order of id, so that each segment is read once."""
        family, now_ms, wall_ms = self.family, self.family.clock.monotonic_ms, self.family.clock.wall_ms
        journal, first_pending = family.journal, family.next_id - len(family.pending)
        assert journal is not None
        records: Iterator[tuple[int, bytes]] = iter(())
        position, last = (-1, -1), -NEAR_IDS
        for one, known, left_ms in leases:
            if one >= first_pending:
                record = family.pending[one - first_pending]
            else:
                if one - last >= NEAR_IDS and (nearest := journal.position_before(one)) != position:
                    position, records = nearest, journal.puts(one, READ_AHEAD_BYTES)
                record, last = self._record_among(records, one), one
            self._add_open(one, record)
            age_ms = wall_ms - (known.since_at_ms or known.at_ms)
            since_ms = now_ms - age_ms if age_ms > 0 else now_ms
            ends_at_ms = now_ms + (left_ms if left_ms > least_ms else least_ms)
            held.resume(one, lease_of(known.lease & ATTEMPT_MAX, since_ms, ends_at_ms, known.holder))
            if known.lease & _IS_COUNTED:
                held.counted.add(one)
            if left_ms < least_ms:
                held.write_lease(one)

    def begin_lease_grace(self) -> None:
        """Have the leases that a start has resumed last for `lease_grace` from now on at least."""
        held = self.held
        if held is None or not held.leased:
            return
        held.prolong_unseen(self.family.clock.monotonic_up_ms() + self.config.lease_grace_ms)
        if held.unwritten_leases:
            self.family.mark_leased()

    def _record_among(self, records: Iterator[tuple[int, bytes]], wanted: int) -> bytes:
        """Read on to the record of item `wanted`. A JournalCorrupt stops the queue."""
        found, record = 0, b""
        try:
            while found < wanted:
                found, record = next(records, (wanted + 1, b""))
            if found != wanted:
                assert self.family.journal is not None
                raise JournalCorrupt(self.family.journal.folder, 0, f"item {wanted} is missing")
        except JournalCorrupt as problem:
            self.family.stop(problem)
            raise
        return record

    def note_leases(self) -> None:
        """Have the journal say which leases run, so that they go on after a stop of the server."""
        held = self.held
        if held is None or held.writes_leases:
            return
        for one, leased in held.leases.items():
            if leased.attempt >= 0:
                record, is_first = self.open[one], not held.is_noted(one)
                held.take_note_of(one, leased.ends_at_ms)
                self._note(record, leased.ends_at_ms, Why.LEASED, is_first=is_first, lease=self.lease_in_records(one))

    def note_doubtful(self) -> None:
        """Have the next commit say that items wait of which undone LEASE records may still say something else."""
        held = self.held
        if held is None or not held.doubtful:
            return
        doubtful, now_ms = held.take_doubtful(), self.family.clock.monotonic_ms
        for record in [*self.open.values(), *self._out_of_order()]:
            if item_id(record) in doubtful:
                self._note(record, now_ms, Why.DELAYED, is_first=True)
        for one in sorted([one for one in doubtful if one in held.ready]):
            value, attempts, lease = held.ready[one], self.retries.get(one, 0), self.lease_in_records(one)
            due_at_ms, size = held.due_of(value), held.size_of(value)
            self.family.note_due([self], self.number, one, due_at_ms, size, Why.DELAYED, attempts, lease, is_first=True)

    def lease_in_records(self, one: int) -> int:
        """`lease` of a DUE or LEASE record about an item."""
        held = self.held_items()
        if held.is_leased(one):
            lease = held.leases[one].attempt | (_IS_COUNTED if one in held.counted else 0)
        elif (last := held.last_attempt(one)) >= 0:
            lease = last | LAST_ATTEMPT
        else:
            return 0
        return with_deliveries(lease, held.deliveries_before(one))

    def write_leases(self, *, is_wanted: bool) -> None:
        """Have the journal say which leases run from now on, also after a kill of the server."""
        held = self.held_items()
        held.write_leases(is_wanted=is_wanted and self.family.journal is not None)
        if held.unwritten_leases:
            self.family.mark_leased()

    def add_lease_records(self, parts: list[bytes], before_id: int, holders: Holders) -> None:
        """Add LEASE records of the unwritten leases of items below `before_id`, with the HOLDERs that they refer to.

        They count as written from now on: `Held.undo_written_leases` says otherwise. The loop has `lease_entry` and
        `Holders.number` inline, since every token waits for it.
        """
        held, clock = self.held or self.held_items(), self.family.clock
        now_ms, unnoted, counted, turns = clock.monotonic_ms, held.unnoted, held.counted, held.turns
        is_special = bool(unnoted or counted or turns)
        opened: dict[Any, bytes] = self.open
        out: dict[Any, Any] = held.out
        numbers: dict[str, Any] = holders.numbers
        key: Any  # as objects: compiled, each use of an int makes one
        ends: Any = None
        low: Any = 0
        high: Any = 0
        holder: str | None = None
        number: Any = 0
        later: list[int] = []
        ends_at_ms, highest = -1, 0
        unwritten = held.take_unwritten_leases()
        part: dict[Any, Lease]
        for part in _in_parts(unwritten):
            entries: list[bytes] = []
            for key, leased in part.items():
                one: int = key
                if one >= before_id:
                    later.append(one)
                    continue
                if one > highest:
                    highest = one
                if leased.ends_at_ms != ends_at_ms:  # those of one turn nearly always end together
                    ends = ends_at_ms = leased.ends_at_ms
                    length_ms = ends_at_ms - now_ms
                    if not 0 <= length_ms <= LEASE_MS_MAX:
                        length_ms = LEASE_MS_MAX if length_ms > 0 else 0
                    low, high = length_ms & 0xFFFFFFFF, length_ms >> 32
                if leased.holder is not holder:
                    holder = leased.holder
                    number = numbers.get(holder)
                    if number is None:
                        number, numbers = holders.number(holder, parts), holders.numbers
                out[key] = ends
                lease = leased.attempt
                if is_special:
                    unnoted.discard(key)
                    if key in counted:
                        lease |= _IS_COUNTED
                    if key in turns:
                        lease = with_deliveries(lease, held.deliveries_before(one))
                entries.append(pack_lease(key, low, high, len(opened[key]) - ITEM_HEADER_BYTES, lease, number))
            if entries:
                parts.append(lease_record(self.number, clock.wall_ms, entries))
        for one in later:
            del unwritten[one]
            held.write_lease(one)
        held.wrote_leases(unwritten, highest=highest, may_be_undone=self.family.sync_ms == 0)

    def lease_copy(self, one: int) -> bytes:
        """LEASE record of a running lease whose holder has a name, behind a DUE that says the rest; else nothing."""
        leased, clock = self.held_items().leases[one], self.family.clock
        if not leased.holder:
            return b""
        parts: list[bytes] = []
        number, size = Holders().number(leased.holder, parts), len(self.open[one]) - ITEM_HEADER_BYTES
        entry = lease_entry(one, leased.ends_at_ms - clock.monotonic_ms, size, self.lease_in_records(one), number)
        return b"".join(parts) + lease_record(self.number, clock.wall_ms, [entry])

    # Later and ready

    def _new_held(self) -> Held:
        held = Held(self.family.agenda, self._fall_due, self.family.clock.wall_ms)
        held.writes_leases = self.config.journal_leases and self.family.journal is not None
        return held

    def held_items(self) -> Held:
        """Items held back; created at the first use."""
        if self.held is None:
            self.held = self._new_held()
        return self.held

    def hold(self, record: bytes, due_at_ms: int, why: Why) -> None:
        """Keep an item that is in no window from being delivered before `due_at_ms`. `Family.note_due` comes next."""
        held, one, size = self.held_items(), item_id(record), len(record) - ITEM_HEADER_BYTES
        is_noted = held.is_noted(one)
        fits = self.family.journal is None or self.mem_bytes + size <= self.room_bytes()
        held.hold(one, record if fits else None, size, due_at_ms, has_failed=why == Why.FAILED)
        if not is_noted and self.family.journal is not None:
            held.unnoted.add(one)

    def hold_new(self, record: bytes, due_at_ms: int) -> None:
        """`hold` an item that was just put."""
        self.total_items += 1
        self.hold(record, due_at_ms, Why.DELAYED)

    def _hold_again(self, record: bytes, delay_ms: int, why: Why) -> None:
        """Hold back an item that a client had."""
        one, due_at_ms = item_id(record), self.family.clock.monotonic_up_ms() + delay_ms
        is_first = self.held is None or not self.held.is_noted(one)
        self.hold(record, due_at_ms, why)
        self._note(record, due_at_ms, why, is_first=is_first)

    def _note(self, record: bytes, due_at_ms: int, why: Why, *, is_first: bool, lease: int = 0) -> None:
        one, size = item_id(record), len(record) - ITEM_HEADER_BYTES
        attempts, held = self.retries.get(one, 0), self.held_items()
        if one in held.out:
            held.out[one] = due_at_ms
        lease = lease or self.lease_in_records(one)
        self.family.note_due([self], self.number, one, due_at_ms, size, why, attempts, lease, is_first=is_first)

    def _fall_due(self, one: int, is_later: bool) -> None:
        now_ms = self.family.clock.wall_ms
        if is_later:
            self.make_ready(one, now_ms)
        else:
            self.end_lease(one, now_ms)

    def make_ready(self, one: int, now_ms: int) -> None:
        """Deliver a later item now, before the items in the window."""
        held = self.held_items()
        held.make_ready(one)
        self._before_what_waits(one)
        if self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def run_now(self, one: int, now_ms: int) -> None:
        """Deliver a later item now, before its time. The next commit says so."""
        held, due_at_ms = self.held_items(), self.family.clock.monotonic_ms
        why = Why.FAILED if one in held.failed else Why.DELAYED
        size, is_first = held.size_of(held.later[one]), one in held.unnoted
        held.bring_forward(one, due_at_ms)
        attempts = self.retries.get(one, 0)
        lease = self.lease_in_records(one)
        self.family.note_due([self], self.number, one, due_at_ms, size, why, attempts, lease, is_first=is_first)
        self.make_ready(one, now_ms)

    def come_back(self, one: int, record: bytes, now_ms: int) -> None:
        """Make an item ready that is in no window: it goes before waiting items, by id among ready ones."""
        self.held_items().come_in(one, record, self.family.clock.monotonic_ms)
        self._before_what_waits(one)
        if self.wait_queue.waiting:
            self.wait_queue.serve(now_ms)

    def _before_what_waits(self, one: int) -> None:
        held = self.held_items()
        self.slow = True
        if held.fed > one and self.returned == 1 and item_id(self.window[0]) == held.fed:
            record = self._take_front()
            held.come_in(held.fed, record, self.family.clock.monotonic_ms)
            self.slow = True

    def _feed(self, held: Held) -> None:
        """Make the first ready item the head, unless a returned item is."""
        if self.returned or not (one := held.first_ready()):
            return
        record = self._record_of(held, one, held.ready[one])
        self.put_back(record)  # first: an interruption must not lose it if there is no journal
        held.send_out(one)

    def _record_of(self, held: Held, one: int, value: bytes) -> bytes:
        """Record of an item that is later or ready. Raises JournalCorrupt."""
        return held.record_of(value) if held.is_in_memory(value) else self._read_back(held, one)

    def _read_back(self, held: Held, wanted: int) -> bytes:
        """Read the record of an item that only the journal has. A JournalCorrupt stops the queue."""
        family = self.family
        unwritten = wanted - (family.next_id - len(family.pending))
        if unwritten >= 0:
            return family.pending[unwritten]
        journal, room_bytes = family.journal, self.room_bytes() - self.mem_bytes
        assert journal is not None
        try:
            records = journal.puts(wanted, READ_AHEAD_BYTES)
            found, wanted_record = next(records, (0, b""))
            if found != wanted:
                raise JournalCorrupt(journal.folder, 0, f"item {wanted} is missing")
            # Other ready items may follow it.
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
            family.stop(problem)
            raise
        return wanted_record

    def _is_expired(self, record: bytes, now_ms: int) -> bool:
        """True if the item is past its client's expiry or past max_age, which counts from its due time."""
        if self.held is None or (due_at_ms := self.held.out.get(item_id(record))) is None:
            return is_expired(record, self.max_age_ms, now_ms)
        clock = self.family.clock
        is_too_old = self.max_age_ms and clock.monotonic_ms - due_at_ms > self.max_age_ms
        return bool(is_too_old) or 0 < item_expire_at_ms(record) < now_ms

    def waits(self, one: int) -> bool:
        """True if an item waits, also for its time. Raises JournalCorrupt."""
        held = self.held
        if held is not None and (one in held.later or one in held.ready):
            return True
        return self._place_in_window(one) >= 0 or self._find_on_disk(one) is not None

    def waiting_record(self, one: int) -> bytes | None:
        """Record of an item that `waits`; None if it does not wait. Raises JournalCorrupt."""
        held = self.held
        value = None if held is None else held.later.get(one) or held.ready.get(one)
        if held is not None and value is not None:
            return self._record_of(held, one, value)
        at = self._place_in_window(one)
        return self.window[at] if at >= 0 else self._find_on_disk(one)

    def pull_out(self, one: int) -> bytes | None:
        """Open an item that waits, wherever it is; None if it does not wait. Raises JournalCorrupt."""
        held = self.held_items()
        value = held.ready.get(one) or held.later.get(one)
        record: bytes | None
        if value is not None:
            self.open[one] = record = self._record_of(held, one, value)  # first, as in `_feed`
            held.go_out(one)
        elif (record := self._pull_from_window(one) or self._pull_from_disk(one)) is not None and one not in held.out:
            held.take_note_of(one, self.family.clock.monotonic_ms)
        if record is not None:
            self._add_open(one, record)
        return record

    def withdraw(self, one: int, reason: Reason) -> None:
        """End an item that is later or ready. Raises JournalCorrupt if it must be read back and cannot be."""
        held = self.held_items()
        record = self._record_of(held, one, held.ready.get(one) or held.later[one])
        held.go_out(one)
        self._end(reason, record)

    # Failures

    @property
    def counts_failures(self) -> bool:
        """True if failures of items are counted."""
        config = self.config
        return config.max_retries is not None or bool(config.retry_delays_ms) or self.counts_errors

    def count_errors(self) -> None:
        """Count failures from now on, even if no setting depends on the count."""
        self.counts_errors = True

    def fail(self, one: int, now_ms: int, failure: str = "") -> bool:
        """Record a failure of an open item: it waits as `retry_delays` say, or comes back now, or moves.

        A lease is counted once, however it ends. The reason `failure` is kept if failures are counted.
        True if the item moves to another queue.
        """
        if not self.counts_failures:
            self.give_back(one, now_ms)
            return False
        if failure:
            self.family.expect_failures()
        was_counted = self.held is not None and one in self.held.counted
        record = self._take_from_open(one)
        if record is None or self.deleted:
            return False
        if not self._has_failed(one, record, was_counted=was_counted, failure=failure):
            self.come_back(one, record, now_ms)
        return bool(self.moving) and self.moving[-1].record is record

    def give_back(self, one: int, now_ms: int, delay_ms: int = 0, *, was_delivered: bool = True) -> None:
        """Return an open item now or after `delay_ms`, without counting a failure."""
        is_unsaid = was_delivered and self._is_unsaid(one)
        record = self._take_from_open(one, was_delivered=was_delivered)
        if record is None or self.deleted:
            return
        if delay_ms or is_unsaid:
            self._hold_again(record, delay_ms, Why.DELAYED)
        else:
            self._note_back(one, record, Why.DELAYED)
            self.come_back(one, record, now_ms)

    def _is_unsaid(self, one: int) -> bool:
        """True if an item's lease ends before the journal says that it was delivered, and may do so later."""
        held, journal = self.held, self.family.journal
        if held is None or journal is None or one not in held.unwritten_leases or held.is_noted(one):
            return False
        return journal.failed is None and journal.live_version >= LEASES_VERSION

    def _note_back(self, one: int, record: bytes, why: Why) -> bool:
        """Have the next commit say that an item is back. False = it need not, as the journal says nothing else."""
        held = self.held
        if held is None or not held.may_be_described(one):
            return False
        self._note(record, self.family.clock.monotonic_ms, why, is_first=one in held.unnoted)
        return True

    def take_away(self, one: int, now_ms: int, delay_ms: int = 0) -> None:
        """`give_back` of a leased item by an operator: its token is not valid any more, even while the item waits."""
        self.held_items().revoke(one)
        self.give_back(one, now_ms, delay_ms)

    def _has_failed(self, one: int, record: bytes, *, was_counted: bool = False, failure: str = "") -> bool:
        """Count a failure, unless it was counted. True if the item moves or waits for its retry, else it returns now.

        The next commit writes the count even if the item moves, so that a crash during the move does not reset it.
        """
        config = self.config
        times = max(self.retries.get(one, 0) + (not was_counted), 1)
        self.retries[one] = times
        if len(self.retries) > self._retries_max:
            self._forget_retries()
        if failure:
            self.family.note_failure(self.number, one, failure)
        is_over = config.max_retries is not None and times > config.max_retries
        moves = bool(is_over and config.move_failed_to and self._move(record, config.move_failed_to, Reason.MOVED))
        if not moves and (delays_ms := config.retry_delays_ms):
            self._hold_again(record, delays_ms[min(times, len(delays_ms)) - 1], Why.FAILED)
            return True
        if not self._note_back(one, record, Why.FAILED):
            self.family.note_abort(self.number, one, times)
        return moves

    def move_failed(self) -> None:
        """Move waiting items that failed more often than `max_retries` and that a crash kept from moving.

        Raises JournalCorrupt.
        """
        limit, destination = self.config.max_retries, self.config.move_failed_to
        if limit is None or not destination or not self.retries:
            return
        for one in sorted([one for one, times in self.retries.items() if times > limit]):
            record = self.waiting_record(one)
            if record is not None:
                if not self._move(record, destination, Reason.MOVED):
                    return  # the others would be refused, too
                self.pull_out(one)
                self._pop_open(one)

    # Leases

    def is_leased(self, one: int) -> bool:
        """True if the item is leased, not merely open with a time limit."""
        return self.held is not None and self.held.is_leased(one)

    def begin_lease(self, one: int, lease_ms: int, holder: str, lost: Callable[[], None] | None = None) -> Lease:
        """Turn an open read into a lease, which ends by itself after `lease_ms`: then `lost` is called."""
        held = self.held_items()
        if held.writes_leases and not self.family.leasing:
            self.family.mark_leased()
        return held.begin_lease(one, self.family.clock.monotonic_up_ms(), lease_ms, holder, lost)

    def deliveries_before(self, one: int) -> int:
        """Number of deliveries of an item before its running lease, as far as they are known.

        After a start, DELIVERIES_MAX of the last leases before it are known, and all that were counted as failures.
        """
        held = self.held_items()
        failures = self.retries.get(one, 0) - (one in held.counted) if self.retries else 0
        return max(held.deliveries_before(one), failures)

    def limit_open(self, one: int, limit_ms: int, holder: str, lost: Callable[[], None]) -> None:
        """Let an open read end by itself after `limit_ms`: then `lost` is called."""
        now_ms = self.family.clock.monotonic_up_ms()
        self.held_items().lease(one, lease_of(-1, now_ms, now_ms + limit_ms, holder, lost))

    def extend_lease(self, one: int, lease_ms: int) -> None:
        held = self.held or self.held_items()
        if held.writes_leases and not self.family.leasing:
            self.family.mark_leased()
        held.extend(one, self.family.clock.monotonic_up_ms() + lease_ms)

    def end_lease(self, one: int, now_ms: int) -> None:
        """End a lease that has expired, which counts as a failure."""
        held = self.held_items()
        lease = held.leases[one]
        held.expired_leases += 1
        self.fail(one, now_ms)
        if lease.lost is not None:
            lease.lost()
