"""Items that one reader holds back: delayed and failed ones until their time comes, and running leases.

An item is *later* until its time comes, then *ready*: delivered before the items in the window, lowest id first.
It is *out* while it is at the window's front, open, or done by a commit that is not written yet. An id is in at most
one of `later`, `ready` and `out`; `failed` is a subset of `later`; ids in `leases` are open reads. The commit of a turn
writes the leases that the turn has granted or extended (`unwritten_leases`); then their items are out, too.

The journal has a DUE or LEASE record of each held item, because a CHECKPOINT that lists a million would have 16 MB: it
has only their number, and the id from which startup must look for them. It does list `unnoted` items, which no such
record is about. Done items stay in `forgotten` until their commit is on disk, so that its failure brings them back.

This is bookkeeping only: reader_due_items.py decides what to do with an item. All times are on the monotonic clock.
"""

import struct
from collections.abc import Callable, Collection, Container, Iterable, KeysView
from heapq import heappop, heappush
from typing import Any, Final

from kestreld.journal.records import holder_name
from kestreld.queues.agenda import Agenda, Scheduled
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.sharded import DROPPED_AT_ONCE, ShardedDict, ShardedHeap

# Value of a held item: | due_at_ms u64 | PUT record |, or | due_at_ms u64 | data length u32 |, in the journal only.
_DUE: Final = struct.Struct("<Q")
_OWNER: Final = struct.Struct("<QI")
_ELSEWHERE: Final = struct.Struct("<QI")
_ID_BITS: Final = 62
_ID_MASK: Final = (1 << _ID_BITS) - 1
DUE_AT_ONCE: Final = 500  # items and leases handled per step of two milliseconds
ITEM_COST_BYTES: Final = 250  # approximate memory of an item without its data
ATTEMPT_MAX: Final = 0xFFF
_DELIVERIES_SHIFT: Final = 16
_TURNS_MASK: Final = (1 << _DELIVERIES_SHIFT) - 1
MOVED_MAX: Final = 1000  # beyond it the oldest is forgotten
BEGUN_MAX: Final = 8192  # leases not sorted by time yet: most are over before they would be
TURNS_MAX: Final = 100_000  # beyond it the oldest is forgotten
TIDY_MIN: Final = 100
LEAP: Final = 1024  # so many attempts of an item are passed over at most for each start


class Lease:
    """Holder of an item and end of the lease. `attempt` is in the token; -1 = an open read with a time limit."""

    __slots__ = ("attempt", "ends_at_ms", "extended", "holder", "lost", "since_ms", "token")

    attempt: int
    token: int  # 0 = not presented since the server started
    since_ms: int
    ends_at_ms: int
    extended: int  # how often, since it was taken or the server started
    holder: str  # address of the client that took it, with the name that it gave before it: NAME/ADDRESS
    lost: Callable[[], None] | None  # called when the lease has expired

    @property
    def name(self) -> str:
        """The name that the holder gave, or its address."""
        return holder_name(self.holder)

    @property
    def client(self) -> str:
        """The address of the client that took it."""
        return self.holder.rpartition("/")[2]

    @property
    def is_seen(self) -> bool:
        """False if nobody has presented the lease's token since the restart that it has outlived."""
        return self.token != 0


def lease_of(
    attempt: int,
    since_ms: int,
    ends_at_ms: int,
    holder: str,
    lost: Callable[[], None] | None = None,
    token: int = 0,
) -> Lease:
    """Make a Lease. `begin_lease` repeats this inline, because a constructor would double its cost."""
    made = Lease()
    made.attempt, made.since_ms, made.ends_at_ms, made.holder, made.lost = attempt, since_ms, ends_at_ms, holder, lost
    made.token, made.extended = token, 0
    return made


class Held(Scheduled):
    """The items that a reader holds back. `due` is called for each item or lease whose time has come."""

    __slots__ = (
        "_agenda", "_begun", "_confirmed", "_confirmed_in_flight", "_dropped", "_dropped_before", "_dropped_ids",
        "_due", "_from_before", "_has_written", "_left", "_lowest", "_most_turns", "_moved", "_next_attempt",
        "_ready_ids", "_times", "counted", "data_bytes", "doubtful", "expired_leases", "failed", "fed", "first_attempt",
        "forgotten", "forgotten_turns", "highest", "late_confirms", "later", "leased", "leases", "memory_bytes",
        "out", "owner", "owner_key", "ready", "ready_bytes", "settling", "turns", "unnoted", "unwritten_leases",
        "writes_leases", "written_leases",
    )  # fmt: skip

    def __init__(self, agenda: Agenda, due: Callable[[int, bool], None], first_attempt: int) -> None:
        """`first_attempt` is the first attempt number in tokens of this process, other than the previous process's."""
        super().__init__(-1)
        self._agenda = agenda
        self._due = due
        self.later: ShardedDict[int, bytes] = ShardedDict()
        self.ready: ShardedDict[int, bytes] = ShardedDict()
        self.out: dict[int, int] = {}  # id -> due time; items in the window, open, or with a DONE not yet written
        self.leases: dict[int, Lease] = {}
        self.leased = 0  # number of `leases` without open reads that have a time limit
        self.counted: set[int] = set()  # leases resumed after their failure was counted: it is counted once
        self.unnoted: set[int] = set()  # held ids that no written DUE or LEASE record is about
        self.writes_leases = False  # the journal gets a LEASE record of each
        self.unwritten_leases: dict[int, Lease] = {}  # running ones, granted or extended since the last commit
        self._has_written = False  # some LEASE records; they count also when no more are written
        self.written_leases: dict[int, Lease] = {}  # by the last write, or not on disk yet; some are over
        self.doubtful: set[int] = set()  # unnoted items whose undone LEASE records the failed segment may have
        self.failed: ShardedDict[int, bool] = ShardedDict()  # later items that are being retried
        self.data_bytes = 0  # of later and ready items
        self.ready_bytes = 0  # of ready items
        self.memory_bytes = 0  # of later and ready items whose record is in memory
        self.fed = 0  # the ready item that was last made the head
        self.forgotten: dict[int, tuple[int, bool]] = {}  # was out; (due time, unnoted); commit not on disk yet
        self.forgotten_turns: dict[int, int] = {}  # `turns` of items that are done by such a commit
        self._begun: list[int] = []  # leased lately and not in `_times` yet; some leases are over
        # id -> how often the item came back since its first lease, in the lowest bits: the next attempt's number by
        # that of the first. Above them, how often it was delivered and came back, as far as is known.
        self.turns: dict[int, int] = {}
        self._from_before: set[int] = set()  # items that `_leap` is for: leased before the start, and not since
        self._moved: dict[int, int] = {}  # latest items that failed and moved away: the token that said so
        self._confirmed: list[int] = []  # leased items confirmed since the last commit,
        self._confirmed_in_flight: list[int] = []  # and by a commit that is not on disk yet
        self.settling = False  # something was confirmed or done: commits must be reported here
        self.expired_leases = 0
        self.late_confirms = 0  # confirms after the item was done or somebody else had it
        # Items that stopped being later or ready since `track`, and their due time by DUE records; None = not tracked.
        self._left: dict[int, int | None] | None = None
        self.first_attempt = first_attempt
        self._next_attempt = first_attempt  # of an item no lease of which has ended since then or `renewed`
        self._most_turns = 0  # maximum of `turns` since then
        self.owner = -1  # journal id that `owner_key` is for
        self.owner_key = b""  # packed journal id and reader number, hashed into tokens
        self._dropped: list[ShardedDict[int, bytes]] = []  # by flushes, to be freed in parts
        self._dropped_before = 0  # length of `_dropped` at `track`
        self._dropped_ids: list[list[int]] = []
        self._times = ShardedHeap(self._is_due, self._counted)  # due_at_ms << 62 | id, of later items and leases
        self._ready_ids: list[int] = []  # heap; some are no longer ready
        self._lowest = ShardedHeap(self.has, self._counted)
        self.highest = 0  # the highest id ever held back

    # Single items

    @staticmethod
    def is_in_memory(value: bytes) -> bool:
        return len(value) != _ELSEWHERE.size

    @staticmethod
    def size_of(value: bytes) -> int:
        """Bytes of an item's data."""
        if len(value) == _ELSEWHERE.size:
            return int(_ELSEWHERE.unpack(value)[1])
        return len(value) - _DUE.size - ITEM_HEADER_BYTES

    @staticmethod
    def due_of(value: bytes) -> int:
        return int(_DUE.unpack_from(value)[0])

    @staticmethod
    def record_of(value: bytes) -> bytes:
        """PUT record of an item that is in memory."""
        return value[_DUE.size :]

    def has(self, one: int) -> bool:
        """True if the item is later, ready or out: reading the journal passes over it."""
        return one in self.later or one in self.ready or one in self.out

    def is_noted(self, one: int) -> bool:
        """True if the item is held and DUE or LEASE records, not CHECKPOINTs, are about it."""
        return self.has(one) and one not in self.unnoted

    def _counted(self) -> int:
        """Number of items in every state, plus leases."""
        return len(self.later) + len(self.ready) + len(self.out) + len(self.leases)

    @property
    def later_bytes(self) -> int:
        """Data bytes of later items."""
        return self.data_bytes - self.ready_bytes

    @property
    def is_empty(self) -> bool:
        return not (self.later or self.ready or self.out or self.leases)

    # Later

    def hold(self, one: int, record: bytes | None, size: int, due_at_ms: int, *, has_failed: bool = False) -> None:
        """Hold an item back until `due_at_ms`. `record` None: only the journal has it."""
        self.out.pop(one, None)
        if has_failed:
            self.failed[one] = True
        self.later[one] = _ELSEWHERE.pack(due_at_ms, size) if record is None else _DUE.pack(due_at_ms) + record
        self.data_bytes += size
        if record is not None:
            self.memory_bytes += size
        self._look_for(one)
        self._plan(due_at_ms, one)

    def _look_for(self, one: int) -> None:
        """Extend the range of ids in which the journal is searched for held items."""
        self._lowest.push(one, one)
        if one > self.highest:
            self.highest = one

    def _plan(self, due_at_ms: int, one: int) -> None:
        self._times.push(one, due_at_ms << _ID_BITS | one)
        if self.due_at_ms < 0 or due_at_ms < self.due_at_ms:
            self.due_at_ms = due_at_ms
            self._agenda.add(self)

    def _is_due(self, key: int) -> bool:
        """True if an entry of `_times` still counts."""
        one, at_ms = key & _ID_MASK, key >> _ID_BITS
        value = self.later.get(one)
        if value is not None:
            return self.due_of(value) == at_ms
        lease = self.leases.get(one)
        return lease is not None and lease.ends_at_ms == at_ms

    def fall_due(self, now_ms: int) -> None:
        """Call `due` for items and leases whose time has come, at most DUE_AT_ONCE of them."""
        self.due_at_ms = -1
        self._plan_begun()
        for key in self._times.pop_below((now_ms + 1) << _ID_BITS, DUE_AT_ONCE):
            if self._is_due(key):
                one = key & _ID_MASK
                self._due(one, one in self.later)
        following = self._times.first()
        # It may be set by now: a waiter may have leased an item that fell due, for a shorter time.
        if following is not None and not 0 <= self.due_at_ms <= following >> _ID_BITS:
            self.due_at_ms = max(following >> _ID_BITS, now_ms)
            self._agenda.add(self)

    def next_at_ms(self) -> int | None:
        """Time at which the next item is due or the next lease ends; None if there is neither."""
        return self.due_at_ms if self.due_at_ms >= 0 else None

    def bring_forward(self, one: int, due_at_ms: int) -> None:
        """Give a later item another due time."""
        self.later[one] = _DUE.pack(due_at_ms) + self.later[one][_DUE.size :]

    # Ready

    def make_ready(self, one: int) -> None:
        """Make a later item ready."""
        value = self.ready[one] = self.later[one]  # first: a signal may cut this short, and there is no journal
        self.later.pop(one)
        self.failed.pop(one)
        self.ready_bytes += self.size_of(value)
        heappush(self._ready_ids, one)

    def add_ready(self, one: int, record: bytes, now_ms: int) -> None:
        """Add an item as ready; no DUE record is about it."""
        self.ready[one] = _DUE.pack(now_ms) + record
        size = len(record) - ITEM_HEADER_BYTES
        self.data_bytes += size
        self.ready_bytes += size
        self.memory_bytes += size
        self.unnoted.add(one)
        self._look_for(one)
        heappush(self._ready_ids, one)

    def first_ready(self) -> int:
        """Lowest ready id; 0 if there is none."""
        while self._ready_ids and self._ready_ids[0] not in self.ready:
            heappop(self._ready_ids)
        return self._ready_ids[0] if self._ready_ids else 0

    def leave(self, one: int) -> bytes:
        """Remove an item from the later or ready ones and return its value: it is done, or goes out."""
        value = self.ready.pop(one)
        if value is None:
            value = self.later[one]
            self.later.pop(one)
            self.failed.pop(one)
            size = self.size_of(value)
        else:
            size = self.size_of(value)
            self.ready_bytes -= size
        self.data_bytes -= size
        if self.is_in_memory(value):
            self.memory_bytes -= size
        if self._left is not None:
            self._left[one] = None if one in self.unnoted else self.due_of(value)
        return value

    def send_out(self, one: int) -> None:
        """Mark a ready item as out: it goes to the window's front."""
        self.go_out(one)
        self.fed = one

    def come_in(self, one: int, record: bytes, now_ms: int) -> None:
        """Make an item ready that was out or not held."""
        is_first, due_at_ms = not self.is_noted(one), self.out.pop(one, now_ms)
        self.add_ready(one, record, due_at_ms)
        if not is_first:
            self.unnoted.discard(one)

    def keep_in_memory(self, one: int, record: bytes) -> None:
        """Store the record of a ready item that was read ahead, so that its delivery need not read the journal."""
        value = self.ready[one]
        self.ready[one] = value[: _DUE.size] + record
        self.memory_bytes += len(record) - ITEM_HEADER_BYTES

    def track(self) -> None:
        """Keep track of items that leave the later or ready ones, for `holds_since_tracked`, until `untrack`."""
        self._left = {}
        self._dropped_before = len(self._dropped)

    def untrack(self) -> None:
        self._left = None

    def holds_since_tracked(self, one: int) -> bool:
        """True if the item is held now, or was later or ready at some time since `track`."""
        if self._left is None:
            return False
        return self.has(one) or one in self._left or any(one in dropped for dropped in self._dropped_since_tracked())

    def _dropped_since_tracked(self) -> list[ShardedDict[int, bytes]]:
        return self._dropped[self._dropped_before :]

    def noted_due(self, one: int) -> int | None:
        """Due time of an item that DUE records are about, or were when `track` was called; None for any other."""
        if one in self.unnoted:
            return None
        value = self.later.get(one) or self.ready.get(one)
        if value is not None:
            return self.due_of(value)
        if self._left is None or one in self.out or one in self._left:
            return self.out.get(one, (self._left or {}).get(one))
        return next((self.due_of(dropped[one]) for dropped in self._dropped_since_tracked() if one in dropped), None)

    def is_as_noted(self, one: int, due_at_ms: int, *, has_failed: bool) -> bool:
        """True if a DUE record with this due time (± 1 ms) and reason still describes the item completely."""
        value = self.later.get(one) or self.ready.get(one)
        return (
            value is not None
            and -1 <= self.due_of(value) - due_at_ms <= 1
            and (one in self.failed) == has_failed
            and one not in self.unnoted
        )

    def take_note_of(self, one: int, now_ms: int) -> None:
        """Mark an item as out that leaves the waiting ones out of order, even from the window's front."""
        if not self.is_noted(one):
            self.unnoted.add(one)
        self.out[one] = now_ms
        self._look_for(one)

    # Leases

    def lease(self, one: int, lease: Lease) -> None:
        self.leases[one] = lease
        self.leased += lease.attempt >= 0
        self._plan(lease.ends_at_ms, one)

    def resume(self, one: int, lease: Lease) -> None:
        """Have a lease of before the start go on, of which the journal has a record. `fall_due` comes next."""
        self.out[one] = lease.ends_at_ms
        self.leases[one] = lease
        self.leased += 1
        self._begun.append(one)
        if not self.writes_leases:
            self._look_for(one)
        elif one > self.highest:
            self.highest = one

    def begin_lease(self, one: int, now_ms: int, lease_ms: int, holder: str, lost: Callable[[], None] | None) -> Lease:
        """`lease` written inline, for the next attempt at an item. The caller adds the token."""
        ends_at_ms, attempt = now_ms + lease_ms, self._next_attempt
        if self.turns:
            if self._from_before and one in self._from_before:
                self._leap(one)
            attempt += self.turns.get(one, 0)
        attempt &= ATTEMPT_MAX
        key: Any = one  # made an object once: compiled, each use of an int makes one
        made = self.leases[key] = Lease()
        made.attempt = attempt
        made.since_ms = now_ms
        made.ends_at_ms = ends_at_ms
        made.holder = holder
        made.lost = lost
        made.token = made.extended = 0
        self.leased += 1
        self._begun.append(key)
        if self.writes_leases:
            self.unwritten_leases[key] = made
        if len(self._begun) >= BEGUN_MAX:
            self._plan_begun()
        if self.due_at_ms < 0 or ends_at_ms < self.due_at_ms:
            self.due_at_ms = ends_at_ms
            self._agenda.add(self)
        return made

    def _plan_begun(self) -> None:
        begun, self._begun = self._begun, []
        for one in begun:
            lease = self.leases.get(one)
            if lease is not None:
                self._times.push(one, lease.ends_at_ms << _ID_BITS | one)

    def extend(self, one: int, ends_at_ms: int) -> None:
        lease = self.leases[one]
        lease.ends_at_ms = ends_at_ms
        lease.extended += 1
        self._plan(ends_at_ms, one)
        if self.writes_leases and lease.attempt >= 0:
            self.unwritten_leases[one] = lease

    def prolong_unseen(self, least_ms: int) -> None:
        """Have leases of before the start, whose tokens nobody has presented since, end at `least_ms` or later."""
        for one, lease in self.leases.items():
            if lease.attempt >= 0 and not lease.is_seen and lease.ends_at_ms < least_ms:
                lease.ends_at_ms = self.out[one] = least_ms
                self._plan(least_ms, one)
                self.write_lease(one)

    def is_leased(self, one: int) -> bool:
        """True if the item is leased, not merely open with a time limit."""
        lease = self.leases.get(one)
        return lease is not None and lease.attempt >= 0

    def write_leases(self, *, is_wanted: bool) -> None:
        """Have the journal get LEASE records from now on, of running leases too, or no more of them."""
        self.writes_leases = is_wanted
        self.unwritten_leases = {}
        for one in self.leases:
            self.write_lease(one)

    def write_lease(self, one: int) -> None:
        """Have a LEASE record of the item written, again if there is one, if it is leased and the journal gets any."""
        lease = self.leases.get(one)
        if self.writes_leases and lease is not None and lease.attempt >= 0:
            self.unwritten_leases[one] = lease

    def take_unwritten_leases(self) -> dict[int, Lease]:
        """Return the unwritten leases, which are about to be written: `wrote_leases` comes next."""
        taken, self.unwritten_leases = self.unwritten_leases, {}
        return taken

    def wrote_leases(self, leased: dict[int, Lease], *, highest: int, may_be_undone: bool) -> None:
        """Record that LEASE records of these items are about to be written; with `may_be_undone` a sync may fail."""
        if may_be_undone:
            self.written_leases.update(leased)
            if len(self.written_leases) > 2 * len(self.leases) + TIDY_MIN:
                self.written_leases = {one: lease for one, lease in self.written_leases.items() if one in self.leases}
        else:
            self.written_leases = leased
        self._has_written = True
        if highest > self.highest:
            self.highest = highest

    def undo_written_leases(self) -> None:
        """Have LEASE records written again that were not written, or that a failed sync may have lost."""
        lost, self.written_leases = self.written_leases, {}
        self.doubtful.update(lost)
        for one, lease in lost.items():
            if self.has(one):
                self.unnoted.add(one)
            if one in self.out:
                self.out[one] = lease.since_ms  # no written lease says when it is due
            self.write_lease(one)

    def take_doubtful(self) -> set[int]:
        """Return the doubtful items that nobody has leased: the new segment says what they are."""
        taken, self.doubtful = self.doubtful, set()
        return {one for one in taken if self.has(one) and not self.is_leased(one)}

    def go_on_from(self, one: int, attempt: int, deliveries: int, *, is_over: bool) -> None:
        """Set the attempt number of an item's lease of before a start, which runs or `is_over`, and the `deliveries`
        before that one.
        """
        turns = (attempt + is_over - self._next_attempt) & ATTEMPT_MAX or ATTEMPT_MAX + 1
        self._count_turn(one, turns, deliveries + is_over)
        self._from_before.add(one)

    def leap_before_next(self, one: int) -> None:
        """Have the next lease pass over attempts: this one, of before the start, may not have been the last."""
        self._from_before.add(one)

    def _leap(self, one: int) -> None:
        """Pass over attempts of before the start that the journal does not tell of, or that a power cut took."""
        self._from_before.discard(one)
        known = self.turns.get(one, 0)
        self._count_turn(one, (known & _TURNS_MASK) + self.first_attempt % LEAP, known >> _DELIVERIES_SHIFT)

    def end_lease(self, one: int, *, was_delivered: bool = True) -> None:
        """Record that an item comes back, from a lease or an open read: earlier tokens are no longer valid."""
        if self.leases and (lease := self.leases.pop(one, None)) is not None and lease.attempt >= 0:
            self.leased -= 1
            self.counted.discard(one)
            self.unwritten_leases.pop(one, None)
            # Not one more than before: the attempt may have ended then, and was taken up again.
            known = self.turns.pop(one, 0)
            turns = (lease.attempt + 1 - self._next_attempt) & ATTEMPT_MAX or ATTEMPT_MAX + 1
            is_new = was_delivered and turns != known & _TURNS_MASK
            self._count_turn(one, turns, (known >> _DELIVERIES_SHIFT) + is_new)
        elif one in self.turns:
            self._count_back(one)

    def deliveries_before(self, one: int) -> int:
        """Number of deliveries of an item before its lease or, if it is not leased, before its last one."""
        known, lease = self.turns.get(one, 0), self.leases.get(one)
        is_counted = lease is None or lease.attempt == self.last_attempt(one)
        deliveries = (known >> _DELIVERIES_SHIFT) - is_counted
        return deliveries if deliveries > 0 else 0

    def revoke(self, one: int) -> None:
        """Have the token of a lease that is about to end not be valid afterwards, even while the item waits."""
        lease = self.leases[one]
        lease.attempt = (lease.attempt + 1) & ATTEMPT_MAX

    def confirm_lease(self, one: int) -> None:
        """End the lease of an item that is done, as the next commit will say."""
        key: Any = one
        lease = self.leases.pop(key, None)
        if lease is not None and lease.attempt >= 0:
            self.leased -= 1
            if self.counted:
                self.counted.discard(one)
            if self.unwritten_leases:
                self.unwritten_leases.pop(one, None)
            self._confirmed.append(key)
            self.settling = True

    def undo_confirmed(self) -> None:
        """Treat items as not done that were confirmed by commits which failed or were never made."""
        for one in [*self._confirmed_in_flight, *self._confirmed]:
            self._count_back(one)
            if one in self.out:
                self._look_for(one)
        self._confirmed, self._confirmed_in_flight = [], []

    def _count_back(self, one: int) -> None:
        known = self.turns.pop(one, 0)
        self._count_turn(one, (known & _TURNS_MASK) + 1, (known >> _DELIVERIES_SHIFT) + 1)

    def _count_turn(self, one: int, turns: int, deliveries: int) -> None:
        if turns > _TURNS_MASK:
            turns -= _TURNS_MASK - ATTEMPT_MAX
        self.turns[one] = deliveries << _DELIVERIES_SHIFT | turns
        if turns > self._most_turns:
            self._most_turns = turns
        if len(self.turns) > TURNS_MAX:
            del self.turns[next(iter(self.turns))]

    def moved_away(self, one: int, token: int) -> None:
        """Remember the token of an item that is leaving the queue because it failed too often."""
        self._moved[one] = token
        if len(self._moved) > MOVED_MAX:
            del self._moved[next(iter(self._moved))]

    def has_moved(self, one: int, token: int) -> bool:
        """True if the token's item has moved away: reporting its failure again succeeds."""
        return self._moved.get(one) == token

    def has_stayed(self, one: int) -> None:
        """Forget that an item moved away: it could not, and its token is good only until somebody else has it."""
        self._moved.pop(one, None)

    def have_stayed(self, is_waiting: Callable[[int], bool]) -> None:
        """Do that for all that `is_waiting` is true for, as the journal that was read anew says."""
        for one in [one for one in self._moved if is_waiting(one)]:
            self.has_stayed(one)

    def last_attempt(self, one: int) -> int:
        """Attempt number of the item's last ended lease, known since startup or an interrupted turn; -1 = unknown.

        Each time the item was returned without a lease since then counts as an attempt.
        """
        turns = self.turns.get(one, 0) & _TURNS_MASK
        return (self._next_attempt + turns - 1) & ATTEMPT_MAX if turns else -1

    def own(self, owner: int, number: int) -> None:
        """Set whose tokens these are: those of a journal's id, and of a reader by its number."""
        self.owner, self.owner_key = owner, _OWNER.pack(owner, number)

    # All of them

    def lowest(self) -> int:
        """An id that no held item is below, nearly always the lowest of them; 0 = nothing is held."""
        lowest = self._lowest.first() or 0
        if self.leases and (self.writes_leases or self._has_written):
            first_leased = min(self.leases)  # they are not in `_lowest`, which would cost each of them more
            return min(lowest, first_leased) if lowest else first_leased
        return lowest

    def cost_bytes(self) -> int:
        """Approximate bytes of memory used."""
        return self.memory_bytes + (len(self.later) + len(self.ready)) * ITEM_COST_BYTES

    def unnoted_bytes(self) -> int:
        """Data bytes of the later and ready items that no DUE record is about."""
        return sum(self.size_of(self.ready.get(one) or self.later[one]) for one in self.unnoted if one not in self.out)

    def is_described(self, one: int) -> bool:
        """True if the item has left the waiting set and its DUE records are complete."""
        return one in self.out and one not in self.unnoted

    def may_be_described(self, one: int) -> bool:
        """True if DUE or LEASE records may be about an item that has left the waiting set."""
        return one in self.out and (one not in self.unnoted or one in self.doubtful)

    def described_of(self, ids: KeysView[int]) -> Collection[int]:
        """Those of the ids for which `is_described` is true."""
        if not self.unnoted and ids <= self.out.keys():
            return ids
        return (ids & self.out.keys()) - self.unnoted

    def go_out(self, one: int) -> None:
        """Move a later or ready item out: it is about to be delivered or leased, or is done."""
        self.out[one] = self.due_of(self.leave(one))

    def forget_for_good(self, ids: Iterable[Any], fresh: int) -> list[int]:
        """Forget items whose DONE is written and cannot be undone; those from `fresh` on that were out are returned."""
        out, turns, unnoted, passed = self.out, self.turns, self.unnoted, list[int]()
        has_turns, has_unnoted = bool(turns), bool(unnoted)
        for one in ids:
            if out.pop(one, None) is not None:
                if has_unnoted:
                    unnoted.discard(one)
                number: int = one
                if number >= fresh:
                    passed.append(number)
            if has_turns:
                turns.pop(one, None)
                self._from_before.discard(one)
        return passed

    def forget(self, one: int) -> bool:
        """Forget an item whose DONE is written; True if it was out."""
        turns = self.turns.pop(one, 0)
        self._from_before.discard(one)
        if turns:
            self.forgotten_turns[one] = turns
            self.settling = True
        due_at_ms = self.out.pop(one, None)
        if due_at_ms is not None:
            self.settling = True
            self.forgotten[one] = (due_at_ms, one in self.unnoted)
            self.unnoted.discard(one)
        return due_at_ms is not None

    def remember(self, one: int) -> bool:
        """Restore an item that `forget` dropped, as its commit failed; True if it is out again."""
        turns = self.forgotten_turns.pop(one, 0)
        if turns:  # or an earlier token would equal that of its next lease
            self._count_turn(one, turns & _TURNS_MASK, turns >> _DELIVERIES_SHIFT)
        known = self.forgotten.pop(one, None)
        if known is None:
            return False
        self.out[one], is_unnoted = known
        if is_unnoted or one in self.doubtful:
            self.unnoted.add(one)
        self._look_for(one)
        return True

    def committed(self) -> None:
        """Record that the confirmations since the last commit are written."""
        if self._confirmed or self._confirmed_in_flight:
            self._confirmed, self._confirmed_in_flight = [], self._confirmed

    def none_in_flight(self) -> None:
        """Discard the copies kept for bringing forgotten items back: their commit is on disk."""
        if self._confirmed_in_flight:
            self._confirmed_in_flight = []
        if self.forgotten:
            self.forgotten = {}
        if self.forgotten_turns:
            self.forgotten_turns = {}
        self.settling = bool(self._confirmed)
        if self.written_leases:
            self.written_leases = {}

    def drop_waiting(self, kept: Collection[int] = ()) -> None:
        """Drop every later and ready item, and those out except `kept`."""
        self.out = {one: self.out[one] for one in kept if one in self.out}
        if self._left is not None:
            self._left.update(dict.fromkeys(self.unnoted))
        self._dropped += [self.later, self.ready]
        self.later, self.ready, self.failed = ShardedDict(), ShardedDict(), ShardedDict()
        self.unnoted = {one for one in self.out if one in self.unnoted}
        self._dropped_ids += [*self._times.clear(), *self._lowest.clear(), self._ready_ids]
        for one, lease in self.leases.items():
            self._times.push(one, lease.ends_at_ms << _ID_BITS | one)
        for one in self.out:
            self._look_for(one)
        self._ready_ids = []
        self.data_bytes = self.ready_bytes = self.memory_bytes = 0

    def free_dropped(self) -> bool:
        """Free part of the dropped items; False if nothing is left. While a compaction tracks them they are kept."""
        if self._left is None:
            while self._dropped:
                if self._dropped[-1].drop_some():
                    return True
                self._dropped.pop()
        while self._dropped_ids:
            if ids := self._dropped_ids[-1]:
                del ids[-DROPPED_AT_ONCE:]
                return True
            self._dropped_ids.pop()
        return False

    def renewed(self, opened: Container[int], elsewhere: Container[int] | None) -> "Held":
        """Return a replacement for use after an interrupted turn; this object is not used any more.

        Leases of `opened` items go on. With `elsewhere` None nothing else is held, since the journal has the rest.
        A queue without a journal passes the items in its window or open as `elsewhere`: all other held items stay held.
        """
        self.stop()
        self.undo_confirmed()
        held = Held(self._agenda, self._due, self.first_attempt)
        # A repair may bring back items that are done, and how often those were leased is no longer known.
        held._next_attempt = self._next_attempt + self._most_turns + 1
        held.turns = {one: turns & ~_TURNS_MASK for one, turns in self.turns.items() if turns > _TURNS_MASK}
        held.expired_leases, held.late_confirms = self.expired_leases, self.late_confirms
        held._moved = self._moved
        held.writes_leases, held._has_written = self.writes_leases, self._has_written
        held.highest = self.highest
        if elsewhere is not None:
            for one in {*self.later, *self.ready}:
                if one not in elsewhere:
                    value = self.ready.get(one) or self.later[one]
                    record, has_failed = self.record_of(value), one in self.failed
                    held.hold(one, record, self.size_of(value), self.due_of(value), has_failed=has_failed)
                    if one in self.ready:
                        held.make_ready(one)
        for one, lease in self.leases.items():
            if one in opened:
                held.lease(one, lease)
                held.write_lease(one)
                if one in self.counted:
                    held.counted.add(one)
        held._left, held._dropped = self._left, [*self._dropped, self.later, self.ready]
        return held

    def undo_put(self, one: int) -> None:
        """Remove an item whose put was undone."""
        if one in self.later or one in self.ready:
            self.leave(one)
        self.out.pop(one, None)
        self.unnoted.discard(one)

    def stop(self) -> None:
        """Cancel the due time: nothing falls due any more."""
        self.due_at_ms = -1
