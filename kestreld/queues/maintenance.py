"""What keeps journals short, between turns: rolling, background syncs, dead segments, the archive, compaction.

Whatever may take long is a generator that gives way often, and is run in slices.
"""

from collections.abc import Generator
from typing import Final

from kestreld.config.config import encode_queue_name
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import must_be_the_systems
from kestreld.journal.compaction import Compaction
from kestreld.journal.journal import Journal
from kestreld.journal.segment import Segment
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Committed
from kestreld.queues.live import live_records
from kestreld.queues.queue import Queue, as_queues
from kestreld.queues.slices import WAITS, Slices, Work

COMPACT_AGAIN_MS: Final = 60_000
REPORT_EVERY_MS: Final = 60_000


class Maintenance:
    """Maintenance of a collection's journals. What takes long of it is done in `slices`."""

    def __init__(self, collection: QueueCollection, slices: Slices) -> None:
        self._collection = collection
        self._files = collection.files
        self._clock = collection.clock
        self._report = collection.report
        self.archive_path = collection.config.archive_path  # None = dead segments are deleted
        self._slices = slices
        self._round: Work | None = None
        self._compacting: set[Queue] = set()
        self._getting_marked: Journal | None = None  # whose sync is the latest that was for the marker alone
        self._archive_reported_at_ms = self._memory_reported_at_ms = -REPORT_EVERY_MS
        for queue in collection.families.values():
            self.drop_dead(queue)  # what a compaction had replaced when the server stopped

    # Rolling

    def after_turn(self) -> None:
        """Begin a new segment where one is full. Called after the replies of a turn, with everything committed."""
        rolling = self._collection.commit.rolling
        for queue in as_queues(rolling):
            journal = queue.journal
            if journal is None or journal.failed is not None:
                continue
            if queue.stopped is not None:
                continue  # its windows are empty: a CHECKPOINT would say that everything is done
            # Full no more: a synced queue's journal was rolled before its next commit was written.
            full = queue.wants_segment(journal)
            if not full or (queue.is_idle and self._roll(queue, journal)):
                self._compact_if_due(queue, journal)
                self._keep_within_limit(queue, journal)
        rolling.clear()

    def _roll(self, queue: Queue, journal: Journal) -> bool:
        try:
            self.begin_segment(queue, journal)
        except (JournalFailed, OSError) as problem:
            if isinstance(problem, OSError):
                must_be_the_systems(problem)
            self._report(f"{queue.name}: {problem}; puts are refused until a new segment can be made")
            queue.review_next_put()
            return False
        return True

    def begin_segment(self, queue: Queue, journal: Journal) -> None:
        """Begin a new segment; it and the one before go to the disk together, in the background.

        The queue is idle. Raises JournalFailed, or OSError, and leaves all as it was.
        """
        filled = journal.borrow() if journal.unsynced else -1
        try:
            queue.start_segment(journal, queue.checkpoint(), filled)
        finally:
            if filled >= 0 and filled not in journal.filled:
                journal.give_back(filled)
        self._sync(queue, journal)

    # Syncs in the background

    def sync(self, queue: Queue) -> bool:
        """Put a journal on disk without holding up a turn. False when one is under way already: ask again."""
        journal = queue.journal
        if journal is None or journal.failed is not None or not journal.segments:
            return True
        if journal.is_borrowed:
            return False
        self._sync(queue, journal)
        return True

    def _sync(self, queue: Queue, journal: Journal) -> None:
        """Sync the full segments and the live one. One at a time: what comes meanwhile is for the next."""
        if journal.syncing or not self._files.takes_calls:
            return
        left = journal.begin_sync()
        borrowed = [fd for fd, _ in left if fd >= 0]
        live, used_bytes = journal.live, journal.live.used_bytes
        number = live.number
        try:
            borrowed.append(journal.borrow())
            left.append((borrowed[-1], live))
        except OSError as error:
            must_be_the_systems(error)
            number = 0  # the live one stays unsynced
            self._report(f"{queue.name}: cannot be opened to sync: {error.strerror}; tried again later")
        started_us = self._clock.stopwatch_us()
        folders = journal.unsynced_folders()
        done: list[Segment] = []
        # Who has the descriptors: the disk thread that comes to it, or the turn, where that is cut short before.
        owner: dict[str, str] = {}

        def work() -> None:
            if owner.setdefault("is", "thread") != "thread":
                return
            for fd, segment in left:
                if fd < 0:
                    self._files.sync_by_name(segment.path)
                else:
                    self._files.sync(fd)
                done.append(segment)
            for folder in folders:
                self._files.sync_dir(folder)

        def finished(error: OSError | None) -> None:
            if owner["is"] != "thread":
                return
            journal.end_sync(borrowed)
            if error is None:
                journal.synced(number, used_bytes, started_us)
                self._collection.commit.mark(queue, journal)
                self.drop_dead(queue)
            else:
                queue.review_next_put()
                behind = left[len(done) + 1 :]  # what failed itself is not asked again
                journal.still_unproven([segment for _, segment in behind if segment is not live])
                if journal.failed is None:
                    self._report(f"{queue.name}: {journal.sync_failed(error)}")
            if not journal.filled:
                return
            if journal is queue.journal and journal.failed is None:
                self._sync(queue, journal)
                return
            journal.leave_unproven()

        is_under_way = False
        try:
            self._files.in_background(work, finished)
            is_under_way = True
        finally:
            if not is_under_way and owner.setdefault("is", "turn") == "turn":
                journal.end_sync(borrowed)

    def sync_due(self) -> int | None:
        """Sync the journals whose sync_journal time has come; when the next is due, on the monotonic clock."""
        waiting: list[Committed] = []
        for queue in as_queues(self._collection.commit.sync_later):
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
        """Look after every family once, one a step: files taken away, segments that have died; and the trash."""
        for queue in list(self._collection.families.values()):
            journal = queue.journal
            if journal is not None and (problem := journal.look()) is not None:
                queue.review_next_put()
                self._report(f"{queue.name}: {problem}; puts are refused until a reload or a restart")
            if journal is not None and (len(journal.segments) > 1 or journal.leftover):
                if journal.checkpoint_synced:
                    self.drop_dead(queue)
                else:
                    self.sync(queue)
                self._compact_if_due(queue, journal)
            if journal is not None and journal.sync_untold:
                journal.tell_of_sync()
            if journal is not None and not (journal.is_marked or journal.failed or queue.stopped):
                self._get_marked(queue, journal)
            self._collection.memory.look_at(queue)
            yield None
        if self._collection.memory.is_short:
            self._report_memory()
        yield from self._collection.trash.expire()

    def _get_marked(self, queue: Queue, journal: Journal) -> None:
        """Have the marker name a live segment that nothing else puts on disk; of one journal after the other."""
        if journal.checkpoint_synced:
            self._collection.commit.mark(queue, journal)
        elif self._getting_marked is None or not self._getting_marked.syncing:
            self.sync(queue)
            self._getting_marked = journal

    def _report_memory(self) -> None:
        if self._clock.monotonic_ms - self._memory_reported_at_ms >= REPORT_EVERY_MS:
            self._memory_reported_at_ms = self._clock.monotonic_ms
            self._report("max_memory is used up: items stay on disk only, and queues without a journal take no more")

    # Dead segments

    def drop_dead(self, queue: Queue) -> None:
        """Let go of the segments that no reader needs any more. What a turn took is done only once it is written."""
        journal = queue.journal
        if journal is None or journal.retiring or queue.stopped is not None or queue in self._compacting:
            return
        dead = list(journal.leftover.values())
        if len(journal.segments) > 1:
            dead += journal.segments[: journal.dead_segments(queue.written_head())]
        if dead:
            journal.retire(under_way=True)
            self._slices.take_on(self._retire(queue, journal, dead))

    def _retire(self, queue: Queue, journal: Journal, dead: list[Segment]) -> Work:
        """Archive or delete segments, oldest first; what will not go is tried again in a later round."""
        kept = next(segment for segment in journal.segments if segment not in dead)
        if kept is not journal.segments[0] and not (yield from self._raise_floor(queue, journal, kept.first_id)):
            journal.retire(under_way=False)
            return
        # One file a step: letting go of a large one takes milliseconds.
        for segment in dead:
            if journal is not queue.journal:
                return  # deleted meanwhile: these names may be those of a new journal by now
            try:
                if self.archive_path is None or segment.compacted:
                    self._files.unlink(segment.path)
                elif not self._archived(queue, journal, segment):
                    return  # goes on in the background
            except OSError as error:
                must_be_the_systems(error)
                # When somebody has tidied up by hand: it had to go anyway.
                if self._files.exists(segment.path):
                    self._report_archive(f"{segment.path}: cannot be removed: {error.strerror}; tried again later")
                    journal.retire(under_way=False)
                    return
            journal.forget(segment)
            yield None
        journal.retire(under_way=False)
        self.drop_dead(queue)  # what has died meanwhile

    def _raise_floor(self, queue: Queue, journal: Journal, floor: int) -> Generator[int | None, None, bool]:
        """Have the marker say, on disk, that nobody needs what stands before `floor`; False when it does not."""
        if journal.marker is None or journal.floor_on_disk >= floor:
            return True  # where there is no marker nothing is missed
        outcome: list[OSError | None] = []
        try:
            journal.mark(floor)
        except OSError as error:
            must_be_the_systems(error)
            outcome.append(error)
        else:
            self._files.in_background(lambda: self._files.sync_dir(journal.folder), outcome.append)
        while not outcome:
            yield WAITS
        if journal is not queue.journal:
            return False
        if outcome[0] is not None:
            self._report_archive(
                f"{queue.name}: the marker cannot be renamed: {outcome[0].strerror}; tried again later"
            )
            return journal.marker is None
        journal.floor_synced(floor)
        return True

    def _archived(self, queue: Queue, journal: Journal, segment: Segment) -> bool:
        """Move a segment to the archive; False when that takes a copy, which goes on in the background."""
        folder = f"{self.archive_path}/{encode_queue_name(queue.name)}/{journal.journal_id}"
        path = f"{folder}/{segment.path.rpartition('/')[2]}"
        self._files.make_dir(folder)
        try:
            self._files.rename(segment.path, path)
        except OSError as error:
            must_be_the_systems(error)
            if not self._files.is_other_disk(error):
                raise
            self._copy_to_archive(queue, journal, segment, path)
            return False
        return True

    def _copy_to_archive(self, queue: Queue, journal: Journal, segment: Segment, path: str) -> None:
        def work() -> None:
            try:
                self._files.copy(segment.path, path + ".new")
            except OSError:
                if self._files.exists(path + ".new"):
                    self._files.unlink(path + ".new")  # a disk that is full needs the room
                raise
            self._files.rename(path + ".new", path)
            self._files.sync_dir(path.rpartition("/")[0])

        def finished(error: OSError | None) -> None:
            journal.retire(under_way=False)
            if journal is not queue.journal:
                return  # deleted meanwhile: its path may be that of a new journal's segment by now
            try:
                if error is not None:
                    raise error
                self._files.unlink(segment.path)
            except OSError as problem:
                must_be_the_systems(problem)
                self._report_archive(f"{path}: cannot be archived: {problem.strerror}; tried again later")
                return
            journal.forget(segment)
            self.drop_dead(queue)

        self._files.in_background(work, finished)

    def _report_archive(self, problem: str) -> None:
        # Once a minute: the round that tries again comes every second.
        if self._clock.monotonic_ms - self._archive_reported_at_ms >= REPORT_EVERY_MS:
            self._archive_reported_at_ms = self._clock.monotonic_ms
            self._report(problem)

    # Compaction

    def is_compacting(self, queue: Queue) -> bool:
        return queue in self._compacting

    def _compact_if_due(self, queue: Queue, journal: Journal) -> None:
        """The guide's second rule: the journal is many times its size, and the queue's contents are less than one."""
        size_max = queue.segment_bytes_max
        # Half-way to the limit: items flow on meanwhile, and of small segments many are filled during a sync.
        start_at = size_max * queue.segments_max // 2
        if queue in self._compacting or queue.stopped is not None or journal.disk_bytes <= start_at:
            return
        pinned_bytes = journal.needed_bytes(queue.lowest_head())  # the others only wait for a sync or the archive
        if pinned_bytes <= start_at:
            return
        if self._clock.monotonic_ms < journal.compact_again_at_ms:
            return
        # It must be worth it: what was compacted before is not made much smaller again.
        fresh_bytes = sum(segment.used_bytes for segment in journal.segments[:-1] if not segment.compacted)
        data_bytes, record_bytes = queue.live_bytes()
        if data_bytes < size_max <= fresh_bytes and fresh_bytes > record_bytes and not journal.is_crowded:
            self._compacting.add(queue)
            self._slices.take_on(self._compact(queue, journal))

    def _keep_within_limit(self, queue: Queue, journal: Journal) -> None:
        """Where segments are filled faster than the disk takes a compacted one, those who fill them have to wait."""
        full_at = queue.segment_bytes_max * (queue.segments_max - 1)
        if queue in self._compacting and journal.disk_bytes > full_at:
            self._collection.crowded.setdefault(queue, [])

    def _compaction_over(self, queue: Queue) -> None:
        self._compacting.discard(queue)
        held_back = self._collection.crowded.pop(queue, None)
        if held_back:
            for tell in held_back:
                tell()
            self._collection.commit.wake()

    def _compact(self, queue: Queue, journal: Journal) -> Work:
        """Rewrite the live items of all closed segments into one, which then takes their place."""
        compaction = None
        yield from self._roll_for_compaction(queue, journal)
        if journal.begun_with is not None and self._may_compact(queue, journal):
            compaction = Compaction(journal, journal.begun_with)
            try:
                for record in live_records(queue, journal.live.first_id):
                    if record is not None:
                        compaction.add(record)
                    if compaction.wants_a_pause or record is None:
                        yield None
                compaction.close()
                yield from self._get_to_disk(queue, journal, compaction)
            except JournalCorrupt as problem:
                queue.stop(problem)
                self._collection.commit.wake()  # those who waited have been told
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
        self._put_in_place(queue, journal, compaction)

    def _get_to_disk(self, queue: Queue, journal: Journal, compaction: Compaction) -> Work:
        """Wait until it is there, and the CHECKPOINT behind it: nothing older goes before. Raises JournalFailed."""
        outcome: list[OSError | None] = []
        self._files.in_background(compaction.sync, outcome.append)
        # A queue that was deleted or stopped meanwhile is not synced any more.
        while not outcome or (journal.synced_number <= compaction.segment.number and self._may_compact(queue, journal)):
            yield WAITS
        if outcome[0] is not None:
            raise JournalFailed(compaction.segment.path, f"sync failed: {outcome[0].strerror}")

    def _roll_for_compaction(self, queue: Queue, journal: Journal) -> Work:
        """Begin a new segment with a number left free before it: the compacted one's."""
        queue.want_segment(wanted=True)
        number = journal.live.number
        while journal.live.number == number and self._may_compact(queue, journal):
            if not queue.is_idle:
                yield WAITS  # a synced queue may never be seen idle: its next commit rolls
            elif not self._roll(queue, journal):
                journal.compact_not_before(self._clock.monotonic_ms + COMPACT_AGAIN_MS)
                break
        queue.want_segment(wanted=False)

    def _may_compact(self, queue: Queue, journal: Journal) -> bool:
        return journal is queue.journal and journal.failed is None and queue.stopped is None

    def _give_up(self, queue: Queue, journal: Journal, compaction: Compaction, reason: str) -> None:
        if journal is queue.journal:  # else it was deleted meanwhile, and there is nothing to try again
            # Not at every round: each try begins a segment, and a disk that is full has no room for them.
            journal.compact_not_before(self._clock.monotonic_ms + COMPACT_AGAIN_MS)
            self._report(f"{queue.name}: compaction given up: {reason}; tried again in a minute")
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
            self.drop_dead(queue)

        self._files.in_background(compaction.put_in_place, finished)
