"""The kestreld of a spool that several processes share: joined through its Unix socket, or started if none runs.

A server that was started here belongs to no process: it runs until it is stopped, even after its starter has ended.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from threading import Event, Lock
from typing import Final, TypeVar

from kestreld.client.absence import now_ms
from kestreld.client.access import Login
from kestreld.client.connection import ClientConnection
from kestreld.client.server import Server, event_in_child
from kestreld.errors import ServersAway, SpoolLocked, SpoolUnusable
from kestreld.files import FileLayer
from kestreld.forks import restart_in_child
from kestreld.spool_lock import LOCK

T = TypeVar("T")

SOCKET: Final = ".socket"
LOG: Final = ".kestreld.log"
STARTING: Final = ".starting"
SOCKET_PATH_BYTES_MAX: Final = 107  # sun_path less its NUL, unix(7)
TIMEOUT_MS: Final = 10_000
LOOK_MS: Final = 10  # between two attempts to find a server
EXIT_SPOOL_LOCKED: Final = 75  # kestreld's
NO_CONFIG: Final = "/dev/null"

_started: Final[list["subprocess.Popen[bytes]"]] = []  # running servers, polled so that none is left a zombie


class SharedSpool:
    """The server of one spool. Any number of threads may use it at once."""

    def __init__(self, path: str, config_path: str | None, patience_ms: int) -> None:
        """`config_path` is for a server that is started. Raises SpoolUnusable for a path that is too long."""
        self._files = FileLayer()
        self.path = self._files.real_path(path)
        self._config_path = config_path
        self._patience_ms = patience_ms
        self._joining = Lock()
        self._closed = Event()
        self._server: Server | None = None
        too_many = len(f"{self.path}/{SOCKET}".encode("utf-8", "surrogateescape")) - SOCKET_PATH_BYTES_MAX
        if too_many > 0:
            raise SpoolUnusable(self.path, f"path too long for a Unix socket, by {too_many} bytes")
        restart_in_child(self)

    def after_fork(self) -> None:
        """Keep the server, but close the file that is locked while one is started: that lock is the parent's."""
        self._joining = Lock()
        self._closed = event_in_child(self._closed)
        self._files.close_inherited(re.compile(re.escape(f"{self.path}/{STARTING}")))

    def use(self, do: Callable[[Server], T]) -> T:
        """Return the result of `do` on the spool's server, or on the next one if that had gone before it did anything.

        Raises SpoolLocked, SpoolUnusable, ServerRefused or ConnectionLost.
        """
        while True:
            try:
                return do(self._server_now())
            except ServersAway:
                continue

    def _server_now(self) -> Server:
        """Return a server that was there just now. A lost one is looked for, or started, again."""
        with self._joining:
            if self._server is not None:
                try:
                    self._server.give_back(self._server.connection())
                except ServersAway:
                    self._server = None
            if self._server is None:
                self._server = self._join()
            return self._server

    def close(self) -> None:
        self._closed.set()
        with self._joining:
            if self._server is not None:
                self._server.close()

    def _join(self) -> Server:
        patience_ends_at_ms = now_ms() + self._patience_ms
        started = None
        starting: int | None = None  # a lock that one process has while it starts the server
        try:
            while not self._closed.is_set():
                server = self._look()
                if server is not None:
                    return server
                if started is not None and started.poll() is not None:
                    self._check_end(started)
                    started = None
                    self._closed.wait(10 * LOOK_MS / 1000)
                if started is None and now_ms() > patience_ends_at_ms:
                    raise SpoolLocked(self.path, self._holder() or "a process that does not serve it")
                if starting is None:
                    self._files.make_lasting_dir(self.path)
                    starting = self._files.lock(f"{self.path}/{STARTING}")
                elif started is None:
                    started = self._start()
                self._closed.wait(LOOK_MS / 1000)
        except OSError as error:
            raise SpoolUnusable(self.path, f"not usable as a spool: {error.strerror}") from error
        finally:
            if starting is not None:
                self._files.unlock(starting)
        raise SpoolUnusable(self.path, "closed")

    def _look(self) -> Server | None:
        """Return the server if it answers, else None."""
        served = re.search(r" memcache=(\S+)", self._holder())
        addresses = served[1].split(",") if served is not None else []
        for address in (f"unix:{self.path}/{SOCKET}", *addresses):
            if address.startswith("unix:"):
                login = Login()
                connection = ClientConnection(address, login, TIMEOUT_MS)
                try:
                    connection.connect()
                except ServersAway:
                    continue
                server = Server(address, login, TIMEOUT_MS)
                server.give_back(connection)
                return server
        return None

    def _holder(self) -> str:
        """Return the first line of the lock file: the process that has the spool, or had it last."""
        try:
            return self._files.read_file(f"{self.path}/{LOCK}").decode("utf-8", "surrogateescape").split("\n")[0]
        except FileNotFoundError:
            return ""

    def _start(self) -> "subprocess.Popen[bytes]":
        settings = (f"queue_path={self.path}", f"listen.memcache=unix:{self.path}/{SOCKET}", "listen.admin=null")
        sets = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "kestreld", "--config", self._config_path or NO_CONFIG, *sets]
        log = self._open_log()
        try:
            # A session of its own: an interrupt from the terminal is for this program, not for all that use the spool.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.path, start_new_session=True
            )
        finally:
            self._files.close(log)
        _started[:] = [process, *(one for one in _started if one.poll() is None)]
        return process

    def _open_log(self) -> int:
        path = f"{self.path}/{LOG}"
        try:
            return self._files.create(path)
        except FileExistsError:
            return self._files.open_append(path)

    def _check_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Raise SpoolUnusable with the reason why a started server has exited, unless another may be about to serve."""
        if process.returncode != EXIT_SPOOL_LOCKED:
            lines = self._files.read_file(f"{self.path}/{LOG}").decode("utf-8", "replace").splitlines()
            reason = f"its kestreld exited with code {process.returncode}: {lines[-1] if lines else ''}"
            raise SpoolUnusable(self.path, reason)
        holder = self._holder()
        if " memcache=" in holder and "unix:" not in holder:
            raise SpoolUnusable(self.path, f"in use by {holder}, which has no Unix socket: add one to listen.memcache")
