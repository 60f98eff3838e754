"""Puts on a queue family: the readers' windows that they go to, and the limits that they are checked against.

An item is refused, or added for all readers at once. Limits are checked again only when `put_budget` is used up, so a
change of limits, windows or journal calls `review_next_put`, which clears it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.clock import Clock
from kestreld.errors import JournalFailed
from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    ADD_FACTOR as _ADD_FACTOR,
)
from kestreld.journal.records import (
    PUT,
    PUT_FIELDS_BYTES,
    RECORD_BYTES_MAX,
    Origin,
    Why,
    item_optional_fields,
    product,
    put_record,
)
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import GroupCommit
from kestreld.queues.family import Family
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.memory import ITEM_COST_BYTES, Memory
from kestreld.queues.reader import Reader

RETRY_FULL_DISK_MS: Final = 1000
# Final names of this module are found faster.
_pack_put: Final = PUT.pack
_checksum: Final = xxh3_64_intdigest


class QueuePuts(Family):
    """All readers on one journal, and the puts for them."""

    __slots__ = (
        "counted_items", "emptying", "feeder", "is_swallowed", "memory", "private", "put_bytes", "put_items", "readers",
        "seed", "seeded_at_ms", "windows",
    )  # fmt: skip

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
        super().__init__(name, journal, clock, commit, report, mover, agenda)
        self.memory = memory

        self.put_items = 0  # of all time, as of the last flush_counters
        self.put_bytes = 0
        self.readers: dict[str, Reader] = {}
        self.feeder: Reader | None = None  # the parent, if it is `fanout_only`: it gets no items
        self.emptying: Reader | None = None  # the parent, if it is to be that once nothing waits in it
        self.is_swallowed = False  # a put that `_make_room` has declined counts as stored: there is nobody to keep it
        self.windows: tuple[deque[bytes], ...] = ()
        self.seeded_at_ms = -1
        self.seed = 0  # seed of checksums at `seeded_at_ms` for size 0 and id 0
        self.counted_items = 0  # of the pending ones
        self.private = 0  # pending records addressed to one reader

    def reattach(self) -> None:
        """Rebuild the set of windows that puts append to, and check the space again at the next put."""
        parent = self.readers.get("")
        if parent is None or not parent.config.fanout_only:
            self.feeder = self.emptying = None
        elif parent is not self.feeder:
            is_empty = parent.is_drained
            self.feeder = parent if is_empty else None
            self.emptying = None if is_empty else parent
        self._attach()

    def keep_again(self) -> None:
        """Have a `fanout_only` parent get items until nothing waits in it: some are put back."""
        self.emptying = self.feeder
        self.feeder = None
        self._attach()

    def _attach(self) -> None:
        attached = [reader for reader in self.readers.values() if reader.attached and reader is not self.feeder]
        self.windows = tuple([reader.window for reader in attached])
        self.review_next_put()

    def feeds_nobody(self) -> bool:
        """True if no reader of any kind keeps what is put."""
        raise NotImplementedError

    def put(self, data: bytes) -> bool:
        """Add an item for every reader. False if it is refused: too large, or a reader is full.

        Raises JournalFailed or JournalCorrupt if the journal accepts no puts. Most items are put by this hot copy of
        `put_with`, and of `put_record` in it.
        """
        size = len(data)
        if size > self.put_budget and not self._make_room(size, None):
            return self.is_swallowed
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
        """Compute and keep the seed of checksums for items put at that time."""
        seed = self.seed = PUT_FIELDS_BYTES + product(now_ms, _ADD_FACTOR)
        self.seeded_at_ms = now_ms  # last: an interruption before would make checksums wrong
        return seed

    def put_with(self, data: bytes, expire_at_ms: int, flags: int, only: Reader | None) -> bool:
        """`put` with an expiry (0 = never), with flags, or for one reader (`only`)."""
        if not (expire_at_ms or flags or only is not None):
            return self.put(data)
        size = len(data)
        if size > self.put_budget and not self._make_room(size, only):
            return self.is_swallowed
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
            if reader.attached and reader is not self.feeder:
                reader.append_with_metadata(record)
        self.review_next_put()
        if only is not None:
            self.flush_counters()
        if self.waiting:
            self.wake()
        return True

    def put_later(self, data: bytes, expire_at_ms: int, flags: int, only: Reader | None, delay_ms: int) -> bool:
        """`put_with` for an item that is delivered after `delay_ms` at the earliest. It is counted here."""
        size = len(data)
        if size > self.put_budget and not self._make_room(size, only):
            return self.is_swallowed
        self.use_version(2)
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
        due_at_ms = self.clock.monotonic_up_ms() + delay_ms
        readers = [one for one in self.readers.values() if one is not self.feeder] if only is None else [only]
        for reader in readers:
            reader.hold_new(record, due_at_ms)
        self.note_due(readers, number, added, due_at_ms, size, Why.DELAYED)
        self.review_next_put()
        return True

    def put_keyed(
        self, key: bytes, reader: Reader, data: bytes, expire_at_ms: int, flags: int, only: Reader | None, delay_ms: int
    ) -> bool:
        """`put_with`, or `put_later`, of an item with a key that `reader` does not know. Raises JournalFailed."""
        self.use_version(2)
        one = self.next_id
        if delay_ms:
            stored = self.put_later(data, expire_at_ms, flags, only, delay_ms)
        else:
            stored = self.put_with(data, expire_at_ms, flags, only)
        if self.next_id > one:
            reader.remember_key(key, one, delay_ms)
        return stored

    def put_moved(self, data: bytes, flags: int, only: Reader | None, origin: Origin) -> bool:
        """`put_with` of an item that comes from another queue. Raises as `put_with`, and JournalFailed."""
        self.use_version(3 if origin.failure else 2)
        one = self.next_id
        stored = self.put_with(data, 0, flags, only)
        if self.next_id > one:
            self.note_origin(one, origin)
        return stored

    def put_at_once(self, data: bytes) -> bool:
        """`put` and its commit, a whole turn: a hot copy of both.

        For the library, where every operation is a turn. Journal and counters are afterwards as after any other turn.
        False, with nothing done, if more is needed than appending one record. Raises JournalFailed as a turn does.
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

    def wake(self) -> None:
        """Serve the waiters of all readers with new items."""
        for reader in list(self.readers.values()):
            if reader.wait_queue.waiting:
                reader.wait_queue.serve(self.clock.wall_ms)

    # Counting

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
                if reader is self.feeder:
                    reader.count_passed_on(0 if only else count)
                elif not only or only == reader.number:
                    reader.count_puts(count, size)
        for reader in self.readers.values():
            if reader.taken:
                reader.flush_counters()

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

    # Limits

    def _make_room(self, size: int, only: Reader | None) -> bool:
        """Check the limits of each target reader, then discard items where configured.

        False if a reader refuses, or if nobody would keep the item; then `is_swallowed`.
        """
        self.is_swallowed = False
        if self.stopped is not None:
            raise self.stopped
        if size > RECORD_BYTES_MAX:
            return False
        if self.journal is not None and self.journal.failed is not None:
            failed = self.journal.failed
            if not self.try_again(failed):
                raise failed
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
        if self.emptying is not None and only is None and self.emptying.is_drained:
            self.reattach()
        if self.feeder is not None and self.feeds_nobody():
            self.is_swallowed = True
            self.feeder.count_passed_on(1)
            return False
        for reader in targets:
            held_bytes = reader.mem_bytes
            while reader.is_full() or (crowded and reader.mem_bytes + size > held_bytes):
                if not reader.discard_head():
                    return False
        self._keep_within_memory(size, only)
        return True

    def _keep_within_memory(self, size: int, only: Reader | None) -> None:
        """Detach readers whose window is full, and compute how much may be put before the next check."""
        room = 1 << 62
        spare = self.memory.spare_bytes(self)
        for reader in self.readers.values():
            config = reader.config
            left = min(config.max_memory_size_bytes - reader.mem_bytes - reader.open_bytes, spare)
            if reader.attached and self.journal is not None and reader is not self.feeder:
                if only in (None, reader) and size > left and reader.window:
                    reader.detach()
                else:
                    room = min(room, left)
            limited = (config.max_items, config.max_size_bytes, config.max_item_size_bytes)
            is_special = reader is self.feeder or reader is self.emptying
            if reader.metadata_items or reader.max_age_ms or is_special or limited != (None, None, None):
                room = -1
        self.put_budget = self.memory.grant(self, room) if only is None or len(self.readers) == 1 else -1

    def try_again(self, failed: JournalFailed) -> bool:
        """Go on in a new segment if a full disk may have space again; False if it was not full, or failed just now.

        Raises JournalFailed if there is no space yet.
        """
        assert self.journal is not None
        waited_ms = self.clock.monotonic_ms - self.journal.failed_at_ms
        is_syncing = self.sync.syncing_commit is not None
        if not failed.disk_full or waited_ms < RETRY_FULL_DISK_MS or self.pending or is_syncing:
            return False
        self.go_on()
        if self._written_again not in self.followers:
            self.followers.append(self._written_again)
        return True

    def has_gone_on(self) -> None:
        """Report that writes succeed, unless a commit since has reported it: the disk had time to refuse one."""
        if self._written_again in self.followers:
            self.followers.remove(self._written_again)
            self._written_again()

    def _written_again(self) -> None:
        """Called when the first commit behind a failed segment has settled, or the queue was deleted or stopped."""
        if self.readers and self.stopped is None and self.journal is not None and self.journal.failed is None:
            self.report(f"{self.name}: journal writes succeed again; puts are accepted")
