"""A server's admin port: one connection that is kept, and how to get there from where its memcache port is."""

import base64
import http.client
import ipaddress
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kestrelctl import access

if TYPE_CHECKING:
    import ssl

_ANY: Final = frozenset({"0.0.0.0", "::"})


class AdminLost(Exception):
    """The admin port does not answer, or not to us. The memcache port may."""


class AdminRefused(AdminLost):
    """It says why it does not."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Connection(http.client.HTTPConnection):
    """To a host and port or a Unix socket, with TLS if there is a context."""

    def __init__(self, host: str, port: int, path: str, timeout_s: float, context: "ssl.SSLContext | None") -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._path = path
        self._context = context

    def connect(self) -> None:
        if self._path:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
            return
        super().connect()
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)


class AdminPort:
    """Asks with whatever `access` knows of who we are."""

    def __init__(
        self, host: str, port: int, path: str, timeout_ms: int, context: "ssl.SSLContext | None", called: str
    ) -> None:
        """`path` of a Unix socket, or "". `called` is what the server knows itself by."""
        self._connection = _Connection(host, port, path, timeout_ms / 1000, context)
        self._headers = {"Host": called}
        if access.given.user:
            token = base64.b64encode(access.given.user.encode() + b":" + access.password()).decode("ascii")
            self._headers["Authorization"] = f"Basic {token}"

    def get(self, path: str) -> bytes:
        """Raises AdminLost, AdminRefused when there was an answer."""
        try:
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AdminLost(str(error)) from error
        if answer.status != 200:
            self.close()
            raise AdminRefused(answer.status, _reason(content) or answer.reason)
        return content

    def close(self) -> None:
        self._connection.close()


def _reason(content: bytes) -> str:
    """The words of a refusal."""
    try:
        said: Any = json.loads(content)
    except ValueError:
        return ""
    return str(said.get("error", "")) if isinstance(said, dict) else ""


def queue_path(queue: str) -> str:
    """Where a queue is on the admin port."""
    return f"/queues/{quote(os.fsencode(queue), safe='')}"


def admin_port_of(address: str, admin: str, timeout_ms: int) -> AdminPort | None:
    """The admin port at `admin` of the server at `address`. None = it cannot be reached from here.

    A password that goes to the memcache port by TLS does not go to another one without.
    """
    own = access.parse_address(address)
    given = access.given
    is_tls = admin.startswith("tls:")
    if admin.startswith("unix:"):
        path = admin.removeprefix("unix:")
        return AdminPort("localhost", 0, path, timeout_ms, None, "localhost") if isinstance(own, str) else None
    host, _, port = admin.removeprefix("tls:").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    own_host = "127.0.0.1" if isinstance(own, str) else own[0]
    if host in _ANY:
        reached = own_host
    elif host == own_host or (_is_loopback(host) and _is_loopback(own_host)):
        reached = host
    else:
        return None
    by_tls = bool(given.tls or given.ca or given.cert or address.startswith("tls:"))
    if by_tls and given.user and not is_tls and not _is_loopback(reached):
        return None
    context = access.tls_context() if is_tls else None
    return AdminPort(reached, int(port), "", timeout_ms, context, admin.removeprefix("tls:"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
