"""Sweeper: moves messages of a log into a queue of kestreld, where they stay until they are processed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError

from kestreld import checks
from kestreld.errors import CacheRefused, ConnectionLost, InvalidValue
from kestreld.recipes.positions import MessagesMissed, Position
from kestreld.recipes.servers import KEY_BYTES_MAX, host_and_port, refusal

if TYPE_CHECKING:
    from kestreld.recipes.numbered import LogQueue

BATCH_MESSAGES: Final = 100
POSITION_BYTES_MAX: Final = 32


class Sweeper:
    """Moves messages of a log into a queue of kestreld, in order, each of them once.

    Each message is put with its number as key, so that one that is put again is not added twice within the queue's
    key_time. After each batch the position is saved beside the log's counter: another sweeper continues from there.
    """

    def __init__(
        self,
        log: "LogQueue",
        address: str,
        queue: str | None = None,
        *,
        delete: bool = True,
        on_missed: Callable[[MessagesMissed], None] | None = None,
        timeout: float = 3.0,
    ) -> None:
        """`address`: HOST:PORT or unix:PATH of a kestreld. `queue`: its queue; None = named like the log.

        `delete`: delete messages from the log once they are in the queue; other readers of the log would miss them.
        `on_missed` is called instead of raising MessagesMissed in a sweep. `timeout`: seconds for each reply of
        kestreld.
        """
        self.address = address
        self.queue = log.name if queue is None else checks.text(queue, "queue")
        self._slots = log.slots
        self._deletes = checks.switch(delete, "delete")
        self._key_prefix = f"{self.queue}/key={log.name}-".encode()
        if len(self._key_prefix) + POSITION_BYTES_MAX > KEY_BYTES_MAX:
            most = KEY_BYTES_MAX - POSITION_BYTES_MAX - len("/key=-")
            raise InvalidValue("queue", f"at most {most} bytes, together with the name of the log", self.queue)
        self._saved_key = self._slots.prefix + b"swept:" + self.queue.encode()
        timeout_s = checks.span_s(timeout, "timeout")
        self._client = Client(
            host_and_port(address), connect_timeout=timeout_s, timeout=timeout_s, no_delay=True, default_noreply=False
        )
        self._unmoved: list[tuple[Position, bytes]] = []
        saved = self._slots.counter.server.get_many([self._saved_key]).get(self._saved_key)
        self._reader = log.reader(None if saved is None else saved[0].decode(), on_missed=on_missed)

    @property
    def missed(self) -> int:
        """Number of messages of the log that were gone before they could be moved."""
        return self._reader.missed

    def sweep(self, timeout: float | None = 0.0) -> int:
        """Move the available messages, waiting `timeout` seconds for the first, and return how many were moved.

        Raises MessagesMissed, having passed those messages. Raises CacheAway or ConnectionLost if a server cannot be
        reached, and CacheRefused if kestreld refuses a message, for instance because the queue is full: the next call
        puts the messages again.
        """
        moved = 0
        while True:
            if not self._unmoved:
                self._unmoved = self._reader.entries(BATCH_MESSAGES, 0.0 if moved else timeout)
            if not self._unmoved:
                return moved
            self._put()
            self._save()
            moved += len(self._unmoved)
            self._unmoved = []

    def _put(self) -> None:
        try:
            refused = self._client.set_many(
                {self._key_prefix + str(position).encode(): message for position, message in self._unmoved}
            )
        except (OSError, MemcacheUnexpectedCloseError) as error:
            raise ConnectionLost(self.address, str(error) or "closed the connection") from error
        except MemcacheError as error:
            raise CacheRefused(self.address, refusal(error)) from error
        if refused:
            raise CacheRefused(self.address, f"queue {self.queue} is full, or a message larger than its max_item_size")

    def _save(self) -> None:
        reached = self._reader.position
        assert reached is not None
        self._slots.counter.server.set(self._saved_key, str(reached).encode())
        if self._deletes:
            passed = {position.count for position, _ in self._unmoved}
            self._slots.delete(sorted(passed - {reached.count}))

    def close(self) -> None:
        """Close the connection to kestreld."""
        self._client.close()

    def __enter__(self) -> "Sweeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
