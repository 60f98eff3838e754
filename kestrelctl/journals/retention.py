"""Simulation of limits on a queue: its journal is replayed with them.

Every item arrives when it did, and leaves when it did unless a limit removes it earlier. Held items count towards the
size; they age from their due time and are not discarded before it. Consumers are not assumed to get faster when items
are dropped: the figures are upper bounds.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from kestrelctl.journals.events import Begun, Came, Event, Leased, child_of, events
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell
from kestreld.journal.records import PUT_HEADER_BYTES, Done, Due, Reason, Why

DELIVERED: Final = (Reason.GOT, Reason.CONFIRMED, Reason.MOVED)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a queue, None = no limit. `refuses`: a full queue refuses puts; else its oldest item is discarded."""

    max_age_ms: int | None = None
    max_items: int | None = None
    max_bytes: int | None = None
    refuses: bool = False


@dataclass(slots=True)
class Peak:
    items: int = 0
    data_bytes: int = 0
    at_ms: int = 0

    def note(self, items: int, data_bytes: int, at_ms: int) -> None:
        if items > self.items:
            self.items, self.at_ms = items, at_ms
        self.data_bytes = max(self.data_bytes, data_bytes)


class Simulation:
    """A queue under limits, and the queue as it really was. Limits apply from `begin` on."""

    def __init__(self) -> None:
        self._limits = Limits()
        self._waiting: dict[int, tuple[int, int]] = {}  # id -> time it came or was due, its bytes; the oldest first
        self._later: dict[int, tuple[int, int]] = {}  # id -> due time, bytes
        self._times: list[tuple[int, int]] = []  # heap: due time, id; some entries are stale
        self._coming: dict[int, int] = {}  # id -> due time of an item whose DUE precedes its PUT
        self._kept_bytes = 0
        self._dropped: set[int] = set()  # gone from the simulated queue, still in the real one
        self._real_items = self._real_bytes = 0
        self.first_ms: int | None = None
        self.last_ms = 0
        self.put = self.expired = self.discarded = self.refused = self.missed = 0
        self.unseen = 0  # items that waited when the journal begins, and are not in it
        self.peak, self.real_peak = Peak(), Peak()

    def begin(self, limits: Limits, at_ms: int) -> None:
        """Apply the limits from now on."""
        self._limits = limits
        self.first_ms = max(self.last_ms, at_ms)
        self.put = 0
        self.real_peak = Peak(self._real_items, self._real_bytes, self.first_ms)
        self.peak = Peak(self._kept_items, self._kept_bytes, self.first_ms)
        self._age(self.first_ms)

    @property
    def _kept_items(self) -> int:
        return len(self._waiting) + len(self._later)

    def end(self, at_ms: int) -> None:
        """Advance to the end: nothing more happened until `at_ms`."""
        self.last_ms = max(self.last_ms, at_ms)
        self._age(self.last_ms)

    def see(self, event: Event) -> None:
        """Process the next event."""
        at_ms = max(self.last_ms, event.at_ms)
        if not self.last_ms and isinstance(event, Begun) and event.state is not None:
            self.unseen = self._real_items = event.state.items
            self._real_bytes = event.state.data_bytes
        self.last_ms = at_ms
        self._age(at_ms)
        match event:
            case Came():
                self._come(event, at_ms)
            case Due():
                self._hold(event)
            case Leased():
                for due in event.leases:
                    self._hold(due)
            case Done():
                self._go(event)

    def _age(self, at_ms: int) -> None:
        while self._times and self._times[0][0] <= at_ms:
            due_at_ms, one = heappop(self._times)
            if one in self._later and self._later[one][0] == due_at_ms:
                self._expire(due_at_ms)
                self._waiting[one] = self._later.pop(one)
        self._expire(at_ms)

    def _expire(self, at_ms: int) -> None:
        if self._limits.max_age_ms is None:
            return
        while self._waiting:
            oldest = next(iter(self._waiting))
            if self._waiting[oldest][0] + self._limits.max_age_ms > at_ms:
                return
            self._drop(oldest)
            self.expired += 1

    def _hold(self, due: Due) -> None:
        one, due_at_ms = due.item_id, due.due_at_ms
        kept = self._waiting.pop(one, None) or self._later.get(one)
        if kept is None:
            if one not in self._dropped and due.why != Why.LEASED:
                self._coming[one] = due_at_ms
        else:
            self._put_off(one, due_at_ms, kept[1])

    def _put_off(self, one: int, due_at_ms: int, size_bytes: int) -> None:
        self._later[one] = due_at_ms, size_bytes
        heappush(self._times, (due_at_ms, one))

    def _come(self, item: Came, at_ms: int) -> None:
        size_bytes = len(item.record) - PUT_HEADER_BYTES
        self.put += 1
        self._real_items += 1
        self._real_bytes += size_bytes
        self.real_peak.note(self._real_items, self._real_bytes, at_ms)
        due_at_ms = self._coming.pop(item.item_id, 0)
        while self._is_full() and self._waiting and not self._limits.refuses:
            self._drop(next(iter(self._waiting)))
            self.discarded += 1
        if self._is_full():
            self.refused += 1
            self._dropped.add(item.item_id)
            return
        if due_at_ms > at_ms:
            self._put_off(item.item_id, due_at_ms, size_bytes)
        else:
            self._waiting[item.item_id] = item.at_ms, size_bytes
        self._kept_bytes += size_bytes
        self.peak.note(self._kept_items, self._kept_bytes, at_ms)

    def _is_full(self) -> bool:
        limits = self._limits
        too_many = limits.max_items is not None and self._kept_items >= limits.max_items
        return too_many or (limits.max_bytes is not None and self._kept_bytes >= limits.max_bytes)

    def _drop(self, item_id: int) -> None:
        self._kept_bytes -= self._waiting.pop(item_id)[1]
        self._dropped.add(item_id)

    def _go(self, gone: Done) -> None:
        self._real_items -= gone.items
        self._real_bytes -= gone.data_bytes
        for first, last in gone.ranges:
            # A range may cover ids that were never this queue's, by the million.
            few = range(first, last + 1) if last - first < self._kept_items + len(self._dropped) else None
            known = (self._waiting, self._later, self._dropped)
            for item_id in few or [one for some in known for one in list(some) if first <= one <= last]:
                kept = self._waiting.pop(item_id, None) or self._later.pop(item_id, None)
                if kept is not None:
                    self._kept_bytes -= kept[1]
                elif item_id in self._dropped:
                    self._dropped.remove(item_id)
                    self.missed += gone.reason in DELIVERED


def simulate(
    place: JournalLocation, queue: str, limits: Limits, since_ms: int | None, until_ms: int
) -> tuple[dict[str, Cell], int]:
    """The simulated figures, and the number of items older than the journal and thus not simulated. Raises Failure."""
    files = place.segments(queue)
    simulation = Simulation()
    with replaying(str(place)):
        for event in events(files, child_of(queue)):
            if event.at_ms >= until_ms:
                continue
            if simulation.first_ms is None and event.at_ms >= (since_ms or 0):
                simulation.begin(limits, event.at_ms if since_ms is None else since_ms)
            simulation.see(event)
    if simulation.first_ms is None:
        raise Failure(ExitCode.NEGATIVE, f"no records of {queue} in that period")
    simulation.end(until_ms)
    found: dict[str, Cell] = {
        "queue": queue,
        "since_ms": simulation.first_ms,
        "until_ms": simulation.last_ms,
        "put_items": simulation.put,
        "expired_items": simulation.expired,
        "discarded_items": simulation.discarded,
        "refused_items": simulation.refused,
        "missed_items": simulation.missed,
        "peak_items": simulation.peak.items,
        "peak_bytes": simulation.peak.data_bytes,
        "peak_at_ms": simulation.peak.at_ms,
        "real_peak_items": simulation.real_peak.items,
        "real_peak_bytes": simulation.real_peak.data_bytes,
    }
    return found, simulation.unseen
