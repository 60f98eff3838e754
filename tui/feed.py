"""Looking at a server by its admin port, where it has one: of its queues it says those that have changed."""

import base64
import http.client
import ipaddress
import json
import socket
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from kestrelctl import access
from tui.snapshots import KEYS, Figures

if TYPE_CHECKING:
    import ssl

_ANY: Final = frozenset({"0.0.0.0", "::"})


class FeedLost(Exception):
    """The admin port does not answer, or not to us. The memcache port may."""


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


class Feed:
    """The queues of one server, kept up to date by what it says has changed."""

    def __init__(self, connection: _Connection, host: str) -> None:
        self.queues: dict[str, Figures] = {}
        self.counters: dict[str, int | str] = {}
        self._connection = connection
        self._headers = {"Host": host}
        if access.given.user:
            token = base64.b64encode(access.given.user.encode() + b":" + access.password()).decode("ascii")
            self._headers["Authorization"] = f"Basic {token}"
        self._token = ""

    def look(self) -> None:
        """Bring `queues` up to date, in a dict of their own. Raises FeedLost."""
        try:
            self._connection.request("GET", f"/stats.json?changed_since={self._token}", headers=self._headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise FeedLost(str(error)) from error
        if answer.status != 200:
            self.close()
            raise FeedLost(f"{answer.status} {answer.reason}")
        try:
            self.take(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise FeedLost(f"not what a kestreld answers: {error}") from error

    def take(self, said: dict[str, Any]) -> None:
        """What `/stats.json` says. Raises KeyError, ValueError or TypeError for anything else."""
        queues: dict[str, Figures] = {} if said["is_full"] else dict(self.queues)
        for name in said["gone"]:
            queues.pop(name, None)
        if said["rows"]:
            columns = said["columns"]
            figures_of = itemgetter(*[columns.index(key) for key in KEYS])
            name_at = columns.index("queue")
            for row in said["rows"]:
                queues[row[name_at]] = figures_of(row)
        self.queues, self._token = queues, said["at"]
        self.counters = {
            name: int(value) if value.isdecimal() else value
            for name, value in said["server"].items()
            if not name.startswith("queue_")  # as of the memcache port, where queues' own begin so
        }

    def close(self) -> None:
        self._connection.close()


def feed_of(address: str, admin: str, timeout_ms: int) -> Feed | None:
    """The feed of the server at `address` whose admin port is at `admin`. None = it cannot be reached from here.

    A password that goes to the memcache port by TLS does not go to another one without.
    """
    own = access.parse_address(address)
    given = access.given
    is_tls = admin.startswith("tls:")
    timeout_s = timeout_ms / 1000
    if admin.startswith("unix:"):
        path = admin.removeprefix("unix:")
        return Feed(_Connection("localhost", 0, path, timeout_s, None), "localhost") if isinstance(own, str) else None
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
    return Feed(_Connection(reached, int(port), "", timeout_s, context), admin.removeprefix("tls:"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
