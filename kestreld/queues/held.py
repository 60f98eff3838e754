"""What one reader holds back: items with a time of their own, delayed or failed ones, and leases that run.

An item is *later* until its time comes, then *ready*: before whatever waits in the window, by id among its like. From
there it goes to the window's front when somebody asks, and is *out* from then on, until it is done. Of these the
journal has DUE records, and a CHECKPOINT says nothing; but for those that are `unnoted`. Leases are open reads that
belong to nobody's connection.

This is bookkeeping only: what becomes of an item its reader decides. Times are on the monotonic clock.
"""

import struct
from collections.abc import Callable, Collection, Container
from heapq import heappop, heappush
from typing import Final

from kestreld.queues.agenda import Agenda, Scheduled
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.parted import DROPPED_AT_ONCE, PartedDict, PartedHeap

# What an item is held as: | due_at_ms u64 | PUT record |, or with the length of its data where only the journal has it.
_DUE: Final = struct.Struct("<Q")
_ELSEWHERE: Final = struct.Struct("<QI")
_ID_BITS: Final = 62
_ID_MASK: Final = (1 << _ID_BITS) - 1
DUE_AT_ONCE: Final = 500  # so many fall due in a step of two milliseconds at most
ITEM_COST_BYTES: Final = 250  # about what one takes beside its data
ATTEMPT_MAX: Final = 0xFFF
MOVED_MAX: Final = 1000  # beyond it the oldest is forgotten
BEGUN_MAX: Final = 8192  # leases that are not in the order of their times yet: most are over before they get there
TURNS_MAX: Final = 100_000  # beyond it the oldest is forgotten


class Lease:
    """Who has an item until when. `attempt` is in the token; -1 = it is an open read with a time limit."""

    __slots__ = ("attempt", "ends_at_ms", "holder", "lost", "since_ms", "token")

    attempt: int
    token: int  # 0 = nobody has shown it since the server started
    since_ms: int
    ends_at_ms: int
    holder: str  # the address of whoever took it
    lost: Callable[[], None] | None  # told when it has run out


def lease_of(
    attempt: int,
    since_ms: int,
    ends_at_ms: int,
    holder: str,
    lost: Callable[[], None] | None = None,
    token: int = 0,
) -> Lease:
    """`begin_lease` does this for itself: where it is done most, a constructor takes as long as all the rest."""
    made = Lease()
    made.attempt, made.since_ms, made.ends_at_ms, made.holder, made.lost = attempt, since_ms, ends_at_ms, holder, lost
    made.token = token
    return made


class Held(Scheduled):
    """The items that a reader holds back. `due` is told of each whose time has come."""

    __slots__ = (
        "_agenda", "_begun", "_confirmed", "_confirmed_in_flight", "_dropped", "_dropped_before", "_dropped_ids",
        "_due", "_left", "_lowest", "_most_turns", "_moved", "_next_attempt", "_ready_ids", "_times", "counted",
        "data_bytes", "expired_leases", "failed", "fed", "first_attempt", "forgotten", "forgotten_turns", "highest",
        "late_confirms", "later", "leased", "leases", "memory_bytes", "noted_leases", "out", "owner", "owner_key",
        "ready", "ready_bytes", "settling", "turns", "unnoted",
    )  # fmt: skip

    def __init__(self, agenda: Agenda, due: Callable[[int, bool], None], first_attempt: int) -> None:
        """`first_attempt` is what the tokens of this process begin with: not those of the one before."""
        super().__init__(-1)
        self._agenda = agenda
        self._due = due
        self.later: PartedDict[int, bytes] = PartedDict()
        self.ready: PartedDict[int, bytes] = PartedDict()
        self.out: dict[int, int] = {}  # id -> when it was due; in the window, open, or not written yet as done
        self.leases: dict[int, Lease] = {}
        self.leased = 0  # how many of them are leases: open reads with a time limit are not
        self.counted: set[int] = set()  # leases extended after a failure of theirs was counted, which is once
        self.unnoted: set[int] = set()  # those that no DUE record is about, or none that is written
        self.noted_leases: dict[int, int] = {}  # of what is out and DUE records say was leased at a stop: their `lease`
        self.failed: PartedDict[int, bool] = PartedDict()  # later ones that wait because they have failed
        self.data_bytes = 0  # of what is later or ready
        self.ready_bytes = 0  # of what is ready
        self.memory_bytes = 0  # the same, as far as it is in memory
        self.fed = 0  # the ready item that was made the head last
        self.forgotten: dict[int, tuple[int, bool]] = {}  # out until a commit that is not on disk yet
        self.forgotten_turns: dict[int, int] = {}  # of what is done by such a commit
        self._begun: list[int] = []  # leased lately, some of them no more
        self.turns: dict[int, int] = {}  # how often somebody had an item, since its first lease, and did not end it
        self._moved: dict[int, None] = {}  # tokens by which items have failed that moved away, the latest of them
        self._confirmed: list[int] = []  # whose leases have ended with them since the last commit,
        self._confirmed_in_flight: list[int] = []  # and by one that is not on disk yet
        self.settling = False  # commits are to be told of, for what was confirmed or is done
        self.expired_leases = 0
        self.late_confirms = 0  # that came when somebody else had the item, or it was done
        # What is no more later or ready since `track`, and for when DUE records say it was; None = nobody asks.
        self._left: dict[int, int | None] | None = None
        self.first_attempt = first_attempt
        self._next_attempt = first_attempt  # of an item of which no lease has ended since it was renewed
        self._most_turns = 0  # that any item has had since
        self.owner = -1  # the journal that the digest in tokens is of,
        self.owner_key = b""  # and what that begins with
        self._dropped: list[PartedDict[int, bytes]] = []  # by a flush, to be freed in parts
        self._dropped_before = 0  # so many of them before `track`
        self._dropped_ids: list[list[int]] = []
        self._times = PartedHeap(self._is_due, self._counted)  # due_at_ms << 62 | id, of later ones and leases
        self._ready_ids: list[int] = []  # heap; some are ready no more
        self._lowest = PartedHeap(self.has, self._counted)
        self.highest = 0  # no id above it was ever held back

    # Of an item

    @staticmethod
    def is_in_memory(value: bytes) -> bool:
        return len(value) != _ELSEWHERE.size

    @staticmethod
    def size_of(value: bytes) -> int:
        """The length of an item's data."""
        if len(value) == _ELSEWHERE.size:
            return int(_ELSEWHERE.unpack(value)[1])
        return len(value) - _DUE.size - ITEM_HEADER_BYTES

    @staticmethod
    def due_of(value: bytes) -> int:
        return int(_DUE.unpack_from(value)[0])

    @staticmethod
    def record_of(value: bytes) -> bytes:
        """The PUT record of one that is in memory."""
        return value[_DUE.size :]

    def has(self, one: int) -> bool:
        """Whether it is held back, or was and is on its way: reading the journal passes it over."""
        return one in self.later or one in self.ready or one in self.out

    def is_noted(self, one: int) -> bool:
        """Whether a DUE record is about it, and a CHECKPOINT not."""
        return self.has(one) and one not in self.unnoted

    def _counted(self) -> int:
        """How many there are, whatever they wait for."""
        return len(self.later) + len(self.ready) + len(self.out) + len(self.leases)

    @property
    def later_bytes(self) -> int:
        """The data of what is later."""
        return self.data_bytes - self.ready_bytes

    @property
    def is_empty(self) -> bool:
        return not (self.later or self.ready or self.out or self.leases)

    # Later

    def hold(self, one: int, record: bytes | None, size: int, due_at_ms: int, *, has_failed: bool = False) -> None:
        """Not before then. `record` None: only the journal has it."""
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
        """Whoever reads the journal for what is held back is to meet this item."""
        self._lowest.push(one, one)
        if one > self.highest:
            self.highest = one

    def _plan(self, due_at_ms: int, one: int) -> None:
        self._times.push(one, due_at_ms << _ID_BITS | one)
        if self.due_at_ms < 0 or due_at_ms < self.due_at_ms:
            self.due_at_ms = due_at_ms
            self._agenda.add(self)

    def _is_due(self, key: int) -> bool:
        """Whether an entry still counts."""
        one, at_ms = key & _ID_MASK, key >> _ID_BITS
        value = self.later.get(one)
        if value is not None:
            return self.due_of(value) == at_ms
        lease = self.leases.get(one)
        return lease is not None and lease.ends_at_ms == at_ms

    def fall_due(self, now_ms: int) -> None:
        """Tell of everything whose time has come, as much as may be done in one go."""
        self.due_at_ms = -1
        self._plan_begun()
        for key in self._times.pop_below((now_ms + 1) << _ID_BITS, DUE_AT_ONCE):
            if self._is_due(key):
                one = key & _ID_MASK
                self._due(one, one in self.later)
        following = self._times.first()
        # It may be set by now: who waited for an item that has fallen due may have leased it for less.
        if following is not None and not 0 <= self.due_at_ms <= following >> _ID_BITS:
            self.due_at_ms = max(following >> _ID_BITS, now_ms)
            self._agenda.add(self)

    def next_at_ms(self) -> int | None:
        """When the next item is due or the next lease ends; None when there is neither."""
        return self.due_at_ms if self.due_at_ms >= 0 else None

    def bring_forward(self, one: int, due_at_ms: int) -> None:
        """A later item is due at another time."""
        self.later[one] = _DUE.pack(due_at_ms) + self.later[one][_DUE.size :]

    # Ready

    def make_ready(self, one: int) -> None:
        """Its time has come."""
        value = self.ready[one] = self.later[one]  # first: a signal may cut this short, and there is no journal
        self.later.pop(one)
        self.failed.pop(one)
        self.ready_bytes += self.size_of(value)
        heappush(self._ready_ids, one)

    def add_ready(self, one: int, record: bytes, now_ms: int) -> None:
        """One comes back that no DUE record is about."""
        self.ready[one] = _DUE.pack(now_ms) + record
        size = len(record) - ITEM_HEADER_BYTES
        self.data_bytes += size
        self.ready_bytes += size
        self.memory_bytes += size
        self.unnoted.add(one)
        self._look_for(one)
        heappush(self._ready_ids, one)

    def first_ready(self) -> int:
        """The lowest id; 0 = none is."""
        while self._ready_ids and self._ready_ids[0] not in self.ready:
            heappop(self._ready_ids)
        return self._ready_ids[0] if self._ready_ids else 0

    def leave(self, one: int) -> bytes:
        """Take one out that is later or ready: it is done, or on its way."""
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
        """A ready one goes to the window's front."""
        self.go_out(one)
        self.fed = one

    def come_in(self, one: int, record: bytes, now_ms: int) -> None:
        """One that was out, or never held, is ready."""
        is_first, due_at_ms = not self.is_noted(one), self.out.pop(one, now_ms)
        self.add_ready(one, record, due_at_ms)
        if not is_first:
            self.unnoted.discard(one)

    def keep_in_memory(self, one: int, record: bytes) -> None:
        """The journal was read anyway: a ready item need not be looked for when its turn comes."""
        value = self.ready[one]
        self.ready[one] = value[: _DUE.size] + record
        self.memory_bytes += len(record) - ITEM_HEADER_BYTES

    def track(self) -> None:
        """Have `holds_since_tracked` know what is later or ready now, until `untrack`."""
        self._left = {}
        self._dropped_before = len(self._dropped)

    def untrack(self) -> None:
        self._left = None

    def holds_since_tracked(self, one: int) -> bool:
        """Whether it is later or ready, or was since `track`."""
        if self._left is None:
            return False
        return self.has(one) or one in self._left or any(one in dropped for dropped in self._dropped_since_tracked())

    def _dropped_since_tracked(self) -> list[PartedDict[int, bytes]]:
        return self._dropped[self._dropped_before :]

    def noted_due(self, one: int) -> int | None:
        """When an item is due that DUE records are about, or were when `track` was called; None for any other."""
        if one in self.unnoted:
            return None
        value = self.later.get(one) or self.ready.get(one)
        if value is not None:
            return self.due_of(value)
        if self._left is None or one in self.out or one in self._left:
            return self.out.get(one, (self._left or {}).get(one))
        return next((self.due_of(dropped[one]) for dropped in self._dropped_since_tracked() if one in dropped), None)

    def is_as_noted(self, one: int, due_at_ms: int, *, has_failed: bool) -> bool:
        """Whether that is all that DUE records have to say of it: they may stay as they are."""
        value = self.later.get(one) or self.ready.get(one)
        return (
            value is not None
            and -1 <= self.due_of(value) - due_at_ms <= 1
            and (one in self.failed) == has_failed
            and one not in self.unnoted
        )

    def take_note_of(self, one: int, now_ms: int) -> None:
        """An item leaves what waits out of its order, maybe the window's front, to which a ready one has gone."""
        if not self.is_noted(one):
            self.unnoted.add(one)
        self.out[one] = now_ms
        self._look_for(one)

    # Leases

    def lease(self, one: int, lease: Lease) -> None:
        self.leases[one] = lease
        self.leased += lease.attempt >= 0
        self._plan(lease.ends_at_ms, one)

    def begin_lease(self, one: int, now_ms: int, lease_ms: int, holder: str, lost: Callable[[], None] | None) -> Lease:
        """`lease`, written out, of the next attempt of an item. Its token is left to whoever makes one."""
        ends_at_ms, attempt = now_ms + lease_ms, self._next_attempt
        if self.turns:
            attempt += self.turns.get(one, 0)
        attempt &= ATTEMPT_MAX
        made = self.leases[one] = Lease()
        made.attempt = attempt
        made.since_ms = now_ms
        made.ends_at_ms = ends_at_ms
        made.holder = holder
        made.lost = lost
        made.token = 0
        self.leased += 1
        self._begun.append(one)
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
        self.leases[one].ends_at_ms = ends_at_ms
        self._plan(ends_at_ms, one)

    def end_lease(self, one: int) -> None:
        """Its item comes back, from whoever had it: by an open read, too, tokens of before are good no more."""
        if self.leases and (lease := self.leases.pop(one, None)) is not None and lease.attempt >= 0:
            self.leased -= 1
            self.counted.discard(one)
        elif one not in self.turns:
            return
        self._count_turn(one, self.turns.pop(one, 0) + 1)

    def confirm_lease(self, one: int) -> None:
        """Its item is done, as the next commit will say."""
        lease = self.leases.pop(one, None)
        if lease is not None and lease.attempt >= 0:
            self.leased -= 1
            if self.counted:
                self.counted.discard(one)
            self._confirmed.append(one)
            self.settling = True

    def undo_confirmed(self) -> None:
        """What was confirmed by commits that failed, or never came, is not done."""
        for one in [*self._confirmed_in_flight, *self._confirmed]:
            self._count_turn(one, self.turns.pop(one, 0) + 1)
        self._confirmed, self._confirmed_in_flight = [], []

    def _count_turn(self, one: int, turns: int) -> None:
        self.turns[one] = turns
        if turns > self._most_turns:
            self._most_turns = turns
        if len(self.turns) > TURNS_MAX:
            del self.turns[next(iter(self.turns))]

    def moved_away(self, token: int) -> None:
        """An item has left the queue, as whoever had leased it has failed once too often."""
        self._moved[token] = None
        if len(self._moved) > MOVED_MAX:
            del self._moved[next(iter(self._moved))]

    def has_moved(self, token: int) -> bool:
        """Whether that is what became of the item of a token: who says again that it has failed is right."""
        return token in self._moved

    def last_attempt(self, one: int) -> int:
        """Of the last lease of an item that is over, as far as is known: since the start, or an interrupted turn. -1:
        nothing is. Whoever has had the item since, without a lease, counts as well.
        """
        turns = self.turns.get(one, 0)
        return (self._next_attempt + turns - 1) & ATTEMPT_MAX if turns else -1

    def may_have_leased(self, attempt: int) -> bool:
        """Whether this process may have given a token with that attempt, before a turn was interrupted."""
        return (attempt - self.first_attempt) & ATTEMPT_MAX < self._next_attempt - self.first_attempt

    # All of them

    def lowest(self) -> int:
        """The lowest id that a DUE record is about; 0 = none is."""
        return self._lowest.first() or 0

    def cost_bytes(self) -> int:
        """About what it takes in memory."""
        return self.memory_bytes + (len(self.later) + len(self.ready)) * ITEM_COST_BYTES

    def unnoted_bytes(self) -> int:
        """The data of what is later or ready and no DUE record is about."""
        return sum(self.size_of(self.ready.get(one) or self.later[one]) for one in self.unnoted if one not in self.out)

    def is_described(self, one: int) -> bool:
        """Whether it is out, and DUE records say so much of it as there is to say."""
        return one in self.out and one not in self.unnoted

    def described(self) -> set[int]:
        """All those for which that is so."""
        return self.out.keys() - self.unnoted

    def go_out(self, one: int) -> None:
        """One that is later or ready is done; its DONE is not written yet."""
        self.out[one] = self.due_of(self.leave(one))

    def forget(self, one: int) -> bool:
        """It is done, says the commit that was written; whether it was out of its order."""
        turns = self.turns.pop(one, 0)
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
        """It is not done after all; whether it is out of its order."""
        turns = self.forgotten_turns.pop(one, 0)
        if turns:  # or a token of before would be that of its next lease
            self._count_turn(one, turns)
        known = self.forgotten.pop(one, None)
        if known is None:
            return False
        self.out[one], is_unnoted = known
        if is_unnoted:
            self.unnoted.add(one)
        self._look_for(one)
        return True

    def committed(self) -> None:
        """What was confirmed is so in the journal."""
        if self._confirmed or self._confirmed_in_flight:
            self._confirmed, self._confirmed_in_flight = [], self._confirmed

    def none_in_flight(self) -> None:
        """What was forgotten does not come back."""
        if self._confirmed_in_flight:
            self._confirmed_in_flight = []
        if self.forgotten:
            for one in self.forgotten if self.noted_leases else ():
                self.noted_leases.pop(one, None)
            self.forgotten = {}
        if self.forgotten_turns:
            self.forgotten_turns = {}
        self.settling = bool(self._confirmed)

    def drop_waiting(self, kept: Collection[int] = ()) -> None:
        """Nothing is later or ready any more, and of what is out only `kept`."""
        self.out = {one: self.out[one] for one in kept if one in self.out}
        if self._left is not None:
            self._left.update(dict.fromkeys(self.unnoted))
        self._dropped += [self.later, self.ready]
        self.later, self.ready, self.failed = PartedDict(), PartedDict(), PartedDict()
        self.unnoted = {one for one in self.out if one in self.unnoted}
        self._dropped_ids += [*self._times.clear(), *self._lowest.clear(), self._ready_ids]
        for one, lease in self.leases.items():
            self._times.push(one, lease.ends_at_ms << _ID_BITS | one)
        for one in self.out:
            self._look_for(one)
        self._ready_ids = []
        self.data_bytes = self.ready_bytes = self.memory_bytes = 0

    def free_dropped(self) -> bool:
        """Free some of what was dropped; False when there is nothing left of it. A compaction may still ask for it."""
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
        """One like it after a turn that was cut short; this one is not used any more.

        Leases of `opened` items run on. Nothing else is held, for the journal will say that; where there is none,
        `elsewhere` None is not, what is held stays so, but for items that are in the window or open: `elsewhere`.
        """
        self.stop()
        self.undo_confirmed()
        held = Held(self._agenda, self._due, self.first_attempt)
        # What is done may come back by a repair, and nobody knows any more how often it was leased.
        held._next_attempt = self._next_attempt + self._most_turns + 1
        held.expired_leases, held.late_confirms = self.expired_leases, self.late_confirms
        held._moved = self._moved
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
                if one in self.counted:
                    held.counted.add(one)
        held._left, held._dropped = self._left, [*self._dropped, self.later, self.ready]
        return held

    def undo_put(self, one: int) -> None:
        """An item was never put."""
        if one in self.later or one in self.ready:
            self.leave(one)
        self.out.pop(one, None)
        self.unnoted.discard(one)

    def stop(self) -> None:
        """Nothing falls due any more."""
        self.due_at_ms = -1
