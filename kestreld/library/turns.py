"""Turn: one operation of a thread on the engine, done or undone as a whole."""

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, Protocol

from kestreld.errors import KestrelError
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import Waiter

EVERY: Final = "every queue"  # stands for the queue in a turn of all queues


class User(Protocol):
    """Holder of open reads and waits of a reader."""

    reader: Reader
    opened: dict[int, int]  # its open reads, and leases that are on their way to their callers

    def held(self) -> Collection[int]:
        """Return the open reads that somebody has."""

    def resume(self, is_waiting: Callable[[Reader, int], bool]) -> list[Waiter]:
        """Continue after the queue was rebuilt. Return the waiters that keep waiting."""


class Turns(Protocol):
    """Place where turns run. `cut_short` is the queue of an interrupted turn, or EVERY."""

    cut_short: Queue | str | None

    def begin_turn(self) -> None: ...


class Turn:
    """A turn, with the lock held. It is complete when it ends, even by an exception of ours.

    Any other exception, such as a signal handler's, may come anywhere: the next turn first undoes this one.
    """

    __slots__ = ("_queue", "_turns")

    def __init__(self, turns: Turns, queue: Queue | None) -> None:
        self._turns = turns
        self._queue = queue

    def __enter__(self) -> None:
        self._turns.begin_turn()
        self._turns.cut_short = EVERY if self._queue is None else self._queue  # until it is over

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KestrelError):
            self._turns.cut_short = None
