"""A queue family: one journal, the parent's reader and its children's, and what was put since the last commit."""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from xxhash import xxh3_64_intdigest

from kestreld.clock import Clock
from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    ADD_FACTOR as _ADD_FACTOR,
)
from kestreld.journal.records import (
    PUT,
    PUT_FIELDS_BYTES,
    RECORD_BYTES_MAX,
    Abort,
    Checkpoint,
    Due,
    Key,
    Kind,
    Origin,
    ReaderChange,
    Why,
    abort_record,
    due_record,
    item_id,
    item_optional_fields,
    key_record,
    origin_record,
    product,
    put_record,
    reader_record,
)
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.memory import ITEM_COST_BYTES, Memory
from kestreld.queues.reader import Reader, Stream, full_name

T = TypeVar("T")
RETRY_FULL_DISK_MS: Final = 1000
ORIGINS_FEW: Final = 1024
# Final, and of this module, a name is found sooner.
_pack_put: Final = PUT.pack
_checksum: Final = xxh3_64_intdigest


def _none_is_lost(item: int) -> bool:
    return False


class Note:
    """A DUE record that is to be written, about an item of these readers. `is_first`: there is none about it yet."""

    __slots__ = ("due", "due_at_ms", "is_first", "item_id", "readers", "record")

    def __init__(self, readers: list[Reader], due: Due, due_at_ms: int, *, is_first: bool) -> None:
        self.readers = readers
        self.due = due
        self.due_at_ms = due_at_ms  # on the monotonic clock
        self.is_first = is_first
        self.item_id = due.item_id
        self.record = due_record(due)

    def still_holds(self, reader: Reader) -> bool:
        """Whether it is still true: the item may have gone on, or its reader be no more."""
        held = reader.held
        if held is None or reader.deleted:
            return False
        value = held.later.get(self.item_id) or held.ready.get(self.item_id)
        return held.due_of(value) == self.due_at_ms if value is not None else self.item_id in held.out

    def for_one(self, reader: Reader) -> "Note":
        return Note([reader], replace(self.due, reader=reader.number), self.due_at_ms, is_first=self.is_first)

    def was_not_written(self) -> None:
        for reader in self.readers:
            if self.is_first and self.still_holds(reader):
                reader.held_items().unnoted.add(self.item_id)


class Queue(Committed):
    """All readers on one journal, and the PUTs not yet committed. `journal` is None for a queue kept in memory only."""

    __slots__ = (
        "_again", "_origins_max", "agenda", "commits", "control", "counted_items", "first_id_here", "followers",
        "in_memory", "key_records", "memory", "mover", "next_id", "next_reader", "notes", "notes_in_flight",
        "origins", "pending", "private", "put_bytes", "put_items", "readers", "seed", "seeded_at_ms", "segments_max",
        "streams", "undone_from", "unsaid", "windows",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        journal: Journal | None,
        clock: Clock,
        commit: GroupCommit,
        report: Callable[[str], None],
        memory: Memory,
        mover: "Callable[[str, bytes, int, Origin | None], Queue | None]",
        agenda: Agenda,
    ) -> None:
        super().__init__(name, journal, clock, commit, report)
        self.in_memory = journal is None
        self.memory = memory
        self.agenda = agenda
        self.mover = mover  # puts an item on the queue of a name; which that is, or None where it is refused

        self.next_id = 1
        self.next_reader = 1
        self.put_items = 0  # of all time, as of the last flush_counters
        self.put_bytes = 0
        self.readers: dict[str, Reader] = {}
        self.streams: dict[str, Stream] = {}
        self.windows: tuple[deque[bytes], ...] = ()
        self.seeded_at_ms = -1
        self.seed = 0  # what the checksums of items put at that instant, of size 0 and id 0, start from

        self._again: Callable[[], object] | None = None  # what is under way that only all of it may be done of
        self.first_id_here = 1  # what was put since this process knows the queue
        self.undone_from = 0  # the lowest id that a failed commit has taken back since `watch_undone`
        self.control: list[bytes] = []  # READER and ABORT records, and streams' DONEs, since the last commit
        self.pending: list[bytes] = []  # PUT records since the last commit
        self.notes: list[Note] = []  # DUE records, each written before the PUT that it is about
        self.key_records: list[tuple[int, bytes]] = []  # and ORIGINs: ids of pending PUTs, and what goes before each
        self.origins: dict[int, Origin] = {}  # of items that were moved here
        self._origins_max = ORIGINS_FEW  # with more of them, those of items that are done are forgotten
        self.notes_in_flight: list[Note] = []  # of a commit that is not on disk yet
        self.unsaid: list[bytes] = []  # DONE records of held items that a failed segment did not take
        self.counted_items = 0
        self.private = 0  # pending records addressed to one reader
        self.segments_max = 10  # so many times segment_bytes_max before the journal is compacted
        self.commits = 0  # so many there have been since the start
        self.followers: list[Callable[[], None]] = []  # told when items have settled, or none will any more

    def configure(self, config: QueueConfig) -> None:
        """How its journal is kept from now on."""
        self.sync_ms = config.sync_journal_ms
        self.segment_bytes_max, self.segments_max = config.max_journal_size_bytes, config.max_journal_overflow

    def restore(
        self,
        state: Checkpoint,
        config_for: Callable[[str], QueueConfig],
        is_lost: Callable[[int], bool] = _none_is_lost,
    ) -> None:
        """Be what a journal says. Readers that are there already keep their open reads and figures.

        `is_lost` says of an item that is open whether the journal has it no more.
        """
        self.next_id = self.first_id_here = state.next_id
        self.next_reader = state.next_reader
        self.put_items, self.put_bytes = state.put_items, state.put_bytes
        self.unsaid = []  # what it would say of items that are held again
        for known in state.readers:
            if known.kind == Kind.STREAM:
                self.streams[known.name] = Stream(known.name, known.number, known.at_id, known)
                continue
            reader = self.readers.get(known.name)
            if reader is None:
                config = config_for(full_name(self.name, known.name))
                reader = self.readers[known.name] = Reader(self, known.name, known.number, known.at_id, config)
            reader.restore(known, is_lost)
        self.origins = state.origins
        self.forget_origins()
        self.reattach()

    def reopen(self, journal: Journal) -> None:
        """Its journal has been repaired, and what it says is to be restored."""
        self.journal = journal
        self.stopped = None
        for reader in self.readers.values():
            reader.start_over()

    def leave_journal(self) -> None:
        """Its journal has been deleted: nothing is written any more."""
        self.pending, self.control, self.notes, self.key_records = [], [], [], []
        self.journal = None

    # Readers

    def add_reader(self, label: str, config: QueueConfig) -> Reader:
        """A new queue reader; it receives what is put from now on."""
        self.flush_counters()  # what was put before is none of its items
        reader = Reader(self, label, self.next_reader, self.next_id, config)
        self.next_reader += 1
        self.readers[label] = reader
        self._note_reader(reader.number, Kind.QUEUE, label, dropped=False)
        self.reattach()
        return reader

    def drop_reader(self, label: str) -> Reader:
        """Take a reader off the journal. Its waiters get nothing; its open reads belong to nobody."""
        reader = self.readers.pop(label)
        reader.drop()
        self._note_reader(reader.number, Kind.QUEUE, label, dropped=True)
        self.reattach()
        return reader

    def add_stream(self, name: str, at_id: int) -> Stream:
        """A reader that only remembers how far it has come, from `at_id` on."""
        stream = Stream(name, self.next_reader, at_id)
        self.next_reader += 1
        self.streams[name] = stream
        self._note_reader(stream.number, Kind.STREAM, name, dropped=False, at_id=at_id)
        return stream

    def drop_stream(self, name: str) -> None:
        stream = self.streams.pop(name)
        self._note_reader(stream.number, Kind.STREAM, name, dropped=True)

    def advance_stream(self, name: str, through: int) -> None:
        """The stream is done with everything up to and including `through`."""
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

    def note_abort(self, reader: Reader, aborted: int, times: int) -> None:
        self.mark_dirty()
        self.control.append(abort_record(Abort(reader.number, self.clock.wall_ms, aborted, times)))

    def reattach(self) -> None:
        """The set of windows that puts append to has changed; how much room there is is open again."""
        self.windows = tuple(reader.window for reader in self.readers.values() if reader.attached)
        self.review_next_put()

    # Putting

    def put(self, data: bytes) -> bool:
        """Add an item for every reader. False when it is refused: too large, or a reader is full.

        Raises JournalFailed or JournalCorrupt when the journal takes nothing. The way of most items: a hot copy of
        `put_with`, and of `put_record` in it.
        """
        size = len(data)
        if size > self.put_budget and not self._make_room(size, None):
            return False
        self.put_budget -= size
        added = self.next_id
        self.next_id = added + 1
        now_ms = self.clock.wall_ms
        if now_ms != self.seeded_at_ms:
            self.seed_at(now_ms)
        checksum = _checksum(data, self.seed + added + size) & 0xFFFFFFFF  # as put_record does
        record = _pack_put(PUT_FIELDS_BYTES + size, checksum, 1, added, now_ms, 0, 0, 0) + data
        if not self.dirty:
            self.mark_dirty()
        self.pending.append(record)
        for window in self.windows:
            window.append(record)
        if self.waiting:
            self.wake()
        return True

    def seed_at(self, now_ms: int) -> int:
        """What checksums of items put at that instant start from."""
        seed = self.seed = PUT_FIELDS_BYTES + product(now_ms, _ADD_FACTOR)
        self.seeded_at_ms = now_ms  # last: checksums would be wrong where this is cut short
        return seed

    def put_with(self, data: bytes, expire_at_ms: int, flags: int, only: Reader | None) -> bool:
        """`put` with an expiry (0 = never), flags, or for `only` one reader."""
        if not (expire_at_ms or flags or only is not None):
            return self.put(data)
        size = len(data)
        if size > self.put_budget and not self._make_room(size, only):
            return False
        added = self.next_id
        self.next_id = added + 1
        number = only.number if only is not None else 0
        record = put_record(added, self.clock.wall_ms, expire_at_ms, flags, number, data)
        self.mark_dirty()
        if only is not None:
            self.flush_counters()
            self.private += 1
        self.pending.append(record)
        for reader in self.readers.values() if only is None else (only,):
            if reader.attached:
                reader.append_with_metadata(record)
        self.review_next_put()
        if only is not None:
            self.flush_counters()
        if self.waiting:
            self.wake()
        return True

    def put_later(self, data: bytes, expire_at_ms: int, flags: int, only: Reader | None, delay_ms: int) -> bool:
        """`put_with` of an item that is not delivered before so long from now. What it counts as is counted here."""
        size = len(data)
        if size > self.put_budget and not self._make_room(size, only):
            return False
        self.use_version_2()
        self.flush_counters()
        added = self.next_id
        self.next_id = added + 1
        number = only.number if only is not None else 0
        record = put_record(added, self.clock.wall_ms, expire_at_ms, flags, number, data)
        self.mark_dirty()
        self.pending.append(record)
        self.counted_items = len(self.pending)
        self.put_items += 1
        self.put_bytes += size
        due_at_ms = self.clock.monotonic_ms + delay_ms
        readers = list(self.readers.values()) if only is None else [only]
        for reader in readers:
            reader.hold_new(record, due_at_ms)
        self.note_due(readers, number, added, due_at_ms, size, Why.DELAYED)
        self.review_next_put()
        return True

    def put_keyed(
        self, key: bytes, reader: Reader, data: bytes, expire_at_ms: int, flags: int, only: Reader | None, delay_ms: int
    ) -> bool:
        """`put_with`, or `put_later`, of an item with a key that `reader` must not know. Raises JournalFailed."""
        self.use_version_2()
        one = self.next_id
        if delay_ms:
            stored = self.put_later(data, expire_at_ms, flags, only, delay_ms)
        else:
            stored = self.put_with(data, expire_at_ms, flags, only)
        if stored:
            reader.remember_key(key, one, delay_ms)
        return stored

    def put_moved(self, data: bytes, flags: int, only: Reader | None, origin: Origin) -> bool:
        """`put_with` of an item that comes from another queue. Raises as `put_with`, and JournalFailed."""
        self.use_version_2()
        one = self.next_id
        if not self.put_with(data, 0, flags, only):
            return False
        self.origins[one] = replace(origin, item_id=one)
        if self.journal is not None:
            self.key_records.append((one, origin_record(self.origins[one])))
        if len(self.origins) > self._origins_max:
            self.forget_origins()
        return True

    def forget_origins(self) -> None:
        """Keep those of items that may be waiting only."""
        head = self.lowest_head()
        self.origins = {one: origin for one, origin in self.origins.items() if one >= head}
        self._origins_max = 2 * len(self.origins) + ORIGINS_FEW

    def lowest_origin(self) -> int:
        """The lowest id of an item that was moved here and may be waiting; 0 = there is none."""
        if not self.origins:
            return 0
        head = self.lowest_head()
        while self.origins and (first := next(iter(self.origins))) < head:
            del self.origins[first]
        return next(iter(self.origins), 0)

    def note_due(
        self,
        readers: list[Reader],
        number: int,
        one: int,
        due_at_ms: int,
        size: int,
        why: Why,
        attempts: int = 0,
        lease: int = 0,
        *,
        is_first: bool = True,
    ) -> None:
        """Have the next commit say when an item is due to the reader of that number, or (0) to all."""
        if self.journal is None:
            return
        now_ms = self.clock.wall_ms
        due_wall_ms = max(now_ms + due_at_ms - self.clock.monotonic_ms, 0)
        due = Due(number, why, one, now_ms, due_wall_ms, size, attempts, lease)
        self.mark_dirty()
        self.notes.append(Note(readers, due, due_at_ms, is_first=is_first))
        if self.journal.live_version < 2:
            self.journal.need_version(2)
            self.want_segment(wanted=True)

    def first_reader(self) -> Reader:
        """The one that has been there longest."""
        return min(self.readers.values(), key=lambda reader: reader.number)

    def note_key(self, reader: Reader, digest: bytes, one: int, left_ms: int) -> None:
        """Have the commit of a put say what key it had. `use_version_2` comes before the put."""
        if self.journal is not None:
            now_ms = self.clock.wall_ms
            record = key_record(Key(reader.number, one, now_ms, now_ms + left_ms, digest))
            self.key_records.append((one, record))

    def note_leases(self) -> None:
        """Have the journal say which leases run. Raises JournalFailed."""
        if any(reader.held is not None and reader.held.leases for reader in self.readers.values()):
            self.use_version_2()
            for reader in self.readers.values():
                reader.note_leases()

    def use_version_2(self) -> None:
        """Have the journal in a version that has DUE records before one is promised.

        Raises JournalFailed, and JournalCorrupt where the queue has stopped.
        """
        journal = self.journal
        if journal is None or journal.live_version >= 2:
            return
        journal.need_version(2)
        if journal.segments:
            try:
                self.commit_group.settle(self)
                self.start_segment(journal, self.checkpoint())
            except JournalFailed as failure:
                self.report(f"{self.name}: {failure}")
                raise

    def put_at_once(self, data: bytes) -> bool:
        """`put` and its commit: a turn in which nothing else goes on. A hot copy of these two.

        For the library, where every operation is a turn of its own: what is in the journal afterwards, and what has
        been counted, is as after any other turn. False, with nothing done, where it takes more than to append a
        record. Raises JournalFailed as a turn does.
        """
        size = len(data)
        if size > self.put_budget or self.waiting:
            return False
        added, now_ms = self.next_id, self.clock.read_wall()
        seed = self.seed if now_ms == self.seeded_at_ms else self.seed_at(now_ms)
        checksum = _checksum(data, seed + added + size) & 0xFFFFFFFF
        record = _pack_put(PUT_FIELDS_BYTES + size, checksum, 1, added, now_ms, 0, 0, 0) + data
        if not self.append_at_once(record, added):
            return False
        self.next_id = added + 1
        self.put_budget -= size
        self.put_items += 1
        self.put_bytes += size
        for reader in self.readers.values():
            reader.total_items += 1
            if reader.attached:
                reader.window.append(record)
                reader.mem_bytes += size
            else:
                reader.behind_items += 1
                reader.behind_bytes += size
            if reader.last_fetched is not None:
                reader.committed(now_ms)
        if self.followers:
            self.tell_followers()
        return True

    def append_at_once(self, record: bytes, next_id: int) -> bool:
        """Write a commit that is one record. False, with nothing done, when that takes a turn. Raises JournalFailed."""
        journal = self.journal
        if journal is None or self.dirty or self.sync_ms is not None:
            return False
        try:
            used_bytes = journal.append(record, next_id)
        except JournalFailed as failure:
            self.review_next_put()
            self.report(f"{self.name}: {failure}")
            raise
        if not used_bytes:
            return False
        self.commits += 1
        if used_bytes >= self.segment_bytes_max and self.wants_segment(journal):
            self.commit_group.rolling.append(self)
        return True

    def wake(self) -> None:
        """Hand what has arrived to those who wait."""
        for reader in list(self.readers.values()):
            if reader.wait_queue.waiting:
                reader.wait_queue.serve(self.clock.wall_ms)

    def _make_room(self, size: int, only: Reader | None) -> bool:
        """Ask every reader the item is for; then discard, where that is configured. False when one refuses."""
        if self.stopped is not None:
            raise self.stopped
        if size > RECORD_BYTES_MAX:
            return False
        if self.journal is not None and self.journal.failed is not None:
            self._reopen(self.journal.failed)
        now_ms = self.clock.wall_ms
        targets = list(self.readers.values()) if only is None else [only]
        for reader in targets:
            reader.expire_heads(now_ms)
        self.flush_counters()
        crowded = self.journal is None and size > self.memory.spare_bytes(self)
        for reader in targets:
            limit = reader.config.max_item_size_bytes
            if limit is not None and size > limit:
                return False
            if (crowded or reader.is_full()) and not reader.config.discard_old_when_full:
                return False
        for reader in targets:
            held_bytes = reader.mem_bytes
            while reader.is_full() or (crowded and reader.mem_bytes + size > held_bytes):
                if not reader.discard_head():
                    return False
        self._keep_within_memory(size, targets)
        return True

    def _keep_within_memory(self, size: int, targets: list[Reader]) -> None:
        """Detach readers whose window is full, and work out how much may come before the next look."""
        room = 1 << 62
        spare = self.memory.spare_bytes(self)
        for reader in self.readers.values():
            config = reader.config
            left = min(config.max_memory_size_bytes - reader.mem_bytes - reader.open_bytes, spare)
            if reader.attached and self.journal is not None:
                if reader in targets and size > left and reader.window:
                    reader.detach()
                else:
                    room = min(room, left)
            limited = (config.max_items, config.max_size_bytes, config.max_item_size_bytes)
            if reader.metadata_items or reader.max_age_ms or limited != (None, None, None):
                room = -1
        self.put_budget = self.memory.grant(self, room) if len(targets) == len(self.readers) else -1

    def _reopen(self, failed: JournalFailed) -> None:
        """Go on in a new segment if a full disk may have room again. Raises the failure if it is still there."""
        assert self.journal is not None
        waited_ms = self.clock.monotonic_ms - self.journal.failed_at_ms
        is_syncing = self.sync.syncing_commit is not None
        if not failed.disk_full or waited_ms < RETRY_FULL_DISK_MS or self.pending or is_syncing:
            raise failed
        self.go_on()
        if self._written_again not in self.followers:
            self.followers.append(self._written_again)

    def _written_again(self) -> None:
        """The first commit behind a failed segment has settled, or the queue has gone or stopped meanwhile."""
        if self.readers and self.stopped is None and self.journal is not None and self.journal.failed is None:
            self.report(f"{self.name}: journal writes succeed again; puts are accepted")

    def go_on(self) -> None:
        """Leave a failed segment behind: begin a new one that says all there is to know. Raises JournalFailed."""
        assert self.journal is not None
        self.commit()  # what was taken meanwhile is in memory only, and so in the CHECKPOINT
        self.start_segment(self.journal, self.checkpoint())

    # Moving

    def note_move(self) -> None:
        """An item is about to leave a reader for another queue."""
        self.mark_dirty()
        self.moving = True

    # The commit

    def flush_counters(self) -> None:
        count = len(self.pending) - self.counted_items
        if count:
            new = self.pending[self.counted_items :] if self.counted_items else self.pending
            size = sum(map(len, new)) - count * ITEM_HEADER_BYTES
            self.counted_items = len(self.pending)
            self.put_items += count
            self.put_bytes += size
            only = item_optional_fields(new[0])[2] if self.private else 0
            self.private = 0
            for reader in self.readers.values():
                if not only or only == reader.number:
                    reader.count_puts(count, size)
        for reader in self.readers.values():
            if reader.taken:
                reader.flush_counters()

    def commit(self) -> None:
        self.flush_counters()
        now_ms = self.clock.wall_ms
        first_new_id = self.next_id - len(self.pending)
        if self.journal is not None:
            notes = self._writable_notes(self.journal) if self.notes else ()
            puts = self._puts_with(notes, first_new_id) if notes or self.key_records else self.pending
            parts = self.control + puts
            for reader in self.readers.values():
                parts += reader.done_records(now_ms)
            if parts:
                try:
                    self._write(self.journal, parts, first_new_id)
                except JournalFailed:
                    self._undo(first_new_id)
                    self.dirty = False
                    raise
            if notes:
                self._wrote_notes(notes)
        if self.sync_ms == 0:
            self.sync.wrote(self.pending)
        if self.pending or self.sync_ms == 0:
            self.pending = []  # a new one, even where it is empty: the old one is in flight
            self.counted_items = 0
        if self.control:
            self.control = []
        if self.key_records:
            self.key_records = []
        for reader in self.readers.values():
            reader.committed(now_ms)
        self.commits += 1
        self.dirty = False
        if self.followers:
            self.tell_followers()

    def _puts_with(self, notes: Sequence[Note], first_new_id: int) -> list[bytes]:
        """The pending PUTs, and before each what is said of it: a tail that is torn off never takes only that."""
        before: dict[int, list[bytes]] = {}
        for one, record in [*((note.item_id, note.record) for note in notes), *self.key_records]:
            before.setdefault(max(one, first_new_id - 1), []).append(record)
        parts = before.get(first_new_id - 1, [])
        for one, put in enumerate(self.pending, first_new_id):
            parts += [*before.get(one, ()), put]
        return parts

    def _writable_notes(self, journal: Journal) -> Sequence[Note]:
        """The DUE records that this commit may write; in a version 1 segment, and in a failed one, they wait."""
        if journal.failed is not None or journal.live_version < 2:
            return ()
        notes, self.notes = self.notes, []
        return notes if self.stopped is not None else self._still_true(notes)

    def _still_true(self, notes: Sequence[Note]) -> list[Note]:
        true = []
        for note in notes:
            holders = [reader for reader in note.readers if note.still_holds(reader)]
            if len(holders) == len(note.readers):
                true.append(note)
            else:
                true += [note.for_one(reader) for reader in holders]
        return true

    def _wrote_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            for reader in note.readers:
                reader.held_items().unnoted.discard(note.item_id)
        if self.sync_ms == 0:
            self.notes_in_flight = list(notes)

    def tell_followers(self) -> None:
        """There may be more to read back than there was, or nothing to be read any more."""
        followers, self.followers = self.followers, []
        for tell in followers:
            tell()

    def _write(self, journal: Journal, parts: list[bytes], first_new_id: int) -> None:
        if not journal.segments:
            journal.start_segment(Checkpoint(1, 0, first_new_id, 1))
        if journal.failed is not None:
            if self.pending:
                raise journal.failed
            for reader in self.readers.values():
                self.unsaid += reader.done_of_held(self.clock.wall_ms)
            return  # gets go on; the next segment will say what they did
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
        self.notes_in_flight = []
        for reader in self.readers.values():
            reader.none_in_flight()
        if self.followers:
            self.tell_followers()

    def forget_syncing(self) -> None:
        self.sync.give_up()
        self.notes_in_flight = []
        for reader in self.readers.values():
            reader.none_in_flight()

    def undo_syncing(self) -> None:
        self.flush_counters()
        in_flight = self.sync.give_up()
        if self.journal is not None:
            self.journal.cut_back(*self.sync.written_at)
            self.pending = in_flight + self.pending
            for note in self.notes_in_flight:
                note.was_not_written()
            self.notes, self.notes_in_flight = self.notes_in_flight + self.notes, []
            self._undo(self.next_id - len(self.pending))
            self.control = []

    def _undo(self, first_new_id: int) -> None:
        for record in self.pending:
            for reader in self.readers.values():
                reader.undo_put(record)
        for reader in self.readers.values():
            reader.undo(first_new_id)
        self.put_items -= len(self.pending)
        self.put_bytes -= sum(map(len, self.pending)) - len(self.pending) * ITEM_HEADER_BYTES
        self.next_id = first_new_id
        self.undone_from = min(self.undone_from, first_new_id)
        self.pending, self.counted_items, self.private = [], 0, 0
        self.key_records = []
        self.origins = {one: origin for one, origin in self.origins.items() if one < first_new_id}
        self.notes = [note for note in self.notes if note.item_id < first_new_id]
        self.reattach()

    def watch_undone(self, end_id: int) -> None:
        """Have `undone_from` say from which id below `end_id` on items are taken back."""
        self.undone_from = end_id

    def is_landing(self, puts: list[bytes]) -> bool:
        """Whether the PUT records that `pending` was have yet to be written, or to get to the disk."""
        is_in_flight = self.sync.in_flight is puts and self.sync.syncing_commit is not None
        return self.pending is puts or is_in_flight

    def settle_moves(self, failed: Container[Committed]) -> None:
        self.moving = False
        for reader in self.readers.values():
            if reader.moving:
                reader.settle_moves(failed)
                self.moving = self.moving or bool(reader.moving)

    def checkpoint(self) -> Checkpoint:
        if self.stopped is not None:
            raise self.stopped  # its windows are empty: a CHECKPOINT would say that everything is done
        states = [reader.state() for reader in self.readers.values()]
        states.extend([stream.state() for stream in self.streams.values()])
        lowest = [reader.held_from() for reader in self.readers.values()]
        held_from = min([one for one in (*lowest, self.lowest_origin()) if one], default=0)
        return Checkpoint(0, 0, self.next_id, self.next_reader, self.put_items, self.put_bytes, states, held_from)

    def start_segment(self, journal: Journal, checkpoint: Checkpoint, filled: int = -1, unsaid: bytes = b"") -> None:
        super().start_segment(journal, checkpoint, filled, b"".join(self.unsaid))
        self.unsaid = []
        if self.notes:
            self.mark_dirty()  # they may have waited for this

    def forget_turn(self, held: Callable[[Reader], Collection[int]]) -> None:
        """Forget what a turn that was cut short has left: what is done, the journal says. Only `held` reads stay open.

        A queue without a journal is what its windows hold then: what was put is in all of them, or in none.
        """
        if self.in_memory:
            self._take_back_half_put()
        self.pending, self.counted_items, self.private, self.control = [], 0, 0, []
        self.notes, self.notes_in_flight, self.key_records = [], [], []
        self.moving = self.dirty = False
        for reader in self.readers.values():
            reader.forget_turn(held(reader))
            if self.in_memory:
                reader.count_anew()
        self.reattach()

        if self._again is not None:
            self.do_whole(self._again)

    def do_whole(self, act: Callable[[], T]) -> T:
        """Do what is done again from its start where it is cut short, if no journal would say how far it came."""
        if self.in_memory:
            self._again = act
        made = act()
        self._again = None
        return made

    def _take_back_half_put(self) -> None:
        if not self.pending:
            return
        half, only = self.pending[-1], item_optional_fields(self.pending[-1])[2]
        readers = [reader for reader in self.readers.values() if only in (0, reader.number)]
        if not any(reader.has_fetched(half) for reader in readers) and not all(one.has_last(half) for one in readers):
            for reader in readers:
                if reader.window and reader.window[-1] == half:
                    reader.window.pop()
                elif reader.held is not None:
                    reader.held.undo_put(item_id(half))

    def forget_reader(self, reader: Reader) -> None:
        """The journal does not know it: it was being made, or its end is written."""
        self.readers = {label: one for label, one in self.readers.items() if one is not reader}
        reader.drop()

    def count_waiters(self) -> None:
        """Know anew how many wait on all readers."""
        self.waiting = sum(reader.wait_queue.waiting for reader in self.readers.values())

    def stop(self, problem: JournalCorrupt) -> None:
        """The journal cannot be trusted: this queue answers with an error from now on, the others serve."""
        if self.stopped is None:
            self.stopped = problem
            self.review_next_put()
            self.report(f"{self.name}: stopped: {problem}")
            self.notes = self._still_true(self.notes)  # before the readers let go: what was put is still written
            for reader in self.readers.values():
                reader.stop(problem)
            self.tell_followers()

    def stay_stopped(self, problem: JournalCorrupt) -> None:
        """It is stopped, and this is why as far as is known by now."""
        self.stopped = problem

    # Reading without consuming

    def lowest_head(self) -> int:
        heads = [reader.head() for reader in self.readers.values()]
        heads.extend([stream.head for stream in self.streams.values()])
        return min(heads, default=self.next_id)

    def live_bytes(self) -> tuple[int, int]:
        """About how much data in the journal is still needed by somebody; the same with what stands around it."""
        self.flush_counters()
        data_bytes = record_bytes = 0
        for reader in self.readers.values():
            own_bytes, items = reader.data_bytes + reader.open_bytes, reader.items + len(reader.open)
            if (held := reader.held) is not None:
                own_bytes += held.data_bytes - held.ready_bytes
                items += 2 * len(held.later) + len(held.ready)  # with a DUE record each
            data_bytes = max(data_bytes, own_bytes)
            record_bytes = max(record_bytes, own_bytes + items * ITEM_HEADER_BYTES)
        if self.journal is not None and self.streams:
            needed_bytes = max(self.journal.needed_bytes(stream.head) for stream in self.streams.values())
            data_bytes, record_bytes = max(data_bytes, needed_bytes), max(record_bytes, needed_bytes)
        return data_bytes, record_bytes

    def held_bytes(self) -> int:
        shared = own = 0
        for reader in self.readers.values():
            items = len(reader.window) + len(reader.open)
            held = reader.mem_bytes + reader.open_bytes + items * ITEM_COST_BYTES
            if reader.held is not None:
                own += reader.held.cost_bytes()
            if reader.attached:
                shared = max(shared, held)
            else:
                own += held
        return shared + own

    @property
    def holds_back(self) -> bool:
        """Whether any reader has items with a time of their own."""
        return any(reader.held is not None for reader in self.readers.values())

    @property
    def needs_notes(self) -> bool:
        """Whether a compacted segment has more to say of items than they say themselves."""
        return bool(self.origins) or self.holds_back

    def free_dropped(self) -> bool:
        """Free some of what flushes have dropped; False when nothing is left of it."""
        return any(reader.held.free_dropped() for reader in self.readers.values() if reader.held is not None)

    def untrack(self) -> None:
        """No compaction reads what is held back any more."""
        for reader in self.readers.values():
            if reader.held is not None:
                reader.held.untrack()

    def first_id(self) -> int:
        """The lowest id that can still be read back; next_id when there is none."""
        if self.journal is None or not self.journal.segments:
            return self.next_id
        return self.journal.segments[0].first_id

    def settled_id(self) -> int:
        """Ids below it no failed commit takes back, so none of them is ever given to another item."""
        return self.next_id - len(self.pending) - len(self.sync.in_flight)


def as_queues(queues: Iterable[Committed]) -> list[Queue]:
    """What the group commit has in its lists."""
    return [queue for queue in queues if isinstance(queue, Queue)]
