"""memcached's login in the text protocol: a `set` of any key whose data is `<user> <password>`.

No other command is executed before it, and no data of refused commands is kept.
"""

import re
from typing import Final

from kestreld.passwords import PASSWORD_BYTES_MAX
from kestreld.server.memcache.parser import BINARY_MAGIC, binary_refusal, not_text
from kestreld.server.wire_protocol import Login, LoginStep

TOKEN_BYTES_MAX: Final = 256 + 1 + PASSWORD_BYTES_MAX

STORED: Final = b"STORED\r\n"
UNAUTHENTICATED: Final = b"CLIENT_ERROR unauthenticated\r\n"
WRONG: Final = b"CLIENT_ERROR authentication failure\r\n"
BAD_TOKEN: Final = b"CLIENT_ERROR bad authentication token format\r\n"
BUSY: Final = b"SERVER_ERROR too many logins\r\n"

_LENGTH_AT: Final = {b"set": 4, b"add": 4, b"replace": 4, b"append": 4, b"prepend": 4, b"cas": 4, b"ms": 2}
_HTTP: Final = re.compile(rb"[A-Za-z]+ \S+ HTTP/\d|Host:", re.IGNORECASE)


class MemcacheLogin(Login):
    """Parser of the command lines before a session, up to a login."""

    welcome, wrong, busy = STORED, WRONG, BUSY

    def __init__(self, line_bytes_max: int) -> None:
        super().__init__()
        self._line_bytes_max = line_bytes_max
        self._to_skip = 0  # bytes of data that belong to a refused command
        self._is_first = True  # nothing has been answered or skipped yet

    def next_step(self) -> LoginStep | None:
        if self._is_first and self.rest[:1] in BINARY_MAGIC:
            return LoginStep(binary_refusal(self.rest), closes=True)
        self._is_first = False
        skipped = min(self._to_skip, len(self.rest))
        self.rest = self.rest[skipped:]
        self._to_skip -= skipped
        if not self.rest:
            return None
        line, line_end, rest = self.rest.partition(b"\n")
        if problem := not_text(line + line_end):
            return LoginStep(b"CLIENT_ERROR %b\r\n" % problem.encode(), closes=True)
        if len(line) > self._line_bytes_max:
            return LoginStep(b"CLIENT_ERROR line too long\r\n", closes=True)
        return self._command(line.rstrip(b"\r").split(), line, rest) if line_end else None

    def _command(self, words: list[bytes], line: bytes, rest: bytes) -> LoginStep | None:
        at = _LENGTH_AT.get(words[0], 0) if words else 0
        size_bytes = int(words[at]) if at and len(words) > at and re.fullmatch(rb"\d{1,10}", words[at]) else -1
        if size_bytes < 0 or words[0] != b"set":
            self.rest = rest
            self._to_skip = size_bytes + 2 if size_bytes >= 0 else 0
            return LoginStep(UNAUTHENTICATED, closes=_HTTP.match(line) is not None)
        if size_bytes > TOKEN_BYTES_MAX:
            self.rest = rest
            self._to_skip = size_bytes + 2
            return LoginStep(BAD_TOKEN)
        if len(rest) < size_bytes + 2:
            return None
        token, end, self.rest = rest[:size_bytes], rest[size_bytes : size_bytes + 2], rest[size_bytes + 2 :]
        if end != b"\r\n":
            return LoginStep(b"CLIENT_ERROR bad data chunk\r\n", closes=True)
        name, blank, password = token.partition(b" ")
        return LoginStep(name=name, password=password) if blank else LoginStep(BAD_TOKEN)
