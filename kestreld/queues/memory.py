"""What all queues together hold in memory, and the limit on it."""

from typing import Final

from kestreld.queues.waiters import Awaited

ITEM_COST_BYTES: Final = 100  # about what an item takes beside its data
PLENTY_BYTES: Final = 1 << 62
LOOKS: Final = 64  # a queue takes at most such a part of the limit before it asks again


class Holding(Awaited):
    """A queue family, as far as Memory knows it. Its bases are in one line: a compiled class has one base."""

    __slots__ = ("counted_bytes", "put_budget")

    def __init__(self) -> None:
        super().__init__()
        self.counted_bytes = 0  # what it counts with in Memory
        self.put_budget = -1  # data larger than this must be looked at before a put

    def review_next_put(self) -> None:
        """Whether there is room, and the journal takes anything, is open again: the next put is looked at closely."""
        self.put_budget = -1

    def held_bytes(self) -> int:
        """About what its items take in memory. Those in several windows are there once."""
        raise NotImplementedError

    def flush_counters(self) -> None:
        """Count what was put and taken since the last call."""
        raise NotImplementedError


class Memory:
    """Who holds how much. `limit_bytes` None = there is no limit, and nothing is counted.

    A queue counts with what it held when it was last looked at, and the room it was given until the next look.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.counted_bytes = 0

    def spare_bytes(self, queue: Holding) -> int:
        """What is left for a queue once it has been counted; below 0 where the limit is passed."""
        if self.limit_bytes is None:
            return PLENTY_BYTES
        self.count(queue, 0)
        return self.limit_bytes - self.counted_bytes

    def grant(self, queue: Holding, room_bytes: int) -> int:
        """How much of this room a counted queue may use before the next look."""
        if self.limit_bytes is None:
            return room_bytes
        granted = min(room_bytes, self.limit_bytes // LOOKS)
        if granted > 0:
            queue.counted_bytes += granted
            self.counted_bytes += granted
        return granted

    def count(self, queue: Holding, room_bytes: int) -> None:
        """Look at a queue anew, with so much room that it was given."""
        held_bytes = queue.held_bytes() + room_bytes
        self.counted_bytes += held_bytes - queue.counted_bytes
        queue.counted_bytes = held_bytes

    @property
    def is_short(self) -> bool:
        return self.limit_bytes is not None and self.counted_bytes >= self.limit_bytes

    def look_at(self, queue: Holding) -> None:
        """Between turns: what was taken counts no more. Where memory is short the queue has to ask for more room."""
        if self.limit_bytes is None:
            return
        queue.flush_counters()
        if self.is_short:
            queue.review_next_put()
        self.count(queue, max(queue.put_budget, 0))

    def forget(self, queue: Holding) -> None:
        """The queue is no more."""
        self.counted_bytes -= queue.counted_bytes
        queue.counted_bytes = 0
