"""Listeners, and that of the data port: it makes sessions of connections, as many as there are descriptors for."""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from kestreld import net
from kestreld.net import Connection, ListeningSocket
from kestreld.server.admission import Admission, turn_away
from kestreld.server.descriptors import Descriptors
from kestreld.server.handshake import ListenerPolicy
from kestreld.server.state import ServerState
from kestreld.server.turn import Turn
from kestreld.server.wire_protocol import WireProtocol

ACCEPTS_A_TURN: Final = 64
COMPLAINTS_EVERY_MS: Final = 60_000
TRUSTED_MORE: Final = 8  # so many more connections than there may be are let in where only the operator can be
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class BoundListener(ABC):
    """One bound address. Pauses instead of spinning when descriptors run out, until it is told to resume."""

    def __init__(self, bound: ListeningSocket, turn: Turn, *, is_tls: bool) -> None:
        self.bound = bound
        self.address = f"tls:{bound.address}" if is_tls else bound.address
        self._turn = turn
        self._is_paused = self._is_held = False
        turn.acceptors[bound.fileno()] = self
        turn.poller.register(bound.fileno(), net.READABLE)

    @abstractmethod
    def receive(self, connection: Connection) -> None:
        """Let this one in, or turn it away."""

    @abstractmethod
    def complain(self, reason: str) -> None:
        """Say why somebody does not get in, now and then: a flood of connections must not become one of log lines."""

    def connections(self) -> int:
        """How many it has beside sessions and those that become some."""
        return 0

    def readable(self) -> None:
        """Accept what is waiting, some of it per turn."""
        for _ in range(ACCEPTS_A_TURN):
            try:
                connection = self.bound.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self.complain(f"cannot accept a connection: {error.strerror}")
                    self._pause()
                return
            self.receive(connection)

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._turn.poller.unregister(self.bound.fileno())

    def hold(self) -> None:
        """Accept nobody before `let_in`; whoever connects meanwhile waits."""
        self._is_held = True
        self._pause()

    def let_in(self) -> None:
        """Accept those who wait, and whoever comes."""
        self._is_held = False
        self.resume()

    def resume(self) -> None:
        """Once a second: accept again."""
        if self._is_paused and not self._is_held:
            self._is_paused = False
            self._turn.poller.register(self.bound.fileno(), net.READABLE)

    def close(self) -> None:
        """Accept nobody any more."""
        self._pause()
        self._turn.acceptors.pop(self.bound.fileno(), None)
        self.bound.close()


class Listener(BoundListener):
    """The data port at one address."""

    def __init__(
        self,
        bound: ListeningSocket,
        protocol: WireProtocol,
        turn: Turn,
        state: ServerState,
        admission: Admission,
        descriptors: Descriptors,
        report: Callable[[str], None],
        *,
        is_tls: bool = False,
        is_trusted: bool = False,
    ) -> None:
        super().__init__(bound, turn, is_tls=is_tls)
        self._state = state
        self._admission = admission
        self._policy = ListenerPolicy(self._log, protocol, is_tls=is_tls, is_trusted=is_trusted)
        self._descriptors = descriptors
        self._report = report
        self._complained_at_ms = -COMPLAINTS_EVERY_MS

    def receive(self, connection: Connection) -> None:
        stats, admission, policy = self._state.stats, self._admission, self._policy
        allowed = self._connections_max()
        if len(self._turn.sessions) + len(admission.handshakes) >= allowed:
            stats.rejected_connections += 1
            self.complain(f"connection limit of {allowed} reached")
            turn_away(connection, policy)
            return
        stats.total_connections += 1
        self._state.collection.open_files.make_room()  # journals give back what they were lent
        if admission.is_open(policy):
            admission.admit_anybody(connection, policy)
        else:
            admission.enter(connection, self.bound.peer, policy)

    def _connections_max(self) -> int:
        """How many connections there may be, of all listeners together."""
        wanted = self._state.collection.config.max_connections
        allowed = self._descriptors.connections_max
        allowed = allowed if wanted is None else min(wanted, allowed)
        return allowed + TRUSTED_MORE if self._policy.is_trusted else allowed

    def complain(self, reason: str) -> None:
        now_ms = self._state.clock.monotonic_ms
        if now_ms - self._complained_at_ms >= COMPLAINTS_EVERY_MS:
            self._complained_at_ms = now_ms
            self._log(reason)

    def _log(self, reason: str) -> None:
        self._report(f"{self.address}: {reason}")
