"""The wire: one pymemcache client for all commands, for kestreld and for old Kestrels.

What an answer means is decided here; nothing above reads protocol words. Every failure leaves as a `Failure`.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pymemcache import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import (  # type: ignore[import-untyped]
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

from kestrelctl.items.putting import PutItem, PutReport
from kestrelctl.journals.repairs import RepairAnswer
from kestrelctl.remote.access import Login, open_socket, parse_address
from kestrelctl.remote.blocks import QueueBlock, parse_blocks, text
from kestrelctl.shell.exit_codes import ExitCode, Failure

# Replies to one batch must fit in the socket's buffers: neither side may wait for the other to read.
BATCH_ITEMS_MAX: Final = 512
MENDING_MS: Final = 86_400_000  # a repair or an undo takes as long as there is to read and write


class OpenItem(NamedTuple):
    """An item that is held open."""

    data: bytes
    flags: int
    id: int  # 0 = the server does not say


class KestrelClient(Client):  # type: ignore[misc]
    """One connection, and the verbs of a queue server on it.

    It never connects a second time: an open read is gone with its connection, and a close sent over a new one
    would look like success.
    """

    def __init__(self, address: str, timeout_ms: int, login: Login | None = None) -> None:
        super().__init__(parse_address(address), default_noreply=False, allow_unicode_keys=True)
        self._address = address
        self._timeout_ms = timeout_ms
        self._login = login  # None = the command line's
        self._has_connected = False
        self._flags = 0  # of the item fetched last

    @property
    def address(self) -> str:
        return self._address

    @property
    def is_connected(self) -> bool:
        return self.sock is not None

    def reach(self) -> None:
        """Connect now instead of at the first command."""
        with self._answering():
            self._ensure_connected()

    # Putting and taking

    def put(self, queue: bytes, item: bytes, expire_s: int = 0) -> None:
        """Add one item. `expire_s` as on the wire: see `putting.expiry_s`."""
        report = self.put_many(queue, [[item]], expire_s)
        if report.failure is not None:
            raise report.failure

    def put_many(self, queue: bytes, batches: Iterable[list[bytes]], expire_s: int = 0) -> PutReport:
        """Add items in order, many in flight, until one is refused or the connection fails."""
        return self.put_items(queue, ([PutItem(item, expire_s) for item in batch] for batch in batches))

    def put_items(self, queue: bytes, batches: Iterable[list[PutItem]]) -> PutReport:
        """As `put_many`, each item with an expiry and flags of its own."""
        key = self._queue_key(queue)
        report = PutReport()
        try:
            for batch in batches:
                for first in range(0, len(batch), BATCH_ITEMS_MAX):
                    self._put_batch(key, batch[first : first + BATCH_ITEMS_MAX], report)
                    if report.failure is not None:
                        return report
        except Failure as failure:
            report.failure = report.failure or failure
        return report

    def _put_batch(self, key: bytes, batch: list[PutItem], report: PutReport) -> None:
        self.reach()
        report.sent += len(batch)
        request = b"".join(
            [b"set %b %d %d %d\r\n%b\r\n" % (key, flags, expire_s, len(data), data) for data, expire_s, flags in batch]
        )
        for line in self._answer_lines(request, lines=len(batch)):
            report.note(None if line == b"STORED" else self._refusal(key, line))

    def _refusal(self, key: bytes, line: bytes) -> Failure:
        if line == b"NOT_STORED":
            return Failure(ExitCode.FULL, f"{text(key)} refused it: the queue is full or the item too big")
        try:
            self._raise_errors(line, b"set")
        except MemcacheError as error:
            return self._failure(error, ExitCode.REFUSED)
        return self._failure(MemcacheUnknownError(line), ExitCode.REFUSED)

    def open_read(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """Take the head item and hold it open. None = there is none."""
        return self._fetch(queue, b"/open", wait_ms)

    def open_item(self, queue: bytes, *, close: bool = False, with_id: bool = False) -> OpenItem | None:
        """As `open_read` or, having confirmed the open item, `close_and_open`, with flags. None = there is none.

        An old Kestrel has no ids: there `with_id` is not to be asked for.
        """
        key = self._queue_key(queue) + (b"/close/open" if close else b"/open")
        with self._answering():
            data, number = self.gets(key) if with_id else (self.get(key), b"0")
            return None if data is None else OpenItem(data, self._flags, int(number))

    def close_and_open(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """Confirm the open item and open the next. None = there is none."""
        return self._fetch(queue, b"/close/open", wait_ms)

    def close_read(self, queue: bytes) -> None:
        """Confirm the open item: it is gone for good."""
        self._fetch(queue, b"/close")

    def abort_read(self, queue: bytes) -> None:
        """Give the open item back to the head of the queue; a lost connection has done so by itself."""
        if self.sock is not None:
            self._fetch(queue, b"/abort")

    def peek(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """The head item, left where it is. None = there is none."""
        return self._fetch(queue, b"/peek", wait_ms)

    def _fetch(self, queue: bytes, options: bytes, wait_ms: int = 0) -> bytes | None:
        wait = b"/t=%d" % wait_ms if wait_ms else b""
        key = self._queue_key(queue) + wait + options
        with self._answering(wait_ms):
            item: bytes | None = self.get(key)
            return item

    def keep_alive(self) -> None:
        """Show an old Kestrel's idle time-out that this connection is in use."""
        self.server_version()

    # Queues and the server

    def flush(self, queue: bytes) -> None:
        """Discard the items of a queue."""
        self._expect(b"flush " + self._queue_key(queue), b"END")

    def flush_all_queues(self) -> None:
        self._expect(b"flush_all", b"OK", b"Flushed all queues.")

    def flush_expired(self, queue: bytes) -> int:
        """Remove a queue's expired items now; how many there were."""
        return self._ask_number(b"flush_expired " + self._queue_key(queue))

    def flush_all_expired(self) -> int:
        return self._ask_number(b"flush_all_expired")

    def delete_queue(self, queue: bytes) -> bool:
        """Drop a queue. False = there was none; an old Kestrel does not say."""
        answer = self._expect(b"delete " + self._queue_key(queue), b"DELETED", b"NOT_FOUND", b"END")
        return answer != b"NOT_FOUND"

    def undo(self, queue: bytes) -> tuple[int, int] | None:
        """Bring back what the latest flush or delete dropped: items back, and items left. None = there is nothing."""
        answer = self._ask(b"undo " + self._queue_key(queue), wait_ms=MENDING_MS)
        if answer == b"NOT_FOUND":
            return None
        if not (counts := re.fullmatch(rb"UNDONE (\d+) (\d+)", answer)):
            raise self._failure(MemcacheUnknownError(answer), ExitCode.REFUSED)
        return int(counts[1]), int(counts[2])

    def repair_queue(self, queue: bytes) -> RepairAnswer | None:
        """Have the server check the journal of a queue, and build it anew if it is damaged. None = no such queue."""
        damages: list[str] = []
        for line in self._answer_lines(b"repair " + self._queue_key(queue) + b"\r\n", wait_ms=MENDING_MS):
            with self._answering():
                self._raise_errors(line, b"repair")
            if line.startswith(b"DAMAGE "):
                damages.append(text(line.removeprefix(b"DAMAGE ")))
            elif line == b"NOT_FOUND":
                return None
            elif line == b"SOUND":
                return RepairAnswer()
            elif done := re.fullmatch(rb"REPAIRED (\d+) (\d+) (.*)", line):
                return RepairAnswer(damages, int(done[1]), int(done[2]), text(done[3]))
            else:
                raise self._failure(MemcacheUnknownError(line), ExitCode.REFUSED)
        raise AssertionError("the answer has no end")

    def reload(self) -> str:
        """Have the server read its configuration again. What it says beside "done", or ""."""
        answer = self._ask(b"reload", server_error=ExitCode.CONFIG)
        if not answer.startswith(b"Reloaded config."):
            raise self._failure(MemcacheUnknownError(answer), ExitCode.CONFIG)
        return text(answer.removeprefix(b"Reloaded config.").strip())

    def server_version(self) -> str:
        with self._answering():
            return text(self.version())

    def shut_down(self) -> None:
        """Stop the server; returns once it has closed the connection."""
        with self._answering(), suppress(MemcacheUnexpectedCloseError, ConnectionResetError):
            raise MemcacheUnknownError(self._misc_cmd([b"shutdown\r\n"], b"shutdown", False)[0])

    def server_stats(self) -> dict[str, int | str]:
        """The server's own counters, by name."""
        with self._answering():
            counters: dict[bytes, Any] = self.stats()
        return {
            text(name): text(value) if isinstance(value, bytes) else value
            for name, value in counters.items()
            if not name.startswith(b"queue_")
        }

    def dump_stats(self) -> bytes:
        """The counters of every queue, in the server's own blocks."""
        return self._ask_block(b"dump_stats")

    def queue_stats(self) -> list[QueueBlock]:
        # Not from `stats`: in `queue_a_total_items` it is anyone's guess where the name ends.
        return parse_blocks(self.dump_stats())

    def dump_config(self) -> bytes:
        """The settings of every queue, in the server's own blocks."""
        return self._ask_block(b"dump_config")

    # One command and its answer

    def _ask(self, command: bytes, server_error: ExitCode = ExitCode.REFUSED, wait_ms: int = 0) -> bytes:
        with self._answering(wait_ms, server_error):
            answer: bytes = self._misc_cmd([command + b"\r\n"], command.split()[0], False)[0]
            return answer

    def _ask_number(self, command: bytes) -> int:
        answer = self._ask(command)
        if not answer.isdigit():
            raise self._failure(MemcacheUnknownError(answer), ExitCode.REFUSED)
        return int(answer)

    def _expect(self, command: bytes, *answers: bytes) -> bytes:
        answer = self._ask(command)
        if answer not in answers:
            raise self._failure(MemcacheUnknownError(answer), ExitCode.REFUSED)
        return answer

    def _ask_block(self, command: bytes) -> bytes:
        """All lines up to END, without it."""
        block: list[bytes] = []
        for line in self._answer_lines(command + b"\r\n"):
            if not block:
                with self._answering():
                    self._raise_errors(line, command)
            if line == b"END":
                break
            block.append(line)
        return b"".join([line + b"\n" for line in block])

    def _answer_lines(self, request: bytes, lines: int | None = None, wait_ms: int = 0) -> Iterator[bytes]:
        """Send, then yield the answer line by line. `lines` None = as long as the caller asks."""
        with self._answering(wait_ms):
            self._ensure_connected()
            self.sock.sendall(request)
            reader = self.sock.makefile("rb")
        while lines is None or lines > 0:
            with self._answering(wait_ms):
                line = reader.readline()
                if not line.endswith(b"\n"):
                    raise MemcacheUnexpectedCloseError
            yield line.rstrip(b"\r\n")
            lines = None if lines is None else lines - 1

    def _ensure_connected(self) -> None:
        if self.sock is None:
            self._connect()

    def _connect(self) -> None:
        """pymemcache's own tries one address of a host only, does not log in, and says nothing of where it tried."""
        assert not self._has_connected, "a second connection does not have the first one's open reads"
        try:
            self.sock = open_socket(self._address, self._timeout_ms / 1000, self._login)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Failure(
                ExitCode.UNREACHABLE,
                f"cannot reach {self._address}: {reason}; is kestreld running? (-s HOST:PORT or KESTRELCTL_SERVER)",
            ) from error
        self.sock.settimeout(self.timeout)
        self._has_connected = True

    def _extract_value(
        self,
        expect_cas: bool,
        line: bytes,
        buf: bytes,
        remapped_keys: dict[bytes, bytes],
        prefixed_keys: list[bytes],
    ) -> tuple[bytes, bytes, bytes]:
        """pymemcache's hook: an old Kestrel echoes the queue alone where `queue/options` was asked for."""
        fields = line.split()
        (key,) = prefixed_keys
        is_ours = len(fields) == (5 if expect_cas else 4) and fields[1].split(b"/")[0] == key.split(b"/")[0]
        if not is_ours or not (fields[2].isdigit() and fields[3].isdigit()):
            raise MemcacheUnknownError(line)
        fields[1] = key
        self._flags = int(fields[2])
        value: tuple[bytes, bytes, bytes] = super()._extract_value(
            expect_cas, b" ".join(fields), buf, remapped_keys, prefixed_keys
        )
        return value

    def _queue_key(self, queue: bytes) -> bytes:
        """The name, once it cannot be mistaken for options or for the end of the command."""
        if not queue or b"/" in queue:
            raise Failure(ExitCode.USAGE, f"{text(queue)!r} is not a queue name: it is empty or has a / in it")
        with self._answering():
            key: bytes = self.check_key(queue, b"")
            return key

    # What went wrong, for the operator

    @contextmanager
    def _answering(self, wait_ms: int = 0, server_error: ExitCode = ExitCode.REFUSED) -> Iterator[None]:
        """Allow the server `wait_ms` beyond the time-out, and turn what goes wrong into a Failure."""
        self.timeout = (self._timeout_ms + wait_ms) / 1000
        if self.sock is not None:
            self.sock.settimeout(self.timeout)
        try:
            yield
        except (MemcacheError, OSError) as error:
            self.close()
            raise self._failure(error, server_error) from error

    def _failure(self, error: MemcacheError | OSError, server_error: ExitCode) -> Failure:
        server = self._address
        reason = text(error.args[0]) if error.args and isinstance(error.args[0], bytes) else str(error)
        match error:
            case MemcacheUnexpectedCloseError():
                return Failure(ExitCode.UNREACHABLE, f"{server} closed the connection before it answered")
            case MemcacheIllegalInputError():
                return Failure(ExitCode.USAGE, f"not a queue name: {reason}")
            case MemcacheUnknownCommandError():
                return Failure(ExitCode.REFUSED, f"{server} does not know the command {reason}")
            case MemcacheClientError() if reason == "unauthenticated":
                return Failure(ExitCode.AUTHENTICATION, f"{server} wants a user: --user NAME, or --cert FILE")
            case MemcacheClientError():
                return Failure(_client_error_code(reason), f"{server} refused: {reason}")
            case MemcacheServerError():
                return Failure(_server_error_code(reason, server_error), f"{server} answered: {reason}")
            case TimeoutError():
                timeout = f"{self._timeout_ms / 1000:g}s"
                return Failure(
                    ExitCode.TRY_AGAIN,
                    f"no answer from {server} within {timeout}; try again or raise --timeout",
                )
            case OSError() if "certificate" in str(error).lower():
                return Failure(ExitCode.AUTHENTICATION, f"{server} wants a certificate of an authority it trusts")
            case OSError():
                reason = (error.strerror or str(error)).lower()
                return Failure(ExitCode.UNREACHABLE, f"connection to {server} lost: {reason}")
            case _:
                return Failure(ExitCode.PROTOCOL, f"{server} does not speak Kestrel's protocol, it answered {reason!r}")


def _client_error_code(reason: str) -> ExitCode:
    if reason.startswith(("unauthenticated", "authentication")):
        return ExitCode.AUTHENTICATION
    if reason.startswith("not allowed"):
        return ExitCode.NO_RIGHTS
    return ExitCode.REFUSED


def _server_error_code(reason: str, otherwise: ExitCode) -> ExitCode:
    if reason.startswith("corrupt"):
        return ExitCode.QUEUE_STOPPED
    if reason.startswith("journal"):
        return ExitCode.IO
    return otherwise
