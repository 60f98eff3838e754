"""Base classes of all queues: `with` blocks, and methods with the names of queue.Queue."""

from collections.abc import Sized
from queue import Full
from types import TracebackType
from typing import Self

from kestreld.errors import QueueClosed


class Closing:
    """A queue that is closed at the end of `with` and `async with`. Both may wait for the disk at their end."""

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
    """A queue whose items can be counted."""

    def qsize(self) -> int:
        """Return the number of waiting items; open reads do not count."""
        return len(self)

    def empty(self) -> bool:
        """Return True if no item waits."""
        return not len(self)
