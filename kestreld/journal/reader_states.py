"""Readers of a damaged journal, and the items that each is done with, according to its whole records.

If these are not enough, an item is delivered again rather than not at all.
"""

from bisect import bisect_left, bisect_right

from kestreld.journal import records
from kestreld.journal.held_records import HeldRecords
from kestreld.journal.recovery import note_failure, settle, true_failures


class ReaderStates:
    """Readers by a CHECKPOINT and the records after it. `base` None: no CHECKPOINT is whole.

    `from_start`: the journal's very first segment is there, so that every reader was added in the segments left.
    """

    def __init__(self, base: records.Checkpoint | None, *, from_start: bool) -> None:
        self.next_reader = base.next_reader if base is not None else 1
        self._readers = {state.number: state for state in base.readers} if base is not None else {}
        self._all_are_named = base is not None or from_start
        self._first_new = self.next_reader
        self._done: dict[int, list[records.Range]] = {
            number: list(state.done) for number, state in self._readers.items()
        }
        self._held_from = base.held_from if base is not None else 0
        self.due = HeldRecords(self._readers.values())
        self.failures: dict[records.FailedItem, str] = dict(base.failures) if base is not None else {}
        if base is None:
            self.due.join(self.next_reader, records.Kind.QUEUE, 0)  # the default reader's number
        self._before: dict[int, list[records.Range]] = {}  # by DONE records before the CHECKPOINT
        self._surely_ended: dict[int, list[records.Range]] = {}  # done or held, by an earlier CHECKPOINT
        self._dropped: set[int] = set()
        self._met: set[int] = set()  # numbers that occur in records

    def meet(self, number: int) -> None:
        """Record that an item is for this reader only."""
        if number < records.READER_MAX:
            self._met.add(number)

    def apply_before(self, record_type: int, body: bytes) -> None:
        """Apply a whole record before the CHECKPOINT, which has everything but the items held back."""
        if record_type == records.Type.DONE:
            gone = records.read_done(body)
            self.due.done(gone)
            self._before.setdefault(gone.reader, []).extend(gone.ranges)
        else:
            self._note(record_type, body)

    def pass_checkpoint(self, passed: records.Checkpoint) -> None:
        """Pass a CHECKPOINT that is not the last, with everything before it complete."""
        for state in passed.readers:
            if state.held_items <= len(self.due.of.get(state.number, ())):
                self._surely_ended[state.number] = [(0, state.head - 1), *state.done]

    def reach_checkpoint(self, *, is_complete: bool) -> None:
        """Reach the CHECKPOINT. If a reader may hold more than is known, all not known to be done counts as held.

        `is_complete`: everything written before it is there. Otherwise the number of held items proves nothing: some of
        the known ones may be done.
        """
        for number, state in self._readers.items():
            is_known = is_complete and state.held_items <= len(self.due.of.get(number, ()))
            if state.held_items and not is_known:
                ended = [*self._before.get(number, []), *self._ended_before(number)]
                older = records.merged([(0, state.head - 1), *state.done])
                below = [(first, min(last, self._held_from - 1)) for first, last in older if first < self._held_from]
                state.head = max(min(state.head, self._held_from), state.at_id)  # others may hold what came before it
                self._done[number] = [*below, *ended]

    def _ended_before(self, number: int) -> list[records.Range]:
        """Ids neither waiting nor held at the last CHECKPOINT before which nothing is missing."""
        left: list[records.Range] = []
        held = sorted(self.due.of.get(number, ()))
        for first, last in records.merged(self._surely_ended.get(number, [])):
            for one in held[bisect_left(held, first) : bisect_right(held, last)]:
                left.append((first, one - 1))
                first = one + 1
            left.append((first, last))
        return [(first, last) for first, last in left if first <= last]

    def _note(self, record_type: int, body: bytes) -> None:
        if record_type == records.Type.DUE:
            due = records.read_due(body)
            if due.reader and due.reader not in self.due.of and due.reader not in self._dropped:
                self.due.join(due.reader, records.Kind.QUEUE, 0)
            self.due.note(due)
        elif record_type == records.Type.KEY:
            self.due.note_key(records.read_key(body))
        elif record_type == records.Type.ORIGIN:
            self.due.note_origin(records.read_origin(body))

    def apply(self, record_type: int, body: bytes) -> None:
        """Apply a whole record after the CHECKPOINT."""
        self._note(record_type, body)
        if record_type == records.Type.DONE:
            gone = records.read_done(body)
            self.due.done(gone)
            self._met.add(gone.reader)
            self._done.setdefault(gone.reader, []).extend(gone.ranges)
            if gone.reader in self._readers:
                self._readers[gone.reader].ended[gone.reason] += gone.items
        elif record_type == records.Type.ABORT:
            abort = records.read_abort(body)
            if abort.reader in self._readers:
                self._readers[abort.reader].retries[abort.item_id] = abort.times
        elif record_type == records.Type.FAILURE:
            note_failure(self.failures, body)
        elif record_type == records.Type.READER:
            self._change(body)

    def recall(self, body: bytes) -> None:
        """Apply a READER found in a bad stretch if its number is the next one: items may hold other READERs."""
        if records.read_reader(body).reader == self.next_reader:
            self._change(body)

    def _change(self, body: bytes) -> None:
        change = records.read_reader(body)
        number = change.reader
        self.next_reader = max(self.next_reader, number + 1)
        if change.dropped:
            self._dropped.add(number)
            self._readers.pop(number, None)
            self.due.leave(number)
        elif number >= self._first_new and number not in self._readers and number not in self._dropped:
            self._readers[number] = records.ReaderState(number, change.kind, change.name, change.at_id, change.at_id)
            if number not in self.due.of:
                self.due.join(number, change.kind, change.at_id)

    def learn(self, next_reader: int, readers: list[records.ReaderState]) -> None:
        """Take the readers from a running server: these and no others."""
        known, self._readers = self._readers, {}
        for state in readers:
            found = known.get(state.number) or records.ReaderState(
                state.number, state.kind, state.name, state.at_id, state.at_id
            )
            found.name, found.head = state.name, max(found.head, state.head)
            self._readers[state.number] = found
        self.next_reader = max(self.next_reader, next_reader)
        self._all_are_named = True
        self._met.clear()

    def settled(self, first_id: int, next_id: int) -> list[records.ReaderState]:
        """The readers, each with its head and the ranges done ahead of it.

        `first_id` is the lowest id left, `next_id` the one after the last that was given out.
        """
        unnamed = {
            number
            for number in self._met
            if number >= self._first_new and number not in self._readers and number not in self._dropped
        }
        names = {state.name for state in self._readers.values() if state.kind == records.Kind.QUEUE}
        if "" not in names and (not names or not self._all_are_named or unnamed):
            number = 1 if 1 not in self._readers and 1 not in self._dropped else self.next_reader
            if self._all_are_named and unnamed:
                number = min(unnamed)
            else:
                self._done[number] = []  # the reader that was done with items may have been another
            unnamed.discard(number)
            self._add(number, "", first_id)
        for number in sorted(unnamed):
            self._add(number, f"reader-{number}", first_id)
        for state in self._readers.values():
            state.due = {one: due for one, due in self.due.of.get(state.number, {}).items() if one < next_id}
            state.keys = [key for key in self.due.keys.get(state.number, {}).values() if key.item_id < next_id]
            settle(state, [*self._done.get(state.number, []), *((one, one) for one in state.due)])
            state.segment = state.offset = state.held_items = state.held_bytes = 0
        self.failures = true_failures(self.failures, self._readers, next_id)
        return list(self._readers.values())

    def _add(self, number: int, name: str, first_id: int) -> None:
        self.next_reader = max(self.next_reader, number + 1)
        self._readers[number] = records.ReaderState(number, records.Kind.QUEUE, name, first_id, first_id)


def undone(state: records.ReaderState) -> list[records.Range]:
    """Ids that a reader has yet to finish, held ones included; the last range is open-ended (ID_MAX)."""
    ranges, first = [], state.head
    for done_first, done_last in state.done:
        if first < done_first:
            ranges.append((first, done_first - 1))
        first = max(first, done_last + 1)
    ranges.append((first, records.ID_MAX))
    return records.merged([*ranges, *((one, one) for one in state.due)])
