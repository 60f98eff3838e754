"""A stream: a reader that is only a position."""

from kestreld.journal.records import Done, Kind, ReaderState, Reason, done_record


class Stream:
    """A reader that is only a position: no window, no limits, no expiry; clients do not see it as a queue."""

    __slots__ = ("at_id", "ended_items", "head", "name", "number")

    def __init__(self, name: str, number: int, at_id: int, known: ReaderState | None = None) -> None:
        self.name = name
        self.number = number
        self.at_id = at_id
        self.head = at_id if known is None else known.head
        self.ended_items = [0] * len(Reason) if known is None else known.ended

    def advance(self, through: int, at_ms: int) -> bytes:
        """Mark everything up to and including `through` as done; returns the DONE record."""
        done = Done(self.number, Reason.CONFIRMED, at_ms, 0, 0, [(self.head, through)])
        self.head = through + 1
        return done_record(done)

    def state(self) -> ReaderState:
        return ReaderState(self.number, Kind.STREAM, self.name, self.at_id, self.head, ended=list(self.ended_items))
