"""Access to a server: its address, TLS, and login. Opens the client's blocking sockets."""

import re
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from kestreld import checks
from kestreld.client.calls import carry_out
from kestreld.client.queue_talks import Answer, QueueTalks
from kestreld.client.replies import Reply, ReplyParser, UnparsableReply
from kestreld.client.unpatched import original
from kestreld.errors import InvalidType, InvalidValue, UnexpectedReply

if TYPE_CHECKING:
    import ssl

PORT_DEFAULT: Final = 22133
RECEIVE_BYTES: Final = 65_536
SEND_BYTES: Final = 262_144  # so much is sent within a time-out
# As no other thing waits for these, or a thread of the system does, they are never those of gevent or eventlet.
_poll: Final = original("select", "poll")
_unpatched_socket: Final = original("socket", "socket")
_unpatched_addresses: Final = original("socket", "getaddrinfo")
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
            # Sending lasts until the rest is under way, however much the kernel would take.
            ("TCP_NOTSENT_LOWAT", SEND_BYTES),
        )
        if hasattr(socket, name)  # not on every system
    ),
)


class Socket(Protocol):
    """A socket, as a connection needs it."""

    def settimeout(self, value: float | None, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, most_bytes: int, /) -> bytes: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


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


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def set_tcp_options(connected: socket.socket) -> None:
    """Set what every TCP connection of a client has. Raises OSError."""
    for level, option, value in _TCP_OPTIONS:
        connected.setsockopt(level, option, value)


def limit_waits(connected: Socket, seconds: float) -> None:
    """Set a time-out, which ends in TimeoutError or BlockingIOError.

    The kernel watches that of a plain socket: Python polls before each call on a socket with a time-out of its own.
    """
    if type(connected).__module__ != "socket":  # TLS, or greenlets
        connected.settimeout(seconds)
        return
    plain = cast(socket.socket, connected)
    plain.settimeout(None)
    span = struct.pack("ll", *divmod(max(1, round(seconds * 1_000_000)), 1_000_000))  # 0 would be no time-out
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        plain.setsockopt(socket.SOL_SOCKET, option, span)


def send_all(connected: Socket, data: bytes) -> None:
    """Send data, however long that takes: the time-out is for silence. Raises OSError."""
    for start in range(0, len(data), SEND_BYTES):
        connected.sendall(data[start : start + SEND_BYTES])


def log_in(connected: Socket, server: str, login: Login) -> None:
    """Log in if there is a user and the server requires that. `Transport` asks before it sends anything else."""
    if login.user:
        try:
            carry_out(
                QueueTalks(server).enter(login.user, lambda: login.secret),
                lambda request: Answer(_ask(connected, request.data), b""),
            )
        except UnparsableReply as error:
            raise UnexpectedReply(server, str(error)) from error


K = TypeVar("K", bound=Socket)
Enter = Callable[[Socket, str, Login], None]


def connect(
    server: str,
    login: Login,
    timeout_s: float,
    port_default: int = PORT_DEFAULT,
    enter: Enter = log_in,
) -> socket.socket:
    """Open a connection for commands; `enter` logs in. Raises OSError, LoginRefused or UnexpectedReply."""
    address = ServerAddress.parse(server, port_default)
    connected = open_socket(address, timeout_s)

    def secured() -> socket.socket:
        return login.context.wrap_socket(connected, server_hostname=address.host)

    return _entered(connected, secured if login.uses_tls(address) else lambda: connected, server, login, enter)


def connect_unpatched(
    server: str,
    login: Login,
    timeout_s: float,
    port_default: int = PORT_DEFAULT,
    enter: Enter = log_in,
) -> Socket:
    """As `connect`, over a socket of the system, also where gevent or eventlet has patched Python."""
    address = ServerAddress.parse(server, port_default)
    connected = _open_unpatched(address, timeout_s)

    def secured() -> Socket:
        return _TlsSocket(connected, login.context, address.host) if login.uses_tls(address) else connected

    return _entered(connected, secured, server, login, enter)


def _entered(connected: socket.socket, secured: Callable[[], K], server: str, login: Login, enter: Enter) -> K:
    is_in = False
    try:
        entered = secured()
        enter(entered, server, login)
        is_in = True
        return entered
    finally:
        if not is_in:
            connected.close()


def _open_unpatched(address: ServerAddress, timeout_s: float) -> socket.socket:
    if address.path:
        places = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.path)]
    else:
        places = _unpatched_addresses(address.host, address.port, 0, socket.SOCK_STREAM)
    problem = OSError("the name has no address")
    for family, kind, protocol, _, place in places:
        connected: socket.socket = _unpatched_socket(family, kind, protocol)
        is_open = False
        try:
            connected.settimeout(timeout_s)
            connected.connect(place)
            if not address.path:
                set_tcp_options(connected)
            is_open = True
            return connected
        except OSError as error:
            problem = error
        finally:
            if not is_open:
                connected.close()
    raise problem


class _TlsSocket:
    """TLS over a socket without ssl.SSLSocket, in whose place gevent puts one of its own."""

    def __init__(self, connected: socket.socket, context: "ssl.SSLContext", host: str) -> None:
        """Raises OSError."""
        from ssl import MemoryBIO

        self._socket = connected
        self._incoming, self._outgoing = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.settimeout, self.fileno, self.close = connected.settimeout, connected.fileno, connected.close
        self._do(self._tls.do_handshake)

    def recv(self, most_bytes: int) -> bytes:
        return self._do(self._tls.read, most_bytes)  # type: ignore[no-any-return]

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[self._do(self._tls.write, data) :]

    def _do(self, act: Callable[..., Any], *values: object) -> Any:
        """Do what may need to read from the peer first, or to send to it, as TLS goes."""
        from ssl import SSLWantReadError

        while True:
            outcome: Any = None
            is_done = False
            try:
                outcome = act(*values)
                is_done = True
            except SSLWantReadError:
                pass
            finally:  # an alert tells the peer why
                if self._outgoing.pending:
                    self._socket.sendall(self._outgoing.read())
            if is_done:
                return outcome
            if data := self._socket.recv(RECEIVE_BYTES):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()


def _ask(connected: Socket, request: bytes) -> Reply:
    connected.sendall(request)
    parser = ReplyParser()
    while data := connected.recv(RECEIVE_BYTES):
        if replies := parser.feed(data):
            return replies[0]
    raise ConnectionResetError(0, "closed before it answered")


def is_quiet(connected: Socket) -> bool:
    """Return True if nothing has arrived unasked: neither the end of the connection nor a last message."""
    poll = _poll()
    poll.register(connected.fileno(), select.POLLIN)
    return not poll.poll(0)


def hang_up(connected: Socket) -> None:
    """End a connection that another thread is using, or a greenlet of another thread."""
    _shut_down(connected, socket.SHUT_RDWR)


def finish_sending(connected: Socket) -> None:
    """Tell the peer that nothing more will come; what it has sent can still be read. Not for TLS."""
    _shut_down(connected, socket.SHUT_WR)


def _shut_down(connected: Socket, how: int) -> None:
    with suppress(OSError, ValueError):  # it is closed
        same = _unpatched_socket(fileno=connected.fileno())
        try:
            same.shutdown(how)
        finally:
            same.detach()
