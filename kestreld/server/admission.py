"""Between accept and session: the TLS handshake, the login, and who is counted against what.

A plain connection that need not log in passes without any of this. Whoever is admitted is a session like any
other afterwards: what is special about it is in its connection (TLS, meter) and its parser (rights).
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
    """Who is on the way in, and who has come in."""

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
        """Apply these users and certificates. Sessions whose credentials are no longer valid are closed."""
        had_users = bool(self.accounts)
        self.context = context
        changed = {id(account) for account in self.accounts.configure(config.users)}
        for session in list(self.turn.sessions.values()):
            is_anonymous = session not in self._inside
            if (is_anonymous and self.accounts and not had_users) or id(self._inside.get(session)) in changed:
                self._show_out(session)

    def account_of(self, session: Session) -> Account | None:
        """Who has logged in there; None = nobody had to."""
        return self._inside.get(session)

    def _show_out(self, session: Session) -> None:
        """Hang up once the answers are out."""
        session.handler.closing = True
        self.turn.outgoing.append(session)

    # Coming in

    def is_open(self, policy: ListenerPolicy) -> bool:
        """Whether whoever connects there is let in as he is."""
        if policy.is_trusted or policy.is_tls or self.accounts:
            return False
        return self.state.collection.config.max_connections_per_ip is None

    def enter(self, connection: Connection, peer: str, policy: ListenerPolicy) -> None:
        """Somebody has connected. `peer` is his IP address, "" on a Unix socket."""
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

    # Looking after those who are on the way in

    def cut_off_the_slow(self, now_ms: int) -> None:
        """Whoever has not logged in within the time for one command may not go on trying."""
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
        """Nobody comes in any more."""
        for handshake in list(self.handshakes.values()):
            handshake.leave()


def turn_away(connection: Connection, policy: ListenerPolicy) -> None:
    """There is no room for it."""
    with suppress(OSError):  # it may have gone already
        if not policy.is_tls:  # which would not understand
            connection.send(policy.protocol.refusal("too many connections"))
    connection.close()
