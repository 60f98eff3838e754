"""Compaction of a journal: whether it is due, and its steps from a new segment to replacing the old ones.

The live items of all closed segments are copied into one, which is synced before it takes their place; the old ones
stay until then, so a crash leaves either. The copy runs in slices while puts and gets go on.
"""

from collections.abc import Callable
from typing import Final

from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.compaction import Compaction
from kestreld.journal.journal import Journal
from kestreld.queues.collection import QueueCollection
from kestreld.queues.live import key_records, live_parts
from kestreld.queues.queue import Queue
from kestreld.queues.slices import WAITS, Slices, Work

COMPACT_AGAIN_MS: Final = 60_000
GO_BACK_AT_ONCE: Final = 16  # of thousands of journals, as each compaction has a file open
SYNC_BYTES: Final = 8 * 1024 * 1024  # of the copy: one large sync would hold up all other writes


class Compactor:
    """Compacts the journals of a collection. `roll` begins a segment if it can, `sync_journal` starts a sync."""

    def __init__(
        self,
        collection: QueueCollection,
        slices: Slices,
        roll: Callable[[Queue, Journal], bool],
        drop_dead: Callable[[Queue], None],
        sync_journal: Callable[[Queue], object],
    ) -> None:
        self._collection = collection
        self._files = collection.files
        self._clock = collection.clock
        self._report = collection.report
        self._slices = slices
        self._compacting: dict[Queue, Work | None] = {}  # with the work left in slices; None = none
        self._roll = roll
        self._drop_dead = drop_dead
        self._sync_journal = sync_journal

    def compact_if_due(self, queue: Queue, journal: Journal) -> None:
        """Apply Kestrel's second rule: the journal is many times its size, and the queue's contents less than one.

        A journal that is to have no leases any more is compacted in any case, for older servers to read it.
        """
        if queue.is_ahead(journal):
            self._go_back(queue, journal)
            return
        size_max = queue.segment_bytes_max
        # Half-way to the limit: items flow on meanwhile, and of small segments many are filled during a sync.
        start_at = size_max * queue.segments_max // 2
        if queue.stopped is not None or journal.disk_bytes <= start_at or self.is_compacting(queue):
            return
        pinned_bytes = journal.needed_bytes(queue.lowest_head())  # other segments only wait for a sync or the archive
        if pinned_bytes <= start_at:
            return
        if self._clock.monotonic_ms < journal.compact_again_at_ms:
            return
        # It must be worth it: compacted segments do not shrink much again.
        fresh_bytes = sum(segment.used_bytes for segment in journal.segments[:-1] if not segment.compacted)
        data_bytes, record_bytes = queue.live_bytes()
        is_worth_it = data_bytes < size_max <= fresh_bytes and fresh_bytes > record_bytes
        if queue.holds_back:  # a week's segments may be needed for a few items each
            is_worth_it = is_worth_it or pinned_bytes > 2 * record_bytes + start_at
        if is_worth_it and not journal.is_crowded:
            self._begin(queue, journal)

    def _go_back(self, queue: Queue, journal: Journal) -> None:
        is_possible = queue.stopped is None and journal.failed is None and not journal.is_crowded
        is_time = self._clock.monotonic_ms >= journal.compact_again_at_ms
        is_free = len(self._compacting) < GO_BACK_AT_ONCE and not (self.is_compacting(queue) or journal.retiring)
        if is_possible and is_time and is_free:
            self._begin(queue, journal)

    def _begin(self, queue: Queue, journal: Journal) -> None:
        work = self._compacting[queue] = self._compact(queue, journal)
        self._slices.take_on(work)

    def is_compacting(self, queue: Queue) -> bool:
        """True while a compaction runs. False if the turn that should have begun it was interrupted."""
        if queue not in self._compacting:
            return False
        work = self._compacting[queue]
        return work is None or self._slices.has(work)

    def keep_within_limit(self, queue: Queue, journal: Journal) -> None:
        """Have puts wait if segments fill faster than the disk accepts a compacted one."""
        full_at = queue.segment_bytes_max * (queue.segments_max - 1)
        # Replaced segments take space until they are unlinked, which may be late on a busy machine.
        is_shrinking = self.is_compacting(queue) or (journal.retiring and bool(journal.leftover))
        if journal.disk_bytes > full_at and is_shrinking:
            self._collection.crowded.setdefault(queue, [])

    def _compaction_over(self, queue: Queue) -> None:
        """Clean up. Waiting puts go on once the replaced segments are gone as well."""
        self._compacting.pop(queue, None)
        queue.untrack()
        self._drop_dead(queue)
        if queue.journal is None or not queue.journal.retiring:
            self._collection.let_in(queue)

    def _compact(self, queue: Queue, journal: Journal) -> Work:
        """Rewrite the live items of all closed segments into one, which then takes their place."""
        compaction = None
        yield from self._roll_for_compaction(queue, journal)
        if journal.begun_with is not None and self._may_compact(queue, journal):
            compaction = Compaction(journal, journal.begun_with)
            try:
                yield from self._copy(queue, journal, compaction)
                compaction.close()
                if self._may_compact(queue, journal):
                    yield from self._get_to_disk(queue, journal, compaction)
            except JournalCorrupt as problem:
                queue.stop(problem)
                self._collection.commit.wake()  # waiters have been answered
                compaction.abandon()
                compaction = None
            except JournalFailed as problem:
                self._give_up(queue, journal, compaction, problem.reason)
                compaction = None
        if compaction is None or not self._may_compact(queue, journal):
            if compaction is not None:
                compaction.abandon()
            self._compaction_over(queue)
            return
        self._compacting[queue] = None
        self._put_in_place(queue, journal, compaction)

    def _copy(self, queue: Queue, journal: Journal, compaction: Compaction) -> Work:
        """Copy the live items, and the keys that count. After a pause it goes on only if the journal is still there.

        Raises JournalFailed and JournalCorrupt.
        """
        for part in live_parts(queue, journal.live.first_id):
            if part is not None:
                compaction.add(*part)
            if compaction.unsynced_bytes >= SYNC_BYTES:
                yield from self._sync(compaction)
            if compaction.wants_a_pause or part is None:
                yield None
            if not self._may_compact(queue, journal):
                return
        for known in key_records(queue):
            for note in known:
                compaction.note(note)
            yield None

    def _get_to_disk(self, queue: Queue, journal: Journal, compaction: Compaction) -> Work:
        """Sync the copy, and wait for the CHECKPOINT behind it: older segments stay till then. Raises JournalFailed."""
        yield from self._sync(compaction)
        # A queue deleted or stopped meanwhile is no longer synced.
        while journal.synced_number <= compaction.segment.number and self._may_compact(queue, journal):
            yield WAITS

    def _sync(self, compaction: Compaction) -> Work:
        """Sync the part of the copy written so far. Raises JournalFailed."""
        outcome: list[OSError | None] = []
        self._files.in_background(compaction.sync, outcome.append)
        while not outcome:
            yield WAITS
        if outcome[0] is not None:
            raise JournalFailed(compaction.segment.path, f"sync failed: {outcome[0].strerror}")

    def _roll_for_compaction(self, queue: Queue, journal: Journal) -> Work:
        """Begin a new segment with a number left free before it, for the compacted one."""
        queue.want_segment(wanted=True)
        number = journal.live.number
        while journal.live.number == number and self._may_compact(queue, journal):
            if not queue.is_idle:
                yield WAITS  # a synced queue may never be seen idle: its next commit rolls
            elif queue.sync_ms == 0 and journal.may_lose_live:
                self._sync_journal(queue)  # in the background: `begin_segment` would do it in the turn
                yield WAITS
            elif not self._roll(queue, journal):
                journal.compact_not_before(self._clock.monotonic_ms + COMPACT_AGAIN_MS)
                break
        queue.want_segment(wanted=False)

    def _may_compact(self, queue: Queue, journal: Journal) -> bool:
        return journal is queue.journal and journal.failed is None and queue.stopped is None

    def _give_up(self, queue: Queue, journal: Journal, compaction: Compaction, reason: str) -> None:
        if journal is queue.journal:  # if not: the queue was deleted meanwhile
            # Not in every round: each try begins a segment, and a full disk has no space for them.
            journal.compact_not_before(self._clock.monotonic_ms + COMPACT_AGAIN_MS)
            self._report(f"{queue.name}: compaction aborted: {reason}; will be retried in a minute")
        compaction.abandon()

    def _put_in_place(self, queue: Queue, journal: Journal, compaction: Compaction) -> None:
        def finished(error: OSError | None) -> None:
            if error is not None or journal is not queue.journal:
                self._give_up(queue, journal, compaction, "" if error is None else str(error.strerror))
            else:
                journal.replace(compaction.replaced, compaction.segment)
                for reader in queue.readers.values():
                    reader.moved_to(compaction.replaced, compaction.segment)
            self._compaction_over(queue)

        self._files.in_background(compaction.put_in_place, finished)
