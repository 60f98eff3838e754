"""Memory held by all queues together, and the limit on it (`max_memory`)."""

from typing import Final

from kestreld.queues.waiters import Awaited

ITEM_COST_BYTES: Final = 100  # approximate memory of an item without its data
PLENTY_BYTES: Final = 1 << 62
LOOKS: Final = 64  # a queue gets at most 1/LOOKS of the limit at a time


class Holding(Awaited):
    """A queue family as Memory sees it. Its bases form one line, because a compiled class has only one base."""

    __slots__ = ("counted_bytes", "put_budget")

    def __init__(self) -> None:
        super().__init__()
        self.counted_bytes = 0  # bytes with which it counts in Memory
        self.put_budget = -1  # puts of more data than this are checked first

    def review_next_put(self) -> None:
        """Have the next put check everything: space, or whether the journal accepts puts, may have changed."""
        self.put_budget = -1

    def held_bytes(self) -> int:
        """Approximate memory of its items. Items in several windows count once."""
        raise NotImplementedError

    def flush_counters(self) -> None:
        """Count puts and takes since the last call."""
        raise NotImplementedError


class Memory:
    """Memory held per queue. `limit_bytes` None = no limit, and nothing is counted.

    A queue counts with what it held at the last look, plus the space granted until the next one.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.counted_bytes = 0

    def spare_bytes(self, queue: Holding) -> int:
        """Bytes left for a queue, after counting it; below 0 if the limit is exceeded."""
        if self.limit_bytes is None:
            return PLENTY_BYTES
        self.count(queue, 0)
        return self.limit_bytes - self.counted_bytes

    def grant(self, queue: Holding, room_bytes: int) -> int:
        """Bytes of this space that a counted queue may use before the next look."""
        if self.limit_bytes is None:
            return room_bytes
        granted = min(room_bytes, self.limit_bytes // LOOKS)
        if granted > 0:
            queue.counted_bytes += granted
            self.counted_bytes += granted
        return granted

    def count(self, queue: Holding, room_bytes: int) -> None:
        """Count a queue again, together with the space granted to it."""
        held_bytes = queue.held_bytes() + room_bytes
        self.counted_bytes += held_bytes - queue.counted_bytes
        queue.counted_bytes = held_bytes

    @property
    def is_short(self) -> bool:
        return self.limit_bytes is not None and self.counted_bytes >= self.limit_bytes

    def look_at(self, queue: Holding) -> None:
        """Between turns, stop counting taken items. If memory is short, the queue must ask for more space."""
        if self.limit_bytes is None:
            return
        queue.flush_counters()
        if self.is_short:
            queue.review_next_put()
        self.count(queue, max(queue.put_budget, 0))

    def forget(self, queue: Holding) -> None:
        """Remove a deleted queue."""
        self.counted_bytes -= queue.counted_bytes
        queue.counted_bytes = 0
