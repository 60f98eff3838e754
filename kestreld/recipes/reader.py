"""LogReader: reads a log or a ring from its own position, passes gaps, and reports missed messages.

A number that was reserved but has no message is a *hole* if this reader has been looking since then: its writer is
slow, or dead. After hole_timeout the reader closes the number, so that the writer is refused and knows. It counts the
hole, and nothing is lost. If a reader comes to a number only later, however, a message may have been there and been
evicted: it reports this once the same time is over, and closes the number with a mark that tells other readers.
"""

from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import CacheAway, CacheRefused
from kestreld.recipes.packing import MISSED, unpack
from kestreld.recipes.positions import NUMBERS, MessagesMissed, Position, Reason, is_ahead, position_of
from kestreld.recipes.slots import LAPPED, Slots
from kestreld.recipes.waiting import Retries

WINDOW_MIN: Final = 8
WINDOW_MAX: Final = 1000
AHEAD_BYTES_MAX: Final = 4 << 20  # of messages fetched ahead, as far as their sizes can be known before
LOOKS: Final = 16  # within a hole_timeout
MARKS_MAX: Final = 1000
"""How many missing numbers of one run are marked. In a longer run most were evicted, and marks would evict more."""


class LogReader:
    """Iterator over messages, which waits for more. It belongs to one thread."""

    def __init__(
        self,
        name: str,
        slots: Slots,
        position: Position | None,
        hole_timeout_ms: int,
        on_missed: Callable[[MessagesMissed], None] | None,
    ) -> None:
        self.name = name
        self.holes = 0
        """Numbers so far whose writers died, or gave them up: nothing was lost with them."""
        self.missed = 0
        """Messages so far that it was told of as missed."""
        self._slots = slots
        self._at: int | None = None if position is None else position.count
        self._part = 0 if position is None else position.part
        self._hole_timeout_ms = hole_timeout_ms
        self._on_missed = on_missed
        self._clock = Clock()
        self._head = self._at or 0  # numbers below it are reserved
        self._overdue = self._head  # numbers below it were reserved a hole_timeout ago
        self._looks: deque[tuple[int, int]] = deque()  # times within the last hole_timeout, with the head then
        self._ahead: dict[int, list[bytes]] = {}  # fetched messages; a closed number has none
        self._absent: set[int] = set()
        self._watched: set[int] = set()  # absent numbers that were so soon after they were reserved
        self._overwritten: set[int] = set()
        self._missed: set[int] = set()  # fetched numbers that are closed, but may have had a message
        self._marked = 0  # numbers marked as missing since the last message
        self._may_begin = True
        self._window = WINDOW_MIN
        self._untold: Counts[Reason] = Counts()

    @property
    def position(self) -> Position | None:
        """Position of the next message; save it as str to continue there later. None = no counter was found yet."""
        return None if self._at is None else position_of(self._at, self._part)

    def lag(self) -> int:
        """Return how many reserved numbers the reader has not passed. Asks the server."""
        head = self._slots.counter.look()
        if head is None:
            return 0
        if self._at is None:
            return position_of(head).number
        return max(head - self._at, 0) if is_ahead(head, self._at) else position_of(head).number

    def get(self, timeout: float | None = 0.0) -> bytes | None:
        """Return the next message, waiting `timeout` seconds for it; None = forever. None if there is none.

        Raises MessagesMissed; the next call continues after the missed messages.
        """
        messages = self.get_many(1, timeout)
        return messages[0] if messages else None

    def get_many(self, count: int = 100, timeout: float | None = 0.0) -> list[bytes]:
        """Return up to `count` of the next messages, waiting until there is one. Otherwise like `get`."""
        return [message for _, message in self.entries(count, timeout)]

    def entries(self, count: int = 100, timeout: float | None = 0.0) -> list[tuple[Position, bytes]]:
        """Return messages like `get_many`, each with its position."""
        checks.whole(count, "count", 1)
        retries = Retries(timeout)
        while True:
            if entries := self._take(count):
                return entries
            if not self._advance(count):
                self._tell()
                if not retries.wait():
                    return []

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over messages forever. After MessagesMissed, another loop continues."""
        return self

    def __next__(self) -> bytes:
        (message,) = self.get_many(1, None)
        return message

    def _take(self, count: int) -> list[tuple[Position, bytes]]:
        """Return fetched messages from the position on, and pass them."""
        taken: list[tuple[Position, bytes]] = []
        while len(taken) < count and self._at is not None and (messages := self._ahead.get(self._at)) is not None:
            if messages:
                self._marked = 0
                self._tell()
            for message in messages[self._part : self._part + count - len(taken)]:
                taken.append((position_of(self._at, self._part), message))
                self._part += 1
            if self._part >= len(messages):
                if self._at in self._missed:
                    self._untold["missing"] += 1
                else:
                    self.holes += not messages
                self._pass_to(self._at + 1)
        return taken

    def _tell(self) -> None:
        """Report all messages missed since the last report."""
        while self._untold and self._at is not None:
            reason, count = self._untold.popitem()
            self.missed += count
            missed = MessagesMissed(self.name, count, reason, position_of(self._at, self._part))
            if self._on_missed is None:
                raise missed
            self._on_missed(missed)

    def _pass_to(self, at: int) -> None:
        """Move to a number, and forget the ones before it."""
        known = (self._absent, self._watched, self._overwritten, self._missed)
        if self._at is not None and at == self._at + 1:
            self._ahead.pop(self._at, None)
            for numbers in known:
                numbers.discard(self._at)
        else:
            self._ahead = {number: value for number, value in self._ahead.items() if number >= at}
            for numbers in known:
                numbers.difference_update([number for number in numbers if number < at])
        self._at = at
        self._part = 0

    def _advance(self, wanted: int) -> bool:
        """Read more from the server. False = there is nothing to do but wait."""
        at = self._at
        if (at is None or at >= self._head or at in self._absent) and not self._look():
            return False
        at, overdue = self._at, self._overdue
        if at is None or at >= self._head:
            return False
        self._fetch(at, self._head, wanted)
        if at in self._overwritten:
            self._pass_lapped()
            return True
        return at in self._ahead or (at < overdue and self._skip(overdue))

    def _look(self) -> bool:
        """Read the counter. False = it does not exist, or begins a new epoch now."""
        head = self._slots.counter.look()
        if head is None and self._may_begin:
            # So a counter that vanishes is noticed before the next put, and before this reader has seen a message.
            try:
                self._slots.counter.begin()
            except CacheRefused:  # a user that may only get
                self._may_begin = False
            head = self._slots.counter.look()
        self._clock.read()
        now_ms = self._clock.monotonic_ms
        if head is None:
            return self._at is not None and self._at < self._head
        if self._at is None:
            self._at = position_of(head).epoch * NUMBERS
            self._head = self._overdue = self._at
        elif not is_ahead(head, self._at):
            return self._drain(head)
        while self._looks and self._looks[0][0] <= now_ms - self._hole_timeout_ms:
            self._overdue = max(self._overdue, self._looks.popleft()[1])
        if not self._looks or now_ms - self._looks[-1][0] >= self._hole_timeout_ms // LOOKS:
            self._looks.append((now_ms, head))
        self._head = max(self._head, head)
        self._pass_overwritten()
        return True

    def _drain(self, head: int) -> bool:
        """Read the rest of the old epoch, then go to the first message of the counter's new one."""
        at = self._at
        assert at is not None
        self._looks.clear()
        self._watched.clear()  # their writers may continue without knowing
        if at >= self._head:
            self._fetch(at, at + WINDOW_MAX, WINDOW_MAX)
            if not self._ahead:
                self._head = self._overdue = position_of(head).epoch * NUMBERS
                self._pass_to(self._head)
                self._absent.clear()
                self._overwritten.clear()
                self._untold["epoch"] += self._untold.pop("missing", 0)
                return False
            self._head = max(self._ahead) + 1
        self._overdue = self._head
        return True

    def _fetch(self, at: int, end: int, wanted: int) -> None:
        """Fetch messages of the next numbers, except those that were fetched before."""
        end = min(end, at + max(self._window, wanted), at + (self._slots.laps_after or NUMBERS))
        asked = [number for number in range(at, end) if number not in self._ahead]
        fetched = self._slots.fetch(asked)
        for number in asked:
            if (value := fetched.get(number)) is None:
                if number not in self._absent and self._looks and self._looks[0][1] <= number:
                    self._watched.add(number)
                self._absent.add(number)
            elif value is LAPPED:
                self._overwritten.add(number)
            else:
                self._absent.discard(number)
                self._ahead[number] = unpack(*value)
                if value[1] & MISSED:
                    self._missed.add(number)
        size_bytes = sum(len(value) for value, _ in fetched.values()) // (len(fetched) or 1)
        self._window = max(1, min(self._window * 2, WINDOW_MAX, AHEAD_BYTES_MAX // (size_bytes + 1)))

    def _skip(self, overdue: int) -> bool:
        """Pass the numbers whose time is over. False = a message has come at the last moment."""
        while (at := self._at) is not None and at < overdue and at in self._absent:
            if at in self._watched:
                if not self._close(at):
                    return False
                self.holes += 1
            else:
                if not self._give_up(at):
                    return False
                self._untold["missing"] += 1
            self._pass_to(at + 1)
        return True

    def _give_up(self, at: int) -> bool:
        """Close a number whose message was lost or whose writer is late. False = it has come at the last moment."""
        if self._marked >= MARKS_MAX:
            return True
        self._marked += 1
        try:
            return self._slots.close(at, "missing")
        except (CacheAway, CacheRefused):
            return True

    def _close(self, at: int) -> bool:
        try:
            return self._slots.close(at)
        except CacheAway:
            return True  # nobody can write it either

    # Rings

    def _pass_overwritten(self) -> None:
        """If later laps have reached the position, go to the oldest message that is left."""
        laps_after, at = self._slots.laps_after, self._at
        if laps_after is not None and at is not None and self._head - at > laps_after:
            self._untold["lapped"] += self._head - laps_after - at
            self._pass_to(self._head - laps_after)

    def _pass_lapped(self) -> None:
        """Pass a number whose slot has a later lap; the counter tells by how much the reader was lapped."""
        at = self._at
        self._look()
        if at is not None and self._at == at:
            self._untold["lapped"] += 1
            self._pass_to(at + 1)
