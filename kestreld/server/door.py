"""Between accept and session: the TLS handshake, the login, and who is counted against what.

A plain connection that need not log in passes without any of this. Whoever comes in by the door is a session like any
other afterwards: what is special about it is in its connection (TLS, meter) and its parser (rights).
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kestreld.config.config import Config
from kestreld.net import Connection
from kestreld.protocol.memcache import Lines, MemcacheParser
from kestreld.queues.handler import Shop
from kestreld.server.accounts import Account, Accounts
from kestreld.server.background import Thinker
from kestreld.server.connections import HeldConnection, MeteredConnection, RereadConnection
from kestreld.server.greeting import Greeting
from kestreld.server.session import Session
from kestreld.server.turn import Turn
from kestreld.tls import TlsConnection

COMPLAINTS_EVERY_MS: Final = 10_000


class Entrance:
    """How one listener lets people in: `trusted` is a socket that only this account can open."""

    def __init__(
        self,
        report: Callable[[str], None],
        item_bytes_max: Callable[[str], int | None],
        *,
        is_tls: bool,
        is_trusted: bool,
    ) -> None:
        self.report = report
        self.item_bytes_max = item_bytes_max
        self.is_tls = is_tls
        self.is_trusted = is_trusted


class Door:
    """Who is on the way in, and who has come in."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thinker: Thinker,
        turn: Turn,
        shop: Shop,
        lines: Lines,
        key: bytes,
    ) -> None:
        self.loop = loop
        self.thinker = thinker
        self.turn = turn
        self.shop = shop
        self.lines = lines
        self.accounts = Accounts(shop.clock, key)
        self.context: ssl.SSLContext | None = None
        self.greetings: dict[int, Greeting] = {}
        self._inside: dict[Session, Account | None] = {}  # None = trusted
        self._by_ip: dict[str, int] = {}
        self._complained_at_ms = -COMPLAINTS_EVERY_MS

    def configure(self, config: Config, context: ssl.SSLContext | None) -> None:
        """Take these users and certificates. Who would not get in any more has to leave."""
        had_users = bool(self.accounts)
        self.context = context
        changed = {id(account) for account in self.accounts.configure(config.users)}
        for session in list(self.turn.sessions.values()):
            is_anonymous = session not in self._inside
            if (is_anonymous and self.accounts and not had_users) or id(self._inside.get(session)) in changed:
                self._show_out(session)

    def _show_out(self, session: Session) -> None:
        """Hang up once the answers are out."""
        session.handler.closing = True
        self.turn.outgoing.append(session)

    # Coming in

    def is_open(self, entrance: Entrance) -> bool:
        """Whether whoever connects there is let in as he is."""
        if entrance.is_trusted or entrance.is_tls or self.accounts:
            return False
        return self.shop.collection.config.max_connections_per_ip is None

    def enter(self, connection: Connection, peer: str, entrance: Entrance) -> None:
        """Somebody has connected. `peer` is his IP address, "" on a Unix socket."""
        allowed = self.shop.collection.config.max_connections_per_ip
        if allowed is not None and peer:
            if self._by_ip.get(peer, 0) >= allowed:
                self.shop.stats.rejected_connections += 1
                self.complain(entrance, f"{peer} has {allowed} connections, as many as it may have")
                turn_away(connection, entrance)
                return
            self._by_ip[peer] = self._by_ip.get(peer, 0) + 1
        secured: TlsConnection | None = None
        if entrance.is_tls:
            assert self.context is not None, "a TLS listener without a certificate"
            try:
                connection = secured = TlsConnection(self.context, connection)
            except OSError:  # it has gone already
                connection.close()
                self._left(peer)
                return
        if allowed is not None and peer:
            connection = HeldConnection(connection, lambda: self._left(peer))
        if entrance.is_trusted:
            self.admit(connection, entrance, None)
        elif entrance.is_tls or self.accounts:
            Greeting(self, entrance, connection, secured, peer).begin()
        else:
            self.admit_anybody(connection, entrance)

    def _left(self, peer: str) -> None:
        left = self._by_ip.get(peer, 0) - 1
        if left > 0:
            self._by_ip[peer] = left
        else:
            self._by_ip.pop(peer, None)

    def admit_anybody(self, connection: Connection, entrance: Entrance) -> None:
        """Make a session of it: nobody has to log in."""
        self.turn.add(Session(self.turn, connection, self._parser(entrance, None), self.shop))

    def admit(self, connection: Connection, entrance: Entrance, account: Account | None, rest: bytes = b"") -> None:
        """Make a session of it, `account` None = trusted. `rest` is what its client has sent beyond his login."""
        metered: MeteredConnection | None = None
        if account is not None and account.meter is not None:
            connection = metered = MeteredConnection(connection, account.meter, self.turn, self.loop)
        if rest:
            connection = RereadConnection(connection, rest)
        connection = held = HeldConnection(connection)
        session = Session(self.turn, connection, self._parser(entrance, account), self.shop)
        held.closed = lambda: self._inside.pop(session, None)
        if metered is not None:
            metered.session = session
        self._inside[session] = account
        self.turn.add(session)
        if rest:
            session.readable()
            self.turn.again()

    def _parser(self, entrance: Entrance, account: Account | None) -> MemcacheParser:
        config = self.shop.collection.config
        lines, check = (self.lines, None) if account is None else (account.lines, account.check)
        return MemcacheParser(lines, config.compat, config.max_line_bytes, entrance.item_bytes_max, check)

    # Looking after those who are on the way in

    def cut_off_the_slow(self, now_ms: int) -> None:
        """Whoever has not logged in within the time for one command may not go on trying."""
        patience_ms = self.shop.collection.config.request_timeout_ms
        for greeting in list(self.greetings.values()):
            if patience_ms and now_ms - greeting.since_ms >= patience_ms:
                greeting.leave()

    def complain(self, entrance: Entrance, reason: str) -> None:
        """Log it, unless something of the kind was logged just now: who knocks must not fill the log."""
        now_ms = self.shop.clock.monotonic_ms
        if now_ms - self._complained_at_ms >= COMPLAINTS_EVERY_MS:
            self._complained_at_ms = now_ms
            entrance.report(reason)

    def close(self) -> None:
        """Nobody comes in any more."""
        for greeting in list(self.greetings.values()):
            greeting.leave()


def turn_away(connection: Connection, entrance: Entrance) -> None:
    """There is no room for it."""
    with suppress(OSError):  # it may have gone already
        if not entrance.is_tls:  # which would not understand
            connection.send(b"SERVER_ERROR too many connections\r\n")
    connection.close()
