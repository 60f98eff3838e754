"""The commit at the end of a turn: each dirty queue is written once, before any reply that depends on it leaves."""

from typing import TYPE_CHECKING

from kestreld.clock import Clock
from kestreld.errors import JournalFailed
from kestreld.journal.journal import Journal

if TYPE_CHECKING:
    from kestreld.queues.queue import Queue


class GroupCommit:
    """The queues that changed in this turn, and what their syncs cost."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.dirty: list[Queue] = []
        self.rolling: list[Queue] = []  # their live segment is full: a new one is due after the replies
        self.sync_later: list[Queue] = []  # written, and to be synced within their sync_journal time
        self.failed: dict[Queue, JournalFailed] = {}  # of the last run
        self.syncs = 0
        self.sync_us_total = 0
        self.sync_us_max = 0

    def add(self, queue: "Queue") -> None:
        self.dirty.append(queue)

    def run(self) -> None:
        """Commit every dirty queue. What failed is in `failed` until the next run."""
        if self.failed:
            self.failed = {}
        dirty, self.dirty = self.dirty, []
        moving = []
        for queue in dirty:
            try:
                queue.commit()
            except JournalFailed as failure:
                self.failed[queue] = failure
                queue.report(f"{queue.name}: {failure}")
                continue
            finally:
                if queue.moving:
                    moving.append(queue)
            journal = queue.journal
            if journal is not None and journal.segments:
                if journal.grown_bytes() >= queue.segment_bytes_max:
                    self.rolling.append(queue)
                if queue.sync_ms and journal.unsynced and not queue.sync_due_at_ms:
                    queue.sync_due_at_ms = self.clock.monotonic_ms + queue.sync_ms
                    self.sync_later.append(queue)
        for queue in moving:
            queue.settle_moves(self.failed)

    def sync(self, journal: Journal, cut_back_to: int = -1) -> None:
        """Sync one journal and time it. Raises JournalFailed: its segment is never appended to again."""
        journal.sync(cut_back_to)
        self.syncs += 1
        self.sync_us_total += journal.sync_us
        self.sync_us_max = max(self.sync_us_max, journal.sync_us)
