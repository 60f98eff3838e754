"""One connection to another node: TLS, handshake, and frames in both directions.

It is polled in the turn, as sessions are. Its memory is bounded: partial input by the protocol, output that the other
end does not read by `QUEUED_BYTES_MAX`. A turn sends and takes a limited amount, so that nobody waits for a large
message.
"""

import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kestreld import net
from kestreld.cluster.frames import PART, Hello, LinkProtocol, LinkRefused, RefusedByPeer, record
from kestreld.tls import TlsConnection

READ_BYTES: Final = 1 << 15
LARGE_READ_BYTES: Final = 1 << 18  # inside of large frames
MESSAGES_AT_ONCE: Final = 32  # taken of one link before others have their turn
FRAME_BYTES: Final = 1 << 16  # a frame that has grown to this size is sent,
PART_BYTES: Final = 1 << 18  # and a message that is longer than this goes on in the next one
SENT_A_TURN_BYTES: Final = 1 << 16  # of small messages: packing more of them keeps clients waiting
CROWDED_BYTES: Final = 1 << 20
QUEUED_BYTES_MAX: Final = 1 << 26
RECORD_BYTES: Final = 5  # of a message in a frame, besides its body

Message = tuple[int, bytes]  # type and body


class LinkHost(ABC):
    """The bus, as its links use it."""

    @abstractmethod
    def opened(self, link: "BusLink", interest: int) -> None:
        """Poll the link's connection from now on."""

    @abstractmethod
    def watch(self, link: "BusLink", interest: int) -> None:
        """Change the events to poll for."""

    @abstractmethod
    def closed(self, link: "BusLink") -> None:
        """Stop polling the connection."""

    @abstractmethod
    def touched(self, link: "BusLink") -> None:
        """Note that the link has messages to send at the end of the turn."""

    @abstractmethod
    def has_time(self) -> bool:
        """Return True if this turn may take more messages, of any link."""

    @abstractmethod
    def later(self, link: "BusLink") -> None:
        """Have `work_off` called when it is the link's turn."""

    @abstractmethod
    def is_connected(self, link: "BusLink") -> bool:
        """Return True once the link is connected, False while that is in progress. Raises OSError if it failed."""

    @abstractmethod
    def ready(self, link: "BusLink") -> None:
        """Note that the handshake is over."""

    @abstractmethod
    def received_frame(self, link: "BusLink", sent_at_ms: int) -> None:
        """Note that a frame has arrived."""

    @abstractmethod
    def take(self, link: "BusLink", sent_at_ms: int, message_type: int, body: bytes) -> None:
        """Handle a message. Raises LinkRefused if it cannot be read."""

    @abstractmethod
    def ended(self, link: "BusLink", reason: str, *, is_refusal: bool) -> None:
        """Handle the end of a link. `is_refusal`: operators should know the reason; else it is just gone."""


class LinkFigures:
    """Counters of the links to and from one node."""

    __slots__ = (
        "bytes_in", "bytes_out", "lag_us", "messages_in", "messages_lost", "messages_out", "reconnects", "refused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages_out = self.messages_in = self.bytes_out = self.bytes_in = 0
        self.messages_lost = 0  # not sent because a link broke or was full, or the log refused a change
        self.reconnects = self.refused = 0
        self.lag_us = -1  # of the latest PING until its PONG; -1 = none has come


class BusLink:
    """Base of both ends. No message is sent or taken before the handshake is over."""

    def __init__(
        self,
        host: LinkHost,
        connection: net.Connection,
        protocol: LinkProtocol,
        name: str,
        tls: ssl.SSLContext | None,
        now_ms: int,
        *,
        is_caller: bool,
    ) -> None:
        """`name` is the other end's address, as shown to operators."""
        self.connection = connection
        self.fd = connection.fileno()
        self.protocol = protocol
        self.name = name
        self.since_ms = self.heard_at_ms = now_ms
        self.is_open = True
        self.is_caller = is_caller
        self.is_touched = False
        self.figures = LinkFigures()
        self.queued_bytes = 0  # of messages that have not left
        self._host = host
        self._tls = tls
        self._is_connecting = is_caller
        self._shaking_hands: TlsConnection | None = None
        self._this_turns: list[Message] = []  # to be sent at the end of the turn,
        self._waiting: deque[Message] = deque()  # when the other end takes more,
        self._packed_bytes = 0  # of the first of these, and is in frames already,
        self._unsent: bytes | memoryview = b""  # of which this is the rest
        self._inbox: deque[tuple[int, int, bytes]] = deque()
        self._interest = 0

    @property
    def peer(self) -> Hello:
        """HELLO of the other end, once the link is ready."""
        assert self.protocol.peer is not None
        return self.protocol.peer

    @property
    def is_ready(self) -> bool:
        return self.is_open and self.protocol.is_ready

    @property
    def is_connecting(self) -> bool:
        """True until TCP has connected the link."""
        return self._is_connecting

    @property
    def is_full(self) -> bool:
        """True if the other end reads so slowly that the link must be closed."""
        return self.queued_bytes > QUEUED_BYTES_MAX

    def begin(self) -> None:
        """Start polling; an incoming link also begins its handshake."""
        self._interest = net.WRITE if self._is_connecting else net.READ
        self._host.opened(self, self._interest)
        if not self._is_connecting:
            self._carefully(self._secure)

    def readable(self) -> None:
        """Handle an event of the connection."""
        if self.is_open:
            self._carefully(self._go_on)

    def _carefully(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            self.end(error.strerror or str(error), is_refusal=isinstance(error, ssl.SSLError))

    def _go_on(self) -> None:
        """Send and read. Raises OSError, as all methods do that send or read."""
        if self._establish():
            self._send()
            self._read()

    # TCP and TLS

    def _establish(self) -> bool:
        """Continue to connect; returns True once frames can be sent and read."""
        if self._is_connecting:
            if not self._host.is_connected(self):
                return False
            self._is_connecting = False
            self._secure()
        if self._shaking_hands is not None:
            wanted = self._shaking_hands.shake_hands()
            if wanted:
                self._watch(wanted)
                return False
            self._shaking_hands = None
            self._greet()
        return True

    def _secure(self) -> None:
        """Begin TLS, or the handshake of the bus if there is none."""
        if self._tls is None:
            self._greet()
        else:
            secured = TlsConnection(self._tls, self.connection, is_server=not self.is_caller)
            self.connection = self._shaking_hands = secured

    def _greet(self) -> None:
        self._watch(net.READ)
        self._put_output()

    def _put_output(self) -> None:
        """Send the output of the handshake, which is short and precedes all messages."""
        data = self.protocol.take_output()
        if data:
            self._unsent = bytes(self._unsent) + data
            self._send()

    # Out

    def put(self, message_type: int, body: bytes) -> None:
        """Send a message at the end of the turn."""
        self._this_turns.append((message_type, body))
        self._count(body)

    def _count(self, body: bytes) -> None:
        self.queued_bytes += len(body) + RECORD_BYTES
        if not self.is_touched:
            self.is_touched = True
            self._host.touched(self)

    def end_turn(self) -> None:
        """Send the messages of this turn."""
        self.is_touched = False
        if self.is_open and self._this_turns:
            self._release(self._this_turns)
            self._this_turns = []

    def _release(self, messages: list[Message]) -> None:
        self._waiting += messages
        self._carefully(self._send)

    def _send(self) -> None:
        """Send as much as the other end takes now, but no more than a turn should."""
        left_bytes = SENT_A_TURN_BYTES
        while left_bytes > 0:
            if not self._unsent:
                if not self._waiting:
                    break
                self._unsent = self._next_frame()
            try:
                sent = self.connection.send(self._unsent)
            except BlockingIOError:
                break
            self.figures.bytes_out += sent
            left_bytes -= sent
            self._unsent = memoryview(self._unsent)[sent:] if sent < len(self._unsent) else b""
        self._watch_both()

    def _next_frame(self) -> bytes:
        records: list[bytes] = []
        size_bytes = 0
        while self._waiting and size_bytes < FRAME_BYTES:
            message_type, body = self._waiting[0]
            start = self._packed_bytes
            rest_bytes = len(body) - start
            if rest_bytes > PART_BYTES:
                piece = record(PART, body[start : start + PART_BYTES])
                self._packed_bytes += PART_BYTES
                self.queued_bytes -= PART_BYTES
            else:
                piece = record(message_type, body[start:])
                self._waiting.popleft()
                self._packed_bytes = 0
                self.queued_bytes -= rest_bytes + RECORD_BYTES
                self.figures.messages_out += 1
            records.append(piece)
            size_bytes += len(piece)
        return self.protocol.pack(records)

    def refuse(self, reason: str) -> None:
        """Tell the other end the reason, and close."""
        self.protocol.refuse(reason)
        self._say_why()
        self.end(reason)

    def _say_why(self) -> None:
        """Send the last output of the handshake, if that is possible at once."""
        data = self.protocol.take_output()
        if data and not self._unsent:
            with suppress(OSError):
                self.connection.send(data)
                self.connection.shutdown(net.END_OUTPUT)

    # In

    def _read(self) -> None:
        """Read once, and take the messages that are complete."""
        protocol = self.protocol
        if self._inbox:
            return
        try:
            data = self.connection.recv(min(max(protocol.missing_bytes, READ_BYTES), LARGE_READ_BYTES))
        except BlockingIOError:
            return
        if not data:
            self.end("closed by the other end")
            return
        self.figures.bytes_in += len(data)
        was_ready = protocol.is_ready
        try:
            frames = protocol.feed(data)
        except LinkRefused as refused:
            self._say_why()
            self.end(str(refused), is_refusal=True)
            return
        except RefusedByPeer as refusal:
            self.end(f"closed by the other node: {refusal}", is_refusal=True)
            return
        self._put_output()
        if protocol.is_ready and not was_ready:
            self._host.ready(self)
        for frame in frames:
            if not self.is_open:
                return
            self._host.received_frame(self, frame.sent_at_ms)
            self._inbox += [(frame.sent_at_ms, *message) for message in frame.messages]
        if self._inbox:
            self.work_off()

    def work_off(self) -> None:
        """Take received messages, as far as the turn has time, and no more than a link's share."""
        inbox = self._inbox
        for _ in range(min(len(inbox), MESSAGES_AT_ONCE)):
            if not self.is_open:
                return
            if not self._host.has_time():
                break
            self.figures.messages_in += 1
            try:
                self._host.take(self, *inbox.popleft())
            except LinkRefused as refused:
                self.end(str(refused), is_refusal=True)
        if self.is_open:
            self._watch_both()
            if inbox:
                self._host.later(self)

    # The end

    def end(self, reason: str, *, is_refusal: bool = False) -> None:
        """Close the connection. Unsent messages are lost."""
        if self.is_open:
            self.close()
            self._host.ended(self, reason, is_refusal=is_refusal)

    def close(self) -> None:
        """`end` without telling the host."""
        if self.is_open:
            self.is_open = False
            self.figures.messages_lost += len(self._this_turns) + len(self._waiting)
            self._this_turns, self._unsent, self.queued_bytes = [], b"", 0
            self._waiting.clear()
            self._inbox.clear()
            self._host.closed(self)
            self.connection.close()

    def _watch_both(self) -> None:
        reading = net.HANG_UP_ONLY if self._inbox else net.READ
        self._watch(reading | net.WRITABLE if self._unsent or self._waiting else reading)

    def _watch(self, interest: int) -> None:
        if interest != self._interest and self.is_open:
            self._interest = interest
            self._host.watch(self, interest)
