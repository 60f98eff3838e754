"""Ops of Kestrel 1.x and 2.x journals: encoding and decoding.

A journal file is a bare sequence of ops, little-endian, without header or checksum. Nothing here knows of files or
queues.
"""

import struct
from dataclasses import dataclass
from typing import Final

from kestreld.errors import KestrelError

ADD: Final = 0  # of Starling; read, never written
REMOVE: Final = 1
ADDX: Final = 2
REMOVE_TENTATIVE: Final = 3  # 1.x: the xid is the next of a counter
SAVE_XID: Final = 4  # 1.x: the value of that counter
UNREMOVE: Final = 5
CONFIRM_REMOVE: Final = 6
ADD_XID: Final = 7  # 1.x: an item that the next op opens under this xid
CONTINUE: Final = 8  # confirms an open read and adds an item, in one op
REMOVE_TENTATIVE_XID: Final = 9  # 2.x

NAMES: Final = (
    "ADD",
    "REMOVE",
    "ADDX",
    "REMOVE_TENTATIVE",
    "SAVE_XID",
    "UNREMOVE",
    "CONFIRM_REMOVE",
    "ADD_XID",
    "CONTINUE",
    "REMOVE_TENTATIVE_XID",
)

#   ADD                  | 00 | block i32 | expire_at_s i32 | data (block - 4)
#   REMOVE[_TENTATIVE]   | 01, 03 |
#   ADDX                 | 02 | block i32 | add_at_ms i64 | expire_at_ms i64 | data (block - 16)
#   those with an xid    | 04, 05, 06, 09 | xid i32 |
#   ADD_XID, CONTINUE    | 07, 08 | xid i32 | block i32 | add_at_ms i64 | expire_at_ms i64 | data (block - 16)
ADD_HEAD: Final = struct.Struct("<Bii")
ADDX_HEAD: Final = struct.Struct("<Biqq")
XID_OP: Final = struct.Struct("<Bi")
XID_ITEM_HEAD: Final = struct.Struct("<Biiqq")
I32: Final = struct.Struct("<i")

OP_BYTES: Final = (0, 1, 0, 1, 5, 5, 5, 0, 0, 5)  # 0: the op has a block and its length
BLOCK_SIZE_AT: Final = (1, 0, 1, 0, 0, 0, 0, 5, 5, 0)
BLOCK_BYTES_MIN: Final = (4, 0, 16, 0, 0, 0, 0, 16, 16, 0)


class Unreadable(KestrelError):
    """The bytes at `offset` are not a whole op."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Truncated(Unreadable):
    """The buffer ends inside the op."""


class BadOp(Unreadable):
    """The bytes are not an op, and no further bytes could make them one."""


@dataclass(slots=True)
class Op:
    opcode: int
    xid: int = 0
    add_at_ms: int = 0  # 0 for ADD, which has no add time
    expire_at_ms: int = 0  # 0 = never; whole seconds for ADD
    data: bytes = b""


def op_end(buffer: bytes | memoryview, at: int) -> int:
    """Offset after the op at byte `at`, which must be inside the buffer. Raises Truncated or BadOp."""
    opcode = buffer[at]
    if opcode > REMOVE_TENTATIVE_XID:
        raise BadOp(at, f"unknown opcode {opcode}")
    left_bytes = len(buffer) - at
    if op_bytes := OP_BYTES[opcode]:
        if left_bytes < op_bytes:
            raise Truncated(at, f"the file ends inside {NAMES[opcode]}")
        return at + op_bytes
    size_at = BLOCK_SIZE_AT[opcode]
    if left_bytes < size_at + 4:
        raise Truncated(at, f"the file ends inside the length of {NAMES[opcode]}")
    (block_bytes,) = I32.unpack_from(buffer, at + size_at)
    if block_bytes < BLOCK_BYTES_MIN[opcode]:
        raise BadOp(at, f"{NAMES[opcode]} declares {block_bytes} bytes")
    held_bytes = left_bytes - size_at - 4
    if block_bytes > held_bytes:
        raise Truncated(at, f"{NAMES[opcode]} declares {block_bytes} bytes, but the file has only {held_bytes} of them")
    return at + size_at + 4 + int(block_bytes)


def is_cut_short(buffer: bytes | memoryview, at: int) -> bool:
    """True if the file ends inside an op, as a kill leaves it."""
    try:
        op_end(buffer, at)
    except Truncated:
        return True
    except Unreadable:
        return not any(buffer[at:])
    return False


def decode(buffer: bytes | memoryview, at: int) -> tuple[Op, int]:
    """The op at byte `at`, which must be inside the buffer, and the offset after it.

    Raises Truncated if the buffer ends inside the op, BadOp if it can never become valid.
    """
    end = op_end(buffer, at)
    opcode = buffer[at]
    if opcode == ADDX:
        _, _, add_at_ms, expire_at_ms = ADDX_HEAD.unpack_from(buffer, at)
        return Op(opcode, 0, add_at_ms, expire_at_ms, bytes(buffer[at + 21 : end])), end
    if end - at == 1:
        return Op(opcode), end
    if OP_BYTES[opcode]:
        return Op(opcode, XID_OP.unpack_from(buffer, at)[1]), end
    if opcode == ADD:
        _, _, expire_at_s = ADD_HEAD.unpack_from(buffer, at)
        return Op(opcode, 0, 0, expire_at_s * 1000, bytes(buffer[at + 9 : end])), end
    _, xid, _, add_at_ms, expire_at_ms = XID_ITEM_HEAD.unpack_from(buffer, at)
    return Op(opcode, xid, add_at_ms, expire_at_ms, bytes(buffer[at + 25 : end])), end


def encode(op: Op) -> bytes:
    """Bytes of the op; the reverse of `decode`."""
    opcode = op.opcode
    if opcode == ADDX:
        return ADDX_HEAD.pack(opcode, 16 + len(op.data), op.add_at_ms, op.expire_at_ms) + op.data
    if OP_BYTES[opcode] == 1:
        return bytes((opcode,))
    if OP_BYTES[opcode]:
        return XID_OP.pack(opcode, op.xid)
    if opcode == ADD:
        return ADD_HEAD.pack(opcode, 4 + len(op.data), op.expire_at_ms // 1000) + op.data
    head = XID_ITEM_HEAD.pack(opcode, op.xid, 16 + len(op.data), op.add_at_ms, op.expire_at_ms)
    return head + op.data
