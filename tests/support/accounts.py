"""Users for a test's configuration, and clients that log in."""

import hashlib
from typing import Any

from pymemcache import Client

from kestreld.passwords import PasswordHash

SALT = b"salt of the tests"


def quick_hash(password: str) -> str:
    """What `kestreld hash-password` prints, of the least cost that is accepted."""
    digest = hashlib.scrypt(password.encode(), salt=SALT, n=1 << 10, r=1, p=1, dklen=32)
    return str(PasswordHash(10, 1, 1, SALT, digest))


def login(name: str, password: str) -> bytes:
    """The `set` that logs in."""
    token = f"{name} {password}".encode()
    return b"set login 0 0 %d\r\n%b\r\n" % (len(token), token)


class LoggingInClient(Client):  # type: ignore[misc]
    """pymemcache's client with a login on every connection it makes, as docs/security.md shows it."""

    def __init__(self, *arguments: Any, user: str, password: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._token = f"{user} {password}".encode()

    def _connect(self) -> None:
        super()._connect()
        self.sock.sendall(b"set login 0 0 %d\r\n%b\r\n" % (len(self._token), self._token))
        answer = self.sock.makefile("rb").readline()
        if answer != b"STORED\r\n":
            self.close()
            raise ConnectionError(answer.decode())
