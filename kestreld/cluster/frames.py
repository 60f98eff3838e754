"""Frames of the cluster bus, both ways, and how two nodes make sure of each other before anything else is said.

    frame = u32 body_bytes | u8 version | u8 type | u16 0 | tag 16 | body          all little-endian

The tag is BLAKE2b of a number that counts the frames of its direction, of the type and of the body. Its key is empty in
a HELLO, the first frame either way: there it is a checksum. With a shared secret the key of what follows is made of it
and of both HELLOs, in which each side has named itself and drawn a number: nobody who does not know the secret can say
anything that is heeded, nor what somebody else has said before. READY, the second frame, shows each the other's key.
"""

import hmac
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kestreld.cluster.nodes import NODE_ID_BYTES, PORT_MAX, NodeAddress

VERSION: Final = 1
HELLO: Final = 1
READY: Final = 2
FIRST_MESSAGE: Final = 3
NONCE_BYTES: Final = 32
RUN_ID_BYTES: Final = 40
HELLO_BYTES_MAX: Final = 4096  # before the other side has shown that it may be heard
HOST_BYTES_MAX: Final = 255
_TAG_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<IBBH{_TAG_BYTES}s")
_TAGGED: Final = struct.Struct("<QB")
_HELLO: Final = struct.Struct(f"<{NODE_ID_BYTES}s{RUN_ID_BYTES}s{NONCE_BYTES}sHHB")
_PERSON: Final = b"kestreld bus"


class LinkRefused(Exception):
    """What came is none of this bus, or comes from somebody who does not know the secret. The link is to be closed."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a node is. `run_id` is another one after each start; `address.host` "" = where the link comes from."""

    node_id: bytes
    run_id: bytes
    address: NodeAddress


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; `type` is FIRST_MESSAGE or higher."""

    type: int
    body: bytes


class Link:
    """One end of a link, without its socket. `peer` is who is at the other one, once `is_ready`."""

    def __init__(self, me: Introduction, nonce: bytes, *, is_caller: bool, secret: bytes, frame_bytes_max: int) -> None:
        """`nonce` is NONCE_BYTES of chance, `secret` what all nodes share: b"" = links are trusted as they are."""
        self.peer: Introduction | None = None
        self.is_ready = False
        self._is_caller = is_caller
        self._secret = secret
        self._frame_bytes_max = frame_bytes_max
        self._hello = _pack_hello(me, nonce)
        self._keys = (b"", b"")  # of what is sent, and of what comes
        self._sent = self._came = 0  # frames
        self._input = bytearray()

    @property
    def held_bytes(self) -> int:
        """Of a frame that has come in part."""
        return len(self._input)

    # Out

    def begin(self) -> bytes:
        """What to send first."""
        return self._framed(HELLO, self._hello)

    def frame(self, message_type: int, body: bytes) -> bytes:
        """A message; only once the link `is_ready`."""
        return self._framed(message_type, body)

    def _framed(self, frame_type: int, body: bytes) -> bytes:
        tag = _tag(self._keys[0], self._sent, frame_type, body)
        self._sent += 1
        return _HEAD.pack(len(body), VERSION, frame_type, 0, tag) + body

    # In

    def feed(self, data: bytes) -> tuple[list[Frame], bytes]:
        """The messages in what has come, and what to answer at once. Raises LinkRefused."""
        self._input += data
        frames: list[Frame] = []
        answer = b""
        at = 0
        while len(self._input) - at >= _HEAD.size:
            body_bytes, version, frame_type, flags, tag = _HEAD.unpack_from(self._input, at)
            if version != VERSION or flags:
                raise LinkRefused(f"version {version} of the bus, this node has {VERSION}")
            if body_bytes > (self._frame_bytes_max if self.is_ready else HELLO_BYTES_MAX):
                raise LinkRefused(f"a frame of {body_bytes} bytes")
            end = at + _HEAD.size + body_bytes
            if end > len(self._input):
                break
            body = bytes(self._input[at + _HEAD.size : end])
            self._check(tag, frame_type, body)
            at = end
            if frame_type == HELLO and self.peer is None:
                answer += self._introduced(body)
            elif frame_type == READY and self.peer is not None and not self.is_ready:
                self.is_ready = True
            elif frame_type >= FIRST_MESSAGE and self.is_ready:
                frames.append(Frame(frame_type, body))
            else:
                raise LinkRefused(f"a frame of type {frame_type} out of its order")
        del self._input[:at]
        return frames, answer

    def _check(self, tag: bytes, frame_type: int, body: bytes) -> None:
        expected = _tag(self._keys[1], self._came, frame_type, body)
        self._came += 1
        if not hmac.compare_digest(tag, expected):
            if self._keys[1] and not self.is_ready:
                raise LinkRefused("the other side has another secret")
            raise LinkRefused("a frame with a wrong checksum")

    def _introduced(self, hello: bytes) -> bytes:
        """The other side has said who it is: what follows is under a key of our own."""
        self.peer = _read_hello(hello)
        if self._secret:
            hellos = self._hello + hello if self._is_caller else hello + self._hello
            caller, called = (_key(self._secret, hellos, side) for side in (b"caller", b"called"))
            self._keys = (caller, called) if self._is_caller else (called, caller)
        if self._is_caller:
            return self._framed(READY, b"")
        keys, self._keys = self._keys, (b"", self._keys[1])
        answer = self._framed(HELLO, self._hello)
        self._keys = keys
        return answer + self._framed(READY, b"")


def _tag(key: bytes, number: int, frame_type: int, body: bytes) -> bytes:
    made = blake2b(_TAGGED.pack(number, frame_type), digest_size=_TAG_BYTES, key=key, person=_PERSON)
    made.update(body)
    return made.digest()


def _key(secret: bytes, hellos: bytes, side: bytes) -> bytes:
    return hmac.digest(secret, hellos + side, "sha256")


def _pack_hello(me: Introduction, nonce: bytes) -> bytes:
    host = me.address.host.encode()
    packed = _HELLO.pack(me.node_id, me.run_id, nonce, me.address.port, me.address.bus_port, len(host))
    return packed + host


def _read_hello(body: bytes) -> Introduction:
    if len(body) < _HELLO.size:
        raise LinkRefused("a HELLO that is too short")
    node_id, run_id, _, port, bus_port, host_bytes = _HELLO.unpack_from(body)
    host = body[_HELLO.size : _HELLO.size + host_bytes]
    if len(host) != host_bytes or not 0 < port <= PORT_MAX or not 0 < bus_port <= PORT_MAX or not host.isascii():
        raise LinkRefused("a HELLO with an address that cannot be one")
    return Introduction(node_id, run_id, NodeAddress(host.decode(), port, bus_port))
