"""The data port: accepts connections and makes sessions of them, as many as there are descriptors for."""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kestreld import net
from kestreld.config import Config
from kestreld.net import ListeningSocket
from kestreld.protocol.memcache import Lines, MemcacheParser
from kestreld.queues.handler import Shop
from kestreld.server.session import Session
from kestreld.server.turn import Turn

ACCEPTS_A_TURN: Final = 64
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """One bound address. Pauses instead of spinning when descriptors run out."""

    def __init__(
        self,
        bound: ListeningSocket,
        turn: Turn,
        shop: Shop,
        lines: Lines,
        config: Config,
        connections_max: int,
        report: Callable[[str], None],
    ) -> None:
        self.bound = bound
        self.address = bound.address
        self._turn = turn
        self._shop = shop
        self._lines = lines
        self._config = config
        self._connections_max = connections_max
        self._report = report
        self.paused = False
        self._full_reported_at_ms = -(10**9)
        turn.acceptors[bound.fileno()] = self
        turn.poller.register(bound.fileno(), net.READABLE)

    def readable(self) -> None:
        """Accept what is waiting, some of it per turn."""
        for _ in range(ACCEPTS_A_TURN):
            try:
                connection = self.bound.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._report_full(f"no descriptor for another connection: {error.strerror}")
                    self.pause()
                return
            stats = self._shop.stats
            if len(self._turn.sessions) >= self._connections_max:
                stats.rejected_connections += 1
                self._report_full(f"{self._connections_max} connections are open, all there is room for")
                self._turn_away(connection)
                continue
            stats.total_connections += 1
            parser = MemcacheParser(self._lines, self._config.compat, self._config.max_line_bytes, self._item_bytes_max)
            self._turn.add(Session(self._turn, connection, parser, self._shop))

    def _item_bytes_max(self, name: str) -> int | None:
        reader = self._shop.collection.find(name)
        config = reader.config if reader is not None else self._shop.collection.config.for_queue(name)
        return config.max_item_size_bytes

    def _turn_away(self, connection: net.Connection) -> None:
        with suppress(OSError):  # it may have gone already
            connection.send(b"SERVER_ERROR too many connections\r\n")
        connection.close()

    def _report_full(self, reason: str) -> None:
        # Once a minute: a flood of connections must not become a flood of log lines.
        now_ms = self._shop.clock.monotonic_ms
        if now_ms - self._full_reported_at_ms >= 60_000:
            self._full_reported_at_ms = now_ms
            self._report(f"{self.address}: {reason}")

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            self._turn.poller.unregister(self.bound.fileno())

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._turn.poller.register(self.bound.fileno(), net.READABLE)

    def close(self) -> None:
        self.pause()
        self._turn.acceptors.pop(self.bound.fileno(), None)
        self.bound.close()
