"""What a dictionary keeps for a key: one bytes object, the whole answer to `get` behind a header.

One object, because a lookup among a million then touches the memory of the key, the entry and nothing else, and because
the garbage collector never looks at bytes. The header, all numbers big-endian, times in ms on the monotonic clock:

    0   6   from when on a get has to look closer: the entry may have expired, or has not been moved up for long
    6   1   state: FETCHED, STALE, TOKEN_SENT, BINARY_KEY
    7   6   when it expires, NEVER
    13  6   when it was last moved up
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
TAIL_BYTES: Final = END_BYTES + 2  # behind the data

NEVER_MS: Final = (1 << 48) - 1
NEVER: Final = NEVER_MS.to_bytes(TIME_BYTES, "big")
UNFETCHED: Final = bytes(TIME_BYTES)  # sorts before every time: the first get looks closer

UNMARKED: Final = UNFETCHED + b"\0"  # how an entry begins that nobody has got or marked,
NEW_END: Final = UNFETCHED + b"\1"  # what sorts behind every one of those,
NEW: Final = UNMARKED + NEVER  # and how one begins that never expires

FETCHED: Final = 1
STALE: Final = 2
TOKEN_SENT: Final = 4
BINARY_KEY: Final = 8
FETCHED_STATE: Final = FETCHED.to_bytes(1, "big")

CAS_MASK: Final = (1 << 64) - 1


def name_of(key: bytes) -> bytes:
    """What an entry is kept under: the line that asks for it, but for its end."""
    return b"get " + key


def key_of(name: bytes) -> bytes:
    """The key that a name stands for."""
    return name[4:]


def expires_at_ms(entry: bytes) -> int:
    """When it expires, NEVER_MS if it does not."""
    return int.from_bytes(entry[EXPIRES_AT:USED_AT], "big")


def used_at_ms(entry: bytes) -> int:
    """When it was last moved up."""
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
        """The entry, to be looked at closer from `look_at_ms` on."""
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
    """What an entry says."""
    flags_at = KEY_AT + len(name) - 3  # the name is the key and four bytes, and a blank follows
    line_end = entry.index(b"\r\n", flags_at)
    flags = entry[flags_at:line_end].partition(b" ")[0]
    data = entry[line_end + 2 : len(entry) - TAIL_BYTES]
    item = Item(flags, data, expires_at_ms(entry), used_at_ms(entry))
    item.state = entry[STATE_AT]
    item.cas = int.from_bytes(entry[CAS_AT:HEADER_BYTES], "big")
    return item
