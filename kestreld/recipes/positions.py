"""Positions of messages, and the counters that number them.

A counter has 64 bits: a random epoch above, and below the count, from 0. As one number in one item, incr changes it in
one step. A counter that has vanished begins another epoch, and the epoch is in the key or the value of each message: no
number ever stands for two messages.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kestreld.errors import CacheRefused, InvalidValue, KestrelError
from kestreld.recipes.servers import CacheServer, Value

NUMBER_BITS: Final = 32
NUMBERS: Final = 1 << NUMBER_BITS  # after that many, a counter carries into the next epoch and continues
ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a message: its epoch, its number there, from 0, and `part`, its index in a batch."""

    epoch: int
    number: int
    part: int = 0

    def __str__(self) -> str:
        part = f".{self.part}" if self.part else ""
        return f"{self.epoch:08x}-{self.number}{part}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Return the position from its `str`, to continue from a saved one. Raises InvalidValue."""
        epoch, _, rest = text.partition("-")
        number, _, part = rest.partition(".")
        try:
            return cls(int(epoch, 16), int(number), int(part or "0"))
        except ValueError:
            raise InvalidValue("position", "EPOCH-NUMBER, as str(position) gives it", text) from None

    @property
    def count(self) -> int:
        """Value of a counter whose next message has this position."""
        return self.epoch * NUMBERS + self.number


def position_of(count: int, part: int = 0) -> Position:
    return Position(*divmod(count, NUMBERS), part)


def is_same_run(one: int, other: int) -> bool:
    """Return True if two numbers are of one epoch, or of two that a counter has carried through."""
    return is_ahead(one, other) or is_ahead(other, one)


def is_ahead(head: int, count: int) -> bool:
    """Return True if a counter at `head` has counted on from `count`: in its epoch, or carried into the next."""
    return head // NUMBERS == count // NUMBERS or 0 <= head - count < NUMBERS


class Counter:
    """Counter on one server: the number of the next message."""

    def __init__(self, server: CacheServer, key: bytes) -> None:
        self.server = server
        self.key = key

    def reserve(self, count: int, begins: Callable[[bytes], None] | None = None) -> int:
        """Reserve `count` numbers by one incr, and return the first.

        A counter that does not exist begins a new epoch; `begins` is called with its first value.
        """
        for _ in range(ATTEMPTS):
            if (after := self.server.incr(self.key, count)) is not None:
                return after - count
            self.begin(begins)
        raise CacheRefused(self.server.address, f"{self.key.decode()} was evicted immediately, {ATTEMPTS} times")

    def begin(self, begins: Callable[[bytes], None] | None = None) -> None:
        """Begin a new epoch if the counter does not exist. `begins` is called with its first value."""
        first = b"%d" % (secrets.randbits(NUMBER_BITS - 1) * NUMBERS)
        if begins is not None:
            begins(first)
        self.server.add(self.key, first)

    def look(self) -> int | None:
        """Return the counter's value. None = it does not exist."""
        found = self.server.get_many([self.key]).get(self.key)
        return None if found is None else self.parsed(found)

    def parsed(self, value: Value) -> int:
        """Return the counter's value. Raises CacheRefused if something else is under its key."""
        text = value[0].rstrip()
        if not text.isdigit():
            raise CacheRefused(self.server.address, f"{self.key.decode()} is not a counter")
        return int(text)


Reason = Literal["epoch", "lapped", "missing"]


class MessagesMissed(KestrelError):
    """A reader has missed `count` messages for good. It continues after them, at `position`.

    `reason`: "missing", they were evicted, have expired, or were never written; "lapped", a ring overwrote them;
    "epoch", a counter had vanished, by eviction, flush_all or a restart, and `count` has only the messages that are
    known of.
    """

    def __init__(self, queue: str, count: int, reason: Reason, position: Position) -> None:
        what = {
            "missing": f"{count} messages evicted, expired or never written",
            "lapped": f"{count} messages overwritten before they were read",
            "epoch": "a counter vanished from the server, and "
            + (f"at least {count} messages with it" if count else "messages may have vanished with it"),
        }[reason]
        super().__init__(f"{queue}: {what}; reading goes on from {position}")
        self.queue = queue
        self.count = count
        self.reason: Reason = reason
        self.position = position

    @property
    def is_exact(self) -> bool:
        """True if `count` is the number of all missed messages."""
        return self.reason != "epoch"
