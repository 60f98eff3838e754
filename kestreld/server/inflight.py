"""Large items that have begun to arrive and not ended: how much of them is held, and who is read when that is too much.

Below the bound everybody is read. From there on one item is, to its end: the oldest whose client keeps sending. Others
wait, unless their clients send nothing: of a session that waits some input is always there. So those that are waited
for make progress, also with items larger than the bound, and `request_timeout` is there for whoever sends nothing.
"""

from typing import TYPE_CHECKING, Final

from kestreld.clock import Clock
from kestreld.server.command_handler import DATA_READ_BYTES

if TYPE_CHECKING:
    from kestreld.server.session import Session

STALLED_MS: Final = 1000  # who has sent nothing for so long does not keep sending


class _Item:
    """What is held of one."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.read_at_ms = 0


class Inflight:
    """The unfinished items of all sessions that are larger than what is always read, the oldest first."""

    def __init__(self, clock: Clock, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._abandoned_bytes = 0  # of items that went with their sessions, since somebody last took note
        self._clock = clock
        self._items: dict[Session, _Item] = {}
        self._waiting: set[Session] = set()
        self._chosen: Session | None = None  # the one that is read although there is no room

    def configure(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.go_on()

    def may_read(self, session: "Session", held_bytes: int) -> bool:
        """Whether to read more of an item that `held_bytes` are held of. If not, its session is told when."""
        item = self._items.get(session)
        if item is None:
            item = self._hold(session, held_bytes)
        if self.held_bytes < self.bytes_max:
            self._chosen = None
        else:
            if self._chosen is None:
                self._choose(self._oldest_sending(session))
            if self._chosen is not session:
                self._waiting.add(session)
                return False
        self._waiting.discard(session)
        return True

    def was_read(self, session: "Session", held_bytes: int) -> None:
        """So much is held of this session's item now."""
        self._hold(session, held_bytes)

    def _hold(self, session: "Session", held_bytes: int) -> _Item:
        item = self._items.setdefault(session, _Item())
        self.held_bytes += held_bytes - item.held_bytes
        item.held_bytes = held_bytes
        item.read_at_ms = self._clock.monotonic_ms
        return item

    def abandoned(self, session: "Session") -> None:
        """Its item goes with it, if there is one."""
        item = self._items.get(session)
        if item is not None:
            self._abandoned_bytes += item.held_bytes
            self.finished(session)

    def take_note(self) -> int:
        """How much memory of abandoned items is free since the last time."""
        freed_bytes, self._abandoned_bytes = self._abandoned_bytes, 0
        return freed_bytes

    def finished(self, session: "Session") -> None:
        """Its item has been read to the end."""
        item = self._items.pop(session, None)
        if item is not None:
            self.held_bytes -= item.held_bytes
            self._waiting.discard(session)
            if self._chosen is session:
                self._chosen = None
            self.go_on()

    def go_on(self) -> None:
        """Have sessions that wait be read again, the oldest first, as far as there is room. Once a second at least."""
        now_ms = self._clock.monotonic_ms
        if not self._waiting:
            return
        if self.held_bytes < self.bytes_max:
            room = 1 + (self.bytes_max - self.held_bytes) // DATA_READ_BYTES
            for session in [session for session in self._items if session in self._waiting][:room]:
                self._resume(session)
        elif self._chosen is None or now_ms - self._items[self._chosen].read_at_ms >= STALLED_MS:
            self._choose(next(session for session in self._items if session in self._waiting))

    def is_waiting(self, session: "Session") -> bool:
        """Whether it is not read for want of room."""
        return session in self._waiting

    def _oldest_sending(self, current: "Session") -> "Session":
        now_ms = self._clock.monotonic_ms
        for session, item in self._items.items():
            if session is current or session in self._waiting or now_ms - item.read_at_ms < STALLED_MS:
                return session
        return current

    def _choose(self, session: "Session") -> None:
        self._chosen = session
        self._items[session].read_at_ms = self._clock.monotonic_ms
        if session in self._waiting:
            self._resume(session)

    def _resume(self, session: "Session") -> None:
        self._waiting.discard(session)
        session.resume()
