"""Batch: collects small messages into one value."""

from collections.abc import Callable, Sequence
from types import TracebackType

from kestreld import checks


class Batch:
    """Messages that become one value once there are enough of them, or at the end of a `with` block.

    Until then they exist only in this process. If the block fails, the rest is not put.
    """

    def __init__(self, put_batch: Callable[[Sequence[bytes]], object], messages_max: int, bytes_max: int) -> None:
        self._put_batch = put_batch
        self._messages_max = checks.whole(messages_max, "messages_max", 1)
        self._bytes_max = checks.whole(bytes_max, "bytes_max", 1)
        self._messages: list[bytes] = []
        self._bytes = 0

    def put(self, message: bytes) -> None:
        """Add a message, and put the batch if it is full. Raises as `put_batch`."""
        checks.data(message, "message")
        if self._messages and self._bytes + len(message) > self._bytes_max:
            self.flush()
        self._messages.append(message)
        self._bytes += len(message)
        if len(self._messages) >= self._messages_max or self._bytes >= self._bytes_max:
            self.flush()

    def flush(self) -> None:
        """Put the messages collected so far. They are removed even if this fails, so that none is put twice."""
        messages, self._messages, self._bytes = self._messages, [], 0
        if messages:
            self._put_batch(messages)

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.flush()
