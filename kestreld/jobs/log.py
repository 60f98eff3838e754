"""Writer of the job log: changes of jobs become records, which are written at the end of the turn."""

from collections.abc import Callable, Container
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalFailed
from kestreld.jobs.job import ACKED, ACTIVE, BORROWED, COPY, Job, JobTerms, created_of
from kestreld.jobs.job_log import JobListener
from kestreld.jobs.job_queue import NOT_PAUSED, JobQueue
from kestreld.jobs.keys import KEY_TIME_MS
from kestreld.jobs.node_sets import NodeSets
from kestreld.journal.job_records import (
    JobExtras,
    JobKey,
    JobOrigin,
    change_record,
    done_record,
    flushed_record,
    job_record,
    key_record,
    owners_record,
    pack_extras,
    paused_record,
    shared_fields,
)
from kestreld.journal.job_segments import VERSION_OF_CLUSTERS, VERSION_OF_MOVES, JobJournal
from kestreld.journal.records import Checkpoint
from kestreld.queues.commit import Committed, GroupCommit

RETRY_MS: Final = 1000  # after a failed write, until a new segment is begun
KEPT_BYTES_MAX: Final = 1 << 24  # of records whose writes fail; beyond that they are dropped


class LogWriter(Committed):
    """Unwritten records of the job log: one write a turn, and a sync if replies wait for one.

    Records of a failed write or sync are never written to the same segment again: they begin the next one. Until that
    succeeds, `failure` is the reason, and only `try_again` and `try_once_more` make further attempts.
    """

    __slots__ = ("_dropped_number", "_ended", "_in_flight", "_log", "_parts", "_undone_at_ms", "commits", "dropped",
                 "failure",
                 "is_doubtful", "now_ms", "rewrite_wanted", "segment_number", "told", "unwritten_bytes")  # fmt: skip

    def __init__(
        self,
        log: JobJournal,
        clock: Clock,
        commit: GroupCommit,
        report: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` reads the steady clock of the jobs."""
        super().__init__("jobs", log, clock, commit, report)
        self._log = log
        self.now_ms = now_ms
        self._parts: list[bytes] = []
        self._ended: dict[str, list[bytes]] = {}  # ids of jobs that are done, by reason
        self._in_flight: list[bytes] = []  # written, on the way to the disk
        self._undone_at_ms = -RETRY_MS  # the last time that a sync for replies failed
        self.unwritten_bytes = 0  # about
        self.commits = 0  # number of writes
        self.segment_number = log.next_number  # new records get into that segment, or a later one
        self._dropped_number = 0  # segment for which dropped records were meant
        self.dropped: JournalFailed | None = None  # reason for dropping them; their jobs have yet to be written anew
        self.failure: JournalFailed | None = None
        self.told: Callable[[], None] = lambda: None  # called when `failure` changes
        self.rewrite_wanted = False  # it is unknown which part of the log is on disk,
        self.is_doubtful = False  # and will be until a rewrite is over

    def configure(self, sync_ms: int | None, segment_bytes_max: int) -> None:
        """Set `sync_ms` and `segment_bytes_max`, as for a queue's journal."""
        self.sync_ms, self.segment_bytes_max = sync_ms, segment_bytes_max

    def tell_failures(self, told: Callable[[], None]) -> None:
        """Have `told` called whenever `failure` or `is_behind` changes."""
        self.told = told

    # Records to write

    def say(self, record: bytes) -> None:
        self._parts.append(record)
        self.unwritten_bytes += len(record)
        if not self.dirty and self.failure is None:
            self.mark_dirty()

    def say_of_clusters(self, record: bytes, version: int = VERSION_OF_CLUSTERS) -> None:
        """Write a record that only segments of that version or a later one may have."""
        if self._log.version < version:
            self._log.use_version(version)
            self.segment_number = self._log.next_number
        self.say(record)

    def end(self, job_id: bytes, why: str) -> None:
        """Write that a job is done: acknowledged, deleted or expired."""
        self._ended.setdefault(why, []).append(job_id)
        self.unwritten_bytes += len(job_id)
        if not self.dirty and self.failure is None:
            self.mark_dirty()

    def say_ends(self) -> None:
        """Make records of the ends so far, so that later records follow them."""
        self._parts += [done_record(self.now_ms(), ids, why) for why, ids in self._ended.items()]
        self._ended = {}

    def flush(self, at_ms: int) -> None:
        """Write that all jobs are done, and drop unwritten records."""
        self._parts, self._ended, self.unwritten_bytes = [], {}, 0
        self.say(flushed_record(at_ms))

    @property
    def is_behind(self) -> bool:
        """True if some records are not on their way to the disk: writes fail, or records were dropped."""
        return self.failure is not None or self.dropped is not None

    @property
    def is_written(self) -> bool:
        return not (self._parts or self._ended or self._in_flight)

    @property
    def next_commit(self) -> int:
        """Value that `commits` has once all records so far are written."""
        return self.commits + (1 if self._parts or self._ended else 0)

    # At the end of the turn

    def commit(self) -> None:
        self.dirty = False
        if not (self._parts or self._ended):
            return
        if self._ended:
            self.say_ends()
        log = self._log
        parts = self._parts
        try:
            if self.segment_number != log.last_number or log.failed is not None:
                self._begin_segment(b"".join(parts))
            else:
                log.write(parts, 0)
        except JournalFailed as failure:
            self._keep(failure)
            raise
        self._parts, self.unwritten_bytes = [], 0
        self._set_failure(None)
        self.commits += 1
        if self.sync_ms == 0:
            self._in_flight = parts
        self._choose_segment()

    def begin_segment(self) -> None:
        """Begin a segment without a commit. Raises JournalFailed."""
        self._begin_segment()
        self._choose_segment()

    def _begin_segment(self, unsaid: bytes = b"") -> None:
        if self._log.is_sync_failed:
            self._want_rewrite()
        self._log.begin_segment(unsaid)

    def _choose_segment(self) -> None:
        is_full = not self._log.segments or self._log.grown_bytes() >= self.segment_bytes_max
        self.segment_number = self._log.next_number if is_full or self._log.failed else self._log.last_number

    def _keep(self, failure: JournalFailed) -> None:
        """Keep unwritten records for the next segment, or drop them if they are too many."""
        self._set_failure(failure)
        self.segment_number = self._log.next_number
        if self.unwritten_bytes > KEPT_BYTES_MAX:
            self._parts, self._ended, self.unwritten_bytes = [], {}, 0
            self._dropped_number, self.dropped = self.segment_number, failure
            self._want_rewrite()

    def _set_failure(self, failure: JournalFailed | None) -> None:
        if failure is not self.failure:
            self.failure = failure
            self.told()

    def distrust(self) -> None:
        """Have the log rewritten: an earlier process's writes may not be on disk."""
        self._want_rewrite()

    def _want_rewrite(self) -> None:
        self.rewrite_wanted = self.is_doubtful = True

    def begin_rewrite(self) -> None:
        """Begin a segment in which all jobs are written anew. Raises JournalFailed."""
        self.roll()
        self.rewrite_wanted = False

    def end_rewrite(self, *, is_done: bool) -> None:
        """End a rewrite; `is_done`: all jobs were written anew and are on disk."""
        if not is_done:
            self.rewrite_wanted = True
            return
        self.is_doubtful = False
        if self.dropped is not None:
            self.dropped = None
            self.told()

    def try_again(self) -> None:
        """Retry failed writes, RETRY_MS after the last attempt at the earliest."""
        failure = self.failure
        if failure is not None and self.clock.monotonic_ms - self._log.failed_at_ms >= RETRY_MS:
            if self.is_written:
                self._set_failure(None)
            else:
                self.mark_dirty()

    def try_once_more(self) -> None:
        """Retry failed writes at once: the server is about to stop."""
        if not (self.dirty or self.is_written):
            self.mark_dirty()

    def roll(self) -> None:
        """Have the next commit begin a segment that no dropped or possibly lost record was meant for.

        Raises JournalFailed.
        """
        if self._dropped_number > self._log.last_number or self._log.is_sync_failed:
            self._begin_segment()
        self.segment_number = self._log.next_number

    def wants_segment(self, journal: object) -> bool:
        """Return False: a commit begins a segment when one is full."""
        return False

    def commit_synced(self) -> None:
        self.sync.succeed()
        self._in_flight = []

    def forget_syncing(self) -> None:
        self.commit_synced()

    def undo_syncing(self) -> None:
        self.sync.give_up()
        self._parts = [*self._in_flight, *self._parts]
        self.unwritten_bytes += sum(map(len, self._in_flight))
        self._in_flight = []
        self.segment_number = self._log.next_number
        self._want_rewrite()
        now_ms = self.clock.monotonic_ms
        if now_ms - self._undone_at_ms < RETRY_MS:
            self.dirty = False
            self._set_failure(self._log.failed)  # else failing syncs would begin one segment after the other
        else:
            self.mark_dirty()  # the next segment may be on disk before anybody asks
        self._undone_at_ms = now_ms

    def settle_moves(self, failed: Container[Committed]) -> None:
        self.moving = False

    def lowest_head(self) -> int:
        return 0

    def checkpoint(self) -> Checkpoint:
        raise NotImplementedError  # no segment begins with one


class JobLog(JobListener):
    """Listener that turns changes of jobs into records, and knows which segments are still needed.

    A segment is needed while it, or one before it, has a job that is not done: its records may be about that job.
    """

    def __init__(self, writer: LogWriter, node_sets: NodeSets) -> None:
        self._writer = writer
        self._node_sets = node_sets
        self._paused_in: dict[bytes, int] = {}  # paused queue -> segment with its PAUSED record
        self._jobs_in: dict[int, int] = {}  # segment -> number of its jobs that are not done
        self._keys_until_ms: dict[int, int] = {}  # segment -> expiry of its KEY records

    def added(self, job: Job) -> None:
        writer, terms = self._writer, job.terms
        fields = terms.log_fields or self._log_fields(terms)
        state = job.state
        if state in (BORROWED, ACKED):  # the job may have left in this turn
            writer.say_ends()
        record = job_record(
            writer.now_ms(), job.id, job.body, created_of(job.ctime), job.requeue_at_ms,
            ACTIVE if state == COPY else state, job.nacks, job.deliveries, fields, terms.log_extras,
        )  # fmt: skip
        if terms.told_moves:
            writer.say_of_clusters(record, VERSION_OF_MOVES)
        elif terms.owners or state == ACKED:  # older servers would deliver the job
            writer.say_of_clusters(record)
        else:
            writer.say(record)
        number = writer.segment_number
        job.logged(number)
        self._jobs_in[number] = self._jobs_in.get(number, 0) + 1

    def again(self, job: Job) -> None:
        """Write a job anew, as it is now: its earlier record no longer counts."""
        self._leave(job)
        self.added(job)

    def found(self, jobs_in: dict[int, int], keys_until_ms: dict[int, int], paused_in: dict[bytes, int]) -> None:
        """Set the results of recovery: live jobs and key expiry by segment, and the segment of each queue's pause."""
        self._jobs_in, self._keys_until_ms, self._paused_in = jobs_in, keys_until_ms, paused_in

    def changed(self, job: Job) -> None:
        writer, state = self._writer, job.state
        at_ms = writer.now_ms()
        if state == COPY:
            state = ACTIVE
        writer.say(change_record(at_ms, job.id, job.requeue_at_ms, state, job.nacks, job.deliveries))
        if state == ACKED and job.terms.key:
            self.key(job.terms.known_key, job.id, at_ms + KEY_TIME_MS)

    def owned(self, job: Job) -> None:
        writer = self._writer
        if job.terms.told_moves:
            self.again(job)
            return
        writer.say_of_clusters(owners_record(writer.now_ms(), job.id, self._node_sets.ids(job.terms.owners)))

    def paused(self, queue: JobQueue) -> None:
        writer = self._writer
        writer.say_of_clusters(paused_record(writer.now_ms(), queue.name, queue.pause))
        if queue.pause == NOT_PAUSED:
            self._paused_in.pop(queue.name, None)
        else:
            self._paused_in[queue.name] = writer.segment_number

    def moved(self, job: Job) -> None:
        self.again(job)

    def done(self, job: Job, why: str) -> None:
        self._leave(job)
        if job.terms.key:
            self.key(job.terms.known_key, job.id, self._writer.now_ms() + KEY_TIME_MS)
        self._writer.end(job.id, why)

    def cleared(self) -> None:
        self._jobs_in, self._keys_until_ms, self._paused_in = {}, {}, {}
        self._writer.flush(self._writer.now_ms())

    def _leave(self, job: Job) -> None:
        left = self._jobs_in.get(job.segment, 0) - 1
        if left < 0:
            return  # a log that was just begun has yet to write the job
        if left:
            self._jobs_in[job.segment] = left
        else:
            del self._jobs_in[job.segment]

    def key(self, key: bytes, job_id: bytes, until_ms: int) -> None:
        """Write that a client's own id is refused until then, whatever becomes of its job."""
        writer, number = self._writer, self._writer.segment_number
        self._keys_until_ms[number] = max(self._keys_until_ms.get(number, 0), until_ms)
        writer.say(key_record(JobKey(writer.now_ms(), until_ms, job_id, key)))

    def keys_are_behind(self, boundary: int) -> None:
        """Note that each key that counts is in that segment or a later one."""
        for number in [number for number in self._keys_until_ms if number < boundary]:
            del self._keys_until_ms[number]

    def first_needed(self) -> int:
        """Return the number of the oldest segment that has to stay."""
        now_ms = self._writer.now_ms()
        for number in [number for number, until_ms in self._keys_until_ms.items() if until_ms <= now_ms]:
            del self._keys_until_ms[number]
        needed = (*self._jobs_in, *self._keys_until_ms, *self._paused_in.values())
        return min(needed, default=self._writer.segment_number)

    def _log_fields(self, terms: JobTerms) -> bytes:
        fields = shared_fields(terms.queue.name, terms.ttl_ms, terms.delay_s * 1000, terms.retry_ms, terms.replicate)
        dead = terms.dead
        origin = None if dead is None else JobOrigin(dead.origin, dead.reason, dead.dead_at_ms)
        extras = JobExtras(
            terms.key, terms.retries_max, origin, self._node_sets.ids(terms.owners), moves=terms.told_moves
        )
        terms.note_log_fields(fields, pack_extras(extras))
        return fields
