"""Client for Kestrel servers that raises Failures with exit codes, and batches of puts."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from kestrelctl.items.putting import PutReport
from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted
from kestreld import errors
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock, parse_blocks, text
from kestreld.client.connection import ClientConnection
from kestreld.client.items import PutItem
from kestreld.client.transport import reason_of

if TYPE_CHECKING:
    from kestreld.client.server import Server

T = TypeVar("T")
# Replies to one batch must fit in the socket's buffers: neither side may wait for the other to read.
BATCH_ITEMS_MAX: Final = 512
NOBODY: Final = Login()


class KestrelClient(ClientConnection):
    """A connection whose errors are Failures."""

    asks_kind = True

    def __init__(self, address: str, timeout_ms: int, login: Login = NOBODY) -> None:
        """Raises Failure for an invalid address."""
        self._uses_tls = login.uses_tls(parse_address(address))
        self.answer_ms = timeout_ms  # longest time the server may take to reply
        super().__init__(address, login, timeout_ms)

    def _connect(self) -> None:
        if self._uses_tls:
            tls_context(self._login)
        super()._connect()

    def server(self) -> "Server":
        """The same server for leases, which are independent of connections."""
        from kestreld.client.server import Server

        return Server(self.address, self._login, self._timeout_ms)

    def failure_of(self, problem: errors.KestrelError) -> Failure:
        return failure_of(problem, self._timeout_ms)

    def over_restarts(self, fetch: Callable[[Self, int], T | None], wait_ms: int) -> T | None:
        """Return what `fetch` finds, given the ms that it may wait; it is repeated while the server is restarted.

        Only while no read is open. Raises Failure if the server cannot be reached at first, or at the end.
        """
        if not wait_ms:
            return fetch(self, 0)
        self.must_be_known()
        until_s, left_ms = time.monotonic() + wait_ms / 1000, wait_ms
        pauses: Iterator[int] | None = None
        while True:
            try:
                return fetch(self, left_ms)
            except Failure as failure:
                left_ms = round((until_s - time.monotonic()) * 1000)
                if failure.code != ExitCode.UNREACHABLE or left_ms <= 0:
                    raise
            if pauses is None:
                from kestreld.client.heartbeat import pauses_ms  # rare

                pauses = pauses_ms()
            time.sleep(min(next(pauses), left_ms) / 1000)
            self.start_over()
            left_ms = max(round((until_s - time.monotonic()) * 1000), 0)

    def reload(self) -> str:
        try:
            return super().reload()
        except Failure as failure:
            if failure.code == ExitCode.REFUSED and isinstance(failure.__cause__, errors.ServerUnfit):
                failure.code = ExitCode.CONFIG
            raise

    def put_many(
        self,
        queue: bytes,
        batches: Iterable[list[bytes]],
        expire_s: int = 0,
        *,
        delay_ms: int = 0,
        item_key: bytes = b"",
    ) -> PutReport:
        """Put items in order, many in flight, until one is refused or the connection fails. `expire_s`: see
        `putting.expiry_s`.
        """
        items = ([PutItem(item, expire_s, delay_ms=delay_ms) for item in batch] for batch in batches)
        return self.put_items(queue, items, item_key=item_key)

    def put_items(self, queue: bytes, batches: Iterable[list[PutItem]], *, item_key: bytes = b"") -> PutReport:
        """Put items as `put_many` does, each with its own expiry and flags."""
        report = PutReport()
        try:
            for batch in batches:
                for first in range(0, len(batch), BATCH_ITEMS_MAX):
                    some = batch[first : first + BATCH_ITEMS_MAX]
                    self._put_batch(queue, some, report, item_key)
                    if report.failure is not None:
                        if report.failure.code == ExitCode.FULL and report.first_refused is not None:
                            refused = some[report.first_refused - 1 - (report.sent - len(some))]
                            report.failure.words = self._why_refused(queue, len(refused.data))
                        return report
        except Failure as failure:
            report.failure = report.failure or failure
        return report

    def _put_batch(self, queue: bytes, batch: list[PutItem], report: PutReport, item_key: bytes) -> None:
        self.must_be_known()
        if item_key or any(item.delay_ms for item in batch):
            self.need_leases(queue)
        report.sent += len(batch)
        try:
            for answer in self.put_each(queue, batch, item_key=item_key):
                if isinstance(answer, errors.KestrelError):
                    report.note(self.failure_of(answer))
                elif answer:
                    report.note(None)
                else:
                    report.note(Failure(ExitCode.FULL, f"{text(queue)} refused the item"))
        except Failure as failure:
            if failure.code == ExitCode.USAGE:  # a name or key that cannot be sent
                report.sent -= len(batch)
            raise

    def _why_refused(self, queue: bytes, size_bytes: int) -> str:
        """The reason of a refusal in words. The reply does not tell full from too large: the limits do."""
        name, blocks = text(queue), list[QueueBlock]()
        with suppress(Failure):
            blocks = parse_blocks(self.dump_config())
        family = [block for block in blocks if block["queue"] == name or str(block["queue"]).startswith(f"{name}+")]
        largest = min((size for block in family if isinstance(size := block.get("max_item_size"), int)), default=None)
        if largest is not None and size_bytes > largest:
            return f"{name} refused the item: it has {counted(size_bytes, 'byte')}, max_item_size is {largest}"
        limits = [
            f"{key} is {block[key]}" + ("" if block["queue"] == name else f" in {block['queue']}")
            for block in family
            for key in ("max_items", "max_size")
            if isinstance(block.get(key), int)
        ]
        if limits:
            return f"{name} refused the item: the queue is full; {', '.join(limits)}"
        return f"{name} refused the item: the queue is full, or the item is larger than max_item_size"


@dataclass(frozen=True, slots=True)
class ServerWords:
    """Name of a kind of server, and a hint for the case that it cannot be reached."""

    kind: str
    hint: str


KESTREL: Final = ServerWords("a Kestrel server", "is kestreld running? (-s HOST:PORT or KESTRELCTL_SERVER)")


def failure_of(problem: errors.KestrelError, timeout_ms: int, expected: ServerWords = KESTREL) -> Failure:
    """The Failure, with exit code and message, for a problem with a server."""
    cause = problem.__cause__
    match problem:
        case errors.ServersAway():
            ((server, reason),) = problem.reasons.items()
            if verification := getattr(cause, "verify_message", ""):
                words = f"certificate verification failed for {server}: {verification}; use --ca FILE to trust its CA"
                return Failure(ExitCode.UNREACHABLE, words)
            if tls_reason := getattr(cause, "reason", ""):
                words = f"TLS handshake with {server} failed: {tls_reason.replace('_', ' ').lower()}"
                return Failure(ExitCode.UNREACHABLE, words)
            return Failure(ExitCode.UNREACHABLE, f"cannot reach {server}: {reason}; {expected.hint}")
        case errors.ConnectionLost() if cause is None:
            return Failure(ExitCode.UNREACHABLE, f"{problem.address} closed the connection before it answered")
        case errors.ConnectionLost() if isinstance(cause, TimeoutError):
            words = f"no answer from {problem.address} within {timeout_ms / 1000:g}s; try again or raise --timeout"
            return Failure(ExitCode.TRY_AGAIN, words)
        case errors.ConnectionLost() if "certificate" in str(cause).lower():
            words = f"{problem.address}: client certificate required, signed by a CA the server trusts: use --cert"
            return Failure(ExitCode.AUTHENTICATION, words)
        case errors.ConnectionLost():
            reason = reason_of(cause) if isinstance(cause, OSError) else str(cause)
            return Failure(ExitCode.UNREACHABLE, f"connection to {problem.address} lost: {reason}")
        case errors.UnknownCommand():
            return Failure(ExitCode.REFUSED, f"{problem.address} does not know the command {problem.command}")
        case errors.LoginRefused() if problem.reason == "unauthenticated":
            return _unauthenticated(problem.address)
        case errors.LoginRefused():
            return Failure(ExitCode.AUTHENTICATION, f"{problem.address} refused {problem.reason}")
        case errors.OtherServer():
            words = f"{problem.address} is not {expected.kind}: {problem.reason}; nothing was changed"
            return Failure(ExitCode.PROTOCOL, words)
        case errors.UnexpectedReply():
            words = f"{problem.address} is not {expected.kind}: it replied {problem.reason!r}"
            return Failure(ExitCode.PROTOCOL, words)
        case errors.ServerUnfit():
            codes = {"corrupt": ExitCode.QUEUE_STOPPED, "journal": ExitCode.IO, "bindings": ExitCode.IO}
            code = codes.get(problem.reason.partition(" ")[0], ExitCode.REFUSED)
            if code == ExitCode.QUEUE_STOPPED:
                return Failure(code, f"{problem.address} has stopped this queue: {problem.reason}")
            said = "refused" if code is ExitCode.IO else "answered"
            return Failure(code, f"{problem.address} {said}: {problem.reason}")
        case errors.ServerRefused():
            if problem.reason == "unauthenticated":
                return _unauthenticated(problem.address)
            return Failure(_client_error_code(problem.reason), f"{problem.address} refused: {problem.reason}")
        case _:
            return Failure(ExitCode.USAGE, str(problem))  # a queue name


def _unauthenticated(address: str) -> Failure:
    return Failure(ExitCode.AUTHENTICATION, f"{address}: authentication required: use --user or --cert")


def _client_error_code(reason: str) -> ExitCode:
    if reason.startswith(("unauthenticated", "authentication")):
        return ExitCode.AUTHENTICATION
    return ExitCode.NO_RIGHTS if reason.startswith("not allowed") else ExitCode.REFUSED
