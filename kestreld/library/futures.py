"""ItemFuture, for an item that has yet to come, and CommitFuture, for a commit on its way to disk."""

from collections.abc import Callable, Container
from typing import Any, TypeVar
from weakref import ref

from kestreld.errors import JournalFailed, KestrelError
from kestreld.journal.records import item_id
from kestreld.library.answer import Answer
from kestreld.library.cleanup import cleanup
from kestreld.library.item import QItem
from kestreld.library.worker import Worker
from kestreld.queues.commit import PendingCommit
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, Waiter

T = TypeVar("T")


def is_claimed(answer: Answer[T]) -> bool:
    """Return True if the answer can no longer be cancelled; may be called again."""
    return answer.running() or answer.set_running_or_notify_cancel()


class CommitFuture(Answer[None]):
    """Settled once a commit is on disk, or a crowded journal has room."""

    def __init__(self, pending_commit: PendingCommit | None) -> None:
        super().__init__()
        self._commit = pending_commit
        if pending_commit is not None:
            pending_commit.observers.append(self)

    @property
    def has_failed(self) -> bool:
        """True if the commit was undone, as far as is known."""
        return self._commit is not None and self._commit.failure is not None

    def released(self, failure: JournalFailed | None = None) -> None:
        if not self.done() and is_claimed(self):
            if failure is not None:
                self.set_exception(failure)
            else:
                self.set_result(None)


class ItemFuture(Answer[QItem | None]):
    """A wait in a reader's line. Once it is served it can no longer be cancelled: the item is its own.

    `ended` is called with it, with the engine's lock held, when the current turn decides its outcome. With
    `calls_back`, it is settled and its callbacks are called on the worker.
    """

    def __init__(
        self,
        queue: Queue,
        take: Callable[[bytes], QItem],
        ended: Callable[["ItemFuture"], None],
        worker: Worker,
        give_back: Callable[[QItem], None] | None,
        kept: set[Any],
        *,
        calls_back: bool,
    ) -> None:
        super().__init__(give_back, None, kept)
        self.queue = queue
        self.item: QItem | None = None
        self._item_id = 0
        self.is_abandoned = False
        self.pending_commit: PendingCommit | None = None  # the commit that it depends on
        self._take = take
        self._ended = ended
        self._worker = worker
        self._calls_back = calls_back

    def served(self, waiter: Waiter | None, record: bytes | None) -> None:
        if self.is_forsaken:
            cleanup.do(self.cancel)
        elif is_claimed(self):
            if record is not None:
                self._item_id = item_id(record)
                self.item = self._take(record)
            self._ended(self)

    def abandon(self) -> None:
        self.is_abandoned = True
        super().abandon()

    def has_item(
        self, want: int, opened: Container[int], is_waiting: Callable[[Reader, int], bool], reader: Reader
    ) -> bool:
        """Return True if the item that it was served is its own after an interrupted turn."""
        if self.item is None or want == PEEK:
            return self.item is not None
        return self._item_id in opened if want == OPEN else not is_waiting(reader, self._item_id)

    def forget_item(self) -> None:
        """Drop the item that it was served, which is not its own."""
        self.item, self._item_id = None, 0

    def refused(self, waiter: Waiter, reason: str) -> None:
        if is_claimed(self):
            self.settle(self.queue.stopped)

    def released(self, failure: JournalFailed | None) -> None:
        self.settle(failure)

    def settle(self, problem: KestrelError | None) -> None:
        """Settle: the turn is over, and has failed with `problem` if that is not None."""
        if self._calls_back:
            self._worker.settle(lambda: self._finish(problem))
        else:
            self._finish(problem)

    def return_later(self) -> None:
        self._worker.settle(self.return_found)  # the thread that settles it has the engine's lock

    def _finish(self, problem: KestrelError | None) -> None:
        if self.done():
            return  # settled before, in an interrupted turn
        if problem is None:
            self.set_result(self.item)
        else:
            self.set_exception(problem)


def _nobody() -> None:
    """Stand in for a reference to an ItemFuture."""


class Seat:
    """Place of an ItemFuture in a line. Once nobody can ask for the future, its place is skipped, and soon `left`."""

    def __init__(self, wait: ItemFuture, left: Callable[[Waiter], object]) -> None:
        self.waiter: Waiter | None = None  # the waiter in the line
        self._wait: Callable[[], ItemFuture | None] = ref(wait, self._is_empty)
        self._left = left

    def settled(self) -> None:
        """Drop the reference to the settled future: an exception in the call at its end would reach nobody."""
        self._wait = _nobody

    def _is_empty(self, _: object) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.over:
            cleanup.do(lambda: self._left(waiter))

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        if (wait := self._wait()) is not None:
            wait.served(waiter, record)

    def refused(self, waiter: Waiter, reason: str) -> None:
        if (wait := self._wait()) is not None:
            wait.refused(waiter, reason)
