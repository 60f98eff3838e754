"""Admission of connections: limits per address, TLS, login, and the accounts of sessions.

A plain connection that need not log in passes through none of this. Once admitted, every client is an ordinary
session: the differences are in its connection (TLS, meter) and its parser (rights).
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kestreld.config.config import Config
from kestreld.net import Connection
from kestreld.server.accounts import Account, Accounts
from kestreld.server.connections import HeldConnection, MeteredConnection, RereadConnection
from kestreld.server.cpu_worker import CpuWorker, origin_of
from kestreld.server.handshake import Handshake, HandshakeHost, ListenerPolicy
from kestreld.server.session import Session
from kestreld.server.state import ServerState
from kestreld.server.turn import Turn
from kestreld.tls import TlsConnection

COMPLAINTS_EVERY_MS: Final = 10_000


class Admission(HandshakeHost):
    """Handshakes in progress, and the accounts of the sessions admitted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cpu_worker: CpuWorker,
        turn: Turn,
        state: ServerState,
        key: bytes,
    ) -> None:
        super().__init__(loop, turn, state, Accounts(state.clock, key))
        self.cpu_worker = cpu_worker
        self.context: ssl.SSLContext | None = None
        self._inside: dict[Session, Account | None] = {}  # None = trusted
        self._by_ip: dict[str, int] = {}
        self._complained_at_ms = -COMPLAINTS_EVERY_MS

    def configure(self, config: Config, context: ssl.SSLContext | None) -> None:
        """Apply users and certificates. Sessions whose credentials are no longer valid are closed."""
        had_users = bool(self.accounts)
        self.context = context
        changed = {id(account) for account in self.accounts.configure(config.users)}
        for session in list(self.turn.sessions.values()):
            is_anonymous = session not in self._inside
            if (is_anonymous and self.accounts and not had_users) or id(self._inside.get(session)) in changed:
                self._show_out(session)

    def account_of(self, session: Session) -> Account | None:
        """Return the account of a session; None if no login was required."""
        return self._inside.get(session)

    def _show_out(self, session: Session) -> None:
        """Disconnect a session once its replies are sent."""
        session.handler.closing = True
        self.turn.outgoing.append(session)

    # New connections

    def is_open(self, policy: ListenerPolicy) -> bool:
        """Return True if the listener's clients become sessions without any check."""
        if policy.is_trusted or policy.is_tls or self.accounts:
            return False
        return self.state.collection.config.max_connections_per_ip is None

    def enter(self, connection: Connection, peer: str, policy: ListenerPolicy) -> None:
        """Admit a new connection or refuse it. `peer` is the client's IP address, "" on a Unix socket."""
        allowed = self.state.collection.config.max_connections_per_ip
        if allowed is not None and peer:
            if self._by_ip.get(peer, 0) >= allowed:
                self.state.stats.rejected_connections += 1
                self.complain(policy.report, f"max_connections_per_ip reached for {peer}: {allowed} connections")
                turn_away(connection, policy)
                return
            self._by_ip[peer] = self._by_ip.get(peer, 0) + 1
        secured: TlsConnection | None = None
        if policy.is_tls:
            assert self.context is not None, "TLS listener without a certificate"
            try:
                connection = secured = TlsConnection(self.context, connection)
            except OSError:  # it has gone already
                connection.close()
                self._left(peer)
                return
        if allowed is not None and peer:
            connection = HeldConnection(connection, lambda: self._left(peer))
        if policy.is_trusted:
            self.admit(connection, policy, None)
        elif self.accounts and not policy.is_tls and policy.protocol.logs_in_inside:
            self.admit_unknown(connection, policy, peer)
        elif policy.is_tls or self.accounts:
            Handshake(self, policy, connection, secured, peer).begin()
        else:
            self.admit_anybody(connection, policy)

    def _left(self, peer: str) -> None:
        left = self._by_ip.get(peer, 0) - 1
        if left > 0:
            self._by_ip[peer] = left
        else:
            self._by_ip.pop(peer, None)

    def admit_anybody(self, connection: Connection, policy: ListenerPolicy) -> None:
        self.turn.add(Session(self.turn, connection, *policy.protocol.open(None)))

    def admit(self, connection: Connection, policy: ListenerPolicy, account: Account | None, rest: bytes = b"") -> None:
        metered: MeteredConnection | None = None
        if account is not None and account.meter is not None:
            connection = metered = MeteredConnection(connection, account.meter, self.turn, self.loop)
        if rest:
            connection = RereadConnection(connection, rest)
        connection = held = HeldConnection(connection)
        session = Session(self.turn, connection, *policy.protocol.open(account))
        held.closed = lambda: self._inside.pop(session, None)
        if metered is not None:
            metered.session = session
        self._inside[session] = account
        self.turn.add(session)
        if rest:
            session.readable()
            self.turn.again()

    def admit_unknown(self, connection: Connection, policy: ListenerPolicy, peer: str) -> None:
        held = HeldConnection(connection)
        parser, handler = policy.protocol.open(None)
        session = Session(self.turn, held, parser, handler)
        held.closed = lambda: self._inside.pop(session, None)

        def authenticate(name: bytes, password: bytes, done: Callable[[Account | None], None]) -> bool:
            def compared(account: Account | None) -> None:
                if account is not None:
                    self._inside[session] = account
                done(account)

            return self.authenticate(peer, name, password, lambda: not session.closed, compared)

        handler.expect_login(authenticate)
        self.turn.add(session)

    def authenticate(
        self,
        peer: str,
        name: bytes,
        password: bytes,
        is_wanted: Callable[[], bool],
        done: Callable[[Account | None], None],
    ) -> bool:
        self.state.stats.logins += 1
        account = self.accounts.recognise(name, password)
        if account is not None:
            done(account)
            return True
        compare, conclude = self.accounts.compare(name, password)
        return self.cpu_worker.run(
            origin_of(peer), lambda: is_wanted() and compare(), lambda fits: done(conclude(fits))
        )

    # Handshakes in progress

    def cut_off_the_slow(self, now_ms: int) -> None:
        """Disconnect clients that have not logged in within `request_timeout`."""
        patience_ms = self.state.collection.config.request_timeout_ms
        for handshake in list(self.handshakes.values()):
            if patience_ms and now_ms - handshake.since_ms >= patience_ms:
                handshake.leave()

    def complain(self, report: Callable[[str], None], reason: str) -> None:
        now_ms = self.state.clock.monotonic_ms
        if now_ms - self._complained_at_ms >= COMPLAINTS_EVERY_MS:
            self._complained_at_ms = now_ms
            report(reason)

    def close(self) -> None:
        """Disconnect clients that have not logged in yet."""
        for handshake in list(self.handshakes.values()):
            handshake.leave()


def turn_away(connection: Connection, policy: ListenerPolicy) -> None:
    """Refuse a connection that exceeds a limit."""
    with suppress(OSError):  # it may have gone already
        if not policy.is_tls:  # a TLS client would not understand it
            connection.send(policy.protocol.refusal("too many connections"))
    connection.close()
