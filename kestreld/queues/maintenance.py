"""Maintenance of journals between turns: new segments, background syncs, rounds over all queues.

DeadSegments and compaction of segments are started here. Long work is a generator that yields often and runs in slices.
"""

from typing import Final

from kestreld.errors import JournalFailed
from kestreld.files import must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.segment import Segment
from kestreld.journal.segment_sync import SegmentSync
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Committed
from kestreld.queues.compactor import Compactor
from kestreld.queues.dead_segments import REPORT_EVERY_MS, DeadSegments
from kestreld.queues.queue import Queue, as_queues
from kestreld.queues.slices import Slices, Work

REFUSALS_MAX: Final = 16  # per round: with a full disk there may be thousands of queues to try


class Maintenance:
    """Maintenance of a collection's journals. Long work runs in `slices`."""

    def __init__(self, collection: QueueCollection, slices: Slices) -> None:
        self._collection = collection
        self._files = collection.files
        self._clock = collection.clock
        self._report = collection.report
        self._slices = slices
        self._round: Work | None = None
        self.retirement = DeadSegments(collection, slices, self.is_compacting)
        self._compactor = Compactor(collection, slices, self._roll, self.retirement.drop_dead, self.sync)
        self._getting_marked: Journal | None = None  # the journal last synced for its marker alone
        self._memory_reported_at_ms = -REPORT_EVERY_MS
        self._is_going_back = False  # journals had leases in the previous round, and are to have none
        self._gone_on: list[Queue] = []  # queues that continued after a full disk, in the previous round
        for queue in collection.families.values():
            self.retirement.drop_dead(queue)  # segments that a compaction had replaced when the server stopped

    # Rolling

    def after_turn(self) -> None:
        """Begin new segments where they are full. Called after the replies of a turn, with everything committed."""
        rolling = self._collection.commit.rolling
        for queue in as_queues(rolling):
            journal = queue.journal
            if journal is None or journal.failed is not None or queue.stopped is not None:
                continue
            # No longer full: a synced queue's journal was rolled before its next commit was written.
            full = queue.wants_segment(journal)
            if not full or (queue.is_idle and self._roll(queue, journal)):
                self._compactor.compact_if_due(queue, journal)
                self._compactor.keep_within_limit(queue, journal)
        rolling.clear()

    def _roll(self, queue: Queue, journal: Journal) -> bool:
        try:
            self.begin_segment(queue, journal)
        except (JournalFailed, OSError) as problem:
            if isinstance(problem, OSError):
                must_be_the_systems(problem)
            self._report(f"{queue.name}: {problem}; puts are refused until a new segment can be created")
            queue.review_next_put()
            return False
        return True

    def begin_segment(self, queue: Queue, journal: Journal) -> None:
        """Begin a new segment, and sync it in the background together with the one before.

        The queue must be idle. Raises OSError, or JournalFailed, which sets `journal.failed`; the segments stay as they
        were.
        """
        self._collection.commit.sync_live(queue)
        filled = journal.borrow() if journal.unsynced else -1
        try:
            queue.start_segment(journal, queue.checkpoint(), filled)
        finally:
            if filled >= 0 and filled not in journal.filled:
                journal.give_back(filled)
        self._sync(queue, journal)

    # Syncs in the background

    def sync(self, queue: Committed) -> bool:
        """Sync a journal without delaying a turn. False if a sync is under way: call again later."""
        journal = queue.journal
        if journal is None or journal.failed is not None or not journal.segments:
            return True
        if journal.is_borrowed:
            return False
        self._sync(queue, journal)
        return True

    def _sync(self, queue: Committed, journal: Journal) -> None:
        """Sync the full segments and the live one. One sync runs at a time: later changes are for the next."""
        if journal.syncing or not self._files.takes_calls:
            return
        live, used_bytes = journal.live, journal.live.used_bytes
        number = live.number
        started_us = self._clock.stopwatch_us()
        covered: list[tuple[int, Segment]] = []
        sync = SegmentSync(self._files, covered, journal.unsynced_folders())
        borrowed: list[int] = []
        # Owner of the descriptors: the disk thread, or the turn if it is interrupted before the thread starts.
        owner: dict[str, str] = {}

        def work() -> None:
            if owner.setdefault("is", "thread") == "thread":
                sync.run()

        def finished(error: OSError | None) -> None:
            if owner["is"] != "thread":
                return
            journal.end_sync(borrowed)
            if error is None:
                journal.synced(number, used_bytes, started_us)
                self._collection.commit.mark(queue, journal)
                if isinstance(queue, Queue):
                    self.retirement.drop_dead(queue)
            elif queue.journal is not None:  # else the queue was deleted, and its folder is not where it was
                queue.review_next_put()
                was_sound, failure = journal.failed is None, journal.sync_failed(error, sync)
                if was_sound:
                    self._report(f"{queue.name}: {failure}")
            if not journal.filled:
                return
            if journal is queue.journal and journal.failed is None:
                self._sync(queue, journal)
                return
            journal.leave_unproven()

        is_under_way = False
        try:
            full, borrowed = journal.begin_sync()
            covered += full
            try:
                fd = journal.borrow()
                borrowed += (fd,)
                covered += ((fd, live),)
            except OSError as error:
                must_be_the_systems(error)
                number = 0  # the live one stays unsynced
                self._report(f"{queue.name}: cannot open for sync: {error.strerror}; will be retried")
            self._files.in_background(work, finished)
            is_under_way = True
        finally:
            if not is_under_way and owner.setdefault("is", "turn") == "turn":
                journal.end_sync(borrowed)

    def sync_due(self) -> int | None:
        """Sync journals whose sync_journal time has come; returns when the next is due (monotonic ms), or None."""
        waiting: list[Committed] = []
        for queue in self._collection.commit.sync_later:
            if queue.sync.due_at_ms > self._clock.monotonic_ms:
                waiting.append(queue)
            else:
                queue.sync.plan(0)
                if not self.sync(queue):
                    waiting.append(queue)
        self._collection.commit.sync_later = waiting
        return min((queue.sync.due_at_ms for queue in waiting), default=None)

    def start_round(self) -> None:
        """Begin a round, unless the last one is still under way."""
        if self._round is None or not self._slices.has(self._round):
            self._round = self.round()
            self._slices.take_on(self._round)

    def round(self) -> Work:
        """Look after each family once, one per step: its files, segments, memory and readers; then the trash."""
        full: list[Queue] = []
        has_one_ahead = False
        for queue in list(self._collection.families.values()):
            journal = queue.journal
            if journal is not None and journal.failed is not None and journal.failed.disk_full:
                full.append(queue)
            if journal is not None and (problem := journal.look()) is not None:
                queue.review_next_put()
                self._report(f"{queue.name}: {problem}; puts are refused until a reload or a restart")
            is_ahead = journal is not None and queue.is_ahead(journal)
            has_one_ahead = has_one_ahead or is_ahead
            if journal is not None and (len(journal.segments) > 1 or journal.leftover or is_ahead):
                if journal.checkpoint_synced:
                    self.retirement.drop_dead(queue)
                else:
                    self.sync(queue)
                self._compactor.compact_if_due(queue, journal)
            if journal is not None and journal.sync_untold:
                journal.tell_of_sync()
            if journal is not None and not (journal.is_marked or journal.failed or queue.stopped):
                self._get_marked(queue, journal)
            self._collection.memory.look_at(queue)
            yield None
            while queue.free_dropped():
                yield None
            yield from self._collection.delete_unread(queue)
        if has_one_ahead or self._is_going_back:
            self._go_back(has_one_ahead)
        if self._collection.memory.is_short:
            self._report_memory()
        yield from self._try_full_disk(full)
        yield from self._collection.trash.expire()

    def _go_back(self, has_one_ahead: bool) -> None:
        """Report once no journal has leases, after some had them although they are not to."""
        journals = [queue.journal for queue in self._collection.families.values() if queue.journal is not None]
        self._is_going_back = has_one_ahead or any(journal.leftover for journal in journals)
        if not (self._is_going_back or any(journal.had_leases for journal in journals)):
            self._report("journal_leases is off: no journal has leases any more, and an older kestreld reads them all")

    def _try_full_disk(self, full: list[Queue]) -> Work:
        """Check whether a full disk has space again, first for queues that were not tried for longest."""
        gone_on, self._gone_on = self._gone_on, []
        for queue in gone_on:
            queue.has_gone_on()
            yield None
        free_bytes = self._free_bytes() if full else 0
        refused = 0
        for queue in sorted(full, key=_failed_at_ms):
            journal = queue.journal
            if journal is None or journal.failed is None or queue.stopped is not None:
                continue
            if journal.refused_bytes > free_bytes:
                continue  # creating a segment may need less, but puts would be refused again
            try:
                if queue.try_again(journal.failed):
                    self._gone_on.append(queue)
            except JournalFailed:
                refused += 1
            if refused >= REFUSALS_MAX:
                return
            yield None

    def _free_bytes(self) -> int:
        try:
            return self._files.free_bytes(self._collection.spool)
        except OSError as error:
            must_be_the_systems(error)
            return 0

    def _get_marked(self, queue: Queue, journal: Journal) -> None:
        """Have the marker name a live segment that no other sync covers, one journal at a time."""
        if journal.checkpoint_synced:
            self._collection.commit.mark(queue, journal)
        elif self._getting_marked is None or not self._getting_marked.syncing:
            self.sync(queue)
            self._getting_marked = journal

    def _report_memory(self) -> None:
        if self._clock.monotonic_ms - self._memory_reported_at_ms >= REPORT_EVERY_MS:
            self._memory_reported_at_ms = self._clock.monotonic_ms
            self._report("max_memory reached: items are kept on disk only, and queues without a journal refuse puts")

    def rest(self, queue: Queue) -> bool:
        """True if a family has no work under way and is on disk. Otherwise starts the missing work."""
        journal = queue.journal
        if not queue.is_idle or queue.moving or queue in self._collection.commit.rolling:
            return False
        if journal is None or not journal.segments or queue.stopped is not None:
            return True
        if self.is_compacting(queue) or journal.retiring or journal.syncing or journal.is_borrowed:
            return False
        if journal.unsynced:
            self.sync(queue)
            return False
        return True

    def is_compacting(self, queue: Queue) -> bool:
        return self._compactor.is_compacting(queue)


def _failed_at_ms(queue: Queue) -> int:
    return queue.journal.failed_at_ms if queue.journal is not None else 0
