"""One connection to a kestreld, on pymemcache. What an answer means is decided here."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from pymemcache import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import (  # type: ignore[import-untyped]
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

from kestreld import checks
from kestreld.client.sockets import Login, connect, hang_up, is_quiet
from kestreld.errors import BadQueueName, ConnectionLost, KestrelError, ServerRefused, ServersAway, ServerUnfit
from kestreld.forks import restart_in_child

WAIT_MS_MAX: Final = 3_600_000  # of one command; whoever waits longer asks again


class Connection(Client):  # type: ignore[misc]
    """It connects once: an open read is gone with its connection, over a new one a close would look like success."""

    sock: Any  # None once it has ended

    def __init__(self, address: str, login: Login, timeout_ms: int) -> None:
        """Connects. Raises ServersAway or ServerUnfit."""
        super().__init__(("", 0), default_noreply=False, allow_unicode_keys=True)
        self._address = address
        self._timeout_ms = timeout_ms
        self._why_closed = "it closed the connection"
        restart_in_child(self)
        try:
            self.sock = connect(address, login, timeout_ms / 1000)
        except OSError as error:
            raise ServersAway({address: _why(error)}) from error

    def _connect(self) -> None:
        """pymemcache's hook: what was connected is not any more."""
        raise MemcacheUnexpectedCloseError

    def after_fork(self) -> None:
        """It is the parent's, which is gone for the server only once nobody else has the connection open."""
        self._why_closed = "it is a connection from before a fork, the parent's"
        self.close()

    @property
    def is_usable(self) -> bool:
        """Whether the server, as far as can be told, is still at the other end."""
        return self.sock is not None and is_quiet(self.sock)

    def hang_up(self) -> None:
        """End whatever another thread waits for on it."""
        if (sock := self.sock) is not None:
            hang_up(sock)

    def check(self) -> None:
        """Returns when the server answers."""
        with self._answering():
            self.version()

    def put(self, queue: bytes, data: bytes, expire_s: int) -> bool:
        """False = the queue is full. `expire_s` as on the wire."""
        with self._answering():
            return bool(self.set(queue, data, expire_s))

    def fetch(self, key: bytes, wait_ms: int = 0) -> bytes | None:
        """What `get` of a queue with options gives, waiting there. None = nothing."""
        if wait_ms > 0:
            key += b"/t=%d" % wait_ms
        with self._answering(wait_ms):
            item: bytes | None = self.get(key)
            return item

    def flush(self, queue: bytes) -> None:
        self._ask(b"flush " + queue, b"END")

    def delete_queue(self, queue: bytes) -> bool:
        """False = there was none; with `compat: kestrel-1` a server does not say."""
        return self._ask(b"delete " + queue, b"DELETED", b"NOT_FOUND", b"END") != b"NOT_FOUND"

    def server_stats(self) -> dict[str, int | str]:
        """The server's own counters, by name."""
        with self._answering():
            counters: dict[bytes, Any] = self.stats()
        return {
            _text(name): _text(value) if isinstance(value, bytes) else value
            for name, value in counters.items()
            if not name.startswith(b"queue_")
        }

    def queue_stats(self, queue: bytes) -> dict[str, int | str]:
        """A queue's counters, by name; empty where there is no such queue."""
        with self._answering():
            (block,) = self._misc_cmd([b"dump_stats " + queue + b"\r\n"], b"dump_stats", False, end_tokens=b"END\r\n")
        # With `compat: kestrel-1` a server tells of all queues.
        ours = _text(block).partition(f"queue '{_text(queue)}' {{")[2].partition("\n}")[0]
        pairs = [line.strip().partition("=") for line in ours.splitlines() if "=" in line]
        return {name: int(value) if value.isdecimal() else value for name, _, value in pairs}

    def _ask(self, command: bytes, *answers: bytes) -> bytes:
        with self._answering():
            answer: bytes = self._misc_cmd([command + b"\r\n"], command.split()[0], False)[0]
            if answer not in answers:
                raise MemcacheUnknownError(answer)
            return answer

    def _extract_value(
        self,
        expect_cas: bool,
        line: bytes,
        buf: bytes,
        remapped_keys: dict[bytes, bytes],
        prefixed_keys: list[bytes],
    ) -> tuple[bytes, bytes, bytes]:
        """pymemcache's hook: with `compat: kestrel-1` the queue alone comes back where it was asked with options."""
        fields = line.split()
        (key,) = prefixed_keys
        if len(fields) != 4 or fields[1].split(b"/")[0] != key.split(b"/")[0] or not fields[3].isdigit():
            raise MemcacheUnknownError(line)
        fields[1] = key
        value: tuple[bytes, bytes, bytes] = super()._extract_value(
            expect_cas, b" ".join(fields), buf, remapped_keys, prefixed_keys
        )
        return value

    def _raise_errors(self, line: bytes, name: bytes) -> None:
        """pymemcache's hook. A connection that ends with this answer has it in place of one that nobody knows."""
        if name == b"set" and line.startswith(b"SERVER_ERROR journal ") and not self._goes_on():
            raise MemcacheClientError(line.partition(b" ")[2])
        super()._raise_errors(line, name)

    def _goes_on(self) -> bool:
        try:
            self.sock.sendall(b"version\r\n")
            return bool(self.sock.recv(1))
        except OSError:
            return False

    @contextmanager
    def _answering(self, wait_ms: int = 0) -> Iterator[None]:
        """Allow the server `wait_ms` beyond the time-out. What goes wrong ends the connection."""
        if self.sock is not None:
            with suppress(OSError):  # ended by another thread: it shows below
                self.sock.settimeout((self._timeout_ms + wait_ms) / 1000)
        try:
            yield
        except (MemcacheError, OSError) as error:
            self.close()
            raise self._problem(error) from error

    def _problem(self, error: MemcacheError | OSError) -> KestrelError:
        said = _text(error.args[0]) if error.args and isinstance(error.args[0], bytes) else str(error)
        match error:
            case MemcacheUnexpectedCloseError():
                return ConnectionLost(self._address, self._why_closed)
            case OSError():
                return ConnectionLost(self._address, _why(error))
            case MemcacheIllegalInputError():
                return BadQueueName(said)
            case MemcacheUnknownCommandError():
                return ServerRefused(self._address, f"it does not know {said}")
            case MemcacheClientError():
                return ServerRefused(self._address, said)
            case _:
                return ServerUnfit(self._address, said)


def sendable(data: bytes, expiry: int) -> bytes:
    """An item as it is sent. Raises TypeError for what is none, of which memcache would send the text."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"an item is bytes, not {type(data).__name__}")
    checks.whole(expiry, "an expiry", -checks.FAR_MS)  # what is past is of no use
    return bytes(data)


def queue_key(name: str) -> bytes:
    """A queue's name in a command. Raises BadQueueName for one that would be something else there."""
    key = checks.text(name, "the name of a queue", may_be_empty=True).encode("utf-8", "surrogateescape")
    if not key or any(byte <= 32 or byte in b"/~.\x7f" for byte in key):
        raise BadQueueName(f"{name!r} is not a queue name: it is empty or has a blank or one of / ~ . in it")
    return key


def _why(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
