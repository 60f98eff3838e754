"""Values of messages: plain bytes for one, with flags for compression, batches and closed numbers."""

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Final

from kestreld import checks
from kestreld.errors import InvalidType, InvalidValue

# High bits, which no client's serializer uses.
COMPRESSED: Final = 1 << 16
BATCH: Final = 1 << 17  # several messages, each after its length
CLOSED: Final = 1 << 18  # no message: the number was not written in time, or was given up
MISSED: Final = 1 << 19  # of a closed number: messages may have been lost, and the value says why, as a `Reason`
LENGTH: Final = Struct(">I")
UNPACKED_BYTES_MAX: Final = 64 << 20
NAME_BYTES_MAX: Final = 200


def pack(messages: Sequence[bytes], compress_from_bytes: int | None) -> tuple[bytes, int]:
    """Return messages as one value, and its flags."""
    flags = 0
    if len(messages) == 1:
        value = bytes(messages[0])
    else:
        value = b"".join(LENGTH.pack(len(message)) + message for message in messages)
        flags = BATCH
    if compress_from_bytes is not None and compress_from_bytes <= len(value) <= UNPACKED_BYTES_MAX:
        compressed = zlib.compress(value, 1)
        if len(compressed) < len(value):
            return compressed, flags | COMPRESSED
    return value, flags


def unpack(value: bytes, flags: int) -> list[bytes]:
    """Return the messages of a value, none for a closed number. A value that `pack` has not made is one message."""
    if flags & CLOSED:
        return []
    if flags & COMPRESSED:
        value = zlib.decompressobj().decompress(value, UNPACKED_BYTES_MAX)
    if not flags & BATCH:
        return [value]
    messages = []
    at = 0
    while at < len(value):
        (length,) = LENGTH.unpack_from(value, at)
        messages.append(value[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return messages


def checked_messages(messages: object) -> list[bytes]:
    """Return messages as a list of at least one. Raises InvalidType, InvalidValue."""
    if isinstance(messages, (bytes, bytearray, memoryview, str)):
        raise InvalidType("messages", "several messages", messages)
    several = checks.several(messages, "messages")
    if not several:
        raise InvalidValue("messages", "at least one message", several)
    for message in several:
        checks.data(message, "message")
    return several


def checked_name(name: object) -> bytes:
    """Return the name of a queue as a part of keys. Raises InvalidType, InvalidValue."""
    data = checks.text(name, "name").encode("utf-8", "surrogatepass")
    if len(data) > NAME_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in data):
        raise InvalidValue("name", f"at most {NAME_BYTES_MAX} printable ASCII characters, without spaces", name)
    return data
