"""Memory limit for partly received large items, and the choice of the sessions read above it.

Below the limit every session is read. Above it one item is read to its end: the oldest whose client keeps sending.
Other sessions wait, but not those whose clients send nothing: a session that waits always has input. So the items that
others wait for make progress, even those larger than the limit, and `request_timeout` ends clients that send nothing.
"""

from typing import TYPE_CHECKING, Final

from kestreld.clock import Clock
from kestreld.server.command_handler import DATA_READ_BYTES

if TYPE_CHECKING:
    from kestreld.server.session import Session

STALLED_MS: Final = 1000  # a client that has sent nothing for this time no longer keeps sending


class _Item:
    """Bytes held of one item, and the time of its last read."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.read_at_ms = 0


class PartialItems:
    """Unfinished items of all sessions that are larger than the data always read, the oldest first."""

    def __init__(self, clock: Clock, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._abandoned_bytes = 0  # of items dropped with their sessions since `take_note`
        self._clock = clock
        self._items: dict[Session, _Item] = {}
        self._waiting: set[Session] = set()
        self._chosen: Session | None = None  # the one that is read above the limit

    def configure(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.go_on()

    def may_read(self, session: "Session", held_bytes: int) -> bool:
        """Return True if more of an item may be read, of which `held_bytes` are held.

        If not, `session.resume` is called later.
        """
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
        """Note that `held_bytes` of this session's item are held now."""
        self._hold(session, held_bytes)

    def _hold(self, session: "Session", held_bytes: int) -> _Item:
        item = self._items.setdefault(session, _Item())
        self.held_bytes += held_bytes - item.held_bytes
        item.held_bytes = held_bytes
        item.read_at_ms = self._clock.monotonic_ms
        return item

    def abandoned(self, session: "Session") -> None:
        """Drop a session's item, if there is one, when the session ends."""
        item = self._items.get(session)
        if item is not None:
            self._abandoned_bytes += item.held_bytes
            self.finished(session)

    def take_note(self) -> int:
        """Return the bytes of abandoned items freed since the last call."""
        freed_bytes, self._abandoned_bytes = self._abandoned_bytes, 0
        return freed_bytes

    def finished(self, session: "Session") -> None:
        """Forget an item that has been read to its end."""
        item = self._items.pop(session, None)
        if item is not None:
            self.held_bytes -= item.held_bytes
            self._waiting.discard(session)
            if self._chosen is session:
                self._chosen = None
            self.go_on()

    def go_on(self) -> None:
        """Resume waiting sessions, the oldest first, as far as there is memory. Called at least once a second."""
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
        """Return True if the session is not read because of the limit."""
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
