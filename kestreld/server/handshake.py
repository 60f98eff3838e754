"""A connection before its session: the TLS handshake, then the protocol's login."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from kestreld import net
from kestreld.net import Connection
from kestreld.server.accounts import Account, Accounts
from kestreld.server.state import ServerState
from kestreld.server.turn import Turn
from kestreld.server.wire_protocol import Login, WireProtocol
from kestreld.tls import TlsConnection

RECEIVE_BYTES: Final = 16384  # a TLS record
WRONG_TRIES_MAX: Final = 3
LAST_ANSWER_DELAY_S: Final = 1.0
LEAVE_S: Final = 2.0  # time for a client to notice the end of its connection


class ListenerPolicy:
    """Admission rules of a listener; `is_trusted`: only this account and root can open its socket."""

    def __init__(
        self,
        report: Callable[[str], None],
        protocol: WireProtocol,
        *,
        is_tls: bool,
        is_trusted: bool,
    ) -> None:
        self.report = report
        self.protocol = protocol
        self.is_tls = is_tls
        self.is_trusted = is_trusted


class HandshakeHost(ABC):
    """Owner of the handshakes, which makes sessions of them and checks their passwords."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn, state: ServerState, accounts: Accounts) -> None:
        self.loop = loop
        self.turn = turn
        self.state = state
        self.accounts = accounts
        self.handshakes: dict[int, Handshake] = {}

    def begun(self, handshake: "Handshake", interest: int) -> None:
        self.handshakes[handshake.fd] = self.turn.acceptors[handshake.fd] = handshake
        self.state.stats.curr_connections += 1
        self.turn.poller.register(handshake.fd, interest)

    def over(self, handshake: "Handshake") -> None:
        del self.handshakes[handshake.fd]
        del self.turn.acceptors[handshake.fd]
        self.state.stats.curr_connections -= 1
        self.turn.poller.unregister(handshake.fd)

    @abstractmethod
    def admit_anybody(self, connection: Connection, policy: ListenerPolicy) -> None:
        """Make a session of a connection: no login is required."""

    @abstractmethod
    def admit_unknown(self, connection: Connection, policy: ListenerPolicy, peer: str) -> None:
        """Make a session of a connection, in which its client must log in."""

    @abstractmethod
    def admit(self, connection: Connection, policy: ListenerPolicy, account: Account | None, rest: bytes = b"") -> None:
        """Make a session of a connection, `account` None = trusted. `rest` is input received after the login."""

    @abstractmethod
    def authenticate(
        self,
        peer: str,
        name: bytes,
        password: bytes,
        is_wanted: Callable[[], bool],
        done: Callable[[Account | None], None],
    ) -> bool:
        """Call `done` with the account that has the password, None = none: now, or after a check in the worker.

        Returns False if too many logins of this origin are waiting.
        """

    @abstractmethod
    def complain(self, report: Callable[[str], None], reason: str) -> None:
        """Log a reason, unless one was logged just now: clients must not be able to fill the log."""


class Handshake:
    """A connection on the poller until it becomes a session. `since_ms` is the start of its time-out."""

    def __init__(
        self,
        host: HandshakeHost,
        policy: ListenerPolicy,
        connection: Connection,
        secured: TlsConnection | None,
        peer: str,
    ) -> None:
        self.host = host
        self.policy = policy
        self.connection = connection
        self.peer = peer
        self.fd = connection.fileno()
        self.since_ms = host.state.clock.monotonic_ms
        self._shaking_hands = secured  # None = no TLS, or done with it
        self._login: Login = policy.protocol.login()
        self._wrong_tries = 0
        self._is_waiting = False  # for a password to be compared, or for the last answer to leave
        self._is_over = False
        self._is_leaving = False  # the output has ended; further input is discarded
        self._interest = net.READ

    def begin(self) -> None:
        self.host.begun(self, self._interest)

    def _end(self) -> None:
        self._is_over = True
        self.host.over(self)

    def leave(self) -> None:
        """Close the connection."""
        if not self._is_over:
            self._end()
            self.connection.close()

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self.host.turn.poller.modify(self.fd, interest)

    def readable(self) -> None:
        """Handle an event of the connection."""
        if self._is_waiting:  # not polled for input: it is broken
            self.leave()
            return
        if self._shaking_hands is not None and not self._shake_hands(self._shaking_hands):
            return
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        if self._is_leaving:
            return
        self.host.state.stats.bytes_read += len(data)
        self._login.rest += data
        self._go_on()

    def _shake_hands(self, secured: TlsConnection) -> bool:
        """Continue the TLS handshake; returns True once it is done, if the login continues here."""
        try:
            wanted = secured.shake_hands()
        except OSError:
            self._shaking_hands = None
            self._hang_up()
            return False
        if wanted:
            self._watch(wanted)
            return False
        self._shaking_hands = None
        self._watch(net.READ)
        if not self.host.accounts:
            self._end()
            self.host.admit_anybody(self.connection, self.policy)
            return False
        account = self.host.accounts.of_certificate(secured.certificate_names())
        if account is not None:
            self._admit(account)
        elif self.policy.protocol.logs_in_inside:
            self._end()
            self.host.admit_unknown(self.connection, self.policy, self.peer)
        return not self._is_over

    def _hang_up(self) -> None:
        """End the output, and discard input until the client leaves: closing now could lose the last answer."""
        self._is_leaving, self._is_waiting = True, False
        self._login.rest = b""
        self._watch(net.READ)
        try:
            self.connection.shutdown(net.END_OUTPUT)
        except OSError:
            self.leave()
        else:
            self.host.loop.call_later(LEAVE_S, self.leave)

    # The login

    def _go_on(self) -> None:
        """Answer the input received, up to a login that takes long to check."""
        while not (self._is_waiting or self._is_over or self._is_leaving):
            step = self._login.next_step()
            if step is None:
                return
            if step.password is not None:
                self._log_in(step.name, step.password)
            else:
                self._say(step.answer, closes=step.closes)

    def _log_in(self, name: bytes, password: bytes) -> None:
        self._is_waiting = True
        compared = partial(self._compared, name)
        if not self.host.authenticate(self.peer, name, password, lambda: not self._is_over, compared):
            self._is_waiting = False
            self._say(self._login.busy, closes=True)
        elif self._is_waiting:
            self._watch(0)  # a client that sends no more is still there; one whose connection breaks is not

    def _compared(self, name: bytes, account: Account | None) -> None:
        self._is_waiting = False
        if account is not None and not self._is_over:
            self._welcome(account)
        elif not self._is_over and self._may_try_again(name):
            self._watch(net.READ)
            self._go_on()

    def _welcome(self, account: Account) -> None:
        if self._say(self._login.welcome):
            self._admit(account)

    def _may_try_again(self, name: bytes) -> bool:
        """Answer a wrong password; returns True if the client may try again."""
        self.host.state.stats.failed_logins += 1
        self._wrong_tries += 1
        if self._wrong_tries < WRONG_TRIES_MAX:
            return self._say(self._login.wrong)
        # The answer is delayed, and the client has to connect again.
        self._is_waiting = True
        self.host.complain(
            self.policy.report, f"{self._wrong_tries} wrong passwords from {self.peer}, last for {name!r}"
        )
        self.host.loop.call_later(LAST_ANSWER_DELAY_S, lambda: self._say(self._login.wrong, closes=True))
        return False

    def _admit(self, account: Account) -> None:
        self._end()
        self.host.admit(self.connection, self.policy, account, self._login.rest)

    def _say(self, answer: bytes, *, closes: bool = False) -> bool:
        """Send an answer; returns False if the client does not take so short a line at once, and is disconnected."""
        if self._is_over or self._is_leaving:
            return False
        try:
            is_sent = self.connection.send(answer) == len(answer)
        except OSError:
            is_sent = False
        if is_sent:
            self.host.state.stats.bytes_written += len(answer)
        if not is_sent:
            self.leave()
        elif closes:
            self._hang_up()
        return is_sent
