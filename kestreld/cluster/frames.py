"""Frames of the cluster bus in both directions, and the handshake of two nodes.

    frame = "KB" | u8 version | u8 kind | u32 body bytes | u64 sent_at_ms | tag 16 | body        all little-endian
    body of MESSAGES = (u8 type | u32 bytes | message)*        type 0: the beginning of a message that goes on

`sent_at_ms` is the sender's steady clock. The tag is BLAKE2b of the number of the frame in its direction, of the bytes
before the tag, and of the body. In a HELLO, the first frame either way, it has no key and is a checksum. With a shared
secret the key of all later frames is derived from it and from both HELLOs, each of which has a random nonce, with one
key for each direction: without the secret nobody can forge a frame, replay one, or send one back to its sender. READY,
the second frame, proves the key. REFUSED says why its sender is about to close the link.

    caller: HELLO                   -> called
    called: HELLO READY             -> caller
    caller: READY MESSAGES ...      -> called, and from now on MESSAGES both ways
"""

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kestreld.cluster.nodes import NODE_ID_BYTES, RUN_ID_BYTES, NodeAddress, checked_address, is_node_id

MAGIC: Final = b"KB"
VERSION: Final = 1
HELLO: Final = 1
READY: Final = 2
REFUSED: Final = 3
MESSAGES: Final = 4
PART: Final = 0
FIRST_MESSAGE: Final = 1  # the first type of message
NONCE_BYTES: Final = 32
HEAD_BYTES: Final = 32
HELLO_BYTES_MAX: Final = 1024  # of a frame before the other end has proved its identity
FRAME_BYTES_MAX: Final = 1 << 20  # of any other frame: longer messages come in parts
MESSAGE_BYTES_MAX: Final = 3 * (1 << 29) + (1 << 20)  # a job whose body, queue and key are as long as clients may send
REASON_BYTES_MAX: Final = 512
SECRET_BYTES_MIN: Final = 16
_HEAD: Final = struct.Struct("<2sBBIQ")
_TAG_BYTES: Final = HEAD_BYTES - _HEAD.size
_NUMBER: Final = struct.Struct("<Q")
_RECORD: Final = struct.Struct("<BI")
_HELLO: Final = struct.Struct(f"<B{NODE_ID_BYTES}s{RUN_ID_BYTES}s{NONCE_BYTES}sHHB")
_PERSON: Final = b"kestreld bus"
# First bytes of other protocols that may be sent to the bus by mistake.
_OTHERS: Final = (
    (b"Dbu", "an original Disque node: it cannot join a cluster of kestrelds"),
    (b"RCm", "a node of a Redis cluster"),
    (b"\x16\x03", "a TLS connection, but TLS of the cluster is off on this node"),
    (b"\x15\x03", "a TLS alert, but TLS of the cluster is off on this node"),
)


class LinkRefused(Exception):
    """The other end uses another protocol, or is not the node it claims to be. The link has to be closed."""


class RefusedByPeer(Exception):
    """The other end closes the link, with the reason."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's introduction. `run_id` is new with each start. `address.host` "" = the address the link comes from."""

    node_id: bytes
    run_id: bytes
    address: NodeAddress


@dataclass(frozen=True, slots=True)
class Frame:
    """Messages of one frame, as types and bodies. `sent_at_ms` is on the sender's steady clock."""

    sent_at_ms: int
    messages: tuple[tuple[int, bytes], ...]


def record(message_type: int, body: bytes) -> bytes:
    """Pack a message for a frame, or with the type PART, a part of one."""
    return _RECORD.pack(message_type, len(body)) + body


class LinkProtocol:
    """One end of a link, without its socket. `peer` is the node at the other end, once `is_ready`.

    `output` holds the handshake's bytes to send, after LinkRefused, too: they tell the other end the reason.
    """

    def __init__(
        self,
        hello: Hello,
        nonce: bytes,
        now_ms: Callable[[], int],
        *,
        is_caller: bool,
        secret: bytes,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """`nonce` is NONCE_BYTES random bytes. `secret` is shared by all nodes, b"" = none.

        `now_ms` reads the steady clock. `message_bytes_max` limits the messages that are received.
        """
        self.peer: Hello | None = None
        self.is_ready = False
        self.output = bytearray()
        self._now_ms = now_ms
        self._is_caller = is_caller
        self._secret = secret
        self._message_bytes_max = message_bytes_max
        self._hello = _pack_hello(hello, nonce, has_secret=bool(secret))
        self._keys = (b"", b"")  # for sent and for received frames
        self._sent = self._received = 0  # frames
        self._input = bytearray()
        self._parts = bytearray()  # of an incomplete message
        if is_caller:
            self._say(HELLO, self._hello)

    @property
    def held_bytes(self) -> int:
        """Bytes of partially received frames and messages."""
        return len(self._input) + len(self._parts)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the current frame that have yet to come, as far as known; 0 = between frames."""
        if len(self._input) < HEAD_BYTES:
            return 0
        return HEAD_BYTES + int(_HEAD.unpack_from(self._input)[3]) - len(self._input)

    # Out

    def take_output(self) -> bytes:
        """Return the handshake's bytes to send, and clear them."""
        data = bytes(self.output)
        self.output.clear()
        return data

    def pack(self, records: list[bytes]) -> bytes:
        """Return a frame with these messages (see `record`). Only once `is_ready`."""
        return self._frame(MESSAGES, b"".join(records))

    def refuse(self, reason: str) -> None:
        """Add to `output` the reason for which this end closes the link. Only once `is_ready`."""
        self._say(REFUSED, reason.encode("utf-8", "replace")[:REASON_BYTES_MAX])

    def _say(self, kind: int, body: bytes) -> None:
        self.output += self._frame(kind, body)

    def _frame(self, kind: int, body: bytes) -> bytes:
        head = _HEAD.pack(MAGIC, VERSION, kind, len(body), self._now_ms())
        tag = _tag(self._keys[0], self._sent, head, body)
        self._sent += 1
        return b"".join((head, tag, body))

    # In

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now. Raises LinkRefused or RefusedByPeer."""
        self._input += data
        frames: list[Frame] = []
        at = 0
        while len(self._input) - at >= HEAD_BYTES:
            body_bytes, kind, sent_at_ms = self._check_head(at)
            end = at + HEAD_BYTES + body_bytes
            if end > len(self._input):
                break
            whole = memoryview(self._input)[at:end]
            body = bytes(whole[HEAD_BYTES:])
            self._check_tag(bytes(whole[_HEAD.size : HEAD_BYTES]), bytes(whole[: _HEAD.size]), body)
            whole.release()
            at = end
            if kind == MESSAGES and self.is_ready:
                frames.append(Frame(sent_at_ms, self._messages(body)))
            else:
                self._shake_hands(kind, body)
        if at:
            del self._input[:at]
        elif 3 <= len(self._input) < HEAD_BYTES:
            self._check_magic(0)
        return frames

    def _check_magic(self, at: int) -> None:
        start = bytes(self._input[at : at + 3])
        if start[:2] != MAGIC:
            for first, name in _OTHERS:
                if start.startswith(first):
                    raise LinkRefused(name)
            raise LinkRefused("not the protocol of the cluster bus")
        if start[2] != VERSION:
            raise LinkRefused(f"bus protocol version {start[2]} is not supported; this node uses version {VERSION}")

    def _check_head(self, at: int) -> tuple[int, int, int]:
        """Return bytes of the body, kind and `sent_at_ms` of the frame that begins there."""
        self._check_magic(at)
        _, _, kind, body_bytes, sent_at_ms = _HEAD.unpack_from(self._input, at)
        most = FRAME_BYTES_MAX if self.is_ready else HELLO_BYTES_MAX
        if body_bytes > most:
            raise LinkRefused(f"a frame of {body_bytes} bytes, the maximum is {most}")
        return body_bytes, kind, sent_at_ms

    def _check_tag(self, tag: bytes, head: bytes, body: bytes) -> None:
        expected = _tag(self._keys[1], self._received, head, body)
        self._received += 1
        if not hmac.compare_digest(tag, expected):
            if self._secret and self.peer is not None and not self.is_ready:
                raise LinkRefused("cluster secrets differ: compare the secret files of both nodes")
            raise LinkRefused("frame checksum does not match")

    def _messages(self, body: bytes) -> tuple[tuple[int, bytes], ...]:
        """Return the messages that are complete with this frame."""
        found: list[tuple[int, bytes]] = []
        at, end = 0, len(body)
        while at < end:
            if at + _RECORD.size > end:
                raise LinkRefused("the last message of a frame is cut short")
            message_type, size_bytes = _RECORD.unpack_from(body, at)
            at += _RECORD.size
            if size_bytes > end - at:
                raise LinkRefused(f"a message of {size_bytes} bytes in a frame with {end - at} left")
            data = body[at : at + size_bytes]
            at += size_bytes
            if len(self._parts) + size_bytes > self._message_bytes_max:
                raise LinkRefused(f"a message of more than {self._message_bytes_max} bytes")
            if message_type == PART:
                self._parts += data
            elif self._parts:
                self._parts += data
                found.append((message_type, bytes(self._parts)))
                self._parts = bytearray()
            else:
                found.append((message_type, data))
        return tuple(found)

    def _shake_hands(self, kind: int, body: bytes) -> None:
        if kind == HELLO and self.peer is None:
            self._greet(body)
        elif kind == READY and self.peer is not None and not self.is_ready and not body:
            self.is_ready = True
        elif kind == REFUSED and self.peer is not None:
            raise RefusedByPeer(body[:REASON_BYTES_MAX].decode("utf-8", "replace"))
        else:
            raise LinkRefused(f"a frame of kind {kind} out of order")

    def _greet(self, body: bytes) -> None:
        """Take the other end's HELLO. All later frames have a key derived from both HELLOs."""
        peer, has_secret = _read_hello(body)
        if not self._is_caller:
            self._say(HELLO, self._hello)  # also before a refusal: the other end is to find the same
        if has_secret != bool(self._secret):
            with_one, without = ("it has", "this node has") if has_secret else ("this node has", "it has")
            raise LinkRefused(f"{with_one} a cluster secret, {without} none: set the secret file on both nodes")
        self.peer = peer
        if self._secret:
            hellos = self._hello + body if self._is_caller else body + self._hello
            caller, called = (hmac.digest(self._secret, hellos + side, "sha256") for side in (b"caller", b"called"))
            self._keys = (caller, called) if self._is_caller else (called, caller)
        self._say(READY, b"")


def _tag(key: bytes, number: int, head: bytes, body: bytes) -> bytes:
    digest = blake2b(_NUMBER.pack(number) + head, digest_size=_TAG_BYTES, key=key, person=_PERSON)
    digest.update(body)
    return digest.digest()


def _pack_hello(hello: Hello, nonce: bytes, *, has_secret: bool) -> bytes:
    host = hello.address.host.encode()
    address = hello.address
    fields = (int(has_secret), hello.node_id, hello.run_id, nonce, address.port, address.bus_port, len(host))
    return _HELLO.pack(*fields) + host


def _read_hello(body: bytes) -> tuple[Hello, bool]:
    """Return the HELLO, and True if its sender has a secret. Bytes after the known fields are of later versions."""
    if len(body) < _HELLO.size:
        raise LinkRefused("HELLO too short")
    has_secret, node_id, run_id, _, port, bus_port, host_bytes = _HELLO.unpack_from(body)
    host = body[_HELLO.size : _HELLO.size + host_bytes]
    address = checked_address(host, port, bus_port) if len(host) == host_bytes else None
    if address is None or not (is_node_id(node_id) and is_node_id(run_id)):
        raise LinkRefused("HELLO with an invalid id or address")
    return Hello(node_id, run_id, address), bool(has_secret & 1)
