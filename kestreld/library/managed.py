"""What every queue has beside its own operations: `with`, and the names of queue.Queue for what it has."""

from collections.abc import Sized
from queue import Full
from types import TracebackType
from typing import Self

from kestreld.errors import QueueClosed


class Closing:
    """A queue that `with` and `async with` close at their end. Closing may wait for the disk, also the latter."""

    @property
    def is_closed(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _must_be_stored(self, is_stored: bool) -> None:
        """Raise queue.Full, or QueueClosed, for a put that was refused."""
        if not is_stored:
            if self.is_closed:
                raise QueueClosed(repr(self))
            raise Full(f"{self!r}: full, or the item is too large")


class Counted(Sized):
    """A queue with items to count."""

    def qsize(self) -> int:
        """How many items wait; open reads do not count."""
        return len(self)

    def empty(self) -> bool:
        """Whether no item waits."""
        return not len(self)
