"""LogQueue and RingQueue: queues without a lock. `incr` reserves a number, and the message is written under it."""

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
    """The base of log and ring. Threads may share it; a reader belongs to one thread."""

    def __init__(self, name: str, slots: Slots, hole_timeout: float, compress_from_bytes: int | None) -> None:
        self.name = name
        self.slots = slots
        self._hole_timeout_ms = int(checks.span_s(hole_timeout, "hole_timeout") * 1000)
        self._compress_from_bytes = checks.whole_or_none(compress_from_bytes, "compress_from_bytes")

    def put(self, message: bytes) -> Position:
        """Add a message, and return its position.

        Raises CacheAway or CacheRefused if the message was not added, ConnectionLost if that is unknown. A message
        whose number was closed or overtaken gets another; after 20 attempts it raises ClaimLost: a ring has too few
        slots.
        """
        checks.data(message, "message")
        return self._put([message])

    def put_batch(self, messages: Iterable[bytes]) -> Position:
        """Add messages as one value, under one number. Readers still get them one by one."""
        return self._put(checked_messages(messages))

    def put_many(self, messages: Iterable[bytes]) -> list[Position]:
        """Add messages under numbers of their own, reserved by one incr. After an error, some may have been added."""
        several = checked_messages(messages)
        with self.claim(len(several)) as claim:
            return [self._put([message], claim) for message in several]

    def batch(self, messages_max: int = 100, bytes_max: int = 65536) -> Batch:
        """Collect small messages in a `with` block; put up to `messages_max`, or `bytes_max` bytes, as one value."""
        return Batch(self.put_batch, messages_max, bytes_max)

    def claim(self, count: int = 1) -> "Claim":
        """Reserve numbers now, to write their messages later; a `with` block gives up those that are not written.

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
        """Return a reader from a saved position, from the first message of the current epoch, or from the end.

        Readers know nothing of each other. `on_missed` is called instead of raising MessagesMissed in a read.
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
        """Return how many numbers were reserved in the current epoch."""
        head = self.slots.counter.look()
        return 0 if head is None else position_of(head).number

    def _put(self, messages: list[bytes], claim: "Claim | None" = None) -> Position:
        """Write messages under the next number of a claim, or under another, until they are stored."""
        failure: CacheAway | ClaimLost | None = None
        for _ in range(ATTEMPTS):
            if claim is None or not claim.left:
                claim = self.claim()
            try:
                return claim.write_batch(messages)
            except ClaimLost as error:
                failure = error  # this process was stopped meanwhile, or a ring is too small for its writers
                claim.give_up()  # readers that have closed one number do not wait for the next ones
            except CacheAway as error:
                failure = error  # the next number may be on another server
            except CacheRefused:
                claim.give_up()
                raise
        assert failure is not None
        raise failure


class Claim:
    """Reserved numbers, to be written in order. A `with` block gives up those that were not written."""

    def __init__(self, slots: Slots, name: str, compress_from_bytes: int | None, first: int, count: int) -> None:
        self._slots = slots
        self._name = name
        self._compress_from_bytes = compress_from_bytes
        self._next = first
        self._end = first + count

    @property
    def left(self) -> int:
        """Number of reserved numbers that are not written yet."""
        return self._end - self._next

    @property
    def position(self) -> Position:
        """Position that the next written message will have."""
        return position_of(self._next)

    def write(self, message: bytes) -> Position:
        """Write a message under the next number.

        Raises ClaimLost if readers have stopped waiting for it, CacheAway or CacheRefused if it was not written, and
        ConnectionLost if that is unknown: in each case its number is used up.
        """
        checks.data(message, "message")
        return self.write_batch([message])

    def write_batch(self, messages: Iterable[bytes]) -> Position:
        """Write several messages as one value under the next number."""
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
        """Close the numbers that are left, so that no reader waits for them. If this fails, readers do it later."""
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
    """A log: every reader gets every message, in order of their numbers, until it expires or is evicted."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        *,
        message_expiry: int = 0,
        hole_timeout: float = HOLE_TIMEOUT_S,
        compress_from_bytes: int | None = None,
    ) -> None:
        """`message_expiry`: lifetime of a message in whole seconds; 0 = until memory is needed.

        `hole_timeout`: seconds for which a reader waits for a number that was claimed but not written.
        `compress_from_bytes`: size from which values are compressed; None = never.
        """
        slots = Slots(servers, checked_name(name), checked_expiry(message_expiry))
        super().__init__(name, slots, hole_timeout, compress_from_bytes)


class RingQueue(NumberedQueue):
    """A ring of a fixed number of messages: a new one overwrites the oldest. A lapped reader learns by how much."""

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
        """`slots`: number of messages in the ring, the same for all its users. The others as of LogQueue."""
        ring = RingSlots(servers, checked_name(name), checked_expiry(message_expiry), checks.whole(slots, "slots", 1))
        super().__init__(name, ring, hole_timeout, compress_from_bytes)


def checked_expiry(seconds: object) -> int:
    if (expire_s := checks.whole(seconds, "message_expiry")) > SPAN_S_MAX:
        raise InvalidValue("message_expiry", f"at most {SPAN_S_MAX}", seconds)
    return expire_s
