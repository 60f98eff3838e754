"""One connection to a server: sends requests, reads replies, and raises KestrelErrors for failures."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from kestreld import errors
from kestreld.client.access import (
    PORT_DEFAULT,
    RECEIVE_BYTES,
    Enter,
    Login,
    ServerAddress,
    Socket,
    connect,
    finish_sending,
    hang_up,
    is_quiet,
    log_in,
    send_all,
)
from kestreld.client.blocks import text
from kestreld.client.calls import carry_out
from kestreld.client.queue_talks import ERRORS, UNAUTHENTICATED, Answer, Request, Talk, refusal
from kestreld.client.replies import Reply, ReplyParser, UnparsableReply
from kestreld.forks import restart_in_child

T = TypeVar("T")
BLOCK_RECEIVE_BYTES: Final = 1 << 20
CLOSED: Final = "it closed the connection"
# Commands that change nothing on any kind of server.
_HARMLESS: Final = (b"version", b"stats", b"dump_")
_BLOCK_STARTS: Final = (b"STAT ", b"queue '", b"BINDING ", b"LEASE ", b"END")


class Transport:
    """Connection that connects only once, and that any failure ends.

    Methods raise KestrelErrors: ServersAway and LoginRefused if they connect first, ConnectionLost if the server did
    not answer, ServerRefused for its refusals.
    """

    port_default = PORT_DEFAULT  # for addresses without a port
    connect_by: Callable[[str, Login, float, int, Enter], Socket] = staticmethod(connect)
    asks_kind = False  # True = the server's kind is checked before the first command that may change something

    def __init__(self, address: str, login: Login, timeout_ms: int) -> None:
        """Does not connect: `connect` does, or the first command."""
        self.address = address
        self._login = login
        self._timeout_ms = timeout_ms
        self._socket: Socket | None = None
        self._allowed_ms = timeout_ms  # for which the socket waits
        self._has_connected = False
        self._is_known = False  # until then no command that may change something is sent
        self._why_closed = CLOSED
        self._parser = ReplyParser()
        self._replies: deque[Reply] = deque()
        restart_in_child(self)

    def failure_of(self, problem: errors.KestrelError) -> Exception:
        """Return the exception to raise for a problem; programs with exceptions of their own override this."""
        return problem

    def connect(self) -> None:
        """Connect, unless connected. Raises ServersAway, LoginRefused or UnexpectedReply."""
        with self._talking():
            pass

    def after_fork(self) -> None:
        """Close this child's copy of the parent's connection, which ends for the server once no process has it open."""
        self._has_connected = True
        self._why_closed = "the connection was opened before a fork and belongs to the parent process"
        self.close()

    def start_over(self) -> None:
        """Let the next command connect anew. Only for users that hold nothing on the connection that was lost."""
        self.close()
        self._has_connected = self._is_known = False
        self._why_closed = CLOSED
        self._parser = ReplyParser()
        self._replies.clear()

    def close(self) -> None:
        connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    @property
    def is_usable(self) -> bool:
        """True if, as far as can be told, the server is still at the other end."""
        return self._socket is not None and is_quiet(self._socket)

    def hang_up(self) -> None:
        """Interrupt another thread that waits on this connection."""
        if (connected := self._socket) is not None:
            hang_up(connected)

    @property
    def last_header(self) -> bytes:
        """The header of the last item that has come."""
        return self._parser.header

    def hear_out(self, most_ms: int) -> bytes:
        """Read what the server has sent before it learns that nobody waits, unless by TLS, and close the connection.

        Return the header of the item that has come last, also if its reply was not read to its end.
        """
        heard = self._parser.unread
        with suppress(OSError, errors.KestrelError):
            if self._socket is not None and not self._login.uses_tls(ServerAddress.parse(self.address)):
                finish_sending(self._socket)
                self._socket.settimeout(most_ms / 1000)
                while True:
                    heard += self._received(RECEIVE_BYTES)
        self.close()
        header, eol, _ = heard.partition(b"\r\n")
        return header if eol and header.startswith(b"VALUE ") else self._parser.header

    def carry_out(self, talk: Talk[T]) -> T:
        """Carry a talk out. Any failure once it has begun ends the connection, except what the talk itself handles."""
        has_begun = False

        def exchange(request: Request) -> Answer:
            nonlocal has_begun
            has_begun = True
            with self._guarded(request.wait_ms):
                if request.data:
                    self._send(request.data)
                return Answer(self._reply(), self._parser.header)

        try:
            return carry_out(talk, exchange)
        except errors.KestrelError as problem:
            if has_begun:
                self.close()
            raised = self.failure_of(problem)
            raise raised from (problem.__cause__ if raised is problem else problem)

    def answers(self, requests: Sequence[bytes], answer_ms: int) -> list[Answer]:
        """Send requests at once, and return the answer to each. The server may take `answer_ms`, not the time-out."""
        with self._talking(answer_ms - self._timeout_ms):
            self._send(b"".join(requests))
            return [Answer(self._reply(), self._parser.header) for _ in requests]

    # One command and its reply

    def _ask(self, command: bytes, *answers: bytes) -> bytes:
        return bytes(self._match(command, b"|".join(map(re.escape, answers)))[0])

    def _match(self, command: bytes, expected: bytes, wait_ms: int = 0) -> "re.Match[bytes]":
        """Send a command and return its one-line reply, matched by the pattern."""
        with self._talking(wait_ms):
            self._send(command + b"\r\n")
            line = self._line(command.split()[0])
            found = re.fullmatch(expected, line)
            if found is None:
                raise errors.UnexpectedReply(self.address, text(line))
            return found

    def _line(self, verb: bytes) -> bytes:
        """Return the next line, or raise the error that it is. An END is returned as b"END"."""
        reply = self._reply()
        if reply == ():
            return b"END"
        if isinstance(reply, tuple) or reply.startswith(ERRORS):
            raise self._refusal(reply, verb)
        return reply

    def _block(self, command: bytes) -> bytes:
        """Return all lines up to END, without it. Read as a whole: line by line would be ten times the work."""
        with self._talking():
            self._send(command + b"\r\n")
            answer = bytearray()
            while not answer.endswith(b"END\r\n") or not (len(answer) == 5 or answer.endswith(b"\nEND\r\n")):
                answer += self._received(BLOCK_RECEIVE_BYTES)
                line, eol, _ = answer[:1000].partition(b"\n")
                if eol and line.strip() and not line.startswith(_BLOCK_STARTS):
                    raise self._refusal(bytes(line.rstrip(b"\r")), command)
        return bytes(answer[:-5]).replace(b"\r\n", b"\n")

    def _counters(self, command: bytes) -> dict[str, int | str]:
        """Return the numbers or words of STAT lines, by name."""
        counters: dict[str, int | str] = {}
        for line in self._block(command).splitlines():
            _, name, value = (line + b"  ").split(b" ", 2)
            if name:
                value = value[:-2]
                counters[text(name)] = _number_or_text(value) if name != b"version" else text(value)
        return counters

    def _send(self, request: bytes) -> None:
        if not self._is_known and self._needs_knowing(request):
            self._ask_who_is_there()
        if self._socket is None:
            raise errors.ConnectionLost(self.address, self._why_closed)
        send_all(self._socket, request)

    def _needs_knowing(self, request: bytes) -> bool:
        if self.asks_kind:
            return not request.startswith(_HARMLESS)
        return not self._login.user and request.startswith(b"set ")

    def must_be_known(self) -> None:
        """Check the server before anything is sent that it might misunderstand.

        Raises LoginRefused if it requires a login and none is given: it would take an item for one. Raises OtherServer,
        with nothing changed, if it is of another kind.
        """
        with self._talking():
            if not self._is_known:
                self._ask_who_is_there()

    def _ask_who_is_there(self) -> None:
        """Send both questions at once. Any server of either kind knows the first; only those with queues the second."""
        self._is_known = True
        self._send(b"version\r\ndump_stats -\r\n" if self.asks_kind else b"version\r\n")
        version = self._reply()
        if version == UNAUTHENTICATED:
            raise errors.LoginRefused(self.address, "unauthenticated")
        if not isinstance(version, bytes) or version.startswith((b"CLIENT_ERROR", b"SERVER_ERROR")):
            raise self._refusal(version, b"version")
        if self.asks_kind:
            if not version.startswith(b"VERSION "):
                raise errors.UnexpectedReply(self.address, text(version))
            self._check_kind()

    def _check_kind(self) -> None:
        """Raise OtherServer unless the reply to the second question is that of a server with queues."""
        reply = self._reply()
        if reply == b"ERROR":
            raise errors.OtherServer(self.address, "it is a cache")
        while reply != ():
            if not isinstance(reply, bytes) or reply.startswith(ERRORS):
                raise self._refusal(reply, b"dump_stats")
            reply = self._reply()

    def _received(self, most_bytes: int) -> bytes:
        data = self._socket.recv(most_bytes) if self._socket is not None else b""
        if not data:
            raise errors.ConnectionLost(self.address, self._why_closed)
        return data

    def _reply(self) -> Reply:
        while not self._replies:
            try:
                self._replies += self._parser.feed(self._received(RECEIVE_BYTES))
            except UnparsableReply as error:
                raise errors.UnexpectedReply(self.address, str(error)) from error
        return self._replies.popleft()

    @contextmanager
    def _talking(self, wait_ms: int = 0) -> Iterator[None]:
        """As `_guarded`, for whoever is not within a talk: raises what `failure_of` makes of the problem."""
        try:
            with self._guarded(wait_ms):
                yield
        except errors.KestrelError as problem:
            raised = self.failure_of(problem)
            raise raised from (problem.__cause__ if raised is problem else problem)

    @contextmanager
    def _guarded(self, wait_ms: int = 0) -> Iterator[None]:
        """Connect if necessary, and allow the server `wait_ms` beyond the time-out. Any failure ends the connection."""
        try:
            if self._socket is None and not self._has_connected:
                self._connect()
            if self._allowed_ms != self._timeout_ms + wait_ms and (connected := self._socket) is not None:
                with suppress(OSError):  # another thread has ended it, which shows below
                    connected.settimeout((self._timeout_ms + wait_ms) / 1000)
                self._allowed_ms = self._timeout_ms + wait_ms
            yield
        except errors.KestrelError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise errors.ConnectionLost(self.address, reason_of(error)) from error

    def _connect(self) -> None:
        self._has_connected = True
        self._allowed_ms = self._timeout_ms
        try:
            timeout_s = self._timeout_ms / 1000
            self._socket = self.connect_by(self.address, self._login, timeout_s, self.port_default, self._enter)
        except OSError as error:
            raise errors.ServersAway({self.address: reason_of(error)}) from error

    def _enter(self, connected: Socket, server: str, login: Login) -> None:
        """Log in on a new connection."""
        log_in(connected, server, login)

    def _refusal(self, reply: Reply, verb: bytes) -> errors.ServerRefused:
        return refusal(self.address, reply, verb, self._parser.header)


def reason_of(error: OSError) -> str:
    """Return the system's text for an error, as words within a line."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def _number_or_text(value: bytes) -> int | str:
    try:
        return int(value)
    except ValueError:
        return text(value)
