"""What the threads of this process do with the engine, one at a time: a turn, which is done or undone as a whole."""

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, Protocol

from kestreld.errors import KestrelError
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import Waiter

EVERY: Final = "every queue"  # what a turn is of that is not of one queue


class User(Protocol):
    """Who has open reads of a reader, and waits there."""

    reader: Reader
    opened: dict[int, int]  # its open reads, and leases that are on their way to whoever asked for them

    def held(self) -> Collection[int]:
        """The open reads that somebody has."""

    def resume(self, is_waiting: Callable[[Reader, int], bool]) -> list[Waiter]:
        """Its queue has been rebuilt. Those who wait on."""


class Turns(Protocol):
    """Where turns are had. `cut_short` is the queue, or EVERY, whose turn was."""

    cut_short: Queue | str | None

    def begin_turn(self) -> None: ...


class Turn:
    """A turn, with the lock held. It is over when it ends, also by an error of ours.

    An exception that is not ours, from a signal handler say, may come anywhere: then what the turn has half done is
    undone before the next one begins.
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
