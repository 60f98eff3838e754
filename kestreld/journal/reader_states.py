"""States of a journal's readers by its records: the one place that says what each means for a reader.

Startup, repair and verification take in the records one by one.
"""

from typing import Final

from kestreld.journal.records import (
    ID_MAX,
    NOTES,
    Abort,
    Checkpoint,
    Done,
    Due,
    FailedItem,
    Key,
    Kind,
    Origin,
    Range,
    ReaderChange,
    ReaderState,
    Reason,
    Type,
    Why,
    merged,
    read_abort,
    read_done,
    read_due,
    read_failure,
    read_holder,
    read_key,
    read_leases,
    read_origin,
    read_reader,
)

WAITING: Final = frozenset({Type.DONE, Type.DUE, Type.LEASE, Type.READER})  # all that says for whom an item waits


class ReaderStates:
    """Readers, and the items that each is done with or holds, by a CHECKPOINT and other records in their order.

    Of what `take_before` and `take` are passed, an item's last record counts. `readers` have what `done`, `due` and
    `keys` say only once they are `settled`. `base` None: no CHECKPOINT is known, and every reader is added by a READER.
    """

    def __init__(self, base: Checkpoint | None) -> None:
        self.readers: dict[int, ReaderState] = {}
        self.next_reader = self._first_new = base.next_reader if base is not None else 1
        self.done: dict[int, list[Range]] = {}  # ahead of the reader's head or not, in any order
        self.due: dict[int, dict[int, Due]] = {}  # held items of readers with a window, by id
        self.keys: dict[int, dict[bytes, Key]] = {}  # of the same readers, by digest
        self.origins: dict[int, Origin] = {}
        self.failures: dict[FailedItem, str] = dict(base.failures) if base is not None else {}
        self.holders: dict[int, str] = {}  # by number, as the latest segment has them
        self.first_id = 0  # held items below it were done, if only in memory, and are gone
        self._dropped: set[int] = set()
        self._at_ids: dict[int, int] = {}
        if base is not None:
            self.take_checkpoint(base)

    def take_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take in a CHECKPOINT that not all records before have led up to."""
        for state in checkpoint.readers:
            self.readers[state.number] = state
            self.done.setdefault(state.number, []).extend(state.done)
            self.join(state.number, state.kind, state.at_id)

    def join(self, number: int, kind: Kind, at_id: int) -> None:
        """Let a reader hold items from `at_id` on."""
        if kind == Kind.QUEUE:
            self._at_ids[number] = at_id
            self.due[number] = {}
            self.keys[number] = {}

    def take_before(self, record_type: int, body: bytes) -> None:
        """Take in a record before the CHECKPOINT, which says everything but what is held, and keys and origins."""
        if record_type in NOTES:
            self._note(record_type, body)
        elif record_type in (Type.LEASE, Type.HOLDER):
            self._take_lease(record_type, body)
        elif record_type == Type.DONE:
            self.end(read_done(body))

    def take(self, record_type: int, body: bytes) -> None:
        """Take in a record after the CHECKPOINT, of any type but PUT and CHECKPOINT."""
        if record_type == Type.DONE:
            self.finish(read_done(body))
        elif record_type in NOTES:
            self._note(record_type, body)
        elif record_type in (Type.LEASE, Type.HOLDER):
            self._take_lease(record_type, body)
        elif record_type == Type.ABORT:
            self.fail(read_abort(body))
        elif record_type == Type.FAILURE:
            failed, text = read_failure(body)
            self.failures.pop(failed, None)
            self.failures[failed] = text  # as the latest
        elif record_type == Type.READER:
            self.change(read_reader(body))

    def _note(self, record_type: int, body: bytes) -> None:
        if record_type == Type.DUE:
            self.hold(read_due(body))
        elif record_type == Type.KEY:
            key = read_key(body)
            if key.reader in self.keys:
                self.keys[key.reader][key.digest] = key
        else:
            origin = read_origin(body)
            self.origins[origin.item_id] = origin

    def _take_lease(self, record_type: int, body: bytes) -> None:
        if record_type == Type.LEASE:
            self.lease(read_leases(body, self.holders))
        else:
            number, name = read_holder(body)
            self.holders[number] = name

    def hold(self, due: Due) -> None:
        """Take in a DUE record."""
        if due.reader:
            if due.reader in self.due:
                self.due[due.reader][due.item_id] = due
            return
        for number, at_id in self._at_ids.items():
            if at_id <= due.item_id:
                self.due[number][due.item_id] = due

    def lease(self, leases: list[Due]) -> None:
        """Take in a LEASE record: its items are held, with the failures that were counted before."""
        number = leases[0].reader
        held, reader = self.due.get(number), self.readers.get(number)
        for due in leases if held is not None else ():
            assert held is not None
            known = held.get(due.item_id)
            if known is not None:
                due.attempts = known.attempts
                if known.why == Why.LEASED and known.lease == due.lease:  # it was extended
                    due.since_at_ms = known.since_at_ms or known.at_ms
            elif reader is not None:
                due.attempts = reader.retries.get(due.item_id, 0)
            held[due.item_id] = due

    def finish(self, done: Done) -> None:
        """Take in a DONE record."""
        self.end(done)
        self.done.setdefault(done.reader, []).extend(done.ranges)
        if (reader := self.readers.get(done.reader)) is not None:
            reader.items -= done.items
            reader.data_bytes -= done.data_bytes
            reader.ended[done.reason] += done.items

    def fail(self, abort: Abort) -> None:
        """Take in an ABORT record."""
        if abort.reader in self.readers:
            self.readers[abort.reader].retries[abort.item_id] = abort.times

    def end(self, done: Done) -> None:
        """Forget held items that are done. A flush also forgets the reader's keys."""
        known = self.due.get(done.reader)
        if known is None:
            return
        if done.reason == Reason.FLUSHED:
            self.keys[done.reader] = {}
        for first, last in done.ranges if known else ():
            if last - first < len(known):
                found = [one for one in range(first, last + 1) if one in known]
            else:
                found = [one for one in known if first <= one <= last]
            for one in found:
                del known[one]

    def change(self, change: ReaderChange) -> None:
        """Take in a READER record."""
        number = change.reader
        self.next_reader = max(self.next_reader, number + 1)
        if change.dropped:
            self._dropped.add(number)
            for known in (self.readers, self.due, self.keys, self._at_ids):
                known.pop(number, None)
        elif not self.is_known(number):
            self.readers[number] = ReaderState(number, change.kind, change.name, change.at_id, change.at_id)
            self.done.setdefault(number, [])
            if number not in self.due:
                self.join(number, change.kind, change.at_id)

    def is_known(self, number: int) -> bool:
        """True if a reader of that number is there, or was dropped."""
        return number in self.readers or number in self._dropped or number < self._first_new

    def is_ahead_of(self, next_id: int) -> bool:
        """True if an item is held that was never put."""
        return any(one >= next_id for known in self.due.values() for one in known)

    def settled(self, next_id: int) -> list[ReaderState]:
        """The readers, each with its head, the ranges done ahead of it, and what it holds.

        `next_id` follows the last id that was given out: a torn tail may have had the PUTs of others.
        """
        for number, state in self.readers.items():
            held, head = self.due.get(number, {}), state.head
            # The reader must not meet held items among waiting ones.
            settle(state, [*self.done[number], *[(one, one) for one in held if head <= one < next_id]])
            state.retries = {one: times for one, times in state.retries.items() if one < next_id}
            state.due = {one: due for one, due in held.items() if self.first_id <= one < next_id}
            state.keys = [key for key in self.keys.get(number, {}).values() if key.item_id < next_id]
        self.failures = {
            (number, one): text
            for (number, one), text in self.failures.items()
            if number in self.readers and one < next_id
        }
        return list(self.readers.values())


def settle(reader: ReaderState, done: list[Range]) -> None:
    """Advance the head over done ids, and keep the ranges ahead of it, merged and in order."""
    ahead = merged(done)
    while ahead and ahead[0][0] <= reader.head:
        reader.head = max(reader.head, ahead.pop(0)[1] + 1)
    reader.done = ahead
    if reader.retries:
        reader.retries = {
            retried: times
            for retried, times in reader.retries.items()
            if retried >= reader.head and not any(first <= retried <= last for first, last in ahead)
        }


def undone(state: ReaderState) -> list[Range]:
    """Ids that a reader has yet to finish, held ones included; the last range is open-ended (ID_MAX)."""
    ranges, first = [], state.head
    for done_first, done_last in state.done:
        if first < done_first:
            ranges.append((first, done_first - 1))
        first = max(first, done_last + 1)
    ranges.append((first, ID_MAX))
    return merged([*ranges, *((one, one) for one in state.due)])
