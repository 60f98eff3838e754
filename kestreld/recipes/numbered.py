"""Queues without a lock: `incr` gives a number, the message is written under it, readers keep their own positions."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from kestreld import checks
from kestreld.errors import CacheAway, CacheRefused, ClaimLost, ConnectionLost, InvalidValue
from kestreld.recipes.batches import Batch
from kestreld.recipes.packing import checked_messages, checked_name, pack
from kestreld.recipes.positions import ATTEMPTS, MessagesMissed, Position, position_of
from kestreld.recipes.reader import LogReader
from kestreld.recipes.servers import SPAN_S_MAX, Servers
from kestreld.recipes.slots import RingSlots, Slots

CLAIM_MAX: Final = 100_000
HOLE_TIMEOUT_S: Final = 2.0


class NumberedQueue:
    """What a log and a ring share. Threads may share it; a reader belongs to one."""

    def __init__(self, name: str, slots: Slots, hole_timeout: float, compress_from_bytes: int | None) -> None:
        self.name = name
        self.slots = slots
        self._hole_timeout_ms = int(checks.span_s(hole_timeout, "hole_timeout") * 1000)
        self._compress_from_bytes = checks.whole_or_none(compress_from_bytes, "compress_from_bytes")

    def put(self, message: bytes) -> Position:
        """Add a message, and return which it is.

        Raises CacheAway (it is not there), CacheRefused (nor then), or ConnectionLost: it may be there or not. A
        message that is overtaken takes another number; after 20 of them it raises ClaimLost: a ring has too few slots.
        """
        checks.data(message, "message")
        return self._put([message])

    def put_batch(self, messages: Iterable[bytes]) -> Position:
        """Add messages as one value, under one number: readers get them one by one all the same."""
        return self._put(checked_messages(messages))

    def put_many(self, messages: Iterable[bytes]) -> list[Position]:
        """Add messages under numbers of their own, reserved by one incr. After an error, some may be there."""
        several = checked_messages(messages)
        with self.claim(len(several)) as claim:
            return [self._put([message], claim) for message in several]

    def batch(self, messages_max: int = 100, bytes_max: int = 65536) -> Batch:
        """Collects small messages in a `with` block, and puts so many, or so many bytes, as one value."""
        return Batch(self.put_batch, messages_max, bytes_max)

    def claim(self, count: int = 1) -> "Claim":
        """Reserve numbers now and write their messages later, or give up those that are not written, by a `with` block.

        Readers wait for a claimed number for their hole_timeout; then it is closed, and a write raises ClaimLost.
        """
        if checks.whole(count, "count", 1) > CLAIM_MAX:
            raise InvalidValue("count", f"at most {CLAIM_MAX}", count)
        return Claim(self.slots, self.name, self._compress_from_bytes, self.slots.counter.reserve(count), count)

    def reader(
        self,
        position: Position | str | None = None,
        *,
        at_end: bool = False,
        on_missed: Callable[[MessagesMissed], None] | None = None,
    ) -> LogReader:
        """A reader from a position that was saved, from the first message of the current epoch, or from the end.

        Readers know nothing of each other. `on_missed` is called where a read would raise MessagesMissed.
        """
        if isinstance(position, str):
            position = Position.parse(position)
        if position is not None and at_end:
            raise InvalidValue("at_end", "False where there is a position", at_end)
        if on_missed is not None:
            checks.function(on_missed, "on_missed")
        if at_end and (head := self.slots.counter.look()) is not None:
            position = position_of(head)
        return LogReader(self.name, self.slots, position, self._hole_timeout_ms, on_missed)

    def size(self) -> int:
        """How many numbers were given out in the current epoch."""
        head = self.slots.counter.look()
        return 0 if head is None else position_of(head).number

    def _put(self, messages: list[bytes], claim: "Claim | None" = None) -> Position:
        """Under the next number of a claim, or under another, as long as nothing is stored."""
        failure: CacheAway | ClaimLost | None = None
        for _ in range(ATTEMPTS):
            if claim is None or not claim.left:
                claim = self.claim()
            try:
                return claim.write_batch(messages)
            except ClaimLost as error:
                failure = error  # this process was stopped on the way, or a ring is too small for its writers
                claim.give_up()  # readers that have closed one number do not wait for the next ones
            except CacheAway as error:
                failure = error  # the next number may be of another server
            except CacheRefused:
                claim.give_up()
                raise
        assert failure is not None
        raise failure


class Claim:
    """Numbers that are reserved, to be written in order. A `with` block gives up those that it has not written."""

    def __init__(self, slots: Slots, name: str, compress_from_bytes: int | None, first: int, count: int) -> None:
        self._slots = slots
        self._name = name
        self._compress_from_bytes = compress_from_bytes
        self._next = first
        self._end = first + count

    @property
    def left(self) -> int:
        """How many are not written yet."""
        return self._end - self._next

    @property
    def position(self) -> Position:
        """What the next message to be written will be."""
        return position_of(self._next)

    def write(self, message: bytes) -> Position:
        """Write the next one.

        Raises ClaimLost if readers have stopped waiting for it, CacheAway or CacheRefused if it was not written, and
        ConnectionLost if that is unknown: in each case its number is used up.
        """
        checks.data(message, "message")
        return self.write_batch([message])

    def write_batch(self, messages: Iterable[bytes]) -> Position:
        """Write several as the next one."""
        if not self.left:
            raise InvalidValue("claim", "a claim with numbers left", self)
        value, flags = pack(checked_messages(messages), self._compress_from_bytes)
        count = self._next
        self._next += 1
        try:
            written = self._slots.write(count, value, flags)
        except CacheRefused:
            self._close(count)
            raise
        if not written:
            raise ClaimLost(self._name, str(position_of(count)))
        return position_of(count)

    def give_up(self) -> None:
        """Close the numbers that are left, so that no reader waits for them. Where that fails, readers do it later."""
        while self.left:
            self._next += 1
            self._close(self._next - 1)

    def _close(self, count: int) -> None:
        try:
            self._slots.close(count)
        except (CacheAway, CacheRefused, ConnectionLost):
            return  # readers close it, after their hole_timeout

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.give_up()


class LogQueue(NumberedQueue):
    """A log: every reader gets every message, in the order of their numbers, until it expires or is evicted."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        *,
        message_expiry: int = 0,
        hole_timeout: float = HOLE_TIMEOUT_S,
        compress_from_bytes: int | None = None,
    ) -> None:
        """`message_expiry`: whole seconds after which a message is gone; 0 = when memory is needed.

        `hole_timeout`: for how many seconds a reader waits for a number that was claimed but not written.
        `compress_from_bytes`: values of that size are compressed; None = none are.
        """
        slots = Slots(servers, checked_name(name), checked_expiry(message_expiry))
        super().__init__(name, slots, hole_timeout, compress_from_bytes)


class RingQueue(NumberedQueue):
    """A ring of a fixed number of messages: a new one overwrites the oldest, and who is lapped is told by how much."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        slots: int,
        *,
        message_expiry: int = 0,
        hole_timeout: float = HOLE_TIMEOUT_S,
        compress_from_bytes: int | None = None,
    ) -> None:
        """`slots`: how many messages it keeps, the same for everybody who uses it. The others as of LogQueue."""
        ring = RingSlots(servers, checked_name(name), checked_expiry(message_expiry), checks.whole(slots, "slots", 1))
        super().__init__(name, ring, hole_timeout, compress_from_bytes)


def checked_expiry(seconds: object) -> int:
    if (expire_s := checks.whole(seconds, "message_expiry")) > SPAN_S_MAX:
        raise InvalidValue("message_expiry", f"at most {SPAN_S_MAX}", seconds)
    return expire_s
