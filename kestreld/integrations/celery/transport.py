"""Transport: Kombu's connection to a server, with or without an event loop."""

import socket
import sys
from typing import Any, Final

from amqp.exceptions import ChannelError as AmqpChannelError
from kombu.exceptions import ChannelError, ConnectionError
from kombu.transport import base

from kestreld import __version__
from kestreld.client.absence import now_ms
from kestreld.client.access import PORT_DEFAULT
from kestreld.errors import KestrelError
from kestreld.integrations.celery.beat import key_beats
from kestreld.integrations.celery.bindings import TYPES
from kestreld.integrations.celery.broker import Broker
from kestreld.integrations.celery.channel import Channel
from kestreld.integrations.celery.consumption import Consumption
from kestreld.integrations.celery.settings import settings_of
from kestreld.integrations.celery.wire import Wire, readable
from kestreld.integrations.celery.workers import is_in_soft_shutdown, let_mingle

TICK_S: Final = 0.25  # how often an event loop looks at what is late
SLOW_MS: Final = 2  # a callback that took longer than that has executed a task: what it has to say comes first


class Management(base.Management):
    """The bindings that `celery list bindings` shows."""

    def get_bindings(self) -> list[dict[str, str]]:
        with self.transport.client.channel() as channel:
            return [
                {"destination": queue, "source": exchange, "routing_key": routing_key}
                for queue, exchange, routing_key in channel.list_bindings()
            ]


class Transport(base.Transport):
    """Transport for one connection of Kombu. `channels` share it."""

    default_port = PORT_DEFAULT
    Management = Management
    driver_type = "kestrel"
    driver_name = "kestreld"
    connection_errors = (ConnectionError, KestrelError, OSError)
    channel_errors = (ChannelError, AmqpChannelError)
    implements = base.default_transport_capabilities.extend(asynchronous=True, exchange_type=TYPES, heartbeats=False)
    _tls = False

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        _refuse_eventlet()
        key_beats(self.driver_type)  # before the first message of a beat, which has a connection of its own
        let_mingle(self.driver_type)
        self.settings = settings_of(client, tls=self._tls)
        self.broker = Broker(self.settings, self._is_alive)
        self.broker.wire.changed = self._unregister
        self.channels: list[Channel] = []
        self.exchanges: dict[str, str] = {}
        self.priority_queues = {queue.encode() for queue in self.settings.priority_queues}
        self._loop: Any = None
        self._registered: dict[int, Wire] = {}
        self._more: tuple[socket.socket, socket.socket] | None = None
        self._has_more = False  # there is a byte in `_more`, so that the loop comes back for what has arrived
        self._timer: Any = None
        self._ticked_at_ms = 0
        self._is_delivering = False
        self._next = 0  # the channel that is the first to be asked for a message

    def driver_version(self) -> str:
        return __version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": "localhost"}

    # Connections and channels

    def establish_connection(self) -> "Transport":
        self.broker.connect()
        return self

    def close_connection(self, connection: object) -> None:
        for channel in list(self.channels):
            channel.close()
        self._leave_loop()
        self.broker.close()

    def create_channel(self, connection: "Transport") -> Channel:
        """Return a new channel of a connection: when Kombu fails over meanwhile, that is another transport's."""
        channel = Channel(connection)
        connection.channels.append(channel)
        return channel

    def forget(self, channel: Channel) -> None:
        """Take a closed channel off the list."""
        if channel in self.channels:
            self.channels.remove(channel)

    def begin(self, consumption: Consumption) -> None:
        """Take up a wait for messages."""
        consumption.wire.changed = self._unregister

    # Without an event loop

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none comes in time."""
        until_ms = None if timeout is None else now_ms() + timeout * 1000
        while True:
            if self._deliver_one():
                return
            self._ask()
            left_ms = 1000.0 if until_ms is None else until_ms - now_ms()
            wires = readable(self._wires(), min(left_ms, self._patience_ms()) / 1000)
            for wire in wires:
                wire.receive_if_ready()
            if not wires and until_ms is not None and now_ms() >= until_ms:
                raise TimeoutError("timed out")

    def _patience_ms(self) -> float:
        """How long to wait before a look at what is late, or away."""
        away = any(
            one.queues and not one.wire.is_open for channel in self.channels if (one := channel.consumption) is not None
        )
        return 100 if away else TICK_S * 1000

    def _wires(self) -> list[Wire]:
        """Return the open connections on which something may arrive."""
        wires = [one.wire for channel in self.channels if (one := channel.consumption) is not None]
        return [wire for wire in (self.broker.wire, *wires) if wire.is_open]

    def _ask(self) -> None:
        """Ask for messages wherever there is room, and send what is to be sent."""
        for channel in list(self.channels):
            channel.ask()
            if channel.consumption is not None:
                channel.consumption.wire.flush()
        self.broker.flush()

    def _deliver_one(self) -> bool:
        channels = self.channels[self._next :] + self.channels[: self._next]
        for position, channel in enumerate(channels):
            if channel.deliver():
                self._next = (self._next + position + 1) % max(1, len(self.channels))
                return True
        return False

    # With an event loop

    def register_with_event_loop(self, connection: object, loop: Any) -> None:
        self._leave_loop()
        self._loop = loop
        self._more, self._has_more = socket.socketpair(), False
        loop.add_reader(self._more[0].fileno(), self._deliver_more)
        loop.on_tick.add(self._tick)
        self._timer = loop.call_repeatedly(TICK_S, _wake)
        self.broker.defers = True
        self._ticked_at_ms = now_ms()

    def unregister_from_event_loop(self, connection: object, loop: Any) -> None:
        self._leave_loop()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        self.broker.defers = False
        if loop is None:
            return
        loop.on_tick.discard(self._tick)
        self._timer.cancel()
        for descriptor in list(self._registered):
            loop.remove_reader(descriptor)
        self._registered.clear()
        if self._more is not None:
            loop.remove_reader(self._more[0].fileno())
            for end in self._more:
                end.close()
            self._more = None
        for wire in self._wires():
            wire.flush()

    def _tick(self) -> None:
        """Called before the loop waits: ask for messages, send what has to be sent, and register new connections."""
        self._ticked_at_ms = now_ms()
        self._ask()
        for wire in self._wires():
            descriptor = wire.fileno()
            if self._registered.get(descriptor) is not wire:
                self._registered[descriptor] = wire
                self._loop.add_reader(descriptor, self._on_readable, wire)

    def _unregister(self, wire: Wire) -> None:
        descriptor = wire.fileno()
        if self._registered.get(descriptor) is wire:
            del self._registered[descriptor]
            if self._loop is not None:
                self._loop.remove_reader(descriptor)

    def _on_readable(self, wire: Wire) -> None:
        wire.receive_if_ready()
        self._deliver_more()

    def _deliver_more(self) -> None:
        """Deliver what has arrived; after a slow callback the rest is left to the next turn of the loop."""
        while self._delivered():
            before_ms, self._ticked_at_ms = self._ticked_at_ms, now_ms()
            if self._ticked_at_ms - before_ms > SLOW_MS:
                break
        if self._more is None:
            return
        is_left = any(one.ready for channel in self.channels if (one := channel.consumption) is not None)
        if is_left and not self._has_more:
            self._more[1].send(b"x")
        elif self._has_more and not is_left:
            self._more[0].recv(1)
        self._has_more = is_left

    def _delivered(self) -> bool:
        self._is_delivering = True
        try:
            return self._deliver_one()
        finally:
            self._is_delivering = False

    def _is_alive(self) -> bool:
        """False if there is an event loop that no longer turns: then the process is not doing its work.

        The solo pool executes tasks in the thread of the loop, as do programs without Celery. A worker that stops ends
        the loop before its tasks.
        """
        if self._loop is None or "celery.concurrency.solo" in sys.modules:
            return True
        state = sys.modules.get("celery.worker.state")
        if state is None and self._is_delivering:
            return True
        # Either is an exit code, which may be 0, once the worker is to stop.
        if state is not None and not all(
            one is None or one is False for one in (state.should_stop, state.should_terminate)
        ):
            return True
        return now_ms() - self._ticked_at_ms < self.settings.lease_ms // 2 or is_in_soft_shutdown()


class TlsTransport(Transport):
    """Transport over TLS."""

    _tls = True


def _wake() -> None:
    """Called by a timer of the loop, which ticks afterwards."""


def _refuse_eventlet() -> None:
    """Raise NotImplementedError where eventlet has patched Python.

    Its locks fail between threads of the system ("Cannot switch to a different thread"), of which the one that extends
    leases is one, and `select.poll` is gone.
    """
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise NotImplementedError("kestrel:// does not work with eventlet: use the pool gevent, threads or prefork")
