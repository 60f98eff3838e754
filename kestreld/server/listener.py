"""The data port: accepts connections and makes sessions of them, as many as there are descriptors for."""

import errno
from collections.abc import Callable
from typing import Final, Protocol

from kestreld import net
from kestreld.net import ListeningSocket
from kestreld.queues.handler import Shop
from kestreld.server.door import Door, Entrance, turn_away
from kestreld.server.turn import Turn

ACCEPTS_A_TURN: Final = 64
TRUSTED_MORE: Final = 8  # so many more connections than there may be are let in where only the operator can be
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listening(Protocol):
    """Somebody who accepts connections: until `close`, and less while there are no descriptors."""

    @property
    def address(self) -> str: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Listener:
    """One bound address. Pauses instead of spinning when descriptors run out."""

    def __init__(
        self,
        bound: ListeningSocket,
        turn: Turn,
        shop: Shop,
        door: Door,
        connections_max: int,
        report: Callable[[str], None],
        *,
        is_tls: bool = False,
        is_trusted: bool = False,
    ) -> None:
        self.bound = bound
        self.address = f"tls:{bound.address}" if is_tls else bound.address
        self._turn = turn
        self._shop = shop
        self._door = door
        self._entrance = Entrance(self._log, self._item_bytes_max, is_tls=is_tls, is_trusted=is_trusted)
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
            stats, door, entrance = self._shop.stats, self._door, self._entrance
            room = self._room()
            if len(self._turn.sessions) + len(door.greetings) >= room:
                stats.rejected_connections += 1
                self._report_full(f"{room} connections are open, all there is room for")
                turn_away(connection, entrance)
                continue
            stats.total_connections += 1
            self._shop.collection.open_files.make_room()  # journals give back what they were lent
            if door.is_open(entrance):
                door.admit_anybody(connection, entrance)
            else:
                door.enter(connection, self.bound.peer, entrance)

    def _room(self) -> int:
        """How many connections there may be, of all listeners together."""
        wanted = self._shop.collection.config.max_connections
        room = self._connections_max if wanted is None else min(wanted, self._connections_max)
        return room + TRUSTED_MORE if self._entrance.is_trusted else room

    def _item_bytes_max(self, name: str) -> int | None:
        reader = self._shop.collection.find(name)
        config = reader.config if reader is not None else self._shop.collection.config.for_queue(name)
        return config.max_item_size_bytes

    def _report_full(self, reason: str) -> None:
        # Once a minute: a flood of connections must not become a flood of log lines.
        now_ms = self._shop.clock.monotonic_ms
        if now_ms - self._full_reported_at_ms >= 60_000:
            self._full_reported_at_ms = now_ms
            self._log(reason)

    def _log(self, reason: str) -> None:
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
