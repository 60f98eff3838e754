"""Flags of meta commands: one letter each, some followed by a token."""

from binascii import Error, a2b_base64, b2a_base64
from typing import Final

from kestreld.server.cache.commands import BAD_FORMAT
from kestreld.server.cache.numbers import signed_32, unsigned_32, unsigned_64

OPAQUE_BYTES_MAX: Final = 32
WORDS_MAX: Final = 19  # of a meta command, itself included
OPAQUE_TOO_LONG: Final = b"CLIENT_ERROR opaque token too long\r\n"
_BAD_TOKEN: Final = b"CLIENT_ERROR bad token in command line format\r\n"
_DUPLICATE: Final = b"CLIENT_ERROR duplicate flag\r\n"
_INVALID: Final = b"CLIENT_ERROR invalid flag\r\n"
_BAD_KEY: Final = b"CLIENT_ERROR error decoding key\r\n"
_BAD_MODE: Final = b"CLIENT_ERROR incorrect length for M token\r\n"
_BAD_INITIAL: Final = b"CLIENT_ERROR invalid numeric initial value\r\n"
_BAD_DELTA: Final = b"CLIENT_ERROR invalid numeric delta value\r\n"
_PLAIN: Final = frozenset(b"OPLkstcfvlhuqI")


class Flags:
    """Flags of one command. `problem` is the reply if they are wrong, b"" = they are not.

    Times are as clients write them, in seconds; None if the flag is absent. `opaque` is O with its token.
    """

    __slots__ = (
        "cas",
        "client_flags",
        "delta",
        "initial",
        "is_binary",
        "key",
        "letters",
        "mode",
        "opaque",
        "problem",
        "recache_s",
        "ttl_s",
        "vivify_s",
    )

    def __init__(self, key: bytes, words: list[bytes]) -> None:
        self.key = key
        self.letters = bytes([word[0] for word in words])
        self.problem = b""
        self.opaque = b""
        self.is_binary = False
        self.mode = 0
        self.vivify_s: int | None = None
        self.ttl_s: int | None = None
        self.recache_s: int | None = None
        self.cas: int | None = None
        self.client_flags = 0
        self.delta = 1
        self.initial = 0
        if len(set(self.letters)) < len(words) or max(self.letters, default=0) >= 127:
            self.problem = self._first_problem()
            return
        for word in words:
            letter = word[0]
            if letter == 79:  # O
                self.opaque = word
            elif letter not in _PLAIN and not self._read(letter, word):
                return

    def has(self, letter: bytes) -> bool:
        """Return True if the flag is present."""
        return letter in self.letters

    def _first_problem(self) -> bytes:
        """Return the reply to the first flag that is unknown or a duplicate."""
        for at, letter in enumerate(self.letters):
            if letter >= 127 or letter in self.letters[:at]:
                return _DUPLICATE
            if letter not in _PLAIN and letter not in b"bNTRFCMJD":
                return _INVALID
        return _DUPLICATE

    def _read(self, letter: int, word: bytes) -> bool:
        """Read a flag with a token, or b; returns False if it is unknown, which ends the reading."""
        token = word[1:]
        if letter == 98:  # b
            self._decode_key()
        elif letter == 84:  # T
            self.ttl_s = signed_32(token)
            self._expect(self.ttl_s, _BAD_TOKEN)
        elif letter == 78:  # N
            self.vivify_s = signed_32(token)
            self._expect(self.vivify_s, _BAD_TOKEN)
        elif letter == 82:  # R
            self.recache_s = signed_32(token)
            self._expect(self.recache_s, _BAD_TOKEN)
        elif letter == 67:  # C
            self.cas = unsigned_64(token)
            self._expect(self.cas, _BAD_TOKEN)
        elif letter == 70:  # F
            self.client_flags = self._expect(unsigned_32(token), self.problem or BAD_FORMAT)
        elif letter == 74:  # J
            self.initial = self._expect(unsigned_64(token), _BAD_INITIAL)
        elif letter == 68:  # D
            self.delta = self._expect(unsigned_64(token), _BAD_DELTA)
        elif letter == 77:  # M
            self.mode = token[0] if len(token) == 1 else self._expect(None, _BAD_MODE)
        else:
            self.problem = _INVALID
            return False
        return True

    def _expect(self, value: int | None, problem: bytes) -> int:
        if value is None:
            self.problem = problem
            return 0
        return value

    def _decode_key(self) -> None:
        try:
            self.key = a2b_base64(self.key, strict_mode=True)
        except Error:
            self.key = b""
        if not self.key:
            self.problem = _BAD_KEY
        self.is_binary = True


def shown(key: bytes, is_binary: bool) -> bytes:
    """Return a key as the flag k shows it."""
    return b" k" + (b2a_base64(key, newline=False) + b" b" if is_binary else key)
