"""Readers of a damaged journal, and the items that each is done with, according to its whole records.

If these are not enough, an item is delivered again rather than not at all.
"""

from bisect import bisect_left, bisect_right

from kestreld.journal import records
from kestreld.journal.reader_states import ReaderStates


class SalvagedReaders(ReaderStates):
    """Readers by a CHECKPOINT and the whole records around it. `base` None: no CHECKPOINT is whole.

    `from_start`: the journal's very first segment is there, so that every reader was added in the segments left.
    """

    def __init__(self, base: records.Checkpoint | None, *, from_start: bool) -> None:
        super().__init__(base)
        self._all_are_named = base is not None or from_start
        self._held_from = base.held_from if base is not None else 0
        if base is None:
            self.join(self.next_reader, records.Kind.QUEUE, 0)  # the default reader's number
        self._before: dict[int, list[records.Range]] = {}  # by DONE records before the CHECKPOINT
        self._surely_ended: dict[int, list[records.Range]] = {}  # done or held, by an earlier CHECKPOINT
        self._met: set[int] = set()  # numbers of readers that items are for

    def meet(self, number: int) -> None:
        """Record that an item is for this reader only."""
        if number < records.READER_MAX:
            self._met.add(number)

    def take_before(self, record_type: int, body: bytes) -> None:
        super().take_before(record_type, body)
        if record_type == records.Type.DONE:
            gone = records.read_done(body)
            self._before.setdefault(gone.reader, []).extend(gone.ranges)

    def hold(self, due: records.Due) -> None:
        if due.reader:
            self._join_unknown(due.reader)
        super().hold(due)

    def lease(self, leases: list[records.Due]) -> None:
        self._join_unknown(leases[0].reader)
        super().lease(leases)

    def _join_unknown(self, number: int) -> None:
        if number not in self.due and number not in self._dropped:
            self.join(number, records.Kind.QUEUE, 0)  # its READER is lost

    def pass_checkpoint(self, passed: records.Checkpoint) -> None:
        """Pass a CHECKPOINT that is not the last, with everything before it complete."""
        for state in passed.readers:
            if state.held_items <= len(self.due.get(state.number, ())):
                self._surely_ended[state.number] = [(0, state.head - 1), *state.done]

    def reach_checkpoint(self, *, is_complete: bool) -> None:
        """Reach the CHECKPOINT. If a reader may hold more than is known, all not known to be done counts as held.

        `is_complete`: everything written before it is there. Otherwise the number of held items proves nothing: some of
        the known ones may be done.
        """
        for number, state in self.readers.items():
            is_known = is_complete and state.held_items <= len(self.due.get(number, ()))
            if state.held_items and not is_known:
                ended = [*self._before.get(number, []), *self._ended_before(number)]
                older = records.merged([(0, state.head - 1), *state.done])
                below = [(first, min(last, self._held_from - 1)) for first, last in older if first < self._held_from]
                state.head = max(min(state.head, self._held_from), state.at_id)  # others may hold what came before it
                self.done[number] = [*below, *ended]

    def _ended_before(self, number: int) -> list[records.Range]:
        """Ids neither waiting nor held at the last CHECKPOINT before which nothing is missing."""
        left: list[records.Range] = []
        held = sorted(self.due.get(number, ()))
        for first, last in records.merged(self._surely_ended.get(number, [])):
            for one in held[bisect_left(held, first) : bisect_right(held, last)]:
                left.append((first, one - 1))
                first = one + 1
            left.append((first, last))
        return [(first, last) for first, last in left if first <= last]

    def recall(self, body: bytes) -> None:
        """Apply a READER found in a bad stretch if its number is the next one: items may hold other READERs."""
        change = records.read_reader(body)
        if change.reader == self.next_reader:
            self.change(change)

    def learn(self, next_reader: int, readers: list[records.ReaderState]) -> None:
        """Take the readers from a running server: these and no others."""
        known, self.readers = self.readers, {}
        for state in readers:
            found = known.get(state.number) or records.ReaderState(
                state.number, state.kind, state.name, state.at_id, state.at_id
            )
            found.name, found.head = state.name, max(found.head, state.head)
            self.readers[state.number] = found
        self.done = {number: self.done.get(number, []) for number in self.readers}
        self.next_reader = max(self.next_reader, next_reader)
        self._all_are_named = True
        self._met.clear()

    def restored(self, first_id: int, next_id: int) -> list[records.ReaderState]:
        """The readers, `settled`, with those that items were for or that were done with some.

        `first_id` is the lowest id left, `next_id` the one after the last that was given out.
        """
        unnamed = {number for number in (*self._met, *self.done) if not self.is_known(number)}
        names = {state.name for state in self.readers.values() if state.kind == records.Kind.QUEUE}
        if "" not in names and (not names or not self._all_are_named or unnamed):
            number = 1 if 1 not in self.readers and 1 not in self._dropped else self.next_reader
            if self._all_are_named and unnamed:
                number = min(unnamed)
            else:
                self.done[number] = []  # the reader that was done with items may have been another
            unnamed.discard(number)
            self._add(number, "", first_id)
        for number in sorted(unnamed):
            self._add(number, f"reader-{number}", first_id)
        for state in self.settled(next_id):
            state.segment = state.offset = state.held_items = state.held_bytes = 0
        return list(self.readers.values())

    def _add(self, number: int, name: str, first_id: int) -> None:
        self.next_reader = max(self.next_reader, number + 1)
        self.readers[number] = records.ReaderState(number, records.Kind.QUEUE, name, first_id, first_id)
        self.done.setdefault(number, [])
