"""Due times of waits, leases and held items: one heap, on the monotonic clock."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

DEAD_ENTRIES_MAX: Final = 64  # dead entries are removed at twice the live ones plus this


class Scheduled:
    """Something that has a due time."""

    __slots__ = ("due_at_ms",)

    def __init__(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms

    def is_due_at(self, at_ms: int) -> bool:
        """True if an agenda's entry for that time still counts: it is dead once the due time has changed."""
        return self.due_at_ms == at_ms

    def fall_due(self, now_ms: int) -> None:
        """Run the due entries. A further due time must be added to the agenda again."""
        raise NotImplementedError


class TimedWait(Scheduled):
    """A client's wait, which ends at its due time at the latest. `over` once it was served, timed out or left."""

    __slots__ = ("over",)

    def __init__(self, due_at_ms: int) -> None:
        super().__init__(due_at_ms)
        self.over = False

    def is_due_at(self, at_ms: int) -> bool:
        return not self.over

    def leave(self) -> None:
        """End the wait: it has timed out, or its client has gone."""
        raise NotImplementedError


class Agenda:
    """A heap of due times, earliest first. Dead entries stay until the heap has doubled, at the latest."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Scheduled]] = []  # empty: nothing is scheduled
        self._count = 0
        self._clear_out_at = DEAD_ENTRIES_MAX

    def add(self, scheduled: Scheduled) -> None:
        """Schedule something for its `due_at_ms`."""
        if len(self.heap) >= self._clear_out_at:
            self.heap = [entry for entry in self.heap if entry[2].is_due_at(entry[0])]
            heapify(self.heap)
            self._clear_out_at = 2 * len(self.heap) + DEAD_ENTRIES_MAX
        self._count += 1
        heappush(self.heap, (scheduled.due_at_ms, self._count, scheduled))

    def next_at_ms(self) -> int | None:
        """Due time of the first entry that is not dead; None if there is none."""
        while self.heap and not self.heap[0][2].is_due_at(self.heap[0][0]):
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def fall_due(self, now_ms: int) -> None:
        """Call `fall_due` once for everything that is due. Entries added meanwhile wait for the next call."""
        last = self._count
        while self.heap and self.heap[0][0] <= now_ms and self.heap[0][1] <= last:
            at_ms, _, scheduled = heappop(self.heap)
            if scheduled.is_due_at(at_ms):
                scheduled.fall_due(now_ms)


class Alarm(Scheduled):
    """Calls a function at a due time. It can be set again after each call."""

    __slots__ = ("_agenda", "_call", "_is_set")

    def __init__(self, agenda: Agenda, call: Callable[[], None]) -> None:
        super().__init__(0)
        self._agenda = agenda
        self._call = call
        self._is_set = False

    def set(self, due_at_ms: int) -> None:
        """Set the due time, unless one is set already."""
        if not self._is_set:
            self._is_set = True
            self.due_at_ms = due_at_ms
            self._agenda.add(self)

    def fall_due(self, now_ms: int) -> None:
        self._is_set = False
        self._call()
