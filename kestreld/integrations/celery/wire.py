"""Wire: one connection to a server, on which requests are pipelined and Kombu's event loop may wait.

What is sent and what replies mean is the client's: see QueueTalks.
"""

import select
from collections import deque
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Final, TypeVar

from kestreld.client.absence import now_ms
from kestreld.client.access import (
    RECEIVE_BYTES,
    SEND_BYTES,
    Login,
    ServerAddress,
    Socket,
    connect,
    finish_sending,
    limit_waits,
    send_all,
)
from kestreld.client.calls import carry_out
from kestreld.client.queue_talks import UNAUTHENTICATED, Answer, QueueTalks, Request, Talk
from kestreld.client.replies import Reply, ReplyParser, UnparsableReply
from kestreld.client.transport import reason_of
from kestreld.errors import ConnectionLost, LoginRefused, ServersAway
from kestreld.forks import restart_in_child

T = TypeVar("T")
# Called with a reply and the header of the item in it; with None if the connection was lost before.
Sink = Callable[[Reply | None, bytes], None]
Announcement = Callable[[QueueTalks], Talk[object]]
NO_ANSWER: Final = "no answer in time"


class Wire:
    """A connection that is opened when it is first used, and again after it was lost.

    Time-outs are for silence: a long request or reply lasts as long as bytes go or come. When it is lost it is closed,
    and all sinks are called with None; `why_lost` has the reason. Threads may share it. A forked child gets a closed
    one.
    """

    def __init__(self, address: str, login: Login, timeout_s: float, announcement: Announcement | None = None) -> None:
        """`announcement` is carried out on each new connection, before anything else."""
        self.address = address
        self.lock = RLock()
        self.talks = QueueTalks(address)
        self.opened = 0  # how often
        self.why_lost = ""
        self.changed: Callable[[Wire], None] = lambda wire: None  # called before the socket is closed
        self._announcement = announcement
        self._login = login
        self._timeout_s = timeout_s
        self._socket: Socket | None = None
        self._is_tls = False
        self._parser = ReplyParser(keeps_headers=True)
        self._unsent: list[bytes] = []
        self._sinks: deque[Sink] = deque()
        self._unclaimed: deque[Answer] = deque()  # further lines for a talk that has not asked for them yet
        self.heard_at_ms = 0  # or asked, if nothing was under way: when bytes went or came last
        restart_in_child(self)

    def after_fork(self) -> None:
        """Close the child's copy of the connection, without which it would outlive the parent."""
        self.lock = RLock()
        self._sinks.clear()
        self._unsent.clear()
        self.changed = lambda wire: None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def is_secured(self) -> bool:
        """True if a connection takes TLS or a login."""
        return bool(self._login.user) or self._login.uses_tls(ServerAddress.parse(self.address))

    @property
    def is_idle(self) -> bool:
        """True if every request was answered."""
        return not self._sinks and not self._unsent

    def fileno(self) -> int:
        """The descriptor to wait on; -1 = closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def open(self, timeout_s: float | None = None) -> None:
        """Connect, within `timeout_s`, unless connected. Raises ServersAway, LoginRefused or ConnectionLost."""
        with self.lock:
            if self._socket is not None:
                return
            limit_s = timeout_s or self._timeout_s
            try:
                connected = connect(self.address, self._login, limit_s)
            except OSError as error:
                raise ServersAway({self.address: reason_of(error)}) from error
            limit_waits(connected, limit_s)
            self._socket = connected
            self._is_tls = hasattr(connected, "pending")
            self._parser = ReplyParser(keeps_headers=True)
            self._unclaimed.clear()
            self.talks.start_over()
            self.opened += 1
            # A server that requires a login would take the data of a put for one.
            if self.carry_out(_version()) == UNAUTHENTICATED:
                self.close()
                raise LoginRefused(self.address, "unauthenticated")
            if self._announcement is not None:
                self.carry_out(self._announcement(self.talks))
            limit_waits(connected, self._timeout_s)

    def close(self) -> None:
        """Close the connection. Requests that were not answered are lost to their sinks."""
        with self.lock:
            if self._socket is not None:
                self.changed(self)
                self._socket.close()
                self._socket = None
            lost, self._sinks = self._sinks, deque()
            self._unsent.clear()
        for sink in lost:
            sink(None, b"")

    # Pipelining

    def ask(self, request: bytes, sink: Sink) -> None:
        """Add a request to those that `flush` sends. An empty one stands for a further line of the last reply."""
        with self.lock:
            if request:
                self._unsent.append(request)
            elif self._unclaimed:
                sink(*self._unclaimed.popleft())
                return
            if not self._sinks:
                self.heard_at_ms = now_ms()
            self._sinks.append(sink)

    def flush(self) -> None:
        """Send what was asked."""
        with self.lock:
            if not self._unsent:
                return
            request = b"".join(self._unsent)
            self._unsent.clear()
            if self._socket is None:
                self.close()
                return
            try:
                send_all(self._socket, request)
            except OSError as error:
                self.lose(reason_of(error))
            if len(request) > SEND_BYTES:
                self.heard_at_ms = now_ms()

    def receive(self) -> None:
        """Read what has arrived and hand it to the sinks. Waits, for the time-out at most, if nothing has."""
        with self.lock:
            connected = self._socket
            if connected is None:
                return
            try:
                data = connected.recv(RECEIVE_BYTES)
                while self._is_tls and connected.pending():  # type: ignore[attr-defined]
                    data += connected.recv(RECEIVE_BYTES)
                replies = self._parser.feed(data)
            except (TimeoutError, BlockingIOError):
                self.lose(NO_ANSWER)
                return
            except OSError as error:
                self.lose(reason_of(error))
                return
            except UnparsableReply as error:
                self.lose(f"unexpected reply: {error}")
                return
            self.heard_at_ms = now_ms()
            headers = self._parser.headers
            assert headers is not None
            for reply in replies:
                header = b""
                if isinstance(reply, tuple):
                    for _ in reply:
                        header = headers.popleft()
                if self._sinks:
                    self._sinks.popleft()(reply, header)
                else:
                    self._unclaimed.append(Answer(reply, header))
            if not data:
                self.lose("it closed the connection")

    def receive_if_ready(self) -> None:
        """`receive`, unless that would have to wait, or another thread is reading."""
        if self.lock.acquire(blocking=False):
            try:
                if self._socket is not None and wait_for((self,), 0):
                    self.receive()
            finally:
                self.lock.release()

    def look_after(self, late_ms: int) -> None:
        """Send and read what there is, and give the connection up if an answer is late, unless a thread is at that."""
        if self.lock.acquire(blocking=False):
            try:
                self.flush()
                self.receive_if_ready()
                if self._sinks and now_ms() - self.heard_at_ms > late_ms and not wait_for((self,), 0):
                    self.lose(NO_ANSWER)
            finally:
                self.lock.release()

    def end_requests(self) -> None:
        """End the input of the server, which then executes nothing more, and read what it has sent before.

        After that it is known what a request that waits on the server has brought. Closes the connection.
        """
        with self.lock:
            self.flush()
            if self._socket is not None:
                finish_sending(self._socket)
            while self._socket is not None and wait_for((self,), self._timeout_s):
                self.receive()
            self.close()

    def settle(self) -> None:
        """Wait until every request is answered, for the time-out at most, and close the connection."""
        with self.lock:
            self.flush()
            while self._sinks and wait_for((self,), self._timeout_s):
                self.receive()
            self.close()

    # One talk at a time

    def carry_out(self, talk: Talk[T]) -> T:
        """Carry a talk out in this thread, and the sinks of earlier requests on the way. No talk waits on the server.

        Connects if necessary. Raises as `open` does, what the talk raises, or ConnectionLost.
        """
        with self.lock:
            if self._socket is None:
                self.open()
            return carry_out(talk, self._exchange)

    def _exchange(self, request: Request) -> Answer:
        answers: list[tuple[Reply | None, bytes]] = []
        self.ask(request.data, lambda reply, header: answers.append((reply, header)))
        self.flush()
        while not answers:
            self.receive()
        reply, header = answers[0]
        if reply is None:
            raise ConnectionLost(self.address, self.why_lost)
        return Answer(reply, header)

    def lose(self, reason: str) -> None:
        """Close a connection that is of no use any more."""
        self.why_lost = reason
        self.close()


def _version() -> Talk[Reply]:
    answer: Answer = yield Request(b"version\r\n")
    return answer.reply


def readable(wires: Iterable[Wire], seconds: float) -> list[Wire]:
    """Wait until some of these open wires can be read, and return them; empty if none can in time."""
    poll = select.poll()
    waited_for = {wire.fileno(): wire for wire in wires}
    for descriptor in waited_for:
        poll.register(descriptor, select.POLLIN)
    return [waited_for[descriptor] for descriptor, _ in poll.poll(max(0, seconds * 1000))]


def wait_for(wires: Iterable[Wire], seconds: float) -> bool:
    """Wait until one of the wires can be read, or is closed. False = none could. Without wires it is a pause."""
    wires = list(wires)
    return not all(wire.is_open for wire in wires) or bool(readable(wires, seconds))
