"""A queue family: one journal, the parent's reader and its children's, and what was put since the last commit."""

from collections import deque
from collections.abc import Callable, Collection, Container
from typing import TYPE_CHECKING, Final

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
    Done,
    Kind,
    ReaderChange,
    Reason,
    abort_record,
    done_record,
    item_data,
    item_flags,
    item_id,
    item_optional_fields,
    product,
    put_record,
    reader_record,
)
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.memory import ITEM_COST_BYTES, Memory
from kestreld.queues.reader import PendingTransfer, Reader, Stream

if TYPE_CHECKING:
    from kestreld.queues.commit import GroupCommit, PendingCommit

RETRY_FULL_DISK_MS: Final = 1000
# Final, and of this module, a name is found sooner.
_pack_put: Final = PUT.pack
_checksum: Final = xxh3_64_intdigest


class Queue:
    """All readers on one journal, and the PUTs not yet committed. `journal` is None for a queue kept in memory only."""

    def __init__(
        self,
        name: str,
        journal: Journal | None,
        clock: Clock,
        commit: "GroupCommit",
        report: Callable[[str], None],
        memory: Memory,
    ) -> None:
        self.name = name
        self.journal = journal
        self.in_memory = journal is None
        self.clock = clock
        self.commit_group = commit
        self.report = report
        self.memory = memory
        self.counted_bytes = 0  # what this queue counts with there
        self.mover: Callable[[str, bytes, int], Queue | None] = lambda destination, data, flags: None

        self.next_id = 1
        self.next_reader = 1
        self.put_items = 0  # of all time, as of the last flush_counters
        self.put_bytes = 0
        self.readers: dict[str, Reader] = {}
        self.streams: dict[str, Stream] = {}
        self.windows: tuple[deque[bytes], ...] = ()
        self.put_budget = -1  # data larger than this must be looked at before a put
        self.waiting = 0  # waiters on all readers
        self.seeded_at_ms = -1
        self.seed = 0  # what the checksums of items put at that instant, of size 0 and id 0, start from
        self.moving = False  # items have left for other queues since the last commit

        self.dirty = False
        # Of a queue that is synced before its replies: the commit under way to the disk, and the latest one
        self.syncing_commit: PendingCommit | None = None
        self.pending_commit: PendingCommit | None = None
        self.in_flight: list[bytes] = []  # PUT records of the former
        self.written_at = (0, 0)  # where it begins: segment number and offset
        self.undone_from = 0  # the lowest id that a failed commit has taken back, for whoever sets a higher one
        self.syncing_head = 0  # the lowest head as it leaves it
        self.safe_head = 0  # and as the last one on disk left it
        self.control: list[bytes] = []  # READER and ABORT records, and streams' DONEs, since the last commit
        self.pending: list[bytes] = []  # PUT records since the last commit
        self.counted_items = 0
        self.private = 0  # pending records addressed to one reader
        self.stopped: JournalCorrupt | None = None
        self.sync_ms: int | None = None  # None = left to the kernel, 0 = before every reply, else every so many ms
        self.segment_bytes_max = 1 << 24
        self.segments_max = 10  # so many times segment_bytes_max before the journal is compacted
        self.roll_wanted = False  # a compaction waits for a new segment, with a number left free before it
        self.sync_due_at_ms = 0  # with sync_ms above 0: when the next sync is due; 0 = nothing to sync
        self.commits = 0  # so many there have been since the start
        self.followers: list[Callable[[], None]] = []  # told when items have settled, or none will any more

    def configure(self, config: QueueConfig) -> None:
        """How its journal is kept from now on."""
        self.sync_ms = config.sync_journal_ms
        self.segment_bytes_max, self.segments_max = config.max_journal_size_bytes, config.max_journal_overflow

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
        reader.deleted = True
        reader.wait_queue.send_away(None)
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
        if through < stream.head:
            return
        done = Done(stream.number, Reason.CONFIRMED, self.clock.wall_ms, 0, 0, [(stream.head, through)])
        stream.head = through + 1
        self.mark_dirty()
        self.control.append(done_record(done))

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

    def review_next_put(self) -> None:
        """Whether there is room, and the journal takes anything, is open again: the next put is looked at closely."""
        self.put_budget = -1

    # Putting

    def put(self, data: bytes) -> bool:
        """Add an item for every reader. False when it is refused: too large, or a reader is full.

        Raises JournalFailed or JournalCorrupt when the journal takes nothing. The way of most items: what it does is
        what `put_with` does, written out.
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
                reader.window.append(record)
                reader.metadata_items += 1
                reader.slow = True
        self.review_next_put()
        if only is not None:
            self.flush_counters()
        if self.waiting:
            self.wake()
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
        if not failed.disk_full or waited_ms < RETRY_FULL_DISK_MS or self.pending or self.syncing_commit is not None:
            raise failed
        self.go_on()

    def go_on(self) -> None:
        """Leave a failed segment behind: begin a new one that says all there is to know. Raises JournalFailed."""
        assert self.journal is not None
        self.commit()  # what was taken meanwhile is in memory only, and so in the CHECKPOINT
        self.journal.start_segment(self.checkpoint())

    # Moving

    def move(self, reader: Reader, record: bytes, destination: str) -> bool:
        """Put an item that leaves `reader` on another queue; it is done here one commit later. False when refused."""
        taker = self.mover(destination, item_data(record), item_flags(record))
        if taker is None:
            reader.move_refused += 1
            return False
        self.mark_dirty()
        reader.moving.append(PendingTransfer(record, taker))
        self.moving = True
        return True

    # The commit

    def mark_dirty(self) -> None:
        """Have this queue written at the end of the turn."""
        if not self.dirty:
            self.commit_group.dirty.append(self)
            self.dirty = True  # last: one that is dirty and not in the group would never be written again

    def flush_counters(self) -> None:
        """Count what was put and taken since the last call."""
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
                    reader.total_items += count
                    if reader.attached:
                        reader.mem_bytes += size
                    else:
                        reader.behind_items += count
                        reader.behind_bytes += size
        for reader in self.readers.values():
            if reader.taken:
                reader.flush_counters()

    def commit(self) -> None:
        """Write everything since the last commit in one piece. Raises JournalFailed with all of it undone."""
        self.flush_counters()
        now_ms = self.clock.wall_ms
        first_new_id = self.next_id - len(self.pending)
        if self.journal is not None:
            parts = self.control + self.pending
            for reader in self.readers.values():
                parts += reader.done_records(now_ms)
            if parts:
                try:
                    self._write(self.journal, parts, first_new_id)
                except JournalFailed:
                    self._undo(first_new_id)
                    self.dirty = False
                    raise
        if self.sync_ms == 0:
            self.in_flight = self.pending
        if self.pending or self.sync_ms == 0:
            self.pending = []  # a new one, even where it is empty: the old one is in flight
            self.counted_items = 0
        if self.control:
            self.control = []
        for reader in self.readers.values():
            reader.committed(now_ms)
        self.commits += 1
        self.dirty = False
        if self.followers:
            self.tell_followers()

    @property
    def is_idle(self) -> bool:
        """Whether all of it is written, and nothing on its way to the disk."""
        return not self.dirty and self.syncing_commit is None

    def tell_followers(self) -> None:
        """There may be more to read back than there was, or nothing to be read any more."""
        followers, self.followers = self.followers, []
        for tell in followers:
            tell()

    def wants_segment(self, journal: Journal) -> bool:
        """Whether the live segment is full, or a new one is wanted for another reason."""
        return self.roll_wanted or journal.segments[-1].used_bytes - journal.checkpoint_bytes >= self.segment_bytes_max

    def _write(self, journal: Journal, parts: list[bytes], first_new_id: int) -> None:
        if not journal.segments:
            journal.start_segment(Checkpoint(1, 0, first_new_id, 1))
        if journal.failed is not None:
            if self.pending:
                raise journal.failed
            return  # gets go on; the next segment's CHECKPOINT will say what they did
        live = journal.segments[-1]
        self.written_at = (live.number, live.used_bytes)
        offset = journal.write(parts, first_new_id)
        for reader in self.readers.values():
            if reader.detached_at >= 0:
                reader.segment = journal.live.number
                before = [*self.control, *self.pending[: reader.detached_at]]
                reader.offset = offset + sum(map(len, before))
                reader.detached_at = -1

    def commit_synced(self) -> None:
        """The commit in flight is on disk."""
        self.safe_head = self.syncing_head
        self.in_flight = []
        for reader in self.readers.values():
            reader.in_flight = []
        if self.followers:
            self.tell_followers()

    def forget_syncing(self) -> None:
        """Nothing is in flight: what was has been put on disk in another way."""
        self.syncing_commit = None
        self.in_flight = []
        for reader in self.readers.values():
            reader.in_flight = []

    def undo_syncing(self) -> None:
        """The commit in flight did not get to the disk: it is undone, and all that has come since."""
        self.flush_counters()
        if self.journal is not None:
            self.journal.cut_back(*self.written_at)
            self.pending, self.in_flight = self.in_flight + self.pending, []
            self._undo(self.next_id - len(self.pending))
            self.control = []

    def _undo(self, first_new_id: int) -> None:
        for record in self.pending:
            only = item_optional_fields(record)[2]
            for reader in self.readers.values():
                if not reader.attached and only in (0, reader.number) and item_id(record) >= reader.next_unread:
                    reader.behind_items -= 1
                    reader.behind_bytes -= len(record) - ITEM_HEADER_BYTES
        assert self.journal is not None
        for reader in self.readers.values():
            reader.undo(first_new_id)
            if reader.detached_at >= 0:
                reader.detached_at = -1
                if self.journal.segments:
                    reader.segment, reader.offset = self.journal.live.number, self.journal.live.used_bytes
                else:
                    reader.attached = True  # nothing was ever written that it could read back
        self.put_items -= len(self.pending)
        self.put_bytes -= sum(map(len, self.pending)) - len(self.pending) * ITEM_HEADER_BYTES
        self.next_id = first_new_id
        self.undone_from = min(self.undone_from, first_new_id)
        self.pending, self.counted_items, self.private = [], 0, 0
        self.reattach()

    def settle_moves(self, failed: Container["Queue"]) -> None:
        """Every queue of the turn has been committed, but for `failed`: see to the items moved between them."""
        self.moving = False
        for reader in self.readers.values():
            if reader.moving:
                reader.settle_moves(failed)
                self.moving = self.moving or bool(reader.moving)

    def checkpoint(self) -> Checkpoint:
        """The whole state, between commits: what the next segment begins with."""
        states = [reader.state() for reader in self.readers.values()]
        states.extend([stream.state() for stream in self.streams.values()])
        return Checkpoint(0, 0, self.next_id, self.next_reader, self.put_items, self.put_bytes, states)

    def forget_turn(self, held: Callable[[Reader], Collection[int]]) -> None:
        """Forget what a turn that was cut short has left: what is done, the journal says. Only `held` reads stay open.

        A queue without a journal is what its windows hold then: what was put is in all of them, or in none.
        """
        if self.in_memory:
            self._take_back_half_put()
        self.pending, self.counted_items, self.private, self.control = [], 0, 0, []
        self.moving = self.dirty = False
        for reader in self.readers.values():
            reader.forget_turn(held(reader))
            if self.in_memory:
                reader.count_anew()
        self.reattach()

    def _take_back_half_put(self) -> None:
        if not self.pending:
            return
        half, only = self.pending[-1], item_optional_fields(self.pending[-1])[2]
        windows = [reader.window for reader in self.readers.values() if only in (0, reader.number)]
        if not any(reader.has_fetched(half) for reader in self.readers.values()) and not all(
            window and window[-1] == half for window in windows
        ):
            for window in windows:
                if window and window[-1] == half:
                    window.pop()

    def forget_reader(self, reader: Reader) -> None:
        """The journal does not know it: it was being made, or its end is written."""
        self.readers = {label: one for label, one in self.readers.items() if one is not reader}
        reader.deleted = True
        reader.wait_queue.send_away(None)

    def count_waiters(self) -> None:
        """Know anew how many wait on all readers."""
        self.waiting = sum(reader.wait_queue.waiting for reader in self.readers.values())

    def stop(self, problem: JournalCorrupt) -> None:
        """The journal cannot be trusted: this queue answers with an error from now on, the others serve."""
        if self.stopped is None:
            self.stopped = problem
            self.review_next_put()
            self.report(f"{self.name}: stopped: {problem}")
            for reader in self.readers.values():
                reader.window.clear()
                reader.returned = 0
                reader.slow = True
                reader.wait_queue.send_away(f"corrupt {problem}")
            self.tell_followers()

    # Reading without consuming

    def lowest_head(self) -> int:
        """The lowest id some reader still needs."""
        heads = [reader.head() for reader in self.readers.values()]
        heads.extend([stream.head for stream in self.streams.values()])
        return min(heads, default=self.next_id)

    def written_head(self) -> int:
        """The lowest id some reader still needs, going by what is written: on disk, where answers wait for that."""
        return self.lowest_head() if self.is_idle else self.safe_head

    def live_bytes(self) -> tuple[int, int]:
        """About how much data in the journal is still needed by somebody; the same with what stands around it."""
        self.flush_counters()
        data_bytes = record_bytes = 0
        for reader in self.readers.values():
            own_bytes = reader.data_bytes + reader.open_bytes
            data_bytes = max(data_bytes, own_bytes)
            record_bytes = max(record_bytes, own_bytes + (reader.items + len(reader.open)) * ITEM_HEADER_BYTES)
        if self.journal is not None and self.streams:
            needed_bytes = max(self.journal.needed_bytes(stream.head) for stream in self.streams.values())
            data_bytes, record_bytes = max(data_bytes, needed_bytes), max(record_bytes, needed_bytes)
        return data_bytes, record_bytes

    def held_bytes(self) -> int:
        """About what its items take in memory. Those in several windows are there once."""
        shared = own = 0
        for reader in self.readers.values():
            items = len(reader.window) + len(reader.open)
            held = reader.mem_bytes + reader.open_bytes + items * ITEM_COST_BYTES
            if reader.attached:
                shared = max(shared, held)
            else:
                own += held
        return shared + own

    def first_id(self) -> int:
        """The lowest id that can still be read back; next_id when there is none."""
        if self.journal is None or not self.journal.segments:
            return self.next_id
        return self.journal.segments[0].first_id

    def settled_id(self) -> int:
        """Ids below it no failed commit takes back, so none of them is ever given to another item."""
        return self.next_id - len(self.pending) - len(self.in_flight)
