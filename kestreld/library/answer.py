"""Answer: the future of an operation, for threads to wait for and for coroutines to await."""

import asyncio
import logging
from _thread import RLock
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from kestreld.errors import KestrelError, QueueForked
from kestreld.library.cleanup import cleanup
from kestreld.library.forked import forked_lock

S = TypeVar("S")
_log: Final = logging.getLogger("kestreld.library")
T = TypeVar("T")


class _Condition(RLock):  # type: ignore[misc]  # final as typed only
    """The lock in the place of a future's condition. Threads wait on latches of their own instead.

    It is entered in C: if `__enter__` were Python, a signal handler that raises in it would leave the lock taken.
    """

    __slots__ = ()

    def notify_all(self) -> None:
        """Do nothing: no thread waits on the condition."""


class Answer(Future[T]):
    """Result of an operation, available later: `result(timeout_s)` waits for it, and `await` does on an event loop. One
    that is cancelled in time takes nothing.

    `give_back` is called with a result, other than None, that reached nobody: the coroutine was cancelled before it
    could take it, or the answer is garbage and nobody has asked for the result. In the latter case `give_back_now` is
    called first, which must not wait for a lock, and only if it returns False `give_back`. The code that settles an
    answer holds it weakly; in `kept` it holds itself while somebody awaits it or has left a callback.
    """

    _is_received = True  # until `__init__` has run

    def __init__(
        self,
        give_back: Callable[[Any], object] | None = None,
        give_back_now: Callable[[Any], bool] | None = None,
        kept: set[Any] | None = None,
    ) -> None:
        # Not by Future.__init__, whose condition would cost as much as all the rest.
        self._condition: Any = _Condition()
        self._state = PENDING
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._latches: list[Lock] = []  # of waiting threads
        self._own_calls: list[Callable[[Any], object]] = []
        self._give_back = give_back
        self._give_back_now = give_back_now
        self._kept = kept
        self._loop: asyncio.AbstractEventLoop | None = None  # on which it is awaited
        self._is_received = False

    def result(self, timeout: float | None = None) -> T:
        if self._state != FINISHED:
            self._wait(timeout)
        found = super().result()
        self._is_received = True
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            self._wait(timeout)
        return super().exception()

    def _wait(self, timeout_s: float | None) -> None:
        """Wait on a latch. Raises TimeoutError. A signal handler that raises might find a condition's lock released."""
        if self.done():
            return
        latch = Lock()
        latch.acquire()
        self._latches.append(latch)
        if not self.done():
            latch.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))
        if not self.done():
            self._latches.remove(latch)
            raise TimeoutError

    def seen(self) -> T:
        """Return the result without counting as its receiver. The answer is settled."""
        return super().result()

    def receive(self) -> None:
        """Note that somebody has the result."""
        self._is_received = True

    def add_done_callback(self, call: Callable[[Future[T]], object]) -> None:
        self._keep()
        super().add_done_callback(call)

    def when_settled(self, call: Callable[[Future[T]], object]) -> None:
        """Add a callback of ours, which does not keep the answer alive.

        It is called after all others, and again if that was interrupted.
        """
        self._own_calls.append(call)
        if self.done():
            self._make_own_calls()

    def _make_own_calls(self) -> None:
        while self._own_calls:
            call = self._own_calls[-1]
            call(self)
            if call in self._own_calls:
                self._own_calls.remove(call)

    def _keep(self) -> None:
        kept = self._kept
        if kept is not None and self not in kept:
            kept.add(self)
            self.when_settled(kept.discard)

    @property
    def is_forsaken(self) -> bool:
        """True if the coroutine that awaits it can never continue: its event loop is closed."""
        return self._loop is not None and self._loop.is_closed()

    def awaited_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the event loop on which it is about to be awaited."""
        self._loop = loop

    def __await__(self) -> Generator[object, None, T]:
        loop = asyncio.get_running_loop()
        self.awaited_on(loop)
        told: asyncio.Future[None] = loop.create_future()
        self.add_done_callback(lambda _: self._tell(loop, told))
        is_received = False
        try:
            yield from told
            found = self.result()
            is_received = True
        except GeneratorExit:  # the coroutine is garbage
            is_received = True
            cleanup.do(self.abandon)
            raise
        finally:
            if not is_received:
                self.abandon()  # before the coroutine ends, and somebody else gets a later item
        return found

    def _tell(self, loop: asyncio.AbstractEventLoop, told: "asyncio.Future[None]") -> None:
        def tell() -> None:
            if self.cancelled():
                told.cancel()
            elif not told.done():
                told.set_result(None)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # it is closed
            self.return_later()

    def abandon(self) -> None:
        """Cancel the answer, or give its result back: nobody awaits it any longer."""
        if self.cancel() or self.done():
            self.return_found()
        else:
            self.when_settled(lambda _: self.return_later())

    def __del__(self) -> None:
        if self._is_received or self._give_back is None or not self.done() or self.cancelled():
            return
        found = None if self.exception() is not None else self.seen()
        # Only once: a coroutine that is garbage, too, may be finalized later, and abandons it then.
        give_back, self._give_back = self._give_back, None
        with suppress(QueueForked):
            if found is not None and (self._give_back_now is None or not self._give_back_now(found)):
                cleanup.do(partial(give_back, found))

    @classmethod
    def of(
        cls, value: T, give_back: Callable[[Any], object] | None = None, now: Callable[[Any], bool] | None = None
    ) -> "Answer[T]":
        """Return an answer that is settled already."""
        answer = cls(give_back, now)
        answer._result = value  # nobody knows it yet
        answer._state = FINISHED
        return answer

    def return_found(self) -> None:
        """Give the result back, if there is one. The answer is settled or cancelled."""
        if self._give_back is None or self.cancelled() or self.exception() is not None:
            return
        if (found := self.result()) is not None:
            give_back, self._give_back = self._give_back, None
            give_back(found)

    def return_later(self) -> None:
        """Call `return_found`, from the code that has just settled the answer."""
        self.return_found()

    def refuse(self, queue: str) -> None:
        """In a forked child: raise QueueForked from now on, because nobody there would ever settle the answer."""
        self._give_back = None
        self._condition = forked_lock(queue)  # all methods of a future take it first

    def fail(self, problem: KestrelError) -> None:
        """Raise `problem` as the result, unless settled: nobody would ever settle it."""
        if not self.done() and (self.running() or self.set_running_or_notify_cancel()):
            self.set_exception(problem)

    def _invoke_callbacks(self) -> None:
        """Call each callback once, even if interrupted and repeated. Latches come first, so that all threads wake."""
        for latch in self._latches:
            if latch.locked():
                latch.release()
        while self._done_callbacks:
            callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - as of any future
                _log.exception("a callback of %r failed", self)
        if self._own_calls:
            self._make_own_calls()

    def tell_again(self) -> None:
        """Notify waiting threads and callbacks again: the code that settled the answer may have been interrupted."""
        self._invoke_callbacks()


class Derived(Answer[T | None], Generic[S, T]):
    """Answer made from another answer's result, None from None. Cancelling it cancels that one."""

    def __init__(self, source: Answer[S | None], made: Callable[[S], T], kept: set[Any] | None = None) -> None:
        super().__init__(kept=kept)
        self._source = source
        self._made = made

    def result(self, timeout: float | None = None) -> T | None:
        found = super().result(timeout)
        self._source.receive()
        return found

    def receive(self) -> None:
        self._source.receive()

    def awaited_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._source.awaited_on(loop)

    def settle(self) -> None:
        """Settle from the other answer, which is settled or cancelled. Callbacks are called now."""
        if self.done():
            return
        if self._source.cancelled():
            super().cancel()
            return
        if (problem := self._source.exception()) is not None:
            self.set_exception(problem)
            return
        found = self._source.seen()
        try:
            made = None if found is None else self._made(found)
        except Exception as error:  # noqa: BLE001 - any exception is the result
            self.set_exception(error)
            return
        self.set_result(made)

    def fail(self, problem: KestrelError) -> None:
        """Do nothing: it follows the other answer."""

    def return_found(self) -> None:
        self._source.return_found()

    def return_later(self) -> None:
        self._source.return_later()

    def cancel(self) -> bool:
        return self._source.cancel() and super().cancel()
