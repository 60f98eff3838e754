"""memcached's login in text, from the client's side."""

from collections.abc import Callable
from typing import Final, Protocol

LINE_BYTES_MAX: Final = 8192
UNAUTHENTICATED: Final = b"CLIENT_ERROR unauthenticated"


class Wire(Protocol):
    """A connection that waits for what it is asked."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size_bytes: int, /) -> bytes: ...


def log_in(connected: Wire, user: bytes, password: Callable[[], bytes]) -> str:
    """What the server has against it; "" = nothing. `password` is asked for where one has to log in. Raises OSError."""
    # Not before asking: where nobody has to log in, it would be an item in a queue.
    if _answer(connected, b"version\r\n") != UNAUTHENTICATED:
        return ""
    token = user + b" " + password()
    answer = _answer(connected, b"set login 0 0 %d\r\n%b\r\n" % (len(token), token))
    return "" if answer == b"STORED" else answer.decode("utf-8", "replace").removeprefix("CLIENT_ERROR ")


def _answer(connected: Wire, request: bytes) -> bytes:
    connected.sendall(request)
    heard = b""
    while not heard.endswith(b"\n") and len(heard) < LINE_BYTES_MAX:
        data = connected.recv(LINE_BYTES_MAX)
        if not data:
            raise ConnectionResetError(0, "closed before it answered")
        heard += data
    return heard.rstrip(b"\r\n")
