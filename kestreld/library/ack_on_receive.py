"""AckOnReceive: an answer whose item is confirmed only when somebody receives it."""

from collections.abc import Awaitable, Callable, Generator
from threading import Lock
from typing import Any, TypeVar

from kestreld.library.answer import Answer, Derived
from kestreld.library.item import QItem

T = TypeVar("T")


class AckOnReceive(Derived[QItem, T]):
    """Answer made of an item that is set aside: the item is done when `result` or `await` hands it out.

    `take` and `take_async` end its open read; if that is over already, the item is queued and the answer None.
    """

    def __init__(
        self,
        source: Answer[QItem | None],
        made: Callable[[QItem], T],
        take: Callable[[QItem], bool],
        take_async: Callable[[QItem], Awaitable[bool]],
        kept: set[Any],
    ) -> None:
        super().__init__(source, made, kept)
        self._take = take
        self._take_async = take_async
        self._is_taken = False
        self._lock = Lock()

    def result(self, timeout: float | None = None) -> T | None:
        self.exception(timeout)  # waits for it
        item = self._source.seen()
        if item is None:
            return None
        with self._lock:
            self._is_taken = self._is_taken or self._take(item)
        return super().result() if self._is_taken else None

    def __await__(self) -> Generator[object, None, T | None]:
        return self._awaited().__await__()

    async def _awaited(self) -> T | None:
        item = await self._source
        if item is None:
            return None
        self._is_taken = self._is_taken or await self._take_async(item)
        return self._made(item) if self._is_taken else None
