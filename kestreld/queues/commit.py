"""Group commit at the end of a turn: one write per changed journal, and the syncs that replies wait for.

Each dirty queue is written in one piece, before any reply that depends on it is sent. With `sync_journal: true` those
replies also wait for a sync in a thread. A queue has at most one commit in such a sync: changes made meanwhile gather
under the next `PendingCommit` and are written when the sync ends, so a failure always undoes the journal's tail. Only
leases are written meanwhile, behind the commit: no reply waits for their sync, and what a failure cuts off with it is
written again. A failed sync is never retried, since the kernel reports a lost page only once. Such a queue begins a
segment only when the whole live one is on disk: else a power cut may take the end of that, and leave the new one.

A dirty queue is in `GroupCommit.dirty`, or gathers behind a sync whose end adds it. Each observer of a commit is called
exactly once: when it is on disk or needs no write, or after it was undone in memory. Within a turn that waits for
`tell` after `run`, as an observer may have replies that depend on commits yet to be made, or that have just failed.
Items moved between queues leave their source only after the destination's commit (`settle_moves`).
"""

from bisect import bisect_left
from collections.abc import Callable, Container
from typing import Final, Protocol

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.records import Checkpoint
from kestreld.journal.segment_sync import SegmentSync
from kestreld.queues.memory import Holding

# Upper bounds of the histogram of sync times; a last bucket counts longer ones.
SYNC_BOUNDS_US: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)


class CommitObserver(Protocol):
    """Somebody whose replies wait for commits. `released` is called for each commit, with its failure if it failed."""

    def released(self, failure: JournalFailed | None) -> None: ...


class PendingCommit:
    """One commit of a synced queue: pending until it is on disk or has failed."""

    __slots__ = ("failure", "is_syncing", "observers", "pending")

    def __init__(self) -> None:
        self.pending = True
        self.is_syncing = False  # its sync has been started
        self.failure: JournalFailed | None = None
        self.observers: list[CommitObserver] = []


class Tally:
    """Number of pending commits somebody waits for, and their first failure. `settled` is called when none is left."""

    __slots__ = ("failure", "pending", "settled")

    def __init__(self, settled: Callable[[], None]) -> None:
        self.pending = 0
        self.failure: JournalFailed | None = None
        self.settled = settled

    def wait_for(self, pending_commit: PendingCommit) -> None:
        self.pending += 1
        pending_commit.observers.append(self)

    def released(self, failure: JournalFailed | None) -> None:
        self.failure = self.failure or failure
        self.pending -= 1
        if not self.pending:
            self.settled()


class SyncState:
    """Progress of a queue's commits towards the disk. Read by anyone, changed only by its methods."""

    __slots__ = (
        "due_at_ms",
        "in_flight",
        "pending_commit",
        "rolls",
        "safe_head",
        "syncing_commit",
        "syncing_head",
        "written_at",
    )

    def __init__(self) -> None:
        # Of a queue that is synced before its replies: the commit being synced, and the latest one
        self.syncing_commit: PendingCommit | None = None
        self.pending_commit: PendingCommit | None = None
        self.rolls = False  # a segment is begun once `syncing_commit` is on disk
        self.in_flight: list[bytes] = []  # PUT records of `syncing_commit`
        self.written_at = (0, 0)  # start of `syncing_commit`: segment number and offset
        self.syncing_head = 0  # the lowest head once `syncing_commit` is on disk
        self.safe_head = 0  # the lowest head according to the last commit on disk
        self.due_at_ms = 0  # next sync of a queue that is synced periodically; 0 = nothing to sync

    def plan(self, due_at_ms: int) -> None:
        """Set the time of the next sync; 0 = none is due."""
        self.due_at_ms = due_at_ms

    def write_at(self, number: int, offset: int) -> None:
        """Set the place at which the next commit is about to be written."""
        self.written_at = (number, offset)

    def wrote(self, puts: list[bytes]) -> None:
        """Keep the PUT records of the commit that was just written."""
        self.in_flight = puts

    def gather(self, commit: PendingCommit) -> None:
        """Make `commit` the one that collects changes until the current sync ends."""
        self.pending_commit = commit

    def begin(self, commit: PendingCommit, lowest_head: int, *, rolls: bool) -> None:
        """Begin the sync of a written commit; `rolls`: a segment is begun behind it."""
        self.pending_commit = self.syncing_commit = commit
        self.syncing_head = lowest_head
        self.rolls = rolls

    def succeed(self) -> None:
        """Record that the commit being synced is on disk."""
        self.syncing_commit, self.rolls = None, False
        self.safe_head = self.syncing_head
        self.in_flight = []

    def give_up(self) -> list[bytes]:
        """Stop tracking the commit being synced; returns its PUT records."""
        self.syncing_commit, self.rolls = None, False
        given_up, self.in_flight = self.in_flight, []
        return given_up

    def drop_latest(self) -> PendingCommit | None:
        """Remove and return the latest commit: nobody waits for it any more."""
        latest, self.pending_commit = self.pending_commit, None
        return latest

    def drop_gathering(self) -> PendingCommit | None:
        """Remove the commit that gathers behind the one being synced, as its changes are undone; returns it."""
        gathering, self.pending_commit = self.pending_commit, self.syncing_commit
        return gathering


class Committed(Holding):
    """A queue family as the commit at the end of a turn sees it."""

    __slots__ = (
        "clock", "commit_group", "dirty", "journal", "leasing", "moving", "name", "report", "roll_wanted",
        "segment_bytes_max", "stopped", "sync", "sync_ms",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        journal: Journal | None,
        clock: Clock,
        commit: "GroupCommit",
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.name = name
        self.journal = journal
        self.clock = clock
        self.commit_group = commit
        self.report = report
        self.dirty = False
        self.leasing = False  # leases were granted or extended since the last commit
        self.moving = False  # items have left for other queues since the last commit
        self.stopped: JournalCorrupt | None = None
        self.sync_ms: int | None = None  # None = left to the kernel, 0 = before every reply, else within this time
        self.sync = SyncState()
        self.segment_bytes_max = 1 << 24
        self.roll_wanted = False  # a compaction waits for a new segment, with a number left free before it

    def mark_dirty(self) -> None:
        """Have this queue written at the end of the turn."""
        if not self.dirty:
            self.commit_group.dirty.append(self)
            self.dirty = True  # last: a queue that is dirty but not in the group would never be written again

    def mark_leased(self) -> None:
        """Have the leases that are granted now written at the end of the turn. No sync is planned for that."""
        if not (self.dirty or self.leasing):
            self.commit_group.dirty.append(self)
        self.leasing = True

    def expect_leases(self) -> None:
        """Prepare the journal, before a commit, for the leases that are written behind it."""

    def commit_leases(self) -> bool:
        """Write unwritten leases of items whose PUT is written. What the disk refuses is left to the next segment.

        False if another commit must come first: they need a new segment.
        """
        return True

    @property
    def pending_commit(self) -> PendingCommit | None:
        """The latest commit, if its replies wait for the disk; else None."""
        return self.sync.pending_commit

    @property
    def is_idle(self) -> bool:
        """True if every change is written and no commit is being synced."""
        return not self.dirty and self.sync.syncing_commit is None

    def wants_segment(self, journal: Journal) -> bool:
        """True if the live segment is full, or a new one was requested."""
        return self.roll_wanted or journal.segments[-1].used_bytes - journal.checkpoint_bytes >= self.segment_bytes_max

    def want_segment(self, *, wanted: bool) -> None:
        """Request a new segment with a number left free before it, or withdraw that unless a new version needs it."""
        self.roll_wanted = wanted or (self.journal is not None and self.journal.is_behind)

    def start_segment(self, journal: Journal, checkpoint: Checkpoint, filled: int = -1, unsaid: bytes = b"") -> None:
        """Begin the new segment. See `Journal.start_segment`."""
        journal.start_segment(checkpoint, int(self.roll_wanted), filled, unsaid)
        self.roll_wanted = False

    def commit(self) -> None:
        """Write all changes since the last commit in one piece. Raises JournalFailed after undoing all of them."""
        raise NotImplementedError

    def commit_synced(self) -> None:
        """Record that the commit being synced is on disk."""
        raise NotImplementedError

    def forget_syncing(self) -> None:
        """Stop tracking the commit being synced: it was put on disk in another way."""
        raise NotImplementedError

    def undo_syncing(self) -> None:
        """Undo the commit whose sync failed, and every change since."""
        raise NotImplementedError

    def settle_moves(self, failed: Container["Committed"]) -> None:
        """Finish moves to other queues after a turn's commits; revert those to queues in `failed`."""
        raise NotImplementedError

    def lowest_head(self) -> int:
        """Lowest id that some reader still needs."""
        raise NotImplementedError

    def written_head(self) -> int:
        """Lowest id that some reader still needs by the written records, or those on disk if replies wait for that."""
        return self.lowest_head() if self.is_idle else self.sync.safe_head

    def checkpoint(self) -> Checkpoint:
        """The whole state between commits, for the beginning of the next segment."""
        raise NotImplementedError


class PendingSync:
    """The sync of one commit: `work` does it, `finished` gets the outcome. `fd` is open on the segment at `path`."""

    __slots__ = ("fd", "finished", "path", "pending_commit", "work")

    def __init__(
        self,
        pending_commit: PendingCommit,
        fd: int,
        path: str,
        work: Callable[[], None],
        finished: Callable[[OSError | None], None],
    ) -> None:
        self.pending_commit = pending_commit
        self.fd = fd
        self.path = path
        self.work = work
        self.finished = finished


class GroupCommit:
    """The queues changed in this turn, the commits being synced, and the durations of syncs."""

    def __init__(self, clock: Clock, files: FileLayer) -> None:
        self.clock = clock
        self.files = files
        self.wake: Callable[[], None] = lambda: None  # asks for a turn: there is something to commit
        self.dirty: list[Committed] = []  # to be committed; each adds itself
        self.rolling: list[Committed] = []  # queues whose live segment is full: a new one is begun after the replies
        self.sync_later: list[Committed] = []  # written, and to be synced within their sync_journal time
        self.failed: dict[Committed, JournalFailed] = {}  # in the last run, or by `settle` in the turn before it
        self._failed_already: dict[Committed, JournalFailed] = {}  # by `settle`, before this turn's run
        self.moving: list[Committed] = []  # queues with items moved to queues whose commits are not on disk yet
        self.pending_commits = 0  # number of commits not yet on disk
        self.untold: list[tuple[CommitObserver, JournalFailed | None]] = []  # released since `tell`
        self._is_starting = False  # syncs, within `run`
        self.together = False  # one sync of the file system instead of several of journals
        self.pending_syncs: list[PendingSync] = []  # syncs to start in this run
        self.syncs = 0
        self.sync_us_total = 0
        self.sync_us_max = 0
        self.sync_counts = [0] * (len(SYNC_BOUNDS_US) + 1)

    def run(self) -> None:
        """Commit every dirty queue. Failures are in `failed` until the next run; `tell` comes once they were heeded."""
        if self.failed or self._failed_already:
            self.failed, self._failed_already = self._failed_already, {}
        dirty, self.dirty = self.dirty, []
        for queue in dirty:
            if queue.sync.syncing_commit is not None:
                if queue.leasing:
                    queue.expect_leases()
                    if not queue.commit_leases():
                        queue.dirty = True  # their replies wait for the commit after it
                if queue.dirty:  # a queue that left a failed segment in this turn is listed twice
                    self._gather(queue)
            elif queue.leasing:
                self._commit_leasing(queue)
            else:
                self._commit(queue)
            if queue.moving and queue not in self.moving:
                self.moving.append(queue)
        if self.pending_syncs:
            self._is_starting = True
            self._start_syncs()
            self._is_starting = False
        if self.moving:
            self._settle_moves(self.moving)

    def tell(self) -> None:
        """Call the observers of commits that were released. Within a turn only at its end, behind `run`."""
        untold, self.untold = self.untold, []
        for observer, failure in untold:
            observer.released(failure)

    def _commit_leasing(self, queue: Committed) -> None:
        if queue.dirty:
            queue.expect_leases()
            self._commit(queue)
        if queue.leasing:
            queue.commit_leases()
            if queue.sync_ms == 0 and queue.is_idle:
                self._roll_if_full(queue)

    def _roll_if_full(self, queue: Committed) -> None:
        """Roll a synced queue that leases have filled: once these are on disk, as of two segments one may be lost."""
        journal = queue.journal
        if journal is None or queue.stopped is not None or not journal.segments or journal.failed is not None:
            return
        if queue.wants_segment(journal):
            queue.sync.write_at(journal.live.number, journal.live.used_bytes)
            self._plan_sync(queue, journal, roll=True)

    def _commit(self, queue: Committed) -> None:
        try:
            queue.commit()
        except JournalFailed as failure:
            self._fail(queue, failure)
            return
        if queue.journal is not None and queue.journal.segments:
            self._plan(queue, queue.journal)
        if queue.sync.pending_commit is not None and queue.sync.syncing_commit is None:
            if queue.leasing:
                queue.commit_leases()  # replies may wait for them
            self._release(queue.sync.drop_latest(), None)  # nothing was written after all, or the queue was deleted

    def _gather(self, queue: Committed) -> None:
        """Leave a queue dirty while its last commit is being synced."""
        if queue.sync.pending_commit is queue.sync.syncing_commit:
            queue.sync.gather(self._new_commit())

    def _new_commit(self) -> PendingCommit:
        self.pending_commits += 1
        return PendingCommit()

    def _plan(self, queue: Committed, journal: Journal) -> None:
        """Plan what a written commit still needs: a sync, now or later, and a new segment."""
        full = queue.stopped is None and queue.wants_segment(journal)
        if queue.sync_ms == 0 and journal.unsynced and journal.failed is None:
            self._plan_sync(queue, journal, roll=full)
            return
        if queue.sync_ms == 0 and journal.failed is not None:
            queue.forget_syncing()  # nothing was written: a put that fails later takes nothing of this commit back
        if full:
            self.rolling.append(queue)
        if queue.sync_ms and journal.unsynced and not queue.sync.due_at_ms:
            queue.sync.plan(self.clock.monotonic_ms + queue.sync_ms)
            self.sync_later.append(queue)
            self.wake()  # a commit outside a turn, by a timer say, plans no sync

    def _settle_moves(self, queues: list[Committed]) -> None:
        self.moving = []
        for queue in queues:
            if queue.moving:
                queue.settle_moves(self.failed)
            if queue.moving and queue not in self.moving:
                self.moving.append(queue)

    def _fail(self, queue: Committed, failure: JournalFailed) -> None:
        self.failed[queue] = failure
        queue.report(f"{queue.name}: {failure}")
        self._release(queue.sync.drop_latest(), failure)

    def forget_turn(self, queue: Committed) -> None:
        """Forget an interrupted turn of this queue.

        If replies of the queue wait for the disk, its records are on disk, or their sync is under way, when this
        returns. Changes that gathered for the next commit are undone, and their observers get a JournalFailed.
        """
        self.failed.pop(queue, None)
        for planned in [one for one in self.pending_syncs if one.pending_commit is queue.sync.syncing_commit]:
            self.pending_syncs.remove(planned)
            if queue.journal is not None:
                queue.journal.give_back(planned.fd)
        for of_turn in (self.dirty, self.moving, self.rolling):
            while queue in of_turn:
                of_turn.remove(queue)
        pending_sync = queue.sync.syncing_commit
        if queue.sync.pending_commit is None and pending_sync is None and queue.sync_ms != 0:
            return
        failure = JournalFailed(queue.name, "a turn was interrupted by an exception")
        if pending_sync is None or not pending_sync.is_syncing:
            problem = self._sync_now(queue)
            queue.forget_syncing()
            self._release(pending_sync, problem)
        gathering = queue.sync.drop_gathering()
        if gathering is not pending_sync:
            self._release(gathering, failure)
        self._is_starting = False
        self.tell()

    def settle(self, queue: Committed) -> None:
        """Write all changes of a queue now, and sync them if its replies wait for that. `tell` comes afterwards.

        Raises JournalFailed after undoing what did not reach the disk.
        """
        try:
            self._settle(queue)
        finally:
            if self.untold and queue not in self.dirty:
                self.dirty.append(queue)  # or the turn may have nothing to commit at its end

    def _settle(self, queue: Committed) -> None:
        syncing = queue.sync.syncing_commit
        if syncing is not None:
            self._settle_sync(queue, syncing)
        if queue.dirty:
            try:
                queue.commit()
            except JournalFailed as failure:
                self._fail_already(queue, failure)
                raise
            journal = queue.journal
            if journal is not None and journal.failed is not None:
                # Nothing was written: the next segment will have the results of gets, and there is nothing to undo.
                queue.forget_syncing()
                self._release(queue.sync.drop_latest(), None)
                raise journal.failed
            if queue.sync_ms == 0:
                self._settle_sync(queue, queue.sync.drop_latest())
        if queue.leasing and not queue.commit_leases():
            self.sync_live(queue)
            queue.commit_leases()

    def sync_live(self, queue: Committed) -> None:
        """Sync what no reply waits for, if replies do wait for syncs: a segment is about to begin.

        Raises JournalFailed.
        """
        journal = queue.journal
        if journal is not None and queue.sync_ms == 0 and queue.stopped is None and journal.may_lose_live:
            journal.sync()

    def _fail_already(self, queue: Committed, failure: JournalFailed) -> None:
        """Record that the queue's changes in this turn were undone, so that its end reports the failure."""
        self.failed[queue] = self._failed_already[queue] = failure
        if queue not in self.dirty:
            self.dirty.append(queue)  # it was gathering: without it the turn may have nothing to commit at its end
        self._release(queue.sync.drop_latest(), failure)

    def _settle_sync(self, queue: Committed, commit: PendingCommit | None) -> None:
        """Sync a journal now, in this thread."""
        failure = self._sync_now(queue)
        if failure is not None:
            queue.undo_syncing()
            self._fail_already(queue, failure)
        else:
            queue.commit_synced()
            if queue.sync.pending_commit is commit:
                queue.sync.drop_latest()
        self._release(commit, failure)
        if failure is not None:
            raise failure

    def sync_within(self, queue: Committed) -> None:
        """Plan a sync of a queue within its sync_journal time from now."""
        if queue.sync_ms:
            queue.sync.plan(self.clock.monotonic_ms + queue.sync_ms)
            if queue not in self.sync_later:
                self.sync_later.append(queue)

    def sync_no_more(self, queue: Committed) -> None:
        """Cancel the planned sync of a queue whose journal has been closed."""
        queue.sync.plan(0)
        if queue in self.sync_later:
            self.sync_later.remove(queue)

    def _sync_now(self, queue: Committed) -> JournalFailed | None:
        journal = queue.journal
        if journal is None or not journal.segments or journal.failed is not None:
            return None if journal is None else journal.failed
        try:
            journal.sync()
        except JournalFailed as failure:
            queue.report(f"{queue.name}: {failure}")
            return failure
        return None

    # Syncs

    def _plan_sync(self, queue: Committed, journal: Journal, *, roll: bool) -> None:
        """Sync the latest write in the background, and release its commit afterwards."""
        started_us = self.clock.stopwatch_us()
        pending_commit = queue.sync.pending_commit or self._new_commit()
        queue.sync.begin(pending_commit, queue.lowest_head() if len(journal.segments) > 1 else 0, rolls=roll)
        # The state after this commit: later changes belong to the next one.
        checkpoint = queue.checkpoint() if roll else None
        try:
            fd = journal.borrow()
        except OSError as error:
            must_be_the_systems(error)
            self._is_starting = True
            self._sync_finished(queue, journal, pending_commit, error)
            self._is_starting = False
            return
        number, used_bytes, sync = journal.live.number, journal.live.used_bytes, journal.commit_sync(fd)

        def finished(error: OSError | None) -> None:
            journal.give_back(fd)
            if error is None:
                journal.synced(number, used_bytes, started_us)
                self._count_sync(journal.sync_us)
                is_latest = queue.sync.syncing_commit is pending_commit  # else later commits were written
                if checkpoint is not None and journal is queue.journal and is_latest:
                    self._roll(queue, journal, checkpoint)
            self._sync_finished(queue, journal, pending_commit, error, sync)
            if error is None and journal.wants_mark:
                self.mark(queue, journal)

        self.pending_syncs.append(PendingSync(pending_commit, fd, journal.live.path, sync.run, finished))

    def _start_syncs(self) -> None:
        pending_syncs, self.pending_syncs = self.pending_syncs, []
        covered: list[PendingSync] = []
        is_together = self.together and len(pending_syncs) > 1
        for pending_sync in pending_syncs:
            if is_together and self._is_covered(pending_sync, pending_syncs[0].fd):
                covered.append(pending_sync)
            else:
                self.files.in_background(pending_sync.work, pending_sync.finished)
                pending_sync.pending_commit.is_syncing = True
        if not covered:
            return

        def finished(error: OSError | None) -> None:
            for pending_sync in covered:
                pending_sync.finished(error)

        fd = covered[0].fd  # opened before the write, so write-back errors are reported to it
        self.files.in_background(lambda: self.files.sync_file_system(fd), finished)
        for pending_sync in covered:
            pending_sync.pending_commit.is_syncing = True

    def _is_covered(self, pending_sync: PendingSync, fd: int) -> bool:
        try:
            return self.files.is_covered(pending_sync.path, fd)
        except OSError:
            return False  # its own sync reports the error

    def _roll(self, queue: Committed, journal: Journal, checkpoint: Checkpoint) -> None:
        """Begin the next segment before the gathered changes are written. Its CHECKPOINT is synced with them."""
        try:
            queue.start_segment(journal, checkpoint)
        except JournalFailed as failure:
            queue.report(f"{queue.name}: {failure}; puts are refused until a new segment can be created")
            queue.review_next_put()
        else:
            self.rolling.append(queue)  # its journal may need compaction now

    def mark(self, queue: Committed, journal: Journal) -> None:
        """After a sync, have the marker name the newest segment on disk. A failure is retried at the next sync."""
        if journal is not queue.journal or not journal.wants_mark:
            return  # another journal may use its folder by now
        # A stopped queue no longer knows its held items: none of its segments is deleted.
        dead = journal.dead_segments(queue.written_head()) if queue.stopped is None else 0
        kept = journal.segments[dead]
        try:
            journal.mark(kept.first_id)
        except OSError as error:
            must_be_the_systems(error)
            if not journal.note_refusal(refused=True):
                queue.report(f"{queue.name}: cannot rename the marker: {error.strerror}; will be retried at each sync")
        else:
            journal.note_refusal(refused=False)

    def _sync_finished(
        self,
        queue: Committed,
        journal: Journal,
        pending_commit: PendingCommit,
        error: OSError | None,
        sync: SegmentSync | None = None,
    ) -> None:
        """Release or undo a commit whose sync has ended."""
        if queue.sync.syncing_commit is not pending_commit:  # forgotten: its turn was interrupted
            if error is not None:
                journal.sync_failed(error, sync)
            return
        if error is None:
            queue.commit_synced()
            if queue.leasing:
                queue.commit_leases()  # replies may wait for them
            if queue.sync.pending_commit is pending_commit:
                queue.sync.drop_latest()
            self._release(pending_commit, None)
        else:
            failure = journal.sync_failed(error, sync)
            queue.undo_syncing()
            self._fail(queue, failure)
            if pending_commit.pending:
                self._release(pending_commit, failure)
        if self.moving:
            self._settle_moves(self.moving)
        if not self._is_starting:
            self.tell()
        if (queue.dirty or queue.leasing) and queue not in self.dirty:
            self.dirty.append(queue)
        if self.dirty:
            self.wake()

    def _release(self, pending_commit: PendingCommit | None, failure: JournalFailed | None) -> None:
        if pending_commit is None:
            return
        if pending_commit.pending:
            self.pending_commits -= 1
        pending_commit.pending = False
        pending_commit.failure = failure
        self.untold += [(observer, failure) for observer in pending_commit.observers]
        pending_commit.observers = []

    def _count_sync(self, sync_us: int) -> None:
        self.syncs += 1
        self.sync_us_total += sync_us
        self.sync_us_max = max(self.sync_us_max, sync_us)
        self.sync_counts[bisect_left(SYNC_BOUNDS_US, sync_us)] += 1
