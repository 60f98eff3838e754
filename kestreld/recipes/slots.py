"""Keys of the messages of a numbered queue: one key for each number, or a ring of keys."""

from collections.abc import Sequence
from typing import Final

from kestreld.errors import CacheRefused
from kestreld.recipes.packing import CLOSED, MISSED
from kestreld.recipes.positions import ATTEMPTS, NUMBERS, Counter, Reason
from kestreld.recipes.servers import Servers, Value

LAPPED: Final[Value] = (b"", -1)
"""In place of a message that a later one has overwritten."""
HEADER_BYTES: Final = 17
MARK_EXPIRY_S_MIN: Final = 24 * 3600
"""A closed number is kept longer than the messages around it: its writer may be stopped for long."""


class Slots:
    """One key for each number: `log:NAME:EPOCH:NUMBER`, with the message as its plain value."""

    laps_after: int | None = None  # number of messages after which one is overwritten
    kind = b"log"

    def __init__(self, servers: Servers, name: bytes, expire_s: int) -> None:
        self.servers = servers
        self.expire_s = expire_s
        self.prefix = self.kind + b":" + name + b":"
        head = self.prefix + b"head"
        self.counter = Counter(servers.of(head), head)

    def key(self, count: int) -> bytes:
        return self.prefix + b"%08x:%d" % divmod(count, NUMBERS)

    def fetch(self, counts: Sequence[int]) -> dict[int, Value]:
        """Return the values that exist, by number."""
        keys = {self.key(count): count for count in counts}
        return {keys[key]: value for key, value in self.servers.get_many(keys).items()}

    def write(self, count: int, value: bytes, flags: int) -> bool:
        """Store a value. False = there is one under this number already: it was closed, or has a later lap."""
        key = self.key(count)
        return self.servers.of(key).add(key, value, self._expire_s(flags), flags)

    def close(self, count: int, missed: Reason | None = None) -> bool:
        """Close a number, so that `write` is refused from now on. False = the message was written before.

        `missed`: the reason to tell readers that find the number closed; None = nothing was lost with it.
        """
        if missed is None:
            return self.write(count, b"", CLOSED)
        return self.write(count, missed.encode(), CLOSED | MISSED)

    def _expire_s(self, flags: int) -> int:
        if self.expire_s and flags & CLOSED:
            return max(self.expire_s, MARK_EXPIRY_S_MIN)
        return self.expire_s

    def delete(self, counts: Sequence[int]) -> None:
        self.servers.delete_many(map(self.key, counts))


class RingSlots(Slots):
    """A ring of keys: `ring:NAME:SLOT`, the slot being the number modulo `slots`. Each value begins with its number."""

    kind = b"ring"

    def __init__(self, servers: Servers, name: bytes, expire_s: int, slots: int) -> None:
        super().__init__(servers, name, expire_s)
        self.laps_after = self.slots = slots

    def key(self, count: int) -> bytes:
        return self.prefix + b"%d" % (count % NUMBERS % self.slots)

    def fetch(self, counts: Sequence[int]) -> dict[int, Value]:
        found = {}
        for count, (value, flags) in super().fetch(counts).items():
            held = _number(value)
            if held == count:
                found[count] = value[HEADER_BYTES:], flags
            elif held is not None and held > count:
                found[count] = LAPPED
        return found

    def write(self, count: int, value: bytes, flags: int) -> bool:
        # Not by set: a writer that was stopped meanwhile would overwrite a later lap.
        key = self.key(count)
        server = self.servers.of(key)
        value = b"%016x " % count + value
        for _ in range(ATTEMPTS):
            held = server.gets_many([key]).get(key)
            if held is None:
                if server.add(key, value, self._expire_s(flags), flags):
                    return True
            elif self._is_overtaken(count, _number(held[0][0])):
                return False
            elif server.cas(key, value, held[1], self._expire_s(flags), flags):
                return True
        raise CacheRefused(server.address, f"{key.decode()} changed at each of {ATTEMPTS} attempts; use more slots")

    def _is_overtaken(self, count: int, held: int | None) -> bool:
        """Return True if a slot holds a number that is as new as this one, or newer."""
        if held is None or held // NUMBERS == count // NUMBERS:
            return held is not None and held >= count
        head = self.counter.look()  # of two epochs, it is in the one that counts
        return head is None or head // NUMBERS != count // NUMBERS

    def delete(self, counts: Sequence[int]) -> None:
        """Do nothing: later laps are under the same keys."""


def _number(value: bytes) -> int | None:
    """Return the number that a value of a ring begins with. None = another program wrote the value."""
    try:
        return int(value[:HEADER_BYTES], 16)
    except ValueError:
        return None
