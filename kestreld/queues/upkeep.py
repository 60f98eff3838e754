"""What keeps journals short, between turns: rolling, background syncs, dead segments, the archive, compaction.

Whatever may take long is a generator that gives way often; the service runs them in slices.
"""

from collections.abc import Callable, Iterator
from typing import Final

from kestreld.config import encode_queue_name
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.compaction import Compaction
from kestreld.journal.journal import Journal
from kestreld.journal.segment import Segment
from kestreld.queues.collection import QueueCollection
from kestreld.queues.live import live_records
from kestreld.queues.queue import Queue

HEADROOM_SEGMENTS: Final = 2  # compaction starts this much before the limit, since items flow on meanwhile


class Upkeep:
    """The long work of a collection. `wake` asks the service to call `slice` soon."""

    def __init__(self, collection: QueueCollection, wake: Callable[[], None]) -> None:
        self._collection = collection
        self._files = collection.files
        self._clock = collection.clock
        self._report = collection.report
        self._archive = collection.config.archive_path
        self._wake = wake
        self._work: list[Iterator[None]] = []
        self._round: Iterator[None] | None = None
        self._compacting: set[Queue] = set()
        self._archive_reported_at_ms = -60_000
        for queue, replaced in collection.replaced:
            if queue.journal is not None:
                self.retire(queue, queue.journal, replaced)

    # Slices

    def slice(self, until_us: int) -> bool:
        """Work until the stopwatch says `until_us`; whether there is more to do."""
        while self._work:
            work = self._work[0]
            for _ in work:
                if self._clock.stopwatch_us() >= until_us:
                    self._work.append(self._work.pop(0))
                    return True
            self._work.remove(work)
        return False

    def _take_on(self, work: Iterator[None]) -> None:
        self._work.append(work)
        self._wake()

    # Rolling

    def after_turn(self) -> None:
        """Begin a new segment where one is full. Called after the replies of a turn, with everything committed."""
        rolling, self._collection.commit.rolling = self._collection.commit.rolling, []
        for queue in rolling:
            journal = queue.journal
            if journal is None or journal.failed is not None or queue.dirty or queue.flight is not None:
                continue
            if self._roll(queue, journal):
                self._compact_if_due(queue, journal)

    def _roll(self, queue: Queue, journal: Journal, skip: int = 0) -> bool:
        """Begin a new segment; it and the one before go to the disk together, in the background."""
        filled: list[int] = []
        try:
            if journal.unsynced:
                filled.append(journal.borrow())
            journal.start_segment(queue.checkpoint(), skip=skip)
        except (JournalFailed, OSError) as problem:
            for fd in filled:
                journal.give_back(fd)
            self._report(f"{queue.name}: {problem}; puts are refused until a new segment can be made")
            queue.room = -1
            return False
        self._sync(queue, journal, filled)
        return True

    # Syncs in the background

    def sync(self, queue: Queue) -> bool:
        """Put a journal on disk without holding up a turn. False when one is under way already: ask again."""
        journal = queue.journal
        if journal is None or journal.failed is not None or not journal.segments:
            return True
        if journal.is_borrowed:
            return False
        self._sync(queue, journal, [])
        return True

    def _sync(self, queue: Queue, journal: Journal, borrowed: list[int]) -> None:
        """Sync the live segment, and before it the borrowed descriptors."""
        try:
            borrowed.append(journal.borrow())
        except OSError as error:
            self._report(f"{queue.name}: cannot be opened to sync: {error.strerror}; tried again later")
        number, used_bytes = journal.live.number, journal.live.used_bytes
        started_us = self._clock.stopwatch_us()
        folders = journal.unsynced_folders()

        def work() -> None:
            for fd in borrowed:
                self._files.sync(fd)
            for folder in folders:
                self._files.sync_dir(folder)

        def finished(error: OSError | None) -> None:
            for fd in borrowed:
                journal.give_back(fd)
            if error is None:
                journal.synced(number, used_bytes, started_us)
                self.drop_dead(queue)
            else:
                queue.room = -1
                if journal.failed is None:
                    self._report(f"{queue.name}: {journal.sync_failed(error)}")

        self._files.in_background(work, finished)

    def sync_due(self) -> int | None:
        """Sync the journals whose sync_journal time has come; when the next is due, on the monotonic clock."""
        waiting = []
        for queue in self._collection.commit.sync_later:
            if queue.sync_due_at_ms > self._clock.monotonic_ms:
                waiting.append(queue)
            else:
                queue.sync_due_at_ms = 0
                if not self.sync(queue):
                    waiting.append(queue)
        self._collection.commit.sync_later = waiting
        return min((queue.sync_due_at_ms for queue in waiting), default=None)

    def start_round(self) -> None:
        """Begin a round, unless the last one is still under way."""
        if self._round is None or self._round not in self._work:
            self._round = self.round()
            self._take_on(self._round)

    def round(self) -> Iterator[None]:
        """Look after every family once, one a step: segments that have died since they were rolled."""
        for queue in list(self._collection.families.values()):
            journal = queue.journal
            if journal is not None and len(journal.segments) > 1:
                if journal.checkpoint_synced:
                    self.drop_dead(queue)
                else:
                    self.sync(queue)
                self._compact_if_due(queue, journal)
            yield

    # Dead segments

    def drop_dead(self, queue: Queue) -> None:
        """Let go of the segments that no reader needs any more. What a turn took is done only once it is written."""
        journal = queue.journal
        if journal is None or journal.retiring or queue.stopped is not None or queue in self._compacting:
            return
        if len(journal.segments) > 1:
            head = queue.safe_head if queue.dirty or queue.flight is not None else queue.lowest_head()
            self.retire(queue, journal, journal.segments[: journal.dead_segments(head)])

    def retire(self, queue: Queue, journal: Journal, dead: list[Segment]) -> None:
        """Archive or delete segments, oldest first; what will not go is tried again in a later round."""
        if dead:
            self._take_on(self._retire(queue, journal, dead))

    def _retire(self, queue: Queue, journal: Journal, dead: list[Segment]) -> Iterator[None]:
        # One file a step: letting go of a large one takes milliseconds.
        while journal.retiring:
            yield
        journal.retiring = True
        for segment in dead:
            if journal is not queue.journal:
                return  # deleted meanwhile: these names may be those of a new journal by now
            try:
                if self._archive is None or segment.compacted:
                    self._files.unlink(segment.path)
                elif not self._archived(queue, journal, segment):
                    return  # goes on in the background
            except FileNotFoundError:
                journal.forget(segment)  # somebody has tidied up by hand: it had to go anyway
                continue
            except OSError as error:
                self._report_archive(f"{segment.path}: cannot be removed: {error.strerror}; tried again later")
                break
            journal.forget(segment)
            yield
        journal.retiring = False

    def _archived(self, queue: Queue, journal: Journal, segment: Segment) -> bool:
        """Move a segment to the archive; False when that takes a copy, which goes on in the background."""
        folder = f"{self._archive}/{encode_queue_name(queue.name)}/{journal.journal_id}"
        path = f"{folder}/{segment.path.rpartition('/')[2]}"
        self._files.make_dir(folder)
        try:
            self._files.rename(segment.path, path)
        except OSError as error:
            if not self._files.is_other_disk(error):
                raise
            self._copy_to_archive(queue, journal, segment, path)
            return False
        return True

    def _copy_to_archive(self, queue: Queue, journal: Journal, segment: Segment, path: str) -> None:
        def work() -> None:
            self._files.copy(segment.path, path + ".new")
            self._files.rename(path + ".new", path)
            self._files.sync_dir(path.rpartition("/")[0])
            self._files.unlink(segment.path)

        def finished(error: OSError | None) -> None:
            journal.retiring = False
            if error is not None:
                self._report_archive(f"{path}: cannot be written: {error.strerror}; tried again later")
                return
            journal.forget(segment)
            self.drop_dead(queue)

        self._files.in_background(work, finished)

    def _report_archive(self, problem: str) -> None:
        # Once a minute: the round that tries again comes every second.
        if self._clock.monotonic_ms - self._archive_reported_at_ms >= 60_000:
            self._archive_reported_at_ms = self._clock.monotonic_ms
            self._report(problem)

    # Compaction

    def _compact_if_due(self, queue: Queue, journal: Journal) -> None:
        """The guide's second rule: the journal is many times its size, and the queue's contents are less than one."""
        size_max = queue.segment_bytes_max
        limit = size_max * queue.segments_max
        start_at = max(limit - HEADROOM_SEGMENTS * size_max, limit // 2)
        if queue in self._compacting or queue.stopped is not None or journal.disk_bytes <= start_at:
            return
        closed_bytes = journal.disk_bytes - journal.live.used_bytes
        live_bytes = queue.live_bytes()
        if live_bytes < size_max and closed_bytes > 2 * live_bytes:
            self._compacting.add(queue)
            self._take_on(self._compact(queue, journal))

    def _compact(self, queue: Queue, journal: Journal) -> Iterator[None]:
        """Rewrite the live items of all closed segments into one, which then takes their place."""
        while queue.dirty or queue.flight is not None:
            yield
        compaction = None
        if journal is queue.journal and journal.failed is None and self._roll(queue, journal, skip=1):
            compaction = Compaction(journal, queue.checkpoint())
            try:
                for record in live_records(queue, journal.live.first_id):
                    if record is not None:
                        compaction.add(record)
                    if compaction.wants_a_pause or record is None:
                        yield
                compaction.close()
                while not journal.checkpoint_synced and journal.failed is None:
                    yield  # nothing older goes before the CHECKPOINT that stands without it
            except (JournalCorrupt, JournalFailed) as problem:
                self._report(f"{queue.name}: compaction given up: {problem}")
                compaction.abandon()
                compaction = None
        if compaction is None or journal.failed is not None or journal is not queue.journal:
            if compaction is not None:
                compaction.abandon()
            self._compacting.discard(queue)
            return
        self._put_in_place(queue, journal, compaction)

    def _put_in_place(self, queue: Queue, journal: Journal, compaction: Compaction) -> None:
        def finished(error: OSError | None) -> None:
            self._compacting.discard(queue)
            if error is not None or journal is not queue.journal:
                reason = error.strerror if error is not None else "the queue was deleted"
                self._report(f"{queue.name}: compaction given up: {reason}")
                compaction.abandon()
                return
            replaced = journal.replace(compaction.replaced, compaction.segment)
            for reader in queue.readers.values():
                reader.moved_to(compaction.replaced, compaction.segment)
            self.retire(queue, journal, replaced)

        self._files.in_background(compaction.put_in_place, finished)
