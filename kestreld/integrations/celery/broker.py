"""Broker: what the channels of one transport ask of the server."""

import logging
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from secrets import token_hex
from typing import Final, TypeVar

from kombu.exceptions import ChannelError

from kestreld.client.absence import now_ms
from kestreld.client.heartbeat import pauses_ms
from kestreld.client.items import EXPIRY_RELATIVE_S_MAX, OpenItem
from kestreld.client.queue_talks import QueueTalks, Talk
from kestreld.client.replies import Reply
from kestreld.clock import Clock
from kestreld.errors import ConnectionLost, ServerRefused, ServersAway
from kestreld.integrations.celery.bindings import Binding
from kestreld.integrations.celery.consumption import CONNECT_S, Consumption, Leased, Renewals
from kestreld.integrations.celery.leases import End, HeldItem, LeaseKeeper
from kestreld.integrations.celery.settings import Settings
from kestreld.integrations.celery.wire import Announcement, Wire, wait_for

T = TypeVar("T")
_HOLDER: Final = re.compile(r"[^!-.0-~]")
RETURNED_MAX: Final = 10_000
LATE_MS: Final = 3000  # an acknowledgement without an answer: the connection is lost
DELAY_MS_MAX: Final = 365 * 86_400_000  # of a server that is not configured otherwise
_TOO_LATE: Final = re.compile(r"delay= allows at most (\d+) \(max_delay\)")
_log: Final = logging.getLogger("kestreld.celery")


class Broker:
    """The server of a transport. A lost connection is opened again, and the command repeated, for `publish_outage_s`.

    Every command may be repeated: puts have keys.
    """

    def __init__(self, settings: Settings, alive: Callable[[], bool]) -> None:
        self.settings = settings
        self._is_closed = False
        self.defers = False  # True = what ends leases is sent by `flush`
        self._returned: dict[tuple[bytes, int], None] = {}  # items that were given back, the last ones
        self._delay_ms_max: dict[bytes, int] = {}  # of queues that have refused a delay
        self.wire = self._new_wire()
        wire, stays = self._new_wire(self._announcement), settings.missing_ms > 0
        self.keeper = LeaseKeeper(wire, settings.lease_ms, alive, self._look, stays=stays)
        host = _HOLDER.sub("_", socket.gethostname())[:30]
        self._holder = f"celery.{host}.{token_hex(6)}"

    def connect(self) -> None:
        """Connect. Raises KestrelError at once if that fails."""
        self._is_closed = False
        self.wire.open()

    def close(self) -> None:
        """Close the connection for commands; leases that are still held are kept until they are ended."""
        self._is_closed = True
        self.wire.settle()
        self.keeper.close()

    def flush(self) -> None:
        """Send what ends leases."""
        self.wire.flush()

    def _look(self) -> None:
        """Called by the keeper now and then: what no loop sends or reads may wait no longer.

        A lost connection is opened again once the keeper has one: a worker that publishes nothing acknowledges over it.
        """
        if self.wire.opened and not self._is_closed and self.keeper.is_connected:
            with suppress(ServersAway, ConnectionLost, ServerRefused):
                self.wire.open(CONNECT_S)
        self.wire.look_after(LATE_MS)

    def _new_wire(self, announcement: Announcement | None = None) -> Wire:
        settings = self.settings
        return Wire(settings.address, settings.login, settings.timeout_s, announcement if settings.missing_ms else None)

    def _announcement(self, talks: QueueTalks) -> Talk[None]:
        """Say on a new connection that this process is there, so that what it has leased goes elsewhere if it dies."""
        if not (yield from talks.present(self._holder, self.settings.missing_ms)):
            _log.debug("%s knows no presence: what a dead worker had waits for its leases", self.settings.address)

    def _ask(self, talk_of: Callable[[QueueTalks], Talk[T]]) -> T:
        until_ms = now_ms() + self.settings.publish_outage_s * 1000
        for pause_ms in pauses_ms():
            try:
                return self.wire.carry_out(talk_of(self.wire.talks))
            except (ServersAway, ConnectionLost):
                if now_ms() + pause_ms > until_ms:
                    raise
            wait_for((), pause_ms / 1000)
        raise AssertionError  # pauses have no end

    # Messages

    def put(self, queue: bytes, data: bytes, key: str, *, delay_ms: int = 0, expire_ms: int = 0) -> None:
        """Put an item, once for its key. Raises ChannelError if it is refused.

        It is delivered after `delay_ms`, or the longest delay that its queue allows.
        """
        expire_s = -(-(delay_ms + expire_ms) // 1000) if expire_ms else 0
        if expire_s > EXPIRY_RELATIVE_S_MAX:
            expire_s += Clock().wall_ms // 1000
        item_key = key.encode()

        def put(talks: QueueTalks) -> Talk[bool]:
            return talks.put(queue, data, expire_s, delay_ms=self._allowed_ms(queue, delay_ms), item_key=item_key)

        try:
            is_stored = self._ask(put)
        except ServerRefused as refused:
            if not self._has_limited(queue, refused.reason):
                raise
            is_stored = self._ask(put)
        if not is_stored:
            words = f"refused a message of {len(data)} bytes: the queue is full, or max_item_size is less"
            raise ChannelError(f"queue {queue.decode('utf-8', 'replace')!r}: {self.settings.address} {words}")

    def _allowed_ms(self, queue: bytes, delay_ms: int) -> int:
        return min(delay_ms, self._delay_ms_max.get(queue, DELAY_MS_MAX))

    def _has_limited(self, queue: bytes, reason: str) -> bool:
        """True if a delay was refused as too long; from now on the queue gets none that is longer than it allows."""
        if found := _TOO_LATE.search(reason):
            self._delay_ms_max[queue] = int(found[1])
        return found is not None

    def get(self, queue: bytes) -> Leased | None:
        """Lease the next item, without waiting for one."""
        opened: OpenItem | None = self._ask(lambda talks: talks.lease(queue, self.settings.lease_ms, by=self._holder))
        if opened is None:
            return None
        held = HeldItem(queue, opened.id, now_ms())
        self.keeper.hold(held)
        return Leased(held, opened.data, opened.deliveries)

    def consumption(self, channel_id: int, renewals: Renewals) -> Consumption:
        """Return a wait for items, for a channel. What `renewals` returns is carried out on each new connection."""
        settings = self.settings
        holder = f"{self._holder}.{channel_id}"
        wire = self._new_wire(self._announcement)
        return Consumption(wire, holder, settings.lease_ms, settings.outage_s, self.keeper, renewals)

    def deliveries(self, leased: Leased) -> int:
        """Number of times that the item was delivered before. Of a server that does not say, whether this transport has
        given it back, as far as that remembers.
        """
        return int(leased.held.item in self._returned) if leased.deliveries is None else leased.deliveries

    # The ends of leases

    def confirm(self, held: HeldItem, consumption: Consumption | None = None) -> None:
        self._end(held, b"delete %b/%d\r\n" % (held.queue, held.token), consumption)

    def give_back(self, held: HeldItem, consumption: Consumption | None = None, delay_ms: int = 0) -> None:
        held.is_returned = True
        self._returned[held.item] = None
        if len(self._returned) > RETURNED_MAX:
            del self._returned[next(iter(self._returned))]
        delay = b"/delay=%d" % self._allowed_ms(held.queue, delay_ms) if delay_ms else b""
        self._end(held, b"touch %b/%d%b 0\r\n" % (held.queue, held.token, delay), consumption)

    def _end(self, held: HeldItem, command: bytes, consumption: Consumption | None) -> None:
        """Send the end of a lease, not waiting for the reply."""
        self.keeper.let_go(held)
        end = End(held, command.rstrip())
        wire = self.wire
        if consumption is not None and consumption.wire.is_open and not consumption.is_waiting:
            wire = consumption.wire
        if not wire.is_open:
            self.keeper.finish(end)
            return

        def ended(reply: Reply | None, header: bytes) -> None:
            if isinstance(reply, bytes) and self._has_limited(held.queue, reply.decode("latin-1")):
                end.command = b"touch %b/%d/delay=%d 0" % (held.queue, held.token, self._delay_ms_max[held.queue])
                self.keeper.finish(end)
            else:
                self.keeper.answered(end, reply)

        wire.ask(command, ended)
        if not self.defers:
            wire.flush()

    # Queues and bindings

    def create(self, queue: bytes) -> None:
        """Create a queue. A user who may only put does not: the first message creates it."""
        self._ask(lambda talks: _created(talks, queue))

    def declare(self, queue: bytes, options: Iterable[bytes]) -> None:
        options = list(options)
        self._ask(lambda talks: declared(talks, queue, options))

    def stats(self, queue: bytes) -> dict[str, int | str]:
        """Return the figures of a queue; empty if there is none."""
        return self._ask(lambda talks: talks.queue_stats(queue))

    def purge(self, queue: bytes) -> int:
        return self._ask(lambda talks: talks.flush_counted(queue))

    def delete(self, queue: bytes) -> None:
        self._ask(lambda talks: talks.delete_queue(queue))

    def bind(self, binding: Binding) -> None:
        self._ask(lambda talks: talks.bind(*binding))

    def unbind(self, exchange: str, queue: bytes, routing_key: str | None, kind: str = "") -> None:
        key = None if routing_key is None else _bytes(routing_key)
        self._ask(lambda talks: talks.unbind(_bytes(exchange), queue, key, kind.encode()))

    def bindings(self, exchange: str | None = None) -> list[Binding]:
        name = None if exchange is None else _bytes(exchange)
        return self._ask(lambda talks: talks.bindings(name))

    def cancel(self, queue: bytes, key: str) -> bool:
        return self._ask(lambda talks: talks.cancel(queue, key.encode()))


def declared(talks: QueueTalks, queue: bytes, options: list[bytes]) -> Talk[None]:
    """Declare a queue, which keeps its journal if it has one: somebody has put something there since it was deleted."""
    try:
        yield from talks.declare(queue, options)
    except ServerRefused as refused:
        if not refused.reason.startswith("journal of "):
            raise
        yield from talks.declare(queue, [option for option in options if not option.startswith(b"journal=")])


def _created(talks: QueueTalks, queue: bytes) -> Talk[None]:
    try:
        yield from talks.ask(b"wait ~new " + queue, b"OK")
    except ServerRefused as refused:
        if not refused.reason.startswith("not allowed"):
            raise
    else:
        yield from talks.ask(b"wait ~new", b"OK")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
