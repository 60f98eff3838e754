"""Listeners that turns poll: the base class, and that of data ports, which makes sessions of connections."""

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
TRUSTED_MORE: Final = 8  # connections beyond the limit, on sockets that only the operator can open
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class BoundListener(ABC):
    """A listener at one address. It pauses until `resume` when descriptors run out."""

    def __init__(self, bound: ListeningSocket, turn: Turn, *, is_tls: bool) -> None:
        self.bound = bound
        self.address = f"tls:{bound.address}" if is_tls else bound.address
        self._turn = turn
        self._is_paused = self._is_held = False
        turn.acceptors[bound.fileno()] = self
        turn.poller.register(bound.fileno(), net.READABLE)

    @abstractmethod
    def receive(self, connection: Connection) -> None:
        """Admit a connection or refuse it."""

    @abstractmethod
    def complain(self, reason: str) -> None:
        """Log the reason why a client is refused, at a limited rate: many connections must not fill the log."""

    def connections(self) -> int:
        """Number of connections of this listener that are neither sessions nor handshakes."""
        return 0

    def readable(self) -> None:
        """Accept waiting connections, a limited number per turn."""
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
        """Accept no connections until `let_in`; clients wait meanwhile."""
        self._is_held = True
        self._pause()

    def let_in(self) -> None:
        """Accept connections again, those that wait first."""
        self._is_held = False
        self.resume()

    def resume(self) -> None:
        """Accept connections again after a pause; called once a second."""
        if self._is_paused and not self._is_held:
            self._is_paused = False
            self._turn.poller.register(self.bound.fileno(), net.READABLE)

    def close(self) -> None:
        """Stop listening."""
        self._pause()
        self._turn.acceptors.pop(self.bound.fileno(), None)
        self.bound.close()


class Listener(BoundListener):
    """A data port at one address."""

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
        self._state.collection.open_files.make_room()  # journals return their borrowed descriptors
        if admission.is_open(policy):
            admission.admit_anybody(connection, policy)
        else:
            admission.enter(connection, self.bound.peer, policy)

    def _connections_max(self) -> int:
        """Limit of connections, counted over all listeners."""
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
