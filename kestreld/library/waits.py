"""What is waited for: an item that is not there yet, a commit that is not on disk yet."""

from collections.abc import Callable

from kestreld.errors import KestrelError
from kestreld.library.answer import Answer
from kestreld.library.item import QItem
from kestreld.library.worker import Worker
from kestreld.queues.commit import Ticket
from kestreld.queues.queue import Queue
from kestreld.queues.waiters import Waiter


class Hold(Answer[None]):
    """There once a commit is on disk, or a crowded journal has room."""

    def __init__(self, ticket: Ticket | None) -> None:
        super().__init__()
        self._ticket = ticket
        if ticket is not None:
            ticket.holders.append(self)

    @property
    def has_failed(self) -> bool:
        """Whether the commit was undone, as far as is known."""
        return self._ticket is not None and self._ticket.failure is not None

    def released(self) -> None:
        if self.set_running_or_notify_cancel():
            if self._ticket is not None and self._ticket.failure is not None:
                self.set_exception(self._ticket.failure)
            else:
                self.set_result(None)


class Wait(Answer[QItem | None]):
    """Somebody in a reader's line. Once it is served it can be cancelled no more: the item is his.

    `ended` is told, with the engine's lock held, that its turn decides what becomes of it. Where it `calls_back`, it
    is there, and its callbacks are called, on the worker.
    """

    def __init__(
        self,
        queue: Queue,
        take: Callable[[bytes], QItem],
        ended: Callable[["Wait"], None],
        worker: Worker,
        give_back: Callable[[QItem], None] | None,
        *,
        calls_back: bool,
    ) -> None:
        super().__init__(give_back)
        self.queue = queue
        self.item: QItem | None = None
        self.ticket: Ticket | None = None  # of the commit it depends on
        self._take = take
        self._ended = ended
        self._worker = worker
        self._calls_back = calls_back

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        if self.set_running_or_notify_cancel():
            if record is not None:
                self.item = self._take(record)
            self._ended(self)

    def refused(self, waiter: Waiter, reason: str) -> None:
        if self.set_running_or_notify_cancel():
            self.settle(self.queue.stopped)

    def released(self) -> None:
        self.settle(self.ticket.failure if self.ticket is not None else None)

    def settle(self, problem: KestrelError | None) -> None:
        """The turn is over, and has failed with `problem`."""
        if self._calls_back:
            self._worker.soon(lambda: self._finish(problem))
        else:
            self._finish(problem)

    def return_later(self) -> None:
        self._worker.soon(self.return_found)  # who settles it has the engine's lock

    def _finish(self, problem: KestrelError | None) -> None:
        if problem is None:
            self.set_result(self.item)
        else:
            self.set_exception(problem)
