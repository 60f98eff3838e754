"""An answer that comes later: a future for threads, which a coroutine can await."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Answer(Future[T]):
    """`result(timeout_s)` waits for it; `await` does on an event loop. One that is cancelled in time takes nothing."""

    def __await__(self) -> Generator[object, None, T]:
        return asyncio.wrap_future(self).__await__()

    @classmethod
    def of(cls, value: T) -> "Answer[T]":
        """One that is there already."""
        answer = cls()
        answer.set_result(value)
        return answer


async def delivered(answer: Answer[T | None], give_back: Callable[[T], object]) -> T | None:
    """Its result. What a coroutine that is cancelled is not there to take is given back, when it has come."""
    taken = False
    try:
        found = await answer
        taken = True
    finally:
        if not taken:
            answer.add_done_callback(lambda _: _undelivered(answer, give_back))
    return found


def _undelivered(answer: Answer[T | None], give_back: Callable[[T], object]) -> None:
    if not answer.cancelled() and answer.exception() is None and (found := answer.result()) is not None:
        give_back(found)


class Derived(Answer[T | None], Generic[S, T]):
    """What is made of another answer, None of None. To cancel it is to cancel that."""

    def __init__(self, source: Future[S | None], made: Callable[[S], T]) -> None:
        super().__init__()
        self._source = source
        self._made = made

    def settle(self) -> None:
        """The other is there. To be called once; callbacks are called now."""
        if self.cancelled():
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

    def cancel(self) -> bool:
        return self._source.cancel() and super().cancel()
