"""Memcached servers of the recipes: the server of each key, connections, and errors with the outcome."""

import secrets
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import CacheAway, CacheRefused, ConnectionLost, InvalidValue
from kestreld.forks import restart_in_child

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")
DEFAULT_PORT: Final = 11211
KEY_BYTES_MAX: Final = 250
KEYS_AT_ONCE: Final = 200  # of one multi-get
SPAN_S_MAX: Final = 30 * 24 * 3600  # memcached takes a longer one for a time since 1970
EXPIRED_S: Final = -1
AWAY_MS: Final = 10_000

Value = tuple[bytes, int]
"""Value of a key at a server: the bytes and the flags."""


def new_token() -> bytes:
    """Return a name that no other process or thread has, even after a fork."""
    return secrets.token_hex(8).encode()


class _ValueWithFlags:
    """Serializer for pymemcache: bytes unchanged, with their flags."""

    def serialize(self, key: object, value: bytes) -> Value:
        return value, 0

    def deserialize(self, key: object, value: bytes, flags: int) -> Value:
        return value, flags


class CacheServer:
    """One server. Threads may share it, and so may a process and its forked children."""

    def __init__(
        self, address: str, timeout_s: float, login: tuple[str, str] | None, tls: "SSLContext | None", away_ms: int
    ) -> None:
        """`away_ms`: time for which the server is not asked again after a connection to it has timed out."""
        self.address = address
        self._away_ms = away_ms
        self._timeout_s = timeout_s
        self._login = login
        self._tls = tls
        self._idle: deque[Any] = deque()
        self._clock = Clock()
        self._away_until_ms = 0
        restart_in_child(self)

    def after_fork(self) -> None:
        self._idle = deque()

    def _connected(self) -> Any:
        """Return a connection that nobody else uses. Raises CacheAway or CacheRefused."""
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if not _is_closed(client):
                return client
            client.close()
        self._clock.read()
        if self._clock.monotonic_ms < self._away_until_ms:
            raise CacheAway(self.address, "timed out a moment ago")
        client = Client(
            host_and_port(self.address),
            connect_timeout=self._timeout_s,
            timeout=self._timeout_s,
            no_delay=True,
            serde=_ValueWithFlags(),
            tls_context=self._tls,
            default_noreply=False,
        )
        try:
            # A failure here means that no command of the caller was sent.
            if self._login is None:
                client.version()
            else:
                client.set(b"login", " ".join(self._login).encode())
        except OSError as error:
            if isinstance(error, TimeoutError):  # else each access to a key of its share would wait for the time-out
                self._away_until_ms = self._clock.monotonic_ms + self._away_ms
            raise CacheAway(self.address, str(error) or type(error).__name__) from error
        except MemcacheUnexpectedCloseError as error:
            raise CacheAway(self.address, "closed the connection") from error
        except MemcacheError as error:
            raise CacheRefused(self.address, refusal(error)) from error
        return client

    def _ask(self, send: Callable[[Any], T]) -> T:
        """Send a command. Raises CacheAway (nothing was done), CacheRefused, or ConnectionLost (it may be done)."""
        client = self._connected()
        try:
            answer = send(client)
        except OSError as error:
            raise ConnectionLost(self.address, str(error) or type(error).__name__) from error
        except MemcacheUnexpectedCloseError as error:
            raise ConnectionLost(self.address, "closed the connection") from error
        except MemcacheError as error:
            raise CacheRefused(self.address, refusal(error)) from error
        self._idle.append(client)
        return answer

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Value]:
        """Return the values of those keys that exist."""
        found: dict[bytes, Value] = {}
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[first : first + KEYS_AT_ONCE]
            found.update(self._ask(lambda client, some=some: client.get_many(some)))  # type: ignore[misc]
        return found

    def gets_many(self, keys: Sequence[bytes]) -> dict[bytes, tuple[Value, bytes]]:
        """Return values like `get_many`, each with the token for `cas`."""
        found: dict[bytes, tuple[Value, bytes]] = self._ask(lambda client: client.gets_many(keys))
        return found

    def add(self, key: bytes, value: bytes, expire_s: int = 0, flags: int = 0) -> bool:
        """Store a value. False = there is one under this key already."""
        return bool(self._ask(lambda client: client.add(key, value, expire_s, False, flags)))

    def set(self, key: bytes, value: bytes, expire_s: int = 0, flags: int = 0) -> None:
        self._ask(lambda client: client.set(key, value, expire_s, False, flags))

    def cas(self, key: bytes, value: bytes, unique: bytes, expire_s: int = 0, flags: int = 0) -> bool:
        """Store a value. False = the value has changed since `gets_many`."""
        return bool(self._ask(lambda client: client.cas(key, value, unique, expire_s, False, flags)))

    def incr(self, key: bytes, by: int) -> int | None:
        """Add to a number, and return the result. None = it does not exist."""
        number: int | None = self._ask(lambda client: client.incr(key, by))
        return number

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete keys, without learning whether they existed."""
        self._ask(lambda client: client.delete_many(keys, noreply=True))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _is_closed(client: Any) -> bool:
    """Return True if the server has closed an idle connection, on which a command would fail with unknown outcome."""
    poll = select.poll()
    poll.register(client.sock, select.POLLIN)
    return bool(poll.poll(0))


def refusal(error: MemcacheError) -> str:
    """Return a server's error text, without pymemcache's additions."""
    reason = error.args[0] if error.args else type(error).__name__
    return reason.decode("ascii", "replace") if isinstance(reason, bytes) else str(reason)


def host_and_port(address: str) -> tuple[str, int] | str:
    """Return an address in pymemcache's form. Raises InvalidValue."""
    if address.startswith("unix:"):
        return address.removeprefix("unix:")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), DEFAULT_PORT
    if not host or not port.isascii() or not port.isdigit():
        raise InvalidValue("addresses", "HOST:PORT, HOST or unix:PATH each", address)
    return host.strip("[]"), int(port)


class Servers:
    """Servers that share the keys by hashing: each key has one server, and no other replaces it.

    A counter on another server would begin anew and number two messages alike. So a queue whose counters are on a
    server that is down waits for that server; of the messages, only those on that server are unavailable. Removing or
    adding a server moves only the keys of its share.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = f"127.0.0.1:{DEFAULT_PORT}",
        *,
        timeout: float = 3.0,
        login: tuple[str, str] | None = None,
        tls: "SSLContext | None" = None,
    ) -> None:
        """`addresses`: HOST:PORT or unix:PATH, one or several, in any order. `timeout`: seconds for each reply.

        `login`: user and password, if servers require them. Raises InvalidValue.
        """
        timeout_s = checks.span_s(timeout, "timeout")
        each = [addresses] if isinstance(addresses, str) else list(addresses)
        if not each or len(set(each)) != len(each):
            raise InvalidValue("addresses", "one or several, all different", each)
        for address in each:
            host_and_port(checks.text(address, "addresses"))
        away_ms = AWAY_MS if len(each) > 1 else 0  # the others are used meanwhile
        self._servers = [CacheServer(address, timeout_s, login, tls, away_ms) for address in each]
        self._hashes = [blake2b(address.encode(), digest_size=8) for address in each]

    def __len__(self) -> int:
        return len(self._servers)

    def of(self, key: bytes) -> CacheServer:
        """Return the server of a key: the one with the highest hash of its address and the key."""
        if len(self._servers) == 1:
            return self._servers[0]
        highest, chosen = b"", self._servers[0]
        for server, hashed in zip(self._servers, self._hashes, strict=True):
            digest = hashed.copy()
            digest.update(key)
            if (weight := digest.digest()) > highest:
                highest, chosen = weight, server
        return chosen

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Value]:
        """Return the values of those keys that exist, by one multi-get for each server.

        With several servers, keys on a server that is away count as missing; with a single server that is an error.
        """
        shares: dict[CacheServer, list[bytes]] = {}
        for key in keys:
            shares.setdefault(self.of(key), []).append(key)
        found: dict[bytes, Value] = {}
        for server, share in shares.items():
            try:
                found.update(server.get_many(share))
            except (CacheAway, ConnectionLost):
                if len(self._servers) == 1:
                    raise
        return found

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete keys, as far as servers can be reached; the rest is left to expiry and eviction."""
        shares: dict[CacheServer, list[bytes]] = {}
        for key in keys:
            shares.setdefault(self.of(key), []).append(key)
        for server, share in shares.items():
            try:
                server.delete_many(share)
            except (CacheAway, ConnectionLost):
                continue

    def close(self) -> None:
        """Close the idle connections. Further use opens new ones."""
        for server in self._servers:
            server.close()

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
