"""One server of several: the connections to it that are free, and when to try again while it is away."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Lock
from typing import Final, TypeVar

from kestreld.client.connection import Connection
from kestreld.client.sockets import Login
from kestreld.clock import Clock
from kestreld.errors import ConnectionLost, ServerRefused, ServersAway

T = TypeVar("T")

IDLE_MAX: Final = 256  # free connections beyond these are closed
DELAY_MS: Final = 100  # before the second attempt; it doubles with each
DELAY_MS_MAX: Final = 5000

_log: Final = logging.getLogger("kestreld.client")


def now_ms() -> int:
    """On the monotonic clock."""
    return Clock().monotonic_ms


class Server:
    """Any number of threads may use it at once: each has a connection to itself while it needs one."""

    def __init__(self, address: str, login: Login, timeout_ms: int, chance: Random | None = None) -> None:
        self.address = address
        self._login = login
        self._timeout_ms = timeout_ms
        self._chance = chance if chance is not None else Random()
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._closed = False
        self._reason = ""  # why it is away
        self._delay_ms = 0  # 0 = it is not away
        self._next_try_at_ms = 0

    @property
    def next_try_at_ms(self) -> int:
        """On the monotonic clock; 0 = it is not away."""
        return self._next_try_at_ms if self._delay_ms else 0

    def connection(self) -> Connection:
        """One that nobody else uses: give it back, or close it. Raises ServersAway or ServerRefused."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_usable:
                    return connection
                connection.close()
            delay_ms = self._delay_ms
            if delay_ms:
                if now_ms() < self._next_try_at_ms:
                    raise ServersAway({self.address: self._reason})
                self._next_try_at_ms = now_ms() + self._timeout_ms  # one thread tries, and no other meanwhile
        try:
            connection = Connection(self.address, self._login, self._timeout_ms)
        except ServersAway as away:
            self._note_away(delay_ms, away.reasons[self.address])
            raise
        except ServerRefused:
            self._note_back()
            raise
        self._note_back()
        return connection

    def _note_back(self) -> None:
        with self._lock:
            if self._delay_ms:
                _log.info("%s is back", self.address)
            self._delay_ms = 0

    def _note_away(self, delay_ms: int, reason: str) -> None:
        with self._lock:
            self._reason = reason
            if self._delay_ms != delay_ms:  # somebody else has found it away at the same time
                return
            if not delay_ms:
                _log.warning("%s is away: %s", self.address, reason)
            self._delay_ms = min(max(2 * delay_ms, DELAY_MS), DELAY_MS_MAX)
            # Clients that have lost it at the same moment come back at different ones.
            self._next_try_at_ms = now_ms() + round(self._delay_ms * self._chance.uniform(0.5, 1))

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def asked(self, do: Callable[[Connection], T]) -> T:
        """What `do` gets over a connection, which is closed if it fails. Raises as `connection` does."""
        connection, answer = self._asked_on(do)
        self.give_back(connection)
        return answer

    def opened(self, key: bytes, fetch: Callable[[Connection], bytes | None]) -> "OpenRead | None":
        """The item of queue `key` that `fetch` opens, and the connection with it. Raises as `connection` does."""
        connection, item = self._asked_on(fetch)
        if item is not None:
            return OpenRead(self, connection, key, item)
        self.give_back(connection)
        return None

    def _asked_on(self, do: Callable[[Connection], T]) -> tuple[Connection, T]:
        connection = self.connection()
        succeeded = False
        try:
            answer = do(connection)
            succeeded = True
        finally:
            if not succeeded:
                connection.close()
        return connection, answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()


class Waiting:
    """Connections on which somebody waits, until that is over."""

    def __init__(self) -> None:
        self._over = False
        self._lock = Lock()
        self._connections: set[Connection] = set()

    def is_over(self) -> bool:
        return self._over

    @contextmanager
    def on(self, connection: Connection) -> Iterator[None]:
        """For the time of a block; what is done there fails with ConnectionLost once it is over."""
        with self._lock:
            self._connections.add(connection)
            if self._over:
                connection.hang_up()
        try:
            yield
        finally:
            with self._lock:
                self._connections.remove(connection)

    def end(self) -> None:
        with self._lock:
            self._over = True
            for connection in self._connections:
                connection.hang_up()


class OpenRead:
    """An item that is set aside for us, for as long as its connection lasts: that is its own until the end."""

    def __init__(self, server: Server, connection: Connection, key: bytes, item: bytes) -> None:
        self.item = item
        self._server = server
        self._connection = connection
        self._key = key

    def close(self) -> None:
        """The item is done. Raises ConnectionLost: then it may be delivered again."""
        self._end(b"/close")

    def abort(self) -> None:
        """It is the head again; a connection that is lost has done so by itself."""
        with suppress(ConnectionLost):
            self._end(b"/abort")

    @contextmanager
    def used(self) -> Iterator[bytes]:
        """The item, for a block: the head again when that fails, else to be closed."""
        succeeded = False
        try:
            yield self.item
            succeeded = True
        finally:
            if not succeeded:
                self.abort()

    def close_in_hand(self) -> None:
        """The item is with who wants it, whatever becomes of the connection."""
        try:
            self.close()
        except ConnectionLost as lost:
            _log.warning("an item of %s may be delivered again: %s", self._key.decode("utf-8", "replace"), lost)

    def hang_up(self) -> None:
        """As `abort`, without waiting for the server."""
        self._connection.close()

    def _end(self, option: bytes) -> None:
        ended = False
        try:
            self._connection.fetch(self._key + option)
            ended = True
        finally:
            if ended:
                self._server.give_back(self._connection)
            else:
                self._connection.close()
