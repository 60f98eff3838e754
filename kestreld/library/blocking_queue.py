"""BlockingQueue: the interface of queues in memory whose consumers wait in line, and one such consumer."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import KestrelError
from kestreld.library.answer import Answer
from kestreld.library.cleanup import cleanup
from kestreld.library.worker import Worker

T = TypeVar("T")
IDLE_MAX: Final = 64  # a longer line is cleared of consumers that have given up
deadlines: Final = Worker("deadlines of queues")


class FullPolicy(Enum):
    """Behaviour of a put when the queue has `max_items`."""

    REFUSE_PUTS = "refuse puts"
    DROP_OLDEST = "drop oldest"


class BlockingQueue(Protocol[T]):
    """A queue for threads, in memory. No producer or consumer is ever blocked. None cannot be an item."""

    def put(self, item: T) -> bool:
        """Add an item, or hand it to the consumer that has waited longest. False if the queue is full or closed."""

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        """Return an answer for the next item. It is None if there is no item until the deadline (ms since the epoch),
        or for `timeout` seconds; without either it waits forever.
        """

    def poll(self) -> T | None:
        """Take the next item, None if there is none."""

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        """Take the next item if there is one and `predicate` is true for it, else None; the item stays then."""

    def flush(self) -> int:
        """Drop all items. Return how many there were."""

    def evict_waiters(self) -> None:
        """End all waits with None."""

    def close(self) -> None:
        """Accept no more items. Waits end with None; items that are there can still be taken."""

    @property
    def waiters(self) -> int:
        """Number of waiting consumers."""

    def __len__(self) -> int:
        """Number of waiting items."""


def checked_limit(max_items: int | None) -> int | None:
    return checks.whole_or_none(max_items, "max_items", 1)


class Consumer(Answer[T | None], Generic[T]):
    """A waiting consumer. The code that holds it decides its outcome; only one thread at a time can hold it."""

    def __init__(
        self,
        give_back: Callable[[Any], object],
        give_back_now: Callable[[Any], bool],
        kept: set[Any],
        count_miss: Callable[[], object],
    ) -> None:
        super().__init__(give_back, give_back_now, kept)
        self._count_miss = count_miss
        self._free = [True]  # a list, because `pop` is atomic between threads
        self._unwanted = False

    def hold(self) -> bool:
        """Return True if the caller now holds it, to serve it or to let go of it."""
        if self._loop is not None and self.is_forsaken:
            cleanup.do(super().cancel)
            return False
        try:
            return self._free.pop()
        except IndexError:
            return False

    def let_go(self) -> None:
        """Let it wait on, unless it has given up meanwhile."""
        self._free.append(True)
        if self._unwanted:
            self.give_up()

    def give_up(self) -> None:
        """End the wait with None, unless it is being served just now."""
        self._unwanted = True
        if self.hold():
            self._count_miss()
            self.set_result(None)

    def fail(self, problem: KestrelError) -> None:
        """End the wait with `problem`, because nobody else would, unless it is being served just now."""
        if self.hold():
            self.set_exception(problem)

    def cancel(self) -> bool:
        """Cancel the wait like any future; fails if it is being served at the same time."""
        if self.hold():
            return super().cancel()
        self._unwanted = True
        return self.cancelled()


def is_waiting(one: "ref[Consumer[T]]") -> bool:
    """Return True if a consumer in a line can still be served."""
    consumer = one()
    return consumer is not None and not (consumer.done() or consumer.is_forsaken)


def wait_until(consumer: Consumer[T], deadline_at_ms: int) -> None:
    """Let a consumer give up at a time in ms since the epoch, measured on the monotonic clock."""

    def give_up() -> None:
        if (found := waiting()) is not None:
            found.give_up()

    def fail(problem: KestrelError) -> None:
        if (found := waiting()) is not None:
            found.fail(problem)

    def is_over(_: object) -> None:
        planned.over = True

    clock = Clock()
    left_ms = deadline_at_ms - clock.wall_ms
    if left_ms <= 0:
        consumer.give_up()
        return
    waiting = ref(consumer, is_over)
    planned = deadlines.at(clock.monotonic_ms + left_ms, give_up, fail)
    consumer.when_settled(is_over)
