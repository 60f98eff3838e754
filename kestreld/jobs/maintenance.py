"""Maintenance of the job log: drops segments that are no longer needed, and rewrites a log that is too long.

It runs once a second, and does long work in slices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalFailed
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.jobs.job import GONE, WAIT_REPL
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.levels import BASE_BYTES, JOB_BYTES
from kestreld.jobs.log import JobLog, LogWriter
from kestreld.journal.job_records import JOB_HEADER_BYTES
from kestreld.journal.job_segments import JobJournal
from kestreld.journal.open_files import OpenFiles
from kestreld.queues.agenda import Agenda, Scheduled
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.slices import WAITS, Slices, Work

ROUND_MS: Final = 1000
AGAIN_MS: Final = 60_000  # after a rewrite that was given up
REWRITTEN_AT_ONCE: Final = 256
UNWRITTEN_BYTES_MAX: Final = 1 << 20  # a rewrite waits for the disk beyond this
SEGMENTS_MAX: Final = 64  # small ones, because each start begins one


class Engine:
    """Services of the server that a log needs.

    `sync` syncs the log in the background, and returns False if it has to be called again. `settle` is called now and
    then while many objects are loaded that stay.
    """

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        agenda: Agenda,
        commit: GroupCommit,
        open_files: OpenFiles,
        slices: Slices,
        sync: Callable[[Committed], bool],
        report: Callable[[str], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = files
        self.clock = clock
        self.agenda = agenda
        self.commit = commit
        self.open_files = open_files
        self.slices = slices
        self.sync = sync
        self.report = report
        self.settle = settle


@dataclass(slots=True)
class RewriteRules:
    """Sizes that make a rewrite due: the log has `bytes_min`, and is `growth_percent` longer than its live contents.

    `growth_percent` 0 = never.
    """

    growth_percent: int = 100
    bytes_min: int = 1 << 26

    def set(self, *, growth_percent: int | None = None, bytes_min: int | None = None) -> None:
        """Change the rules; None = unchanged."""
        self.growth_percent = self.growth_percent if growth_percent is None else growth_percent
        self.bytes_min = self.bytes_min if bytes_min is None else bytes_min


class LogMaintenance(Scheduled):
    """Maintenance of one log, from its start or recovery until `leave`. `is_fresh`: it does not yet hold all jobs."""

    def __init__(
        self,
        engine: Engine,
        jobs: Jobs,
        journal: JobJournal,
        writer: LogWriter,
        log: JobLog,
        rules: RewriteRules,
        *,
        is_fresh: bool,
    ) -> None:
        super().__init__(0)
        self._engine = engine
        self._jobs = jobs
        self.journal = journal
        self.writer = writer
        self.log = log
        self._rules = rules
        self.is_fresh = self._is_wanted = is_fresh
        self._work: Work | None = None  # a rewrite, or the end of dead segments
        self.is_rewriting = False
        self.last_rewrite_failed = False
        self.rewrite_began_at_ms = 0  # on the monotonic clock
        self.last_rewrite_ms = -1
        self._again_at_ms = 0
        self._is_over = False
        self.is_left = False  # its files are closed
        self.base_bytes = journal.disk_bytes  # its length after the last rewrite
        self._plan_round()

    def _plan_round(self) -> None:
        self.due_at_ms = self._engine.clock.monotonic_ms + ROUND_MS
        self._engine.agenda.add(self)

    @property
    def is_at_rest(self) -> bool:
        """True if the log holds all jobs, and nothing writes to it or changes its files."""
        writer, journal = self.writer, self.journal
        is_still = writer.is_idle and writer.is_written and not (journal.syncing or journal.is_borrowed)
        return is_still and self._work is None and not (self.is_fresh or writer.is_behind)

    @property
    def is_rewrite_wanted(self) -> bool:
        """True if a rewrite was asked for and has yet to begin."""
        return self._is_wanted

    def fall_due(self, now_ms: int) -> None:
        """Check the log, once a second."""
        if self._is_over:
            return
        self._plan_round()
        self.look(now_ms)

    def look(self, now_ms: int) -> None:
        """Begin the maintenance that is due, if any."""
        writer, journal = self.writer, self.journal
        writer.try_again()
        if self._work is not None or writer.failure is not None:
            return
        is_due = self._is_rewrite_due() or writer.rewrite_wanted or journal.is_sync_failed or self.is_fresh
        if (is_due and now_ms >= self._again_at_ms) or self._is_wanted or writer.is_behind:
            self._take_on(self._rewrite())
        elif self._has_dead():
            self._take_on(self._drop_dead())
        elif journal.unproven or not journal.is_marked:
            self._engine.sync(writer)

    def _has_dead(self) -> bool:
        """Return True if segments may be removed.

        Not while another log counts, nor while it is unknown which part of this one is on disk.
        """
        segments = self.journal.segments
        is_sure = not (self.is_fresh or self.writer.rewrite_wanted)
        return is_sure and bool(segments) and self.log.first_needed() > segments[0].number

    def _is_rewrite_due(self) -> bool:
        jobs, journal, segment_bytes_max = self._jobs, self.journal, self.writer.segment_bytes_max
        live_bytes = jobs.memory.used_bytes - BASE_BYTES - jobs.table.count * (JOB_BYTES - JOB_HEADER_BYTES)
        if len(journal.segments) > SEGMENTS_MAX + 2 * live_bytes // segment_bytes_max:
            return True
        growth_percent, closed_bytes = self._rules.growth_percent, journal.disk_bytes - segment_bytes_max
        if not growth_percent or journal.disk_bytes < self._rules.bytes_min:
            return False
        return closed_bytes > live_bytes * (100 + growth_percent) // 100

    def rewrite(self) -> bool:
        """Rewrite the log soon; False if that is under way already."""
        if self.is_rewriting or self._is_wanted:
            return False
        self._is_wanted = True
        self.look(self._engine.clock.monotonic_ms)
        return True

    def leave(self) -> None:
        """Stop writing to the log; its files are closed once all records are written."""
        self._is_over = True
        self._engine.slices.take_on(self._close())

    def _close(self) -> Work:
        while not self.writer.is_idle or (self.writer.failure is None and not self.writer.is_written):
            yield WAITS
        while self._work is not None:
            yield WAITS
        try:
            yield from self._sync_all()
        except JournalFailed as failure:
            self._engine.report(f"jobs: {failure}")
        while self.journal.is_borrowed or self.journal.syncing:
            yield WAITS
        self.journal.close()
        self._engine.commit.sync_no_more(self.writer)
        self.is_left = True

    def _take_on(self, work: Work) -> None:
        self._work = self._guarded(work)
        self._engine.slices.take_on(self._work)

    def _guarded(self, work: Work) -> Work:
        try:
            yield from work
        except JournalFailed as failure:
            if not self._is_over:
                self._engine.report(f"jobs: {failure}; will be retried")
        except OSError as error:
            must_be_the_systems(error)
            self._engine.report(f"{self.journal.folder}: {error.strerror}; will be retried")
        finally:
            self._work = None

    def _rewrite(self) -> Work:
        """Write all jobs anew after the existing segments, which are dead then. Raises JournalFailed or OSError."""
        writer, log, clock = self.writer, self.log, self._engine.clock
        self.is_rewriting, self._is_wanted, self.last_rewrite_failed = True, False, True
        self.rewrite_began_at_ms = clock.monotonic_ms
        self._again_at_ms = clock.monotonic_ms + AGAIN_MS
        try:
            writer.begin_rewrite()
            boundary = writer.segment_number
            written = 0
            table = self._jobs.table
            for job in table:
                if self._jobs.table is not table or self._is_over:
                    break  # all jobs have gone at once, or the log has
                if job.segment < boundary and job.state != GONE and job.state != WAIT_REPL:
                    log.again(job)
                    written += 1
                    if written % REWRITTEN_AT_ONCE == 0:
                        yield None
                    yield from self.make_room()
            yield from self._rewrite_pauses()
            yield from self._rewrite_keys()
            log.keys_are_behind(boundary)
            self._must_be_sound()
            yield from self._drop_dead()
            self.last_rewrite_failed = self.is_fresh = False
            self.last_rewrite_ms = clock.monotonic_ms - self.rewrite_began_at_ms
            self.base_bytes = self.journal.disk_bytes
        finally:
            self.is_rewriting = False
            writer.end_rewrite(is_done=not self.last_rewrite_failed)

    def _rewrite_pauses(self) -> Work:
        queues = self._jobs.queues
        for number, queue in enumerate(queues):
            if self._jobs.queues is not queues or self._is_over:
                return
            if queue.pause:
                self.log.paused(queue)
            if number % REWRITTEN_AT_ONCE == 0:
                yield None

    def _rewrite_keys(self) -> Work:
        keys = self._jobs.keys
        for block in keys.remembered():
            if self._jobs.keys is not keys or self._is_over:
                return  # all jobs have gone at once, or the log has
            for until_ms, key, job_id in block:
                self.log.key(key, job_id, until_ms)
            yield None
            yield from self.make_room()

    def make_room(self) -> Work:
        """Wait while too many records are unwritten. Raises JournalFailed."""
        while self.writer.unwritten_bytes > UNWRITTEN_BYTES_MAX:
            self._must_be_sound()
            yield WAITS

    def put_on_disk(self) -> Work:
        """Wait until all records so far are on disk. Raises JournalFailed."""
        yield from self._write()
        yield from self._sync_all()

    def _sync_all(self) -> Work:
        if self.journal.segments:
            live = self.journal.live
            yield from on_disk(self._engine, self.journal, self.writer, (live.number, live.used_bytes))

    def _write(self) -> Work:
        commits = self.writer.next_commit
        while self.writer.commits < commits:
            self._must_be_sound()
            yield WAITS

    def _must_be_sound(self) -> None:
        if self.writer.failure is not None:
            raise self.writer.failure
        if self._is_over:
            raise JournalFailed(self.journal.folder, "the log was turned off")

    def _drop_dead(self) -> Work:
        """Remove segments that are not needed, once the records that made them so are on disk.

        Raises JournalFailed or OSError.
        """
        journal, writer = self.journal, self.writer
        floor = self.log.first_needed()
        yield from self._write()
        if not journal.segments or journal.live.number < floor:
            writer.begin_segment()
        yield from on_disk(self._engine, journal, writer, (journal.live.number, journal.live.used_bytes))
        self._must_be_sound()
        if writer.rewrite_wanted:
            raise JournalFailed(journal.folder, "old segments are kept because a sync of newer ones failed")
        journal.count_from(floor)
        outcome: list[OSError | None] = []
        files = self._engine.files
        files.in_background(lambda: files.sync_dir(journal.folder), outcome.append)
        while not outcome:
            yield WAITS
        if outcome[0] is not None:
            raise outcome[0]
        for name in files.list_dir(journal.folder):
            if journal.is_dead(name, floor):
                files.unlink(f"{journal.folder}/{name}")
                yield None
        for segment in [one for one in journal.segments if one.number < floor]:
            journal.forget(segment)


def on_disk(engine: Engine, journal: JobJournal, writer: LogWriter, position: tuple[int, int]) -> Work:
    """Wait until all bytes before that segment and offset are on disk. Raises JournalFailed."""
    while journal.synced_at < position:
        if journal.failed is not None:
            raise journal.failed
        if not journal.syncing:
            engine.sync(writer)
        yield WAITS
