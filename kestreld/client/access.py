"""Access to a server: its address, TLS, and login. Opens the client's blocking sockets."""

import re
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kestreld import checks
from kestreld.client.calls import carry_out
from kestreld.client.queue_talks import Answer, QueueTalks
from kestreld.client.replies import Reply, ReplyParser, UnparsableReply
from kestreld.errors import InvalidType, InvalidValue, UnexpectedReply

if TYPE_CHECKING:
    import ssl

PORT_DEFAULT: Final = 22133
Socket = socket.socket
RECEIVE_BYTES: Final = 65_536
# A peer that is gone without a word is noticed within 20 s, also by those that only wait.
_TCP_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 3),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 20_000),
        )
        if hasattr(socket, name)  # not on every system
    ),
)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server: host and port, or a Unix socket if `path` is not empty."""

    host: str = ""
    port: int = PORT_DEFAULT
    path: str = ""
    tls: bool = False

    @classmethod
    def parse(cls, address: str, port_default: int = PORT_DEFAULT) -> "ServerAddress":
        """Parse `HOST`, `HOST:PORT`, `[IPV6]:PORT`, `tls:` before any of them, or `unix:PATH`. Raises ValueError."""
        if address.startswith("unix:") and address != "unix:":
            return cls(path=address.removeprefix("unix:"))
        found = re.fullmatch(r"(?:tls:)?(?:\[([^\[\]]+)\]|([^:\[\]/\s]+))(?::([0-9]{1,5}))?", address)
        port = int(found[3]) if found is not None and found[3] else port_default
        if found is None or not 0 < port < 65536:
            raise ValueError(f"{address!r} is not a server; write {_form_of(address)}")
        return cls(found[1] or found[2], port, tls=address.startswith("tls:"))


def _form_of(address: str) -> str:
    """Return the form to write instead of an invalid address."""
    tls, host = ("tls:", address[4:]) if address.startswith("tls:") else ("", address)
    if host.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.%a-z]+", host):
        return (
            f"an IPv6 address in brackets: {tls}[{host}], or {tls}[{host.rpartition(':')[0]}]:{host.rpartition(':')[2]}"
        )
    return "HOST:PORT, tls:HOST:PORT or unix:/PATH"


@dataclass(frozen=True)
class Login:
    """Credentials and TLS settings; "" = not given. TLS is used if an address or any of these asks for it.

    A password that is a function is called at each login, and only if the server requires one.
    """

    user: str = ""
    password: str | Callable[[], bytes] = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def secret(self) -> bytes:
        return self.password.encode() if isinstance(self.password, str) else self.password()

    def uses_tls(self, address: ServerAddress) -> bool:
        return not address.path and bool(address.tls or self.tls or self.ca or self.cert)

    @cached_property
    def context(self) -> "ssl.SSLContext":
        """The TLS context. Raises OSError for files that cannot be read or do not match."""
        # Imported here: it takes 15 ms.
        import ssl

        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


def checked_login(user: object, password: object, *, tls: object, ca: object, cert: object, key: object) -> Login:
    """Return the login from the arguments of a client. Raises InvalidArgument."""
    words = {"user": user, "password": password, "ca": ca, "cert": cert, "key": key}
    texts = {
        what: checks.text(word, what, may_be_empty=True, is_secret=what == "password") for what, word in words.items()
    }
    return Login(tls=checks.switch(tls, "tls"), **texts)


def checked_addresses(servers: object, login: Login, what: str) -> list[str]:
    """Return the addresses of a client's argument, each once.

    Raises InvalidArgument, or OSError for the login's certificate files.
    """
    if isinstance(servers, str):  # else each letter would be taken for a server
        raise InvalidType(what, "a list of str", servers)
    several = checks.several(servers, what)
    addresses = list(dict.fromkeys(checks.text(one, f"each of {what}", may_be_empty=True) for one in several))
    if not addresses:
        raise InvalidValue(what, "at least one", [])
    parsed = [_parsed(address, what) for address in addresses]
    if login.uses_tls(ServerAddress()) or any(at.tls for at in parsed):
        _ = login.context
    return addresses


def _parsed(address: str, what: str) -> ServerAddress:
    try:
        parsed = ServerAddress.parse(address)
    except ValueError:
        parsed = None
    # A path that is not absolute would be another one in another working directory.
    if parsed is None or (parsed.path and not parsed.path.startswith("/")):
        raise InvalidValue(f"each of {what}", "HOST:PORT, tls:HOST:PORT or unix:/PATH", address)
    return parsed


def open_socket(address: ServerAddress, timeout_s: float) -> socket.socket:
    """Open a connection, without TLS and login. Raises OSError."""
    if not address.path:
        connected = socket.create_connection((address.host, address.port), timeout_s)
        set_tcp_options(connected)
        return connected
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(timeout_s)
        connected.connect(address.path)
    except OSError:
        connected.close()
        raise
    return connected


def set_tcp_options(connected: socket.socket) -> None:
    """Set what every TCP connection of a client has. Raises OSError."""
    for level, option, value in _TCP_OPTIONS:
        connected.setsockopt(level, option, value)


def log_in(connected: socket.socket, server: str, login: Login) -> None:
    """Log in if there is a user and the server requires that. `Transport` asks before it sends anything else."""
    if login.user:
        try:
            carry_out(
                QueueTalks(server).enter(login.user, lambda: login.secret),
                lambda request: Answer(_ask(connected, request.data), b""),
            )
        except UnparsableReply as error:
            raise UnexpectedReply(server, str(error)) from error


def connect(
    server: str,
    login: Login,
    timeout_s: float,
    port_default: int = PORT_DEFAULT,
    enter: Callable[[socket.socket, str, Login], None] = log_in,
) -> socket.socket:
    """Open a connection for commands; `enter` logs in. Raises OSError, LoginRefused or UnexpectedReply."""
    address = ServerAddress.parse(server, port_default)
    connected = open_socket(address, timeout_s)
    is_in = False
    try:
        if login.uses_tls(address):
            connected = login.context.wrap_socket(connected, server_hostname=address.host)
        enter(connected, server, login)
        is_in = True
    finally:
        if not is_in:
            connected.close()
    return connected


def _ask(connected: socket.socket, request: bytes) -> Reply:
    connected.sendall(request)
    parser = ReplyParser()
    while data := connected.recv(RECEIVE_BYTES):
        if replies := parser.feed(data):
            return replies[0]
    raise ConnectionResetError(0, "closed before it answered")


def is_quiet(connected: "socket.socket") -> bool:
    """Return True if nothing has arrived unasked: neither the end of the connection nor a last message."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return not poll.poll(0)


def hang_up(connected: socket.socket) -> None:
    """End a connection that another thread is using."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
