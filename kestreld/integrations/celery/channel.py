"""Channel: what Kombu calls one; queues, exchanges, published and delivered messages."""

import logging
import sys
from collections.abc import Callable, Iterator
from itertools import count
from secrets import token_hex
from typing import Any, Final, NamedTuple, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport.base import StdChannel, to_rabbitmq_queue_arguments

from kestreld.client.queue_talks import QueueTalks, Talk
from kestreld.clock import Clock
from kestreld.integrations.celery.bindings import DIRECT, TYPES, Binding, binding_of, destinations
from kestreld.integrations.celery.broker import Broker, declared
from kestreld.integrations.celery.consumption import Consumption, Leased
from kestreld.integrations.celery.leases import HeldItem
from kestreld.integrations.celery.messages import KEY, ONCE, Message, decoded, due_in_ms, encoded, key_of_task
from kestreld.integrations.celery.names import level_of, name_of, queue_of
from kestreld.integrations.celery.workers import reserved_tasks

AHEAD_MAX: Final = 16  # messages that are fetched ahead where there is no prefetch limit
EARLY_MS: Final = 1000  # a task that is due sooner than that is delivered: Celery itself waits for its time
AUTO_DELETE_MS: Final = 1_800_000  # how long nobody must have read a queue with auto_delete and without expires
_numbers: Final = count(1)
_log: Final = logging.getLogger("kestreld.celery")


class Subscriber(NamedTuple):
    """A consumer of Kombu's."""

    tag: str
    queue: bytes
    no_ack: bool
    callback: Callable[[Any], object]


class Owner(Protocol):
    """A transport, as its channels need it."""

    broker: Broker
    exchanges: dict[str, str]  # the types of those that were declared
    priority_queues: set[bytes]

    def begin(self, consumption: Consumption) -> None: ...

    def forget(self, channel: "Channel") -> None: ...


class Channel(StdChannel):
    """A channel. `connection` is its transport, None once it is closed; acknowledgements are good after that, too."""

    def __init__(self, transport: Owner) -> None:
        self.connection: Owner | None = transport
        self.channel_id = next(_numbers)
        self.closed = False
        self.prefetch_count = 0
        self._transport = transport
        self.broker = transport.broker
        self._unacked: dict[int, HeldItem] = {}
        self._tags = count(1)
        self._declared: dict[bytes, list[bytes]] = {}  # the options of queues
        self._bound: dict[Binding, None] = {}
        self._subscribers: dict[str, Subscriber] = {}
        self._consumption: Consumption | None = None

    @property
    def _alive(self) -> Owner:
        """The transport. Raises ChannelError on a closed channel."""
        if self.connection is None:
            raise ChannelError("the channel is closed")
        return self.connection

    def close(self) -> None:
        """Give back what was not acknowledged, except what a worker of Celery is executing."""
        if self.closed:
            return
        self.closed = True
        self._subscribers.clear()
        if self._consumption is not None:
            for leased in reversed(self._consumption.close()):
                self.broker.give_back(leased.held)
        active = _active_tags(self)
        for tag in sorted(self._unacked, reverse=True):
            if tag not in active:
                self._give_back(tag)
        transport, self.connection = self._alive, None
        transport.forget(self)

    # Exchanges

    def exchange_declare(self, exchange: str = "", type: str = "direct", passive: bool = False, **options: Any) -> None:
        """Remember the type of an exchange, which bindings of this transport get."""
        kind = type or DIRECT
        if kind not in TYPES:
            raise ChannelError(f"exchange {exchange!r}: type {kind!r} is not supported")
        known = self._alive.exchanges
        if passive:
            if exchange not in known and not self.broker.bindings(exchange):
                raise ChannelError(f"NOT_FOUND - no exchange {exchange!r}")
        elif known.setdefault(exchange, kind) != kind:
            raise ChannelError(f"exchange {exchange!r}: is of type {known[exchange]}, not {kind}")

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Remove the bindings of an exchange."""
        bound = self.broker.bindings(exchange)
        if if_unused and bound:
            raise ChannelError(f"exchange {exchange!r}: in use by {len(bound)} bindings")
        for _, queue, _, _ in bound:
            self.broker.unbind(exchange, queue, None)
        for binding in bound:
            self._bound.pop(binding, None)
        self._alive.exchanges.pop(exchange, None)

    def exchange_bind(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("exchanges cannot be bound to exchanges")

    def exchange_unbind(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("exchanges cannot be bound to exchanges")

    # Queues

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return the arguments of a queue as AMQP names them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Create a queue. Returns its name and length."""
        name = queue or f"amq.gen-{token_hex(16)}"
        key = queue_of(name)
        arguments = arguments or {}
        if arguments.get("x-max-priority"):
            self._alive.priority_queues.add(key)
        if not passive:
            wanted = list(_options(arguments, durable=durable, auto_delete=auto_delete))
            for one in self._levels(key):
                if wanted:
                    self.broker.declare(one, wanted)
                    self._declared[one] = wanted
                else:
                    self.broker.create(one)
        figures = [self.broker.stats(one) for one in self._levels(key)]
        if passive and not any(figures):
            raise ChannelError(f"NOT_FOUND - no queue {name!r}")
        return queue_declare_ok_t(name, sum(int(one.get("items", 0)) for one in figures), 0)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        key = queue_of(queue)
        if if_empty and any(self.broker.stats(one).get("items") for one in self._levels(key)):
            return
        for one in self._levels(key):
            self._declared.pop(one, None)
            self.broker.delete(one)
        self._bound = {binding: None for binding in self._bound if binding[1] != key}

    def queue_purge(self, queue: str, **options: Any) -> int:
        """Drop the messages that wait, those for later among them. Returns how many that were."""
        return sum(self.broker.purge(one) for one in self._levels(queue_of(queue)))

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        if exchange:
            binding = binding_of(exchange, queue_of(queue), routing_key or "", self._type_of(exchange))
            self.broker.bind(binding)
            self._bound[binding] = None

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        if exchange:
            kind = self._type_of(exchange)
            self._bound.pop(binding_of(exchange, queue_of(queue), routing_key or "", kind), None)
            self.broker.unbind(exchange, queue_of(queue), routing_key or "", kind)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Iterate over queue, exchange and routing key of all bindings."""
        for exchange, queue, routing_key, _ in self.broker.bindings():
            yield name_of(queue), exchange.decode("utf-8", "replace"), routing_key.decode("utf-8", "replace")

    def after_reply_message_received(self, queue: str) -> None:
        self.queue_delete(queue)

    def _type_of(self, exchange: str) -> str:
        return self._alive.exchanges.get(exchange, DIRECT)

    def _levels(self, queue: bytes) -> list[bytes]:
        """Return the server's queues for a queue: one for each priority, if it has priorities."""
        transport = self._alive
        if queue not in transport.priority_queues:
            return [queue]
        return [level_of(queue, step) for step in self.broker.settings.priority_steps]

    # Publishing

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message as `basic_publish` takes it.

        Kombu passes the same `properties` to each attempt of one call, so the key that they get here is the call's.
        """
        properties = {} if properties is None else properties
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or 0)
        if KEY not in properties:
            properties[KEY] = _key_of(properties, headers or {})
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Put a message on the queues that it is for. A task with an `eta` is delivered then."""
        properties = message["properties"]
        properties["delivery_info"] = {"exchange": exchange, "routing_key": routing_key}
        if exchange:
            queues = destinations(self.broker.bindings(exchange), routing_key)
        else:
            queues = [queue_of(routing_key)]
        if not queues:
            return
        data = encoded(message)
        headers = message["headers"]
        delay_ms = due_in_ms(headers, Clock().wall_ms) if headers.get("eta") else 0
        expire_ms = int(float(properties.get("expiration") or 0))
        for queue in queues:
            if queue in self._alive.priority_queues:
                queue = level_of(queue, self._step_of(properties.get("priority")))
            self.broker.put(queue, data, properties[KEY], delay_ms=delay_ms, expire_ms=expire_ms)

    def _step_of(self, priority: object) -> int:
        """Return the highest step that is not above a priority."""
        wanted = priority if isinstance(priority, int) else 0
        return max((step for step in self.broker.settings.priority_steps if step <= wanted), default=0)

    # Delivering

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        self.prefetch_count = prefetch_count or 0

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message; None if there is none."""
        for one in self._levels(queue_of(queue)):
            found = self.broker.get(one)
            while found is not None:
                message = self._message(found, no_ack=no_ack)
                if message is not None:
                    return message
                found = self.broker.get(one)
        return None

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Any = None, consumer_tag: str = "", **options: Any
    ) -> None:
        transport = self._alive
        self._subscribers[consumer_tag] = Subscriber(consumer_tag, queue_of(queue), no_ack, callback)
        if no_ack and self.no_ack_consumers is not None:
            self.no_ack_consumers.add(consumer_tag)
        if self._consumption is None:
            self._consumption = self.broker.consumption(self.channel_id, self._renewals)
            transport.begin(self._consumption)
        self._consumption.interrupt()
        self._consumption.queues = queues = self._consumed()
        has_priorities = not self._alive.priority_queues.isdisjoint(queues)
        self._consumption.takes_turns = self.broker.settings.order == "round_robin" and not has_priorities

    def basic_cancel(self, consumer_tag: str) -> None:
        """Consume from the queue of a consumer no longer. What has arrived for it goes back."""
        subscriber = self._subscribers.pop(consumer_tag, None)
        if subscriber is None or self._consumption is None:
            return
        if all(one.queue != subscriber.queue for one in self._subscribers.values()):
            for level in self._levels(subscriber.queue):
                for leased in reversed(self._consumption.drop(level)):
                    self.broker.give_back(leased.held)

    def _consumed(self) -> list[bytes]:
        """Return the server's queues that are consumed, those of the first priority first."""
        queues = list(dict.fromkeys(one.queue for one in self._subscribers.values()))
        settings, prioritized = self.broker.settings, self._alive.priority_queues
        if settings.order == "sorted":
            queues.sort()
        if not prioritized.intersection(queues):
            return queues
        return [
            level_of(queue, step)
            for step in settings.priority_steps
            for queue in queues
            if step == 0 or queue in prioritized
        ]

    def _renewals(self, talks: QueueTalks) -> Iterator[Talk[None]]:
        """Yield what declares and binds the consumed queues as this channel has.

        While the connection was lost the server may have deleted one, and somebody else made another of its name.
        """
        queues = set(self._consumed())
        for queue, options in self._declared.items():
            if queue in queues:
                yield declared(talks, queue, options)
        for binding in self._bound:
            if not queues.isdisjoint(self._levels(binding[1])):
                yield talks.bind(*binding)

    @property
    def consumption(self) -> Consumption | None:
        """What the channel waits for; None if it never consumed."""
        return self._consumption

    def ask(self) -> None:
        """Ask for messages, if there is room for some. Raises what ended the consumption."""
        consumption = self._consumption
        if consumption is not None:
            ahead = len(consumption.ready)
            limit, taken = self.prefetch_count, len(self._unacked)
            if self.broker.settings.disable_prefetch:
                taken = max(taken, reserved_tasks())
            consumption.ask(limit - taken - ahead if limit else AHEAD_MAX - ahead)

    def deliver(self) -> bool:
        """Hand the next message that has arrived to its consumer. False = there is none."""
        consumption = self._consumption
        while consumption is not None and consumption.ready:
            leased = consumption.ready.popleft()
            base = queue_of(name_of(leased.held.queue))
            subscriber = next((one for one in self._subscribers.values() if one.queue == base), None)
            if subscriber is None:
                self.broker.give_back(leased.held)
                continue
            message = self._message(leased, no_ack=subscriber.no_ack)
            if message is not None:
                message.delivery_info["consumer_tag"] = subscriber.tag
                subscriber.callback(message)
                return True
        return False

    def _message(self, leased: Leased, *, no_ack: bool) -> Message | None:
        """Return what is delivered; None if the item goes elsewhere."""
        held = leased.held
        try:
            content = decoded(leased.data)
        except ValueError as error:
            _log.critical(
                "%s: dropped an item that is no message (%s): %r", name_of(held.queue), error, leased.data[:200]
            )
            self.broker.confirm(held, self._consumption)
            return None
        headers = content.get("headers")
        if headers and headers.get("eta"):
            early_ms = due_in_ms(headers, Clock().wall_ms)
            if early_ms > EARLY_MS:
                self.broker.give_back(held, self._consumption, early_ms)
                return None
        tag = next(self._tags)
        if no_ack:
            self.broker.confirm(held, self._consumption)
        else:
            self._unacked[tag] = held
        return Message(content, self, tag, self.broker.deliveries(leased))

    # Acknowledging, from any thread, also on a closed channel

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        for tag in self._tags_of(delivery_tag, multiple=multiple):
            if (held := self._unacked.pop(tag, None)) is not None:
                self.broker.confirm(held, self._consumption)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Discard a message, or put it back in its place."""
        if requeue:
            self._give_back(delivery_tag)
        else:
            self.basic_ack(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all that was not acknowledged."""
        if not requeue:
            raise NotImplementedError("recover is supported with requeue=True only")
        for tag in sorted(self._unacked, reverse=True):
            self._give_back(tag)

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError("flow is not supported")

    def _tags_of(self, delivery_tag: int, *, multiple: bool) -> list[int]:
        return [tag for tag in list(self._unacked) if tag <= delivery_tag] if multiple else [delivery_tag]

    def _give_back(self, tag: int) -> None:
        if (held := self._unacked.pop(tag, None)) is not None:
            self.broker.give_back(held, self._consumption)


def _key_of(properties: dict[str, Any], headers: dict[str, Any]) -> str:
    """Return the key of a publish: that of a task that is to be put once, or for later; else one that is drawn."""
    is_of_task = properties.get(ONCE) or headers.get(ONCE) or headers.get("eta")
    return (key_of_task(headers) if is_of_task else None) or token_hex(12)


def _options(arguments: dict[str, Any], *, durable: bool, auto_delete: bool) -> Iterator[bytes]:
    """Iterate over what is declared at the server for a queue, as its command has it."""
    expires_ms = arguments.get("x-expires") or (AUTO_DELETE_MS if auto_delete else 0)
    if expires_ms:
        yield b"idle_delete=%dms" % expires_ms
    if arguments.get("x-message-ttl"):
        yield b"max_age=%d" % arguments["x-message-ttl"]
    if arguments.get("x-max-length"):
        yield b"max_items=%d" % arguments["x-max-length"]
        yield b"discard_old_when_full=true"
    if not durable:
        yield b"journal=false"


def _active_tags(channel: Channel) -> set[int]:
    """Return the tags of messages whose tasks are being executed by this process, if it is a worker of Celery.

    In a cold shutdown there are none: their processes have been ended by the time when the connection is closed.
    """
    state = sys.modules.get("celery.worker.state")
    if state is None or not (state.should_terminate is None or state.should_terminate is False):
        return set()
    messages_of = (getattr(request, "message", None) for request in tuple(state.active_requests))
    return {one.delivery_tag for one in messages_of if one is not None and one.channel is channel}
