"""Exchanges: which queues a message goes to. Bindings are in the server's table, which all processes share."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

# The type of the exchange, which the server keeps as the pattern of a binding: a publisher need not have declared it.
DIRECT: Final = "direct"
TOPIC: Final = "topic"
FANOUT: Final = "fanout"
TYPES: Final = frozenset((DIRECT, TOPIC, FANOUT))

Binding = tuple[bytes, bytes, bytes, bytes]  # exchange, queue, routing key, type


def binding_of(exchange: str, queue: bytes, routing_key: str, kind: str) -> Binding:
    return _bytes(exchange), queue, _bytes(routing_key), kind.encode()


def destinations(bindings: Iterable[Binding], routing_key: str) -> list[bytes]:
    """Return the queues that a message with a routing key goes to, each once."""
    key = _bytes(routing_key)
    return list(dict.fromkeys(queue for _, queue, bound, kind in bindings if _matches(kind.decode(), bound, key)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _matches(kind: str, bound: bytes, routing_key: bytes) -> bool:
    if kind == FANOUT:
        return True
    if kind == TOPIC:
        return _is_topic_of(tuple(bound.split(b".")), tuple(routing_key.split(b".")))
    return bound == routing_key


@lru_cache(4096)
def _is_topic_of(pattern: tuple[bytes, ...], words: tuple[bytes, ...]) -> bool:
    """True if words match a topic, in which `*` stands for one word and `#` for any number of them."""
    if not pattern:
        return not words
    if pattern[0] == b"#":
        return any(_is_topic_of(pattern[1:], words[count:]) for count in range(len(words) + 1))
    return bool(words) and pattern[0] in (b"*", words[0]) and _is_topic_of(pattern[1:], words[1:])
