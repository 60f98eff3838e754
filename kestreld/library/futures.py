"""What is waited for: an item that is not there yet, a commit that is not on disk yet."""

from collections.abc import Callable, Container
from typing import Any, TypeVar
from weakref import ref

from kestreld.errors import JournalFailed, KestrelError
from kestreld.journal.records import item_id
from kestreld.library.afterwards import afterwards
from kestreld.library.answer import Answer
from kestreld.library.item import QItem
from kestreld.library.worker import Worker
from kestreld.queues.commit import PendingCommit
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, Waiter

T = TypeVar("T")


def is_claimed(answer: Answer[T]) -> bool:
    """Whether it can be cancelled no more; it may be asked again."""
    return answer.running() or answer.set_running_or_notify_cancel()


class CommitFuture(Answer[None]):
    """There once a commit is on disk, or a crowded journal has room."""

    def __init__(self, pending_commit: PendingCommit | None) -> None:
        super().__init__()
        self._commit = pending_commit
        if pending_commit is not None:
            pending_commit.observers.append(self)

    @property
    def has_failed(self) -> bool:
        """Whether the commit was undone, as far as is known."""
        return self._commit is not None and self._commit.failure is not None

    def released(self, failure: JournalFailed | None = None) -> None:
        if not self.done() and is_claimed(self):
            if failure is not None:
                self.set_exception(failure)
            else:
                self.set_result(None)


class ItemFuture(Answer[QItem | None]):
    """Somebody in a reader's line. Once it is served it can be cancelled no more: the item is his.

    `ended` is told, with the engine's lock held, that its turn decides what becomes of it. Where it `calls_back`, it
    is there, and its callbacks are called, on the worker.
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
        self.pending_commit: PendingCommit | None = None  # of the commit it depends on
        self._take = take
        self._ended = ended
        self._worker = worker
        self._calls_back = calls_back

    def served(self, waiter: Waiter | None, record: bytes | None) -> None:
        if self.is_forsaken:
            afterwards.do(self.cancel)
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
        """Whether the item it was served is its own, in a turn that was cut short."""
        if self.item is None or want == PEEK:
            return self.item is not None
        return self._item_id in opened if want == OPEN else not is_waiting(reader, self._item_id)

    def forget_item(self) -> None:
        """What it was served is not its own."""
        self.item, self._item_id = None, 0

    def refused(self, waiter: Waiter, reason: str) -> None:
        if is_claimed(self):
            self.settle(self.queue.stopped)

    def released(self, failure: JournalFailed | None) -> None:
        self.settle(failure)

    def settle(self, problem: KestrelError | None) -> None:
        """The turn is over, and has failed with `problem`."""
        if self._calls_back:
            self._worker.settle(lambda: self._finish(problem))
        else:
            self._finish(problem)

    def return_later(self) -> None:
        self._worker.settle(self.return_found)  # who settles it has the engine's lock

    def _finish(self, problem: KestrelError | None) -> None:
        if self.done():
            return  # settled before, in a turn that was cut short
        if problem is None:
            self.set_result(self.item)
        else:
            self.set_exception(problem)


def _nobody() -> None:
    """In place of a reference to a Wait."""


class Seat:
    """The place of a Wait in a line. Once nobody can ask for the answer any more it is passed over, and soon `left`."""

    def __init__(self, wait: ItemFuture, left: Callable[[Waiter], object]) -> None:
        self.waiter: Waiter | None = None  # whose it is
        self._wait: Callable[[], ItemFuture | None] = ref(wait, self._is_empty)
        self._left = left

    def settled(self) -> None:
        """The Wait is. What is raised in the call that its end would make reaches nobody, so it makes none."""
        self._wait = _nobody

    def _is_empty(self, _: object) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.over:
            afterwards.do(lambda: self._left(waiter))

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        if (wait := self._wait()) is not None:
            wait.served(waiter, record)

    def refused(self, waiter: Waiter, reason: str) -> None:
        if (wait := self._wait()) is not None:
            wait.refused(waiter, reason)
