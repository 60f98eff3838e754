"""A queue family: one journal, the readers of parent and children, and the commit of their progress.

A commit is one write: READER, ABORT and FAILURE records, then each PUT after its DUE, KEY and ORIGIN records, then the
readers' DONEs, then the LEASEs of the turn. While a journal has failed, puts are refused and gets go on: the CHECKPOINT
of the next segment says what they did, and leases are written after it. Puts are in queue_puts.py; the readers' view of
their family is in family.py.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator

from kestreld.clock import Clock
from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    LEASES_VERSION,
    Checkpoint,
    Done,
    Kind,
    Origin,
    ReaderChange,
    Reason,
    done_record,
    item_id,
    item_optional_fields,
    reader_record,
)
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.family import FAILURES_MAX, Family, full_name
from kestreld.queues.holders import Holders
from kestreld.queues.item import ITEM_HEADER_BYTES, data_bytes_of
from kestreld.queues.memory import Memory
from kestreld.queues.notes import Note
from kestreld.queues.queue_puts import QueuePuts
from kestreld.queues.reader import Reader
from kestreld.queues.stream import Stream


def _none_is_left(item: int) -> bool:
    return False


def _none_is_lost(item: int) -> bool:
    return False


class Queue(QueuePuts):
    """All readers on one journal. `journal` is None for a queue kept in memory only."""

    __slots__ = ("holders", "next_reader", "segments_max", "streams", "unsaid")

    def __init__(
        self,
        name: str,
        journal: Journal | None,
        clock: Clock,
        commit: GroupCommit,
        report: Callable[[str], None],
        memory: Memory,
        mover: Callable[[str, bytes, int, Origin | None], Family | None],
        agenda: Agenda,
    ) -> None:
        super().__init__(name, journal, clock, commit, report, memory, mover, agenda)
        self.next_reader = 1
        self.streams: dict[str, Stream] = {}
        self.unsaid: list[bytes] = []  # DONE records of held items, for the segment after a failed one
        self.holders = Holders()  # as the live segment numbers them
        self.segments_max = 10  # limit of the journal, as a multiple of segment_bytes_max

    def configure(self, config: QueueConfig) -> None:
        """Set how the journal is synced, and how large its segments become."""
        self.sync_ms = config.sync_journal_ms
        self.segment_bytes_max, self.segments_max = config.max_journal_size_bytes, config.max_journal_overflow

    def restore(
        self,
        state: Checkpoint,
        config_for: Callable[[str], QueueConfig],
        is_lost: Callable[[int], bool] = _none_is_lost,
    ) -> None:
        """Restore the state that a journal says. Existing readers keep their open reads and figures.

        `is_lost` returns True for an open item that the journal no longer has.
        """
        self.next_id = state.next_id
        self.next_reader = state.next_reader
        self.put_items, self.put_bytes = state.put_items, state.put_bytes
        self.unsaid = []  # it is about items that are held again
        for known in state.readers:
            if known.kind == Kind.STREAM:
                self.streams[known.name] = Stream(known.name, known.number, known.at_id, known)
                continue
            reader = self.readers.get(known.name)
            if reader is None:
                config = config_for(full_name(self.name, known.name))
                reader = self.readers[known.name] = Reader(self, known.name, known.number, known.at_id, config)
            reader.restore(known, is_lost)
        self.origins, self.failures = state.origins, state.failures
        self.forget_origins()
        if len(self.failures) > FAILURES_MAX:
            self.forget_failures()
        self.reattach()

    def reopen(self, journal: Journal) -> None:
        """Use a repaired journal. `restore` comes next."""
        self.journal = journal
        self.stopped = None
        self.holders = Holders()
        for reader in self.readers.values():
            reader.start_over()

    # Readers

    def first_reader(self) -> Reader:
        """The oldest reader."""
        return min(self.readers.values(), key=lambda reader: reader.number)

    def add_reader(self, label: str, config: QueueConfig) -> Reader:
        """Add a queue reader, which receives items put from now on."""
        self.flush_counters()  # earlier puts are not for this reader
        reader = Reader(self, label, self.next_reader, self.next_id, config)
        self.next_reader += 1
        self.readers[label] = reader
        self._note_reader(reader.number, Kind.QUEUE, label, dropped=False)
        self.reattach()
        return reader

    def rename_reader(self, reader: Reader, label: str) -> None:
        """Give a reader another name. The journal gets it by a CHECKPOINT."""
        del self.readers[reader.label]
        reader.rename(label)
        self.readers[label] = reader

    def drop_reader(self, label: str) -> Reader:
        """Remove a reader from the journal. Its waiters get nothing; its open reads belong to nobody."""
        reader = self.readers.pop(label)
        reader.drop()
        self._note_reader(reader.number, Kind.QUEUE, label, dropped=True)
        self.reattach()
        return reader

    def forget_reader(self, reader: Reader) -> None:
        """Remove a reader that the journal does not know: it was being created, or its removal is written."""
        self.readers = {label: one for label, one in self.readers.items() if one is not reader}
        reader.drop()

    def count_waiters(self) -> None:
        """Recount the waiters of all readers."""
        self.waiting = sum(reader.wait_queue.waiting for reader in self.readers.values())

    def add_stream(self, name: str, at_id: int) -> Stream:
        """Add a reader that only remembers its position, which begins at `at_id`."""
        stream = Stream(name, self.next_reader, at_id)
        self.next_reader += 1
        self.streams[name] = stream
        self._note_reader(stream.number, Kind.STREAM, name, dropped=False, at_id=at_id)
        return stream

    def drop_stream(self, name: str) -> None:
        stream = self.streams.pop(name)
        self._note_reader(stream.number, Kind.STREAM, name, dropped=True)

    def advance_stream(self, name: str, through: int) -> None:
        """Mark everything up to and including `through` as done for a stream."""
        stream = self.streams[name]
        through = min(through, self.settled_id() - 1)
        if through >= stream.head:
            record = stream.advance(through, self.clock.wall_ms)
            self.mark_dirty()
            self.control.append(record)

    def _note_reader(self, number: int, kind: Kind, name: str, *, dropped: bool, at_id: int = 0) -> None:
        self.mark_dirty()
        change = ReaderChange(number, dropped, kind, self.clock.wall_ms, at_id or self.next_id, name)
        self.control.append(reader_record(change))

    # The commit

    def commit(self) -> None:
        self.flush_counters()
        now_ms = self.clock.wall_ms
        first_new_id = self.next_id - len(self.pending)
        if self.journal is not None:
            notes = self._take_notes(self.journal) if self.notes.due else None
            puts = self.pending
            if notes:
                for note in notes:
                    note.repeat_lease()
            if notes or self.notes.of_puts:
                puts = self.notes.written_before(notes or (), puts, first_new_id)
            parts = self.control + puts
            for reader in self.readers.values():
                parts += reader.done_records(now_ms)
            if self.feeder is not None and self.pending:
                parts.append(self._passed_on(self.feeder, first_new_id, now_ms))
            if (self.leasing or notes is not None) and self._may_write_leases(self.journal):
                self._add_lease_records(parts, self.next_id)
                self.leasing = False
            if parts:
                try:
                    self._write(self.journal, parts, first_new_id)
                except JournalFailed:
                    self._undo_written_leases()
                    self._undo(first_new_id)
                    self.dirty = False
                    raise
            if notes:
                self.notes.wrote(notes, is_synced=self.sync_ms == 0)
        if self.sync_ms == 0:
            self.sync.wrote(self.pending)
        if self.pending or self.sync_ms == 0:
            self.pending = []  # a new list, even if it is empty: the old one is in flight
            self.counted_items = 0
        if self.control:
            self.control = []
        if self.notes.of_puts:
            self.notes.committed()
        for reader in self.readers.values():
            reader.committed(now_ms)
        self.commits += 1
        self.dirty = False
        if self.followers:
            self.tell_followers()

    def feeds_nobody(self) -> bool:
        return len(self.readers) == 1 and not self.streams

    def _passed_on(self, feeder: Reader, first_new_id: int, now_ms: int) -> bytes:
        """DONE record of a `fanout_only` parent: it is done with whatever is put."""
        own = [record for record in self.pending if item_optional_fields(record)[2] in (0, feeder.number)]
        feeder.ended_items[Reason.DISCARDED] += len(own)
        ids = [(first_new_id, self.next_id - 1)]
        return done_record(Done(feeder.number, Reason.DISCARDED, now_ms, len(own), data_bytes_of(own), ids))

    def expect_leases(self) -> None:
        journal = self.journal
        if journal is not None and journal.live_version < LEASES_VERSION and any(self._leasing(self.next_id)):
            journal.need_version(LEASES_VERSION)
            if self.sync_ms == 0:
                self.want_segment(wanted=True)  # it begins when the commit is on disk

    def commit_leases(self) -> bool:
        self.leasing = False
        journal = self.journal
        if journal is None or self.stopped is not None or journal.failed is not None or not journal.segments:
            return True
        if self.sync.rolls:
            # The segment that is begun then has them before replies leave that wait for the sync.
            self.leasing = any(self._leasing(self.next_id))
            return True
        first_new_id, parts = self.next_id - len(self.pending), list[bytes]()
        try:
            if journal.live_version < LEASES_VERSION:
                if not any(self._leasing(first_new_id)):
                    self._mark_pending_leases()
                    return True
                journal.need_version(LEASES_VERSION)
                may_lose_live = self.sync_ms == 0 and journal.may_lose_live
                if may_lose_live:
                    self.want_segment(wanted=True)  # it begins when the live one is on disk
                if may_lose_live or not self.is_idle:
                    self.leasing = True
                    return False
                self.start_segment(journal, self.checkpoint())
                self.leasing = False
            self._add_lease_records(parts, first_new_id)
            self._mark_pending_leases()
            if not parts:
                return True
            used_bytes = journal.append(b"".join(parts), first_new_id)
            if not used_bytes:
                journal.write(parts, first_new_id)
        except JournalFailed as failure:
            self._undo_written_leases()
            self.review_next_put()
            self.report(f"{self.name}: {failure}; leases are in memory until the disk takes them")
            return True
        if self.sync_ms == 0:
            return True  # it is rolled when it is on disk
        is_full = not 0 < used_bytes < self.segment_bytes_max and self.wants_segment(journal)
        if is_full and self not in self.commit_group.rolling:
            self.commit_group.rolling.append(self)
        return True

    def _mark_pending_leases(self) -> None:
        """Have leases of items whose PUT is not written go with it: the queue is dirty."""
        if self.pending:
            self.leasing = any(self._leasing(self.next_id))

    def _may_write_leases(self, journal: Journal) -> bool:
        """False while the journal takes no LEASE records: it has failed, or needs a segment of their version first."""
        return self.stopped is None and journal.failed is None and journal.live_version >= LEASES_VERSION

    def _leasing(self, before_id: int) -> Iterator[Reader]:
        """Readers with unwritten leases of items below `before_id`."""
        for reader in self.readers.values():
            if reader.held is not None and any(one < before_id for one in reader.held.unwritten_leases):
                yield reader

    def _add_lease_records(self, parts: list[bytes], before_id: int) -> None:
        for reader in self.readers.values():
            if reader.held is not None and reader.held.unwritten_leases:
                reader.add_lease_records(parts, before_id, self.holders)

    def _undo_written_leases(self) -> None:
        for reader in self.readers.values():
            if reader.held is not None:
                reader.held.undo_written_leases()

    def _take_notes(self, journal: Journal) -> list[Note]:
        """DUE records for this commit; none while the live segment has failed or is of version 1."""
        if journal.failed is not None or journal.live_version < 2:
            return []
        return self.notes.take_due(is_stopped=self.stopped is not None)

    def _write(self, journal: Journal, parts: list[bytes], first_new_id: int) -> None:
        if not journal.segments:
            journal.start_segment(Checkpoint(1, 0, first_new_id, 1))
        if journal.failed is not None:
            if self.pending:
                raise journal.failed
            for reader in self.readers.values():
                self.unsaid += reader.done_of_held(self.clock.wall_ms)
            return  # gets go on; the next segment says what they did
        live = journal.segments[-1]
        if self.sync_ms == 0:
            self.sync.write_at(live.number, live.used_bytes)
        offset = journal.write(parts, first_new_id)
        for reader in self.readers.values():
            if reader.detached_at >= 0:
                before = parts[: parts.index(self.pending[reader.detached_at - 1]) + 1] if reader.detached_at else ()
                reader.read_on_at(live.number, offset + sum(map(len, before)))

    def commit_synced(self) -> None:
        self.sync.succeed()
        self.notes.none_in_flight()
        if any(self._leasing(self.next_id)):
            self.mark_leased()  # they have waited for a segment of their version
        for reader in self.readers.values():
            reader.none_in_flight()
        if self.followers:
            self.tell_followers()

    def forget_syncing(self) -> None:
        self.sync.give_up()
        self.notes.none_in_flight()
        for reader in self.readers.values():
            reader.none_in_flight()

    def undo_syncing(self) -> None:
        self.flush_counters()
        in_flight = self.sync.give_up()
        if self.journal is not None:
            self.journal.cut_back(*self.sync.written_at)
            self.pending = in_flight + self.pending
            self.notes.undo_syncing()
            self._undo_written_leases()
            self._undo(self.next_id - len(self.pending))
            self.control = []

    def _undo(self, first_new_id: int) -> None:
        for record in self.pending:
            for reader in self.readers.values():
                reader.undo_put(record)
        for reader in self.readers.values():
            reader.undo(first_new_id)
        self.put_items -= len(self.pending)
        self.put_bytes -= data_bytes_of(self.pending)
        self.counted_items = self.private = 0
        self._undo_from(first_new_id)
        self.reattach()
        self.leasing = False
        if any(self._leasing(self.next_id)):
            self.mark_leased()

    def settle_moves(self, failed: Container[Committed]) -> None:
        self.moving = False
        for reader in self.readers.values():
            if reader.moving:
                reader.settle_moves(failed)
                self.moving = self.moving or bool(reader.moving)

    def checkpoint(self) -> Checkpoint:
        if self.stopped is not None:
            raise self.stopped  # windows are empty: a CHECKPOINT would say that everything is done
        states = [reader.state() for reader in self.readers.values()]
        states.extend([stream.state() for stream in self.streams.values()])
        lowest = [reader.held_from() for reader in self.readers.values()]
        held_from = min([one for one in (*lowest, self.lowest_origin()) if one], default=0)
        checkpoint = Checkpoint(0, 0, self.next_id, self.next_reader, self.put_items, self.put_bytes, states, held_from)
        if self.failures:
            self.forget_failures()
            checkpoint.failures.update(self.failures)
        return checkpoint

    def forget_failures(self) -> None:
        is_left = {reader.number: reader.not_done() for reader in self.readers.values()}
        left = [one for one in self.failures.items() if is_left.get(one[0][0], _none_is_left)(one[0][1])]
        if len(left) > FAILURES_MAX:
            del left[: len(left) - FAILURES_MAX * 3 // 4]  # many at once: each call looks at all
        self.failures = dict(left)

    def is_ahead(self, journal: Journal) -> bool:
        """True if segments are of the version for leases, although no reader has leases written any more."""
        return not self._writes_leases and journal.had_leases

    @property
    def _writes_leases(self) -> bool:
        return any(reader.config.journal_leases for reader in self.readers.values())

    def _version_without_leases(self) -> int:
        """The version for segments of a journal that had leases: 2, or 3 if reasons of failures are known."""
        has_reasons = self.failures or any(origin.failure for origin in self.origins.values())
        return 3 if self.dirty or has_reasons else 2  # what is yet to be written may have one

    def start_segment(self, journal: Journal, checkpoint: Checkpoint, filled: int = -1, unsaid: bytes = b"") -> None:
        if journal.version >= LEASES_VERSION and not self._writes_leases:
            journal.go_back_to(self._version_without_leases())
        super().start_segment(journal, checkpoint, filled, b"".join(self.unsaid))
        self.holders = Holders()
        self.unsaid = []
        for reader in self.readers.values():
            reader.note_doubtful()
        if self.notes.due:
            self.mark_dirty()  # notes may have waited for this segment
        if any(self._leasing(self.next_id)):
            self.mark_leased()  # so may leases

    def note_leases(self) -> None:
        """Have the next commit write the running leases. Raises JournalFailed."""
        if any(
            reader.held is not None and reader.held.leases and not reader.held.writes_leases
            for reader in self.readers.values()
        ):
            self.use_version(2)
            for reader in self.readers.values():
                reader.note_leases()
        if any(self._leasing(self.next_id)):
            self.mark_leased()

    # Interrupted turns and damage

    def forget_turn(self, held: Callable[[Reader], Collection[int]]) -> None:
        """Forget the state left by an interrupted turn: the journal is right. Only `held` reads stay open.

        A queue without a journal keeps the items in its windows: after this a put is in all of them or in none.
        """
        if self.in_memory:
            self._take_back_half_put()
        self.pending, self.counted_items, self.private, self.control = [], 0, 0, []
        self.notes.clear()
        self.moving = self.dirty = self.leasing = False
        self.holders = Holders()  # their records may not be written
        for reader in self.readers.values():
            reader.forget_turn(held(reader))
            if self.in_memory:
                reader.count_anew()
        self.reattach()

        if self._again is not None:
            self.do_whole(self._again)

    def _take_back_half_put(self) -> None:
        if not self.pending:
            return
        half, only = self.pending[-1], item_optional_fields(self.pending[-1])[2]
        readers = [one for one in self.readers.values() if only in (0, one.number) and one is not self.feeder]
        if not any(reader.has_fetched(half) for reader in readers) and not all(one.has_last(half) for one in readers):
            for reader in readers:
                if reader.window and reader.window[-1] == half:
                    reader.window.pop()
                elif reader.held is not None:
                    reader.held.undo_put(item_id(half))

    def stop(self, problem: JournalCorrupt) -> None:
        """Stop this queue: its journal cannot be trusted. It answers with an error; other queues are not affected."""
        if self.stopped is None:
            self.stay_stopped(problem)
            self.review_next_put()
            self.report(problem.with_remedy(f"{self.name}: stopped: {problem}"))
            self.notes.drop_untrue()  # before readers forget items: pending puts are still written
            for reader in self.readers.values():
                reader.stop(problem)
            self.tell_followers()

    # Reading without consuming

    def lowest_head(self) -> int:
        heads = [reader.head() for reader in self.readers.values()]
        heads.extend([stream.head for stream in self.streams.values()])
        return min(heads, default=self.next_id)

    def live_bytes(self) -> tuple[int, int]:
        """Approximate data bytes in the journal that are still needed; and the same with record overhead."""
        self.flush_counters()
        data_bytes = record_bytes = 0
        for reader in self.readers.values():
            own_bytes, items = reader.data_bytes + reader.open_bytes, reader.items + len(reader.open)
            if (held := reader.held) is not None:
                own_bytes += held.later_bytes
                items += 2 * len(held.later) + len(held.ready)  # with a DUE record each
            data_bytes = max(data_bytes, own_bytes)
            record_bytes = max(record_bytes, own_bytes + items * ITEM_HEADER_BYTES)
        if self.journal is not None and self.streams:
            needed_bytes = max(self.journal.needed_bytes(stream.head) for stream in self.streams.values())
            data_bytes, record_bytes = max(data_bytes, needed_bytes), max(record_bytes, needed_bytes)
        return data_bytes, record_bytes

    @property
    def holds_back(self) -> bool:
        """True if any reader has had items with a time or an owner of their own."""
        return any(reader.held is not None for reader in self.readers.values())

    @property
    def needs_notes(self) -> bool:
        """True if a compacted segment must have records about items beside the items themselves."""
        return bool(self.origins) or self.holds_back

    def free_dropped(self) -> bool:
        """Free part of the items dropped by flushes; False if nothing is left."""
        return any(reader.held.free_dropped() for reader in self.readers.values() if reader.held is not None)

    def untrack(self) -> None:
        """Stop tracking held items: no compaction reads them any more."""
        for reader in self.readers.values():
            if reader.held is not None:
                reader.held.untrack()


def as_queues(queues: Iterable[Committed]) -> list[Queue]:
    """The queues among the entries of a GroupCommit list."""
    return [queue for queue in queues if isinstance(queue, Queue)]
