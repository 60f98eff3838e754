"""Retirement of segments that no reader needs: archived or deleted, oldest first, one file a step.

A dead segment goes only when the next CHECKPOINT is on disk, no reader needs it as written, and the marker, if
there is one, says so on disk: startup never takes it for a missing one. A segment that a compaction has replaced goes
once the compacted one's name is on disk. Going from the oldest on, a crash leaves no gap.
"""

from collections.abc import Callable, Generator
from typing import Final

from kestreld.config.queue_names import encode_queue_name
from kestreld.files import must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.segment import Segment
from kestreld.queues.collection import QueueCollection
from kestreld.queues.queue import Queue
from kestreld.queues.slices import WAITS, Slices, Work

REPORT_EVERY_MS: Final = 60_000
SEEK_POINTS_AT_ONCE: Final = 16


class DeadSegments:
    """Retires segments of a collection, except of queues being compacted, whose segments are being read."""

    def __init__(self, collection: QueueCollection, slices: Slices, is_compacting: Callable[[Queue], bool]) -> None:
        self._collection = collection
        self.archive_path = collection.config.archive_path  # None = dead segments are deleted
        self._files = collection.files
        self._clock = collection.clock
        self._report = collection.report
        self._slices = slices
        self._is_compacting = is_compacting
        self._reported_at_ms = -REPORT_EVERY_MS

    def drop_dead(self, queue: Queue) -> None:
        """Retire the segments that no reader needs. Items taken by a turn count as done only once that is written."""
        journal = queue.journal
        if journal is None or journal.retiring or queue.stopped is not None or self._is_compacting(queue):
            return
        dead = list(journal.leftover.values())
        if len(journal.segments) > 1:
            dead += journal.segments[: journal.dead_segments(queue.written_head())]
        if not dead:
            return
        work = self._retire(queue, journal, dead)
        try:
            journal.retire(under_way=True)
            self._slices.take_on(work)
        finally:
            if not self._slices.has(work):  # interrupted at its beginning
                journal.retire(under_way=False)

    def _retire(self, queue: Queue, journal: Journal, dead: list[Segment]) -> Work:
        """Archive or delete segments, oldest first; failures are retried in a later round."""
        is_copying = has_gone = False
        try:
            # A process killed while replacing segments has not synced the compacted one's name.
            if journal.leftover_unsynced and not (yield from self._sync_names(queue, journal)):
                return
            journal.leftover_synced()
            kept = next(segment for segment in journal.segments if segment not in dead)
            if kept is not journal.segments[0] and not (yield from self._raise_floor(queue, journal, kept.first_id)):
                return
            # One file a step: deleting a large one takes milliseconds.
            for segment in dead:
                if journal is not queue.journal:
                    return  # deleted meanwhile: a new journal may use these names by now
                try:
                    if self.archive_path is None or segment.compacted:
                        self._files.unlink(segment.path)
                    elif not self._archived(queue, journal, segment):
                        is_copying = True
                        return  # goes on in the background
                except OSError as error:
                    must_be_the_systems(error)
                    # Somebody may have deleted it by hand: it had to go anyway.
                    if self._files.exists(segment.path):
                        self._report_once(f"{segment.path}: cannot remove: {error.strerror}; will be retried")
                        return
                journal.forget(segment)
                yield None
                yield from _freed(segment)
            has_gone = True
        finally:
            if not is_copying:
                self._over(queue, journal)
        if has_gone:
            self.drop_dead(queue)  # segments that died meanwhile

    def _over(self, queue: Queue, journal: Journal) -> None:
        journal.retire(under_way=False)
        if not self._is_compacting(queue):
            self._collection.let_in(queue)

    def _raise_floor(self, queue: Queue, journal: Journal, floor: int) -> Generator[int | None, None, bool]:
        """Have the marker say, on disk, that nothing before `floor` is needed; False if it does not."""
        if journal.marker is None or journal.floor_on_disk >= floor:
            return True  # without a marker no segment is missed
        try:
            journal.mark(floor)
        except OSError as error:
            must_be_the_systems(error)
            self._report_once(f"{queue.name}: cannot rename the marker: {error.strerror}; will be retried")
            return journal.marker is None
        if not (yield from self._sync_names(queue, journal)):
            return journal is queue.journal and journal.marker is None
        journal.floor_synced(floor)
        return True

    def _sync_names(self, queue: Queue, journal: Journal) -> Generator[int | None, None, bool]:
        """Sync the names of a journal's files; False if that failed, or the journal was deleted meanwhile."""
        outcome: list[OSError | None] = []
        self._files.in_background(lambda: self._files.sync_dir(journal.folder), outcome.append)
        while not outcome:
            yield WAITS
        if journal is not queue.journal:
            return False
        if outcome[0] is not None:
            self._report_once(f"{journal.folder}: cannot sync the folder: {outcome[0].strerror}; will be retried")
        return outcome[0] is None

    def _archived(self, queue: Queue, journal: Journal, segment: Segment) -> bool:
        """Move a segment to the archive; False if it must be copied, which goes on in the background."""
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
                    self._files.unlink(path + ".new")  # a full disk needs the space
                raise
            self._files.rename(path + ".new", path)
            self._files.sync_dir(path.rpartition("/")[0])

        def finished(error: OSError | None) -> None:
            self._over(queue, journal)
            if journal is not queue.journal:
                return  # deleted meanwhile: a new journal's segment may have its path by now
            try:
                if error is not None:
                    raise error
                self._files.unlink(segment.path)
            except OSError as problem:
                must_be_the_systems(problem)
                self._report_once(f"{path}: cannot archive: {problem.strerror}; will be retried")
                return
            journal.forget(segment)
            self._slices.take_on(_freed(segment))
            self.drop_dead(queue)

        self._files.in_background(work, finished)

    def _report_once(self, problem: str) -> None:
        # Once a minute: the round that tries again comes every second.
        if self._clock.monotonic_ms - self._reported_at_ms >= REPORT_EVERY_MS:
            self._reported_at_ms = self._clock.monotonic_ms
            self._report(problem)


def _freed(segment: Segment) -> Work:
    """Free the seek points of a segment in small steps.

    Each may be the last block in use of a megabyte, which is returned to the kernel with it.
    """
    while segment.seek_points:
        del segment.seek_points[-SEEK_POINTS_AT_ONCE:]
        yield None
