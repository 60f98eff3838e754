"""The items that waited in a queue at a moment in the past, by replaying its journal to there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kestrelctl.journals.events import Begun, Came, Gone, child_of, header_of, items, segment_events
from kestrelctl.journals.locations import JournalLocation
from kestrelctl.journals.times import written_instant
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.discovery import JournalFile
from kestreld.journal.records import Range, merged


@dataclass(slots=True)
class Waiting:
    """What waited: ids below `next_id` that are in none of `done`. `count` is how many items that were."""

    next_id: int
    done: list[Range]
    count: int


class Past:
    """The queue at a moment. Raises Failure when the journal does not go back so far, or there was no such queue."""

    def __init__(self, place: JournalLocation, queue: str, at_ms: int) -> None:
        self._files = place.segments(queue)
        self._label = child_of(queue)
        file = self._segment_of(queue, at_ms)
        self._same_journal = [one for one in self._files if one.journal_id == file.journal_id]
        waiting = _state(file, self._label, at_ms)
        if waiting is None:
            raise Failure(ExitCode.NEGATIVE, f"there was no queue {queue} at {written_instant(at_ms)}")
        self._waiting = waiting
        self.count = waiting.count

    def items(self) -> Iterator[Came]:
        """The items in order, as far as they are on the disk. Raises JournalCorrupt, OSError."""
        done, at = self._waiting.done, 0
        for item in items(self._same_journal, self._label):
            if item.item_id >= self._waiting.next_id:
                continue
            while at > 0 and done[at - 1][1] >= item.item_id:
                at -= 1
            while at < len(done) and done[at][1] < item.item_id:
                at += 1
            if at == len(done) or item.item_id < done[at][0]:
                yield item

    def _segment_of(self, queue: str, at_ms: int) -> JournalFile:
        """The one that was written to then."""
        begun: Sequence[tuple[int, JournalFile]] = [
            (header.created_at_ms, file) for file in self._files if not (header := header_of(file)).replaced
        ]
        before = [file for created_at_ms, file in begun if created_at_ms <= at_ms]
        if not before:
            reach = written_instant(min((created_at_ms for created_at_ms, _ in begun), default=0))
            words = f"the journal of {queue} goes back to {reach} only; --archive may have more"
            raise Failure(ExitCode.NO_INPUT, words)
        return before[-1]


def _state(file: JournalFile, label: str, at_ms: int) -> Waiting | None:
    """The queue when everything up to `at_ms` had happened. None: it was not there."""
    found: Waiting | None = None
    next_id = 0
    for event in segment_events(file, label):
        match event:
            case Begun() if event.at_ms <= at_ms:
                if event.state is None:
                    found = None
                else:
                    state = event.state
                    found = Waiting(0, [(0, max(state.head, state.at_id) - 1), *state.done], state.items)
            case Came() if event.at_ms <= at_ms and found is not None:
                next_id = event.item_id + 1
                found.count += 1
            case Gone() if event.at_ms <= at_ms and found is not None:
                found.count -= event.items
                found.done += event.ranges
    if found is not None:
        found.next_id = max(next_id, _first_id(file))
        found.done = merged(found.done)
    return found


def _first_id(file: JournalFile) -> int:
    return header_of(file).first_id
