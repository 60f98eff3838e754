"""The items that waited in a queue at a moment in the past, found by replaying its journal up to then."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.journals.events import Begun, Came, Gone, Held, Returned, child_of, header_of, items, segment_events
from kestrelctl.journals.locations import JournalLocation
from kestrelctl.journals.times import written_instant
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.discovery import JournalFile
from kestreld.journal.records import Due, Range, Why, merged

_STATES: Final = {Why.DELAYED: "delayed", Why.FAILED: "retrying", Why.LEASED: "leased"}


@dataclass(slots=True)
class Waiting:
    """State of a queue: its items are the ids below `next_id` in none of `done`, and the held ones in `due`.

    `count` is the number of items. By id, `due` is the last DUE record of a held item, and `attempts` how often an item
    had failed.
    """

    next_id: int
    done: list[Range]
    count: int
    due: dict[int, Due] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

    def hold(self, due: Due) -> None:
        self.due[due.item_id] = due
        self.attempts[due.item_id] = due.attempts

    def end(self, ranges: Sequence[Range]) -> None:
        """Forget items that are done."""
        for first, last in ranges if self.due or self.attempts else ():
            for known in (self.due, self.attempts):
                for one in _within(known, first, last):
                    del known[one]


def _within(ids: Collection[int], first: int, last: int) -> list[int]:
    """The ids of a range, which may span millions."""
    if last - first < len(ids):
        return [one for one in range(first, last + 1) if one in ids]
    return [one for one in ids if first <= one <= last]


class Past:
    """A queue at a moment. Raises Failure if the journal begins later or the queue did not exist then."""

    def __init__(self, place: JournalLocation, queue: str, at_ms: int) -> None:
        self._files = place.segments(queue)
        self._label = child_of(queue)
        file = self._segment_of(queue, at_ms)
        self._same_journal = [one for one in self._files if one.journal_id == file.journal_id]
        older = self._same_journal[: self._same_journal.index(file)]
        waiting = _state(file, older, self._label, at_ms)
        if waiting is None:
            raise Failure(ExitCode.NEGATIVE, f"there was no queue {queue} at {written_instant(at_ms)}")
        self._waiting = waiting
        self._at_ms = at_ms
        self.count = waiting.count

    def known_of(self, one: int) -> dict[str, object]:
        """State, due time and failed attempts of an item; empty for one that was only ever waiting."""
        known: dict[str, object] = {}
        if (due := self._waiting.due.get(one)) is not None:
            is_late = due.due_at_ms <= self._at_ms
            known = {"state": "waiting" if is_late else _STATES[due.why], "due_at_ms": due.due_at_ms}
        if attempts := self._waiting.attempts.get(one):
            known["attempts"] = attempts
        return known

    def items(self) -> Iterator[Came]:
        """The items in order, as far as they are still on disk. Raises JournalCorrupt, OSError."""
        done, at = self._waiting.done, 0
        for item in items(self._same_journal, self._label):
            if item.item_id >= self._waiting.next_id:
                continue
            while at > 0 and done[at - 1][1] >= item.item_id:
                at -= 1
            while at < len(done) and done[at][1] < item.item_id:
                at += 1
            if at == len(done) or item.item_id < done[at][0] or item.item_id in self._waiting.due:
                yield item

    def _segment_of(self, queue: str, at_ms: int) -> JournalFile:
        """The segment that was live at `at_ms`."""
        begun: Sequence[tuple[int, JournalFile]] = [
            (header.created_at_ms, file) for file in self._files if not (header := header_of(file)).replaced
        ]
        before = [file for created_at_ms, file in begun if created_at_ms <= at_ms]
        if not before:
            reach = written_instant(min((created_at_ms for created_at_ms, _ in begun), default=0))
            words = f"the journal of {queue} goes back to {reach} only; --archive may have more"
            raise Failure(ExitCode.NO_INPUT, words)
        return before[-1]


def _state(file: JournalFile, older: Sequence[JournalFile], label: str, at_ms: int) -> Waiting | None:
    """State of the queue after all events up to `at_ms`. None = the queue did not exist."""
    found: Waiting | None = None
    next_id = 0
    for event in segment_events(file, label):
        match event:
            case Begun() if event.at_ms <= at_ms:
                if event.state is None:
                    found = None
                else:
                    state = event.state
                    done = [(0, max(state.head, state.at_id) - 1), *state.done]
                    found = Waiting(0, done, state.items, attempts=dict(state.retries))
                    if state.held_items:
                        _read_held(found, older, label)
            case Came() if event.at_ms <= at_ms and found is not None:
                next_id = event.item_id + 1
                found.count += 1
            case Gone() if event.at_ms <= at_ms and found is not None:
                found.count -= event.items
                found.done += event.ranges
                found.end(event.ranges)
            case Held() if event.at_ms <= at_ms and found is not None:
                found.hold(event.due)
            case Returned() if event.at_ms <= at_ms and found is not None:
                found.attempts[event.item_id] = event.times
    if found is not None:
        found.next_id = max(next_id, _first_id(file))
        found.done = merged(found.done)
    return found


def _read_held(found: Waiting, older: Sequence[JournalFile], label: str) -> None:
    """Add what earlier segments say about held items."""
    for file in older:
        for event in segment_events(file, label):
            match event:
                case Held():
                    found.hold(event.due)
                case Gone():
                    found.end(event.ranges)


def _first_id(file: JournalFile) -> int:
    return header_of(file).first_id
