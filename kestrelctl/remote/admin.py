"""The admin port: its address as reachable from here, and requests to it."""

import base64
import http.client
import ipaddress
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from kestrelctl.remote.access import parse_address, tls_context
from kestreld.client.access import Login, ServerAddress, open_socket

if TYPE_CHECKING:
    import ssl

_ANY: Final = frozenset({"0.0.0.0", "::"})


class AdminConnection(http.client.HTTPConnection):
    """Connection to a host and port or a Unix socket, with TLS if there is a context. Connects as needed."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        timeout_s: float,
        context: "ssl.SSLContext | None",
        login: Login,
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._path = path
        self._context = context
        self._login = login
        self._headers = {"Host": "localhost"}

    def connect(self) -> None:
        if self._path:
            assert self.timeout is not None
            self.sock = open_socket(ServerAddress(path=self._path), self.timeout)
            return
        super().connect()
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def call_it(self, host: str) -> None:
        """Set the Host header: the server accepts only some names."""
        self._headers["Host"] = host

    def ask(self, method: str, path: str, wait_ms: int = 0) -> tuple[http.client.HTTPResponse, bytes]:
        """The response and its body; it may take `wait_ms` longer. Raises OSError or HTTPException."""
        if self._login.user and "Authorization" not in self._headers:
            token = base64.b64encode(self._login.user.encode() + b":" + self._login.secret).decode("ascii")
            self._headers["Authorization"] = f"Basic {token}"
        if self.sock is not None and self.timeout is not None:
            self.sock.settimeout(self.timeout + wait_ms / 1000)
        self.request(method, path, headers=self._headers)
        answer = self.getresponse()
        return answer, answer.read()


def admin_connection(address: str, admin: str, timeout_ms: int, login: Login) -> AdminConnection | None:
    """Connection to the admin port at `admin` of the server at `address`. None = not reachable from here.

    A password that is sent to the memcache port over TLS is not sent to another port without TLS.
    """
    own = parse_address(address)
    is_tls = admin.startswith("tls:")
    timeout_s = timeout_ms / 1000
    if admin.startswith("unix:"):
        path = admin.removeprefix("unix:")
        return AdminConnection("localhost", 0, path, timeout_s, None, login) if own.path else None
    host, _, port = admin.removeprefix("tls:").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    own_host = own.host or "127.0.0.1"
    if host in _ANY:
        reached = own_host
    elif host == own_host or (_is_loopback(host) and _is_loopback(own_host)):
        reached = host
    else:
        return None
    if leaves_tls(login, address, is_tls=is_tls) and not _is_loopback(reached):
        return None
    context = tls_context(login) if is_tls else None
    connection = AdminConnection(reached, int(port), "", timeout_s, context, login)
    connection.call_it(admin.removeprefix("tls:"))
    return connection


def path_of(queue: str, *parts: str) -> str:
    """Path of a queue on the admin port, followed by `parts`."""
    return "/".join(["/queues", *(quote(os.fsencode(part), safe="") for part in (queue, *parts))])


def leaves_tls(login: Login, address: str, *, is_tls: bool) -> bool:
    """True if a password would be sent in clear to the admin port, but not to `address`."""
    return bool(login.user) and not is_tls and login.uses_tls(parse_address(address))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
