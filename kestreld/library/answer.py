"""An answer that comes later: a future for threads, which a coroutine can await."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Answer(Future[T]):
    """`result(timeout_s)` waits for it; `await` does on an event loop. One that is cancelled in time takes nothing.

    `give_back` is told what has come for a coroutine that was cancelled before it could take it; None is not.
    """

    def __init__(self, give_back: Callable[[Any], object] | None = None) -> None:
        super().__init__()
        self._give_back = give_back

    def __await__(self) -> Generator[object, None, T]:
        is_taken = False
        try:
            found = yield from asyncio.wrap_future(self)
            is_taken = True
        finally:
            if self.done() and not is_taken:
                self.return_found()  # before the coroutine ends, and anybody else gets what comes after it
            elif not is_taken:
                self.add_done_callback(lambda _: self.return_later())
        return found

    @classmethod
    def of(cls, value: T, give_back: Callable[[Any], object] | None = None) -> "Answer[T]":
        """One that is there already."""
        answer = cls(give_back)
        answer.set_result(value)
        return answer

    def return_found(self) -> None:
        """Give back what it is, if it is anything. It is there, or cancelled."""
        if self._give_back is None or self.cancelled() or self.exception() is not None:
            return
        if (found := self.result()) is not None:
            self._give_back(found)

    def return_later(self) -> None:
        """`return_found` by who has just settled it."""
        self.return_found()


class Derived(Answer[T | None], Generic[S, T]):
    """What is made of another answer, None of None. To cancel it is to cancel that."""

    def __init__(self, source: Answer[S | None], made: Callable[[S], T]) -> None:
        super().__init__()
        self._source = source
        self._made = made

    def settle(self) -> None:
        """The other is there, or cancelled. To be called once; callbacks are called now."""
        if self._source.cancelled():
            super().cancel()
            return
        if (problem := self._source.exception()) is not None:
            self.set_exception(problem)
            return
        found = self._source.result()
        try:
            made = None if found is None else self._made(found)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked for it is to have it
            self.set_exception(error)
            return
        self.set_result(made)

    def return_found(self) -> None:
        self._source.return_found()

    def return_later(self) -> None:
        self._source.return_later()

    def cancel(self) -> bool:
        return self._source.cancel() and super().cancel()
