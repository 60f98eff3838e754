"""The items that waited in a queue at a moment in the past, found by replaying its journal up to then."""

from collections.abc import Iterator, Sequence
from typing import Final

from kestrelctl.journals.events import Begun, Came, Leased, child_of, header_of, items, segment_events
from kestrelctl.journals.locations import JournalLocation
from kestrelctl.journals.times import written_instant
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.discovery import JournalFile
from kestreld.journal.reader_states import ReaderStates
from kestreld.journal.records import ID_MAX, Abort, Checkpoint, Done, Due, ReaderState, Why, merged

_STATES: Final = {Why.DELAYED: "delayed", Why.FAILED: "retrying", Why.LEASED: "leased"}


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
        self.count = waiting.items

    def known_of(self, one: int) -> dict[str, object]:
        """State, due time, holder and failed attempts of an item; empty for one that was only ever waiting."""
        known: dict[str, object] = {}
        attempts = self._waiting.retries.get(one, 0)
        if (due := self._waiting.due.get(one)) is not None:
            attempts = max(attempts, due.attempts)
            is_late = due.due_at_ms <= self._at_ms
            known = {"state": "waiting" if is_late else _STATES[due.why], "due_at_ms": due.due_at_ms}
            if due.holder and not is_late:
                known["holder"] = due.holder
        if attempts:
            known["attempts"] = attempts
        return known

    def items(self) -> Iterator[Came]:
        """The items in order, as far as they are still on disk. Raises JournalCorrupt, OSError."""
        done, at = self._waiting.done, 0
        for item in items(self._same_journal, self._label):
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


def _state(file: JournalFile, older: Sequence[JournalFile], label: str, at_ms: int) -> ReaderState | None:
    """State of the queue after all events up to `at_ms`. None = the queue did not exist.

    `items` are all that waited, `done` the ids that did not, those never put included, and `due` what was held.
    """
    states = ReaderStates(None)
    found: ReaderState | None = None
    next_id = header_of(file).first_id
    for event in segment_events(file, label):
        if event.at_ms > at_ms:
            continue
        match event:
            case Begun():
                found = event.state
                if found is not None:
                    states.take_checkpoint(Checkpoint(0, 0, 0, readers=[found]))
                    if found.held_items:
                        _read_held(states, older, label)
            case Came() if found is not None:
                next_id = event.item_id + 1
                found.items += 1
            case Done():
                states.finish(event)
            case Due():
                states.hold(event)
            case Leased():
                states.lease(event.leases)
            case Abort():
                states.fail(event)
    if found is not None:
        before = (0, max(found.head, found.at_id) - 1)
        found.done = merged([before, *states.done[found.number], (next_id, ID_MAX)])
        found.due = {one: due for one, due in states.due[found.number].items() if one < next_id}
    return found


def _read_held(states: ReaderStates, older: Sequence[JournalFile], label: str) -> None:
    """Add what earlier segments say about held items."""
    for file in older:
        for event in segment_events(file, label):
            match event:
                case Due():
                    states.hold(event)
                case Leased():
                    states.lease(event.leases)
                case Done():
                    states.end(event)
