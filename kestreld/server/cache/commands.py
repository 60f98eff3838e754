"""Parsed commands of memcached's protocol, as the parser hands them to the handler, and fixed replies.

A batch of the parser has, for each command, one of:

- the line without its end, if that begins with a g: usually the dictionary has an entry under that text;
- its words in a list, and then its data, for a set of a small value that expires within 30 days or never;
- its words in a list, for any other command without data;
- a `Storage`, for any other command with data;
- a `Refusal`.
"""

from typing import Any, Final

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
EXISTS: Final = b"EXISTS\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
DELETED: Final = b"DELETED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
END: Final = b"END\r\n"
OK: Final = b"OK\r\n"
ERROR: Final = b"ERROR\r\n"
BAD_FORMAT: Final = b"CLIENT_ERROR bad command line format\r\n"
BAD_CHUNK: Final = b"CLIENT_ERROR bad data chunk\r\n"
BAD_EXPIRY: Final = b"CLIENT_ERROR invalid exptime argument\r\n"
BAD_DELTA: Final = b"CLIENT_ERROR invalid numeric delta argument\r\n"
NOT_A_NUMBER: Final = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
BAD_DELETE: Final = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
TOO_LARGE: Final = b"SERVER_ERROR object too large for cache\r\n"

KEY_BYTES_MAX: Final = 250


class Refusal:
    """A reply, after which the connection is closed if `closes`."""

    __slots__ = ("closes", "reply")

    def __init__(self, reply: bytes, *, closes: bool = False) -> None:
        self.reply = reply
        self.closes = closes


class Storage:
    """A command with data. `drops`: the data was too large, and the value stored under the key must go."""

    __slots__ = (
        "cas",
        "data",
        "drops",
        "expiry_s",
        "flags",
        "is_binary",
        "key",
        "may_be_stale",
        "meta",
        "quiet",
        "word",
    )

    def __init__(self, word: bytes, key: bytes, flags: int, expiry_s: int) -> None:
        self.word = word
        self.key = key
        self.flags = flags
        self.expiry_s = expiry_s
        self.cas = 0
        self.data = b""
        self.quiet = False
        self.drops = False
        self.is_binary = False  # the key came in base64
        self.may_be_stale = False  # of a cas: an older one will do
        self.meta: Any = None  # the `Flags` of an ms
