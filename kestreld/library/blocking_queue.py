"""Queues in memory whose consumers wait in line: what any of them can do, and how one consumer waits."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import KestrelError
from kestreld.library.afterwards import afterwards
from kestreld.library.answer import Answer
from kestreld.library.worker import Worker

T = TypeVar("T")
IDLE_MAX: Final = 64  # consumers that have given up are cleared out of a line beyond this
deadlines: Final = Worker("deadlines of queues")


class FullPolicy(Enum):
    """What becomes of a put when there are as many items as there may be."""

    REFUSE_PUTS = "refuse puts"
    DROP_OLDEST = "drop oldest"


class BlockingQueue(Protocol[T]):
    """A queue for threads, in memory. No producer and no consumer is ever blocked. None cannot be an item."""

    def put(self, item: T) -> bool:
        """Add an item, or hand it to who has waited longest. False when the queue is full or closed."""

    def get(self, deadline_at_ms: int | None = None, *, timeout: float | None = None) -> Answer[T | None]:
        """The next item once there is one. None if there is none until then (ms since the epoch), or for `timeout`
        seconds; without either it waits forever.
        """

    def poll(self) -> T | None:
        """The next item if there is one."""

    def poll_if(self, predicate: Callable[[T], bool]) -> T | None:
        """The next item if there is one and it is as wanted; otherwise it stays."""

    def flush(self) -> int:
        """Drop every item; how many there were."""

    def evict_waiters(self) -> None:
        """Everybody who waits gets None."""

    def close(self) -> None:
        """Take no more items. Everybody who waits gets None; what is there can still be taken."""

    @property
    def waiters(self) -> int:
        """How many consumers wait."""

    def __len__(self) -> int:
        """How many items wait."""


def checked_limit(max_items: int | None) -> int | None:
    return checks.whole_or_none(max_items, "max_items", 1)


class Consumer(Answer[T | None], Generic[T]):
    """One who waits. Whoever holds it decides what becomes of it; one at a time can."""

    def __init__(
        self,
        give_back: Callable[[Any], object],
        give_back_now: Callable[[Any], bool],
        kept: set[Any],
        count_miss: Callable[[], object],
    ) -> None:
        super().__init__(give_back, give_back_now, kept)
        self._count_miss = count_miss
        self._free = [True]  # a list, as taking something from one is one step for all threads
        self._unwanted = False

    def hold(self) -> bool:
        """Whether it is the caller's now, to be given something or to be let go of."""
        if self._loop is not None and self.is_forsaken:
            afterwards.do(super().cancel)
            return False
        try:
            return self._free.pop()
        except IndexError:
            return False

    def let_go(self) -> None:
        """It goes on waiting, unless its time has come meanwhile."""
        self._free.append(True)
        if self._unwanted:
            self.give_up()

    def give_up(self) -> None:
        """It gets nothing, unless it is being served just now."""
        self._unwanted = True
        if self.hold():
            self._count_miss()
            self.set_result(None)

    def fail(self, problem: KestrelError) -> None:
        """Nobody would end its wait: it raises `problem`, unless it is being served just now."""
        if self.hold():
            self.set_exception(problem)

    def cancel(self) -> bool:
        """As of any future; one that gets an item at the same time is not cancelled."""
        if self.hold():
            return super().cancel()
        self._unwanted = True
        return self.cancelled()


def is_waiting(one: "ref[Consumer[T]]") -> bool:
    """Whether somebody who stood in a line can still be served."""
    consumer = one()
    return consumer is not None and not (consumer.done() or consumer.is_forsaken)


def wait_until(consumer: Consumer[T], deadline_at_ms: int) -> None:
    """It gives up at an instant in ms since the epoch, which is waited for on the monotonic clock."""

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
