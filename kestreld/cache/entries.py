"""Format of a cache entry: one bytes object, the complete reply to `get` after a header.

One object, because a lookup among a million then touches the memory of the key, the entry and nothing else, and because
the garbage collector never looks at bytes. The header, all numbers big-endian, times in ms on the monotonic clock:

    0   6   time from which a get must check the fields: the entry may have expired, or was not moved up for long
    6   1   state: FETCHED, STALE, TOKEN_SENT, BINARY_KEY
    7   6   expiry time, NEVER
    13  6   time at which it was last moved up
    19  8   cas
    27      VALUE <key> <flags> <length> CRLF <data> CRLF END CRLF
"""

from typing import Final

HEADER_BYTES: Final = 27
TIME_BYTES: Final = 6
STATE_AT: Final = 6
EXPIRES_AT: Final = 7
USED_AT: Final = 13
CAS_AT: Final = 19
KEY_AT: Final = HEADER_BYTES + 6
END_BYTES: Final = 5
TAIL_BYTES: Final = END_BYTES + 2  # after the data

NEVER_MS: Final = (1 << 48) - 1
NEVER: Final = NEVER_MS.to_bytes(TIME_BYTES, "big")
UNFETCHED: Final = bytes(TIME_BYTES)  # sorts before every time: the first get checks the fields

UNMARKED: Final = UNFETCHED + b"\0"  # beginning of an entry that was neither fetched nor marked,
NEW_END: Final = UNFETCHED + b"\1"  # sorts after all such entries,
NEW: Final = UNMARKED + NEVER  # beginning of one that never expires

FETCHED: Final = 1
STALE: Final = 2
TOKEN_SENT: Final = 4
BINARY_KEY: Final = 8
FETCHED_STATE: Final = FETCHED.to_bytes(1, "big")

CAS_MASK: Final = (1 << 64) - 1


def name_of(key: bytes) -> bytes:
    """Name of an entry in the table: the line of its get, without the line's end."""
    return b"get " + key


def key_of(name: bytes) -> bytes:
    """The key of a name."""
    return name[4:]


def expires_at_ms(entry: bytes) -> int:
    """Expiry time, NEVER_MS if it never expires."""
    return int.from_bytes(entry[EXPIRES_AT:USED_AT], "big")


def used_at_ms(entry: bytes) -> int:
    """Time at which the entry was last moved up."""
    return int.from_bytes(entry[USED_AT:CAS_AT], "big")


class Item:
    """An entry unpacked. `flags` is the client's number as text."""

    __slots__ = ("cas", "data", "expires_at_ms", "flags", "state", "used_at_ms")

    def __init__(self, flags: bytes, data: bytes, expires_at_ms: int, used_at_ms: int) -> None:
        self.flags = flags
        self.data = data
        self.expires_at_ms = expires_at_ms
        self.used_at_ms = used_at_ms
        self.state = 0
        self.cas = 0

    def pack(self, name: bytes, look_at_ms: int) -> bytes:
        """The entry; from `look_at_ms` on a get must check its fields."""
        data = self.data
        return b"".join(
            (
                min(look_at_ms, self.expires_at_ms).to_bytes(6, "big") if self.state & FETCHED else UNFETCHED,
                self.state.to_bytes(1, "big"),
                self.expires_at_ms.to_bytes(6, "big"),
                self.used_at_ms.to_bytes(6, "big"),
                self.cas.to_bytes(8, "big"),
                b"VALUE %b %b %d\r\n" % (name[4:], self.flags, len(data)),
                data,
                b"\r\nEND\r\n",
            )
        )


def unpack(name: bytes, entry: bytes) -> Item:
    """The item of an entry."""
    flags_at = KEY_AT + len(name) - 3  # the name is the key and four bytes, and a blank follows
    line_end = entry.index(b"\r\n", flags_at)
    flags = entry[flags_at:line_end].partition(b" ")[0]
    data = entry[line_end + 2 : len(entry) - TAIL_BYTES]
    item = Item(flags, data, expires_at_ms(entry), used_at_ms(entry))
    item.state = entry[STATE_AT]
    item.cas = int.from_bytes(entry[CAS_AT:HEADER_BYTES], "big")
    return item
