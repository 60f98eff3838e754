"""Consumption: the wait of one channel for items of its queues, on a connection of its own."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kestreld.client.absence import now_ms
from kestreld.client.heartbeat import AGAIN_MS, AGAIN_MS_MAX
from kestreld.client.queue_talks import QueueTalks, Talk, refusal
from kestreld.client.replies import Reply
from kestreld.errors import ConnectionLost, KestrelError, ServerRefused, ServersAway
from kestreld.integrations.celery.leases import HeldItem, LeaseKeeper
from kestreld.integrations.celery.wire import NO_ANSWER, Wire

WAIT_MS: Final = 750  # a wait on the server, which is its ping as well
LATE_MS: Final = 1000  # if nothing comes for that much longer it counts as lost
BATCH_MAX: Final = 64  # items asked for at once
CONNECT_S: Final = 1.0  # as long as for any answer,
CONNECT_SECURED_S: Final = 2.0  # or with TLS or a login, whose part many clients that come back at once wait for
_LIST: Final = b"~celery"
_OLDER: Final = b"CLIENT_ERROR by= needs a name"  # the answer of a server that takes /deliveries for part of a name
_log: Final = logging.getLogger("kestreld.celery")


# Returns what is carried out on each new connection but the first.
Renewals = Callable[[QueueTalks], Iterable[Talk[None]]]


class Leased(NamedTuple):
    """An item that has arrived."""

    held: HeldItem
    data: bytes
    deliveries: int | None  # before this one; None = the server does not say


class Consumption:
    """Messages that have arrived for a channel and were not delivered yet, and requests for more.

    The connection is lost and opened again beneath it, for `outage_s`; then ServersAway or ConnectionLost is raised.
    """

    def __init__(
        self, wire: Wire, holder: str, lease_ms: int, outage_s: float, keeper: LeaseKeeper, renewals: Renewals
    ) -> None:
        """`keeper` gets what has arrived, and the names under which items may be leased that never did."""
        self.wire = wire
        self.ready: deque[Leased] = deque()
        self.queues: list[bytes] = []
        self.takes_turns = False  # else the first queue that has an item is served
        self._registered: list[bytes] = []
        self._holder = holder
        self._lease_ms = lease_ms
        self._outage_s = outage_s
        self._keeper = keeper
        self._renewals = renewals
        self._open_requests = 0
        self._batch = 1  # how many are asked for at once: more while they come
        self._has_missed = False
        self._counts_deliveries = True  # unless the server has said that it does not know them
        self._asked_for_deliveries = False
        self._asked_at_ms = 0
        self._problem: KestrelError | None = None
        self._away_since_ms = 0
        self._next_try_at_ms = 0
        self._pause_ms = AGAIN_MS

    @property
    def is_waiting(self) -> bool:
        """True if the server holds a request, and with it all that is sent after it."""
        return self._open_requests > 0

    @property
    def holder(self) -> str:
        return f"{self._holder}.{self.wire.opened}"

    def ask(self, free: int) -> None:
        """Ask for as many items as there is room for, unless that is under way. `wire.flush` sends it."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        now = now_ms()
        if self._open_requests:
            if now > max(self._asked_at_ms, self.wire.heard_at_ms) + WAIT_MS + LATE_MS:
                self.wire.lose(NO_ANSWER)
            return
        if free <= 0 or not self.queues or not self._connected(now):
            return
        if self._registered != self.queues:
            self._register()
        count = min(free, self._batch, BATCH_MAX)
        self._open_requests, self._asked_at_ms, self._has_missed = count, now, False
        request = b"gets %b/open/lease=%d/by=%b" % (_LIST, self._lease_ms, self.holder.encode())
        if self.takes_turns:
            request += b"/turn"
        self._asked_for_deliveries = self._counts_deliveries
        if self._asked_for_deliveries:
            request += b"/deliveries"
        self.wire.ask(b"%b/t=%d\r\n" % (request, WAIT_MS), self._arrived)
        for _ in range(count - 1):
            self.wire.ask(request + b"\r\n", self._arrived)

    def drop(self, queue: bytes) -> list[Leased]:
        """Consume a queue no longer. Return what has arrived from it."""
        self.queues = [one for one in self.queues if one != queue]
        self.interrupt()
        dropped = [one for one in self.ready if one.held.queue == queue]
        self.ready = deque(one for one in self.ready if one.held.queue != queue)
        return dropped

    def interrupt(self) -> None:
        """End a wait, so that all that was asked for has arrived."""
        if self._open_requests:
            self.wire.end_requests()

    def close(self) -> list[Leased]:
        """Consume nothing any longer. Return what has arrived."""
        self.queues = []
        self.interrupt()
        self.wire.settle()
        dropped = list(self.ready)
        self.ready.clear()
        return dropped

    def _register(self) -> None:
        if self._registered:
            self.wire.ask(b"wait %b\r\n" % _LIST, self._is_registered)
        for start in range(0, len(self.queues), 30):
            part = b" ".join(self.queues[start : start + 30])
            self.wire.ask(b"wait %b %b\r\n" % (_LIST, part), self._is_registered)
        self._registered = list(self.queues)

    def _is_registered(self, reply: Reply | None, header: bytes) -> None:
        if reply is not None and reply != b"OK":
            self._problem = refusal(self.wire.address, reply, b"wait", header)
            self._registered = []

    def _arrived(self, reply: Reply | None, header: bytes) -> None:
        self._open_requests -= 1
        if reply is None:
            self._has_missed = True
            if not self._open_requests:
                self._keeper.give_back_unknown(self.holder)
        elif isinstance(reply, bytes) and self._asked_for_deliveries and reply.startswith(_OLDER):
            self._counts_deliveries, self._has_missed = False, True
        elif isinstance(reply, bytes):
            self._problem = self._problem or refusal(self.wire.address, reply, b"gets", header)
        elif reply:
            words = header.split(b" ")
            held = HeldItem(words[1].partition(b"/")[0], int(words[4]), self._asked_at_ms)
            self._keeper.hold(held)
            self.ready.append(Leased(held, reply[0], int(words[5]) if len(words) > 5 else None))
        else:
            self._has_missed = True
        if not self._open_requests:
            self._batch = 1 if self._has_missed else 2 * self._batch

    def _connected(self, now: int) -> bool:
        if self.wire.is_open:
            return True
        if self._registered:
            self._registered = []
        if now < self._next_try_at_ms:
            return False
        try:
            self.wire.open(CONNECT_SECURED_S if self.wire.is_secured else CONNECT_S)
            if self.wire.opened > 1:
                for talk in self._renewals(self.wire.talks):
                    self.wire.carry_out(talk)
        except (ServersAway, ConnectionLost, ServerRefused):
            self.wire.close()
            if not self._away_since_ms:
                self._away_since_ms = now
                _log.warning("%s: connection lost: %s; trying again", self.wire.address, self.wire.why_lost)
            if now - self._away_since_ms >= self._outage_s * 1000:
                raise
            # A server that did not answer has had its pause.
            self._next_try_at_ms = max(now + self._pause_ms, now_ms() + AGAIN_MS)
            self._pause_ms = min(2 * self._pause_ms, AGAIN_MS_MAX // 2)
            return False
        if self._away_since_ms:
            _log.warning("%s: connected again after %d ms", self.wire.address, now_ms() - self._away_since_ms)
        self._away_since_ms, self._next_try_at_ms, self._pause_ms = 0, 0, AGAIN_MS
        self._counts_deliveries = True
        return True
