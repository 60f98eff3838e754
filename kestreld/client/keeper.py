"""Keeper: the thread that keeps the leases at one server, on one connection, and pings that.

See keeper_calls.py. Thread, locks and sockets are the system's, also where gevent or eventlet has patched Python.
"""

from collections.abc import Callable
from queue import Empty
from typing import Final

from kestreld.client.access import Login, connect_unpatched
from kestreld.client.calls import carry_out
from kestreld.client.connection import ClientConnection
from kestreld.client.keeper_calls import Alive, KeeperCalls, KeeperStep, Kept, Rest
from kestreld.client.unpatched import original
from kestreld.errors import KestrelError
from kestreld.forks import restart_in_child

_start_thread: Final = original("_thread", "start_new_thread")
_lock: Final = original("_thread", "allocate_lock")
_bell: Final = original("queue", "SimpleQueue")


class _KeeperConnection(ClientConnection):
    connect_by = staticmethod(connect_unpatched)


class Keeper:
    """The thread that keeps leases, as long as there are any. A forked child keeps only leases of its own."""

    def __init__(
        self,
        address: str,
        login: Login,
        timeout_ms: int,
        alive: Alive | None,
        *,
        is_waited_on: Callable[[], bool],
        note: Callable[[KestrelError, int], None],
    ) -> None:
        """See KeeperCalls."""
        self._connection = _KeeperConnection(address, login, timeout_ms)
        self._calls = KeeperCalls(address, timeout_ms, alive, is_waited_on=is_waited_on, ring=self._ring, note=note)
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Start without the parent's thread and leases."""
        self._lock = _lock()
        self._bell = _bell()
        self._is_running = False
        self._calls.forget()

    def keep(self, kept: Kept) -> None:
        """Keep a lease. If this raises, it may be kept nevertheless."""
        with self._lock:
            self._calls.keep(kept)
            self._must_run()

    def must_run(self) -> bool:
        """Ping the server as long as somebody waits for it. True = that has just begun."""
        with self._lock:
            return self._must_run()

    def stop(self, kept: Kept, pause: Callable[[float], object]) -> None:
        """Keep a lease no longer. Returns once no extension of it is under way."""
        carry_out(self._calls.stop(kept), lambda step: pause(step.seconds))

    def close(self) -> None:
        """Have the thread end as soon as nobody needs it: leases outlive their cluster."""
        self._calls.close()

    def _ring(self) -> None:
        self._bell.put(None)

    def _must_run(self) -> bool:
        if self._is_running:
            return False
        _start_thread(self._run, ())  # which claims to be the one that runs
        return True

    def _run(self) -> None:
        with self._lock:
            if self._is_running:  # another one was faster
                return
            self._is_running = True
        is_needed = True
        try:
            while is_needed:
                carry_out(self._calls.run(), self._take)
                with self._lock:
                    is_needed = self._calls.is_needed
                    if not is_needed:
                        self._end()
        finally:
            if is_needed:  # it fails
                self._end()

    def _end(self) -> None:
        self._connection.close()
        self._is_running = False

    def _take(self, step: KeeperStep) -> object:
        if isinstance(step, Rest):
            self._rest(step.ms / 1000)
            return None
        if not self._connection.is_connected:
            self._connection.start_over()
            self._connection.connect()
        return self._connection.answers(step.requests, step.answer_ms) if step.requests else []

    def _rest(self, seconds: float) -> None:
        try:
            self._bell.get(timeout=seconds)
            while True:
                self._bell.get_nowait()
        except Empty:
            pass
