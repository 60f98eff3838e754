"""An answer that comes later: a future for threads, which a coroutine can await."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import TypeVar

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
