"""Presence: holders of leases that are there, as connections say, and what ends once they are gone.

A holder is present while at least one connection says so. Once the last has closed, and none has said so again for a
time that the holder chose, its leases end as if their time were over. Nothing of this is kept over a restart: then only
the times of leases count.

A server that was stopped itself, or a machine that was suspended, has not read what clients sent meanwhile. So absences
are measured in steps: a step that is late does not count for longer than it was to, and one that is far too late has
all of them counted anew. What has arrived before the end of an absence is read before anything ends.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from kestreld.queues.agenda import Alarm
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Tally
from kestreld.queues.everywhere import Steps, everywhere
from kestreld.queues.figures import Sees
from kestreld.queues.reader import Reader
from kestreld.queues.slices import OVER, Work
from kestreld.queues.states import lease_of

ABSENT_MAX: Final = 10_000  # beyond it the one that left first is forgotten: its leases end when their time is over
STEP_MS: Final = 100
STOPPED_MS: Final = 1000  # a step that is later than that: the server did not run
TURNS_BEFORE: Final = 3  # to accept a connection, and to read what it says
LOOKED_AT_ONCE: Final = 256  # leases, or queues without any, of a step
ENDED_AT_ONCE: Final = 32
TOLD_MAX: Final = 10  # holders named in the log, of those whose leases end together


class Present(NamedTuple):
    """A holder of leases that is present through a connection, as that says."""

    name: str
    absence_ms: int  # how long after the last connection the holder's leases end; 0 = never because of that
    sees: Sees | None  # tests which queues the user may get from; None = all


class _Absence:
    """A holder without a connection."""

    __slots__ = ("absence_ms", "over_at_ms", "sees")

    def __init__(self, present: Present, now_ms: int) -> None:
        self.absence_ms = present.absence_ms
        self.over_at_ms = now_ms + present.absence_ms
        self.sees = present.sees


class Control(Protocol):
    """Functions of the server."""

    note: Callable[[str], None]

    def take_on(self, work: Work) -> None: ...

    def finish_turn(self) -> None: ...


class Presence:
    """The holders that are present, and those that no longer are: they come back in time, or their leases end."""

    __slots__ = ("_absent", "_alarm", "_collection", "_connections", "_control", "_is_ending", "_next_at_ms", "_over")

    def __init__(self, collection: QueueCollection, control: Control) -> None:
        self._collection = collection
        self._alarm = Alarm(collection.agenda, self._step)
        self._next_at_ms = -1  # when the next step is due; -1 = nobody is absent
        self._control = control
        self._connections: dict[str, int] = {}  # of each holder that is present
        self._absent: dict[str, _Absence] = {}
        self._over: dict[str, _Absence] = {}  # those whose leases are being ended
        self._is_ending = False

    def enter(self, present: Present) -> None:
        """A holder is present through one more connection."""
        name = present.name
        self._connections[name] = self._connections.get(name, 0) + 1
        self._absent.pop(name, None)
        self._over.pop(name, None)

    def leave(self, present: Present) -> None:
        """A connection through which a holder was present has closed, or says so no longer."""
        name = present.name
        left = self._connections.pop(name) - 1
        if left:
            self._connections[name] = left
        elif present.absence_ms:
            if len(self._absent) >= ABSENT_MAX:
                del self._absent[next(iter(self._absent))]
            now_ms = self._collection.clock.monotonic_up_ms()
            self._absent[name] = _Absence(present, now_ms)
            if self._next_at_ms < 0:
                self._plan(now_ms)

    def _plan(self, now_ms: int) -> None:
        self._next_at_ms = -1
        if self._absent:
            first_at_ms = min([absence.over_at_ms for absence in self._absent.values()])
            self._next_at_ms = min(first_at_ms, now_ms + STEP_MS)
            self._alarm.set(self._next_at_ms)

    def _step(self) -> None:
        """Find the holders that have been absent for too long."""
        now_ms = self._collection.clock.monotonic_ms
        late_ms = now_ms - self._next_at_ms
        for name, absence in list(self._absent.items()):
            if late_ms > STOPPED_MS:
                absence.over_at_ms = now_ms + absence.absence_ms
            elif late_ms > STEP_MS:
                absence.over_at_ms += late_ms
            elif absence.over_at_ms <= now_ms:
                self._over[name] = self._absent.pop(name)
        self._plan(now_ms)
        if self._over and not self._is_ending:
            self._is_ending = True
            self._control.take_on(self._end_all())

    def _end_all(self) -> Work:
        """End the leases of all holders whose absence is over, unless they come back meanwhile."""
        collection, control = self._collection, self._control
        while self._over:
            for _ in range(TURNS_BEFORE):
                yield OVER
            absences, ended = dict(self._over), dict[str, int]()
            steps = self._end_leases(ended)
            yield from everywhere(collection.commit, control.finish_turn, steps, Tally(lambda: None))
            for name, absence in absences.items():
                if self._over.get(name) is absence:
                    del self._over[name]
            self._tell(ended, absences)
        self._is_ending = False

    def _end_leases(self, ended: dict[str, int]) -> Steps:
        """End leases of the absent holders, a few per step, and count them in `ended` by name."""
        collection, known, looked_at = self._collection, dict[str, str](), 0
        for reader in list(collection.readers.values()):
            held, count = reader.held, 0
            for one in list(held.leases) if held is not None and held.leased else ():
                looked_at += 1
                if looked_at >= LOOKED_AT_ONCE or count >= ENDED_AT_ONCE:
                    yield reader.queue, count
                    looked_at = count = 0
                if name := self._absent_holder(reader, one, known):
                    reader.end_lease(one, collection.clock.wall_ms)
                    ended[name] = ended.get(name, 0) + 1
                    count += 1
            looked_at += 1
            if count or looked_at >= LOOKED_AT_ONCE:
                yield reader.queue, count
                looked_at = 0

    def _absent_holder(self, reader: Reader, one: int, known: dict[str, str]) -> str:
        """The name by which the holder of a lease is absent; "" if it is not, or may not be ended.

        `known` remembers whom a holder's name belongs to.
        """
        if reader.deleted or reader.queue.stopped is not None or self._collection.stopping:
            return ""
        lease = lease_of(reader, one)
        if lease is None or one not in reader.open:
            return ""
        name = known.get(lease.holder)
        if name is None or (name and name not in self._over):
            known[lease.holder] = name = self._covering(lease.holder)
        if not name:
            return ""
        sees = self._over[name].sees
        return name if sees is None or sees(reader.name) else ""

    def _covering(self, holder: str) -> str:
        """The absent name that is the one of a holder `NAME/ADDRESS`, or what its name begins with, up to a dot."""
        name, is_named, _ = holder.partition("/")
        while is_named and name and name not in self._over:
            name = name.rpartition(".")[0]
        return name if is_named else ""

    def _tell(self, ended: dict[str, int], absences: dict[str, _Absence]) -> None:
        for name in list(ended)[:TOLD_MAX]:
            absence_ms = absences[name].absence_ms if name in absences else 0
            leases = f"{ended[name]} lease{'' if ended[name] == 1 else 's'}"
            self._control.note(f"holder {name} has been absent for {absence_ms} ms: ended {leases}")
        if len(ended) > TOLD_MAX:
            count = sum([ended[name] for name in list(ended)[TOLD_MAX:]])
            self._control.note(f"{len(ended) - TOLD_MAX} more holders have been absent: ended {count} leases")
