"""All socket access of the data ports and the cluster bus; the simulation replaces it by a network of its own.

A connection is an object with `recv`, `send`, `shutdown`, `close` and `fileno` like a non-blocking socket; a poller is
an object with `register`, `modify`, `unregister`, `poll` and `fileno` like an epoll object.
"""

import errno
import os
import resource
import select
import socket
import stat
import struct
from collections.abc import Sequence
from typing import Final, Protocol

READ: Final = select.EPOLLIN | select.EPOLLRDHUP
READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLHUP | select.EPOLLERR
HANG_UP: Final = select.EPOLLRDHUP | BROKEN
WRITE: Final = select.EPOLLOUT | select.EPOLLRDHUP
HANG_UP_ONLY: Final = select.EPOLLRDHUP
END_OUTPUT: Final = socket.SHUT_WR
BACKLOG: Final = 1024
# How a connection ends that is probed, or written to, and whose other end is silent.
WITHOUT_A_WORD: Final = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))
_CREDENTIALS: Final = struct.Struct("iII")  # of a peer on a Unix socket: pid, uid, gid


Events = list[tuple[int, int]]  # descriptor, and the events that it is ready for


class Connection(Protocol):
    def recv(self, size_bytes: int, /) -> bytes: ...

    def send(self, data: bytes | memoryview, /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def fileno(self) -> int: ...


class Poller(Protocol):
    def register(self, fd: int, eventmask: int) -> None: ...

    def modify(self, fd: int, eventmask: int) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def poll(self, timeout: float = ..., maxevents: int = ...) -> Events: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class ListeningSocket:
    """A bound port. `address` is the one actually bound, `peer` the IP address of the last accepted client."""

    def __init__(self, bound: socket.socket, own_path: str = "") -> None:
        """`own_path` is the file to remove in `close`; "" = none."""
        bound.setblocking(False)
        self._socket = bound
        self._own_path = own_path
        self.is_unix = bound.family == socket.AF_UNIX
        self.address = _shown(bound)
        self.peer = ""
        self._keepalive_s = 0  # 0 = connections are not probed

    def tune(self, *, backlog: int, keepalive_s: int) -> None:
        """Set the length of the accept queue, and the silence after which a connection is probed; 0 = never."""
        self._socket.listen(backlog)
        self._keepalive_s = keepalive_s

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> socket.socket:
        """Accept the next connection. Raises BlockingIOError if there is none, OSError if descriptors have run out."""
        connection, address = self._socket.accept()
        connection.setblocking(False)
        if not self.is_unix:
            self.peer = address[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._keepalive_s:
                _probe(connection, self._keepalive_s)
        return connection

    def local_of(self, connection: Connection) -> str:
        """Return the IP address of this machine that an accepted connection was made to. Raises OSError."""
        assert isinstance(connection, socket.socket)
        return str(connection.getsockname()[0])

    def close(self) -> None:
        self._socket.close()
        if self._own_path and os.path.lexists(self._own_path):
            os.unlink(self._own_path)

    @property
    def is_private(self) -> bool:
        """True if only this account and root can connect: a Unix socket of its own, without access for others."""
        if not self.is_unix:
            return False
        try:
            found = os.stat(self._socket.getsockname())
        except (OSError, ValueError):  # it has no name in the file system
            return False
        return not found.st_mode & 0o077 and found.st_uid in (0, os.geteuid())


def _shown(bound: socket.socket) -> str:
    name = bound.getsockname()
    return f"unix:{name}" if bound.family == socket.AF_UNIX else _tcp_text(bound, name)


def _tcp_text(one: socket.socket, name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if one.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def _probe(connection: socket.socket, silence_s: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silence_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(silence_s // 3, 1))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def probe(fd: int, silence_s: int) -> None:
    """Have a connection probed after so much silence: it ends if its other end is gone without a word."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        return
    try:
        if connection.family != socket.AF_UNIX:
            _probe(connection, silence_s)
    except OSError:
        return  # it is gone
    finally:
        connection.detach()


def peer_of(fd: int) -> str:
    """Return the other end of a connection: HOST:PORT, unix:pid=PID on a Unix socket, "" if it is gone."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        return ""
    try:
        if connection.family == socket.AF_UNIX:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return f"unix:pid={_CREDENTIALS.unpack(credentials)[0]}"
        return _tcp_text(connection, connection.getpeername())
    except OSError:
        return ""
    finally:
        connection.detach()


def with_input(fds: Sequence[int]) -> set[int]:
    """Return the descriptors that have input and whose other end is still open."""
    poller = select.poll()
    for fd in fds:
        if fd >= 0:
            poller.register(fd, select.POLLIN | select.POLLRDHUP)
    return {fd for fd, mask in poller.poll(0) if mask == select.POLLIN}


class Network:
    """The machine's own network."""

    def poller(self) -> Poller:
        return select.epoll()

    def listen_tcp(self, host: str, port: int) -> ListeningSocket:
        """Listen on host and port (0 = any free one). Raises OSError."""
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        bound = socket.socket(family, kind)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
        return ListeningSocket(bound)

    def listen_unix(self, path: str, mode: int = 0o600) -> ListeningSocket:
        """Listen on a Unix socket, by default for this account only. A stale socket file is replaced."""
        self._clear_stale(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(~mode & 0o777)
            try:
                bound.bind(path)
            finally:
                os.umask(before)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
        return ListeningSocket(bound, path)

    def connect(self, host: str, port: int) -> socket.socket:
        """Begin to connect to a numeric address; once it is writable, `is_connected` has the result. Raises OSError."""
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect((host, port))
        except BlockingIOError:
            pass
        except OSError:
            connection.close()
            raise
        return connection

    def is_connected(self, connection: Connection) -> bool:
        """Return True once a connection is established, False while it is in progress. Raises OSError if it failed."""
        assert isinstance(connection, socket.socket)
        if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        try:
            peer = connection.getpeername()
        except OSError:
            return False
        if peer == connection.getsockname():
            # Nobody listens there, and the kernel chose that very port for this end: TCP connects it with itself.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return True

    def resolve(self, host: str) -> str:
        """Return an IP address of a host, "" if there is none. May take long."""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return ""
        return str(found[0][4][0])

    def _clear_stale(self, path: str) -> None:
        if not os.path.lexists(path) or not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)

    def descriptor_limit(self) -> int:
        """Raise the limit of open descriptors as far as possible; returns it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return max(soft, wanted)

    def open_descriptors(self) -> int:
        """Number of descriptors that this process has open."""
        # Linux 6.2 and newer count them. A list of all clients' takes milliseconds, and includes the folder's own.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
