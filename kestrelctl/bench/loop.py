"""Event loop of the load tests: many client connections and timers in one thread."""

import heapq
import select
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count, repeat
from typing import Final

from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.remote.client import failure_of
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login, connect
from kestreld.client.replies import Reply, ReplyParser, UnparsableReply
from kestreld.client.transport import reason_of
from kestreld.errors import KestrelError, ServersAway

RECEIVE_BYTES: Final = 262_144
MILLISECOND_NS: Final = 1_000_000
LOOK_NS: Final = 100_000_000  # interval of `on_look` and of the check for overdue replies
HANG_UP_NS: Final = 2_000_000_000
NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Answered = Callable[[Reply], None]


class Loop:
    """Clock, timers and connections of a load test."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ns = timeout_ms * 1_000_000  # longest time a server may take to reply
        self.now_ns = time.monotonic_ns()
        self.selector = selectors.EpollSelector()
        self.connections: set[LoadConnection] = set()
        self.on_look: Callable[[], None] = lambda: None  # called every LOOK_NS
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_numbers = count()
        self._look_at_ns = 0

    def read_clock(self) -> int:
        self.now_ns = time.monotonic_ns()
        return self.now_ns

    def call_at(self, at_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (at_ns, next(self._timer_numbers), action))

    def run(self, is_finished: Callable[[], bool]) -> None:
        """Run until `is_finished()`. Raises Failure if a server disconnects or does not answer in time."""
        while not is_finished():
            for key, mask in self._select():
                key.data.ready(mask)
            self.read_clock()
            while self._timers and self._timers[0][0] <= self.now_ns:
                heapq.heappop(self._timers)[2]()
            if self._look_at_ns <= self.now_ns:
                self._look_at_ns = self.now_ns + LOOK_NS
                for connection in self.connections:
                    connection.check_patience()
                self.on_look()

    def _select(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for ready connections, at most until the next timer."""
        next_ns = min(self._timers[0][0], self._look_at_ns) if self._timers else self._look_at_ns
        wait_ns = max(0, next_ns - self.read_clock())
        # epoll rounds up to milliseconds, and puts that we send late would look like a slow server: wake up earlier.
        if 0 < wait_ns < 2 * MILLISECOND_NS:
            select.select([self.selector], [], [], wait_ns / 1e9)
            wait_ns = 0
        return self.selector.select((wait_ns // MILLISECOND_NS - 1) / 1e3 if wait_ns else 0)

    def hang_up(self) -> None:
        """Close all connections once the server has carried out their commands, or after HANG_UP_NS."""
        for connection in self.connections:
            connection.say_goodbye()
        until_ns = self.read_clock() + HANG_UP_NS
        while self.connections and self.now_ns < until_ns:
            for key, _ in self.selector.select((until_ns - self.now_ns) / 1e9):
                key.data.wait_for_goodbye()
            self.read_clock()
        for connection in list(self.connections):
            connection.close()
        self.selector.close()


class LoadConnection:
    """One connection: requests are sent at once, and each reply is passed to the callback of its request."""

    def __init__(self, loop: Loop, address: str, login: Login) -> None:
        self._loop = loop
        self._address = address
        self._parser = ReplyParser()
        self._waiting: deque[Answered] = deque()
        self._wait_ns = 0
        self._answer_by_ns = 0
        self._unsent = b""
        self._socket = _connect(address, login, loop.timeout_ns / 1e9)
        loop.connections.add(self)
        loop.selector.register(self._socket, selectors.EVENT_READ, self)

    def ask(self, request: bytes, answered: Answered, *, replies: int = 1, wait_ms: int = 0) -> None:
        """Send a request; `answered` gets each reply. `wait_ms`: time for which the request lets the server wait."""
        self._wait_ns = wait_ms * 1_000_000
        if not self._waiting:
            self._answer_by_ns = self._loop.now_ns + self._loop.timeout_ns + self._wait_ns
        self._waiting.extend(repeat(answered, replies))
        if self._unsent:
            self._unsent += request
        else:
            self._send(request)

    def ready(self, mask: int) -> None:
        if self not in self._loop.connections:  # closed by an earlier event of this round
            return
        if mask & selectors.EVENT_WRITE:
            self._send(self._unsent)
        if mask & selectors.EVENT_READ:
            self._read()

    def check_patience(self) -> None:
        """Raise Failure if a reply is overdue."""
        if self._waiting and self._answer_by_ns < self._loop.now_ns:
            seconds = self._loop.timeout_ns / 1e9
            raise Failure(
                ExitCode.TRY_AGAIN,
                f"no answer from {self._address} within {seconds:g}s; try again or raise --timeout",
            )

    def close(self) -> None:
        self._loop.connections.discard(self)
        self._loop.selector.unregister(self._socket)
        self._socket.close()

    def say_goodbye(self) -> None:
        """Shut down the sending side: no more requests follow."""
        with suppress(OSError):  # it is lost already
            self._socket.shutdown(socket.SHUT_WR)
        self._loop.selector.modify(self._socket, selectors.EVENT_READ, self)

    def wait_for_goodbye(self) -> None:
        """After `say_goodbye`: discard replies, and close once the server has closed."""
        try:
            is_over = not self._socket.recv(RECEIVE_BYTES)
        except NOT_NOW:
            return
        except OSError:
            is_over = True
        if is_over:
            self.close()

    def _send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except NOT_NOW:
            sent = 0
        except OSError as error:
            raise self._lost(error) from error
        had_unsent = bool(self._unsent)
        self._unsent = data[sent:]
        if bool(self._unsent) != had_unsent:
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._loop.selector.modify(self._socket, interest, self)

    def _read(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except NOT_NOW:
            return
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise Failure(ExitCode.UNREACHABLE, f"{self._address} closed the connection")
        now_ns = self._loop.read_clock()
        waiting = self._waiting
        try:
            replies = self._parser.feed(data)
        except UnparsableReply as error:
            words = f"{self._address} is not a Kestrel server: it replied {str(error)!r}"
            raise Failure(ExitCode.PROTOCOL, words) from error
        for reply in replies:
            if not waiting:
                raise Failure(ExitCode.PROTOCOL, f"unexpected reply from {self._address}: {reply!r}")
            waiting.popleft()(reply)
        self._answer_by_ns = now_ns + self._loop.timeout_ns + self._wait_ns

    def _lost(self, error: OSError) -> Failure:
        reason = (error.strerror or str(error)).lower()
        return Failure(ExitCode.UNREACHABLE, f"connection to {self._address} lost: {reason}")


def _connect(address: str, login: Login, timeout_s: float) -> socket.socket:
    if login.uses_tls(parse_address(address)):
        tls_context(login)
    try:
        connected = connect(address, login, timeout_s)
    except OSError as error:
        problem = ServersAway({address: reason_of(error)})
        problem.__cause__ = error
        raise failure_of(problem, round(timeout_s * 1000)) from error
    except KestrelError as problem:
        raise failure_of(problem, round(timeout_s * 1000)) from problem
    connected.setblocking(False)
    return connected
