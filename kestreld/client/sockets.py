"""Getting into a server: its address, TLS, and a user with his password. The client's only door to sockets."""

import re
import select
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from kestreld.errors import ServerUnfit
from kestreld.login import log_in

PORT_DEFAULT: Final = 22133


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens: host and port, or a Unix socket where `path` is not empty."""

    host: str = ""
    port: int = PORT_DEFAULT
    path: str = ""
    tls: bool = False

    @classmethod
    def parse(cls, address: str) -> "Place":
        """`HOST`, `HOST:PORT`, `[IPV6]:PORT`, `tls:` before any of them, or `unix:/PATH`. Raises ValueError."""
        if address.startswith("unix:/"):
            return cls(path=address.removeprefix("unix:"))
        found = re.fullmatch(r"(?:tls:)?(?:\[([^\[\]]+)\]|([^:\[\]/\s]+))(?::([0-9]{1,5}))?", address)
        port = int(found[3]) if found is not None and found[3] else PORT_DEFAULT
        if found is None or not 0 < port < 65536:
            raise ValueError(f"{address!r} is not a server; write HOST:PORT, tls:HOST:PORT or unix:/PATH")
        return cls(found[1] or found[2], port, tls=address.startswith("tls:"))


@dataclass(frozen=True)
class Login:
    """How connections get in; "" = nothing. TLS is used where an address or any of these says so."""

    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def wants_tls(self) -> bool:
        return bool(self.tls or self.ca or self.cert)

    def load_files(self) -> None:
        """Now instead of with the first connection. Raises OSError."""
        assert self.context

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Raises OSError for files that cannot be read or do not fit."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


def connect(address: str, login: Login, timeout_s: float) -> socket.socket:
    """A connection that commands can be sent on. Raises OSError, or ServerUnfit for a login that is wrong."""
    place = Place.parse(address)
    if place.path:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(timeout_s)
    else:
        connected = socket.create_connection((place.host, place.port), timeout_s)
    is_in = False
    try:
        if place.path:
            connected.connect(place.path)
        else:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.tls or login.wants_tls:
                connected = login.context.wrap_socket(connected, server_hostname=place.host)
        if login.user and (refusal := log_in(connected, login.user.encode(), login.password.encode)):
            raise ServerUnfit(address, f"{login.user}: {refusal}")
        is_in = True
    finally:
        if not is_in:
            connected.close()
    return connected


def is_quiet(connected: socket.socket) -> bool:
    """Whether nothing has come that nobody asked for: no end, no words of farewell."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return not poll.poll(0)


def hang_up(connected: socket.socket) -> None:
    """End a connection that another thread is using."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
