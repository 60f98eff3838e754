"""The job log of a server: loading it, keeping it short, turning it on and off, stopping.

What takes long is done in slices. While the log is loaded nobody may use the jobs.
"""

from collections.abc import Callable
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.jobs.job import GONE
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.levels import BASE_BYTES, JOB_BYTES
from kestreld.jobs.log import JobLog, LogWriter
from kestreld.jobs.recovery import JobRecovery, RecoveredJobs
from kestreld.journal.job_records import JOB_HEADER_BYTES, queued_record, stopped_record
from kestreld.journal.job_segments import FOLDER, JobJournal, last_job_segment
from kestreld.journal.marker import find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.queues.agenda import Agenda, Scheduled
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.slices import WAITS, Slices, Work

ROUND_MS: Final = 1000
AGAIN_MS: Final = 60_000  # after a rewrite that was given up
PARTS_AT_ONCE: Final = 2  # of a table, while it is restored
REWRITTEN_AT_ONCE: Final = 256
UNWRITTEN_BYTES_MAX: Final = 1 << 20  # a rewrite waits for the disk beyond this
QUEUED_AT_ONCE: Final = 1000  # ids in a record
SEGMENTS_MAX: Final = 64  # small ones, as each start begins one

Done = Callable[[str], None]  # told why something came to nothing; "" where it did not


class Engine:
    """What a log needs of the server that it belongs to. `sync` puts it on disk in the background, and is False where
    it has to be asked again.
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
    ) -> None:
        self.files = files
        self.clock = clock
        self.agenda = agenda
        self.commit = commit
        self.open_files = open_files
        self.slices = slices
        self.sync = sync
        self.report = report


class JobStorage(Scheduled):
    """The log in the spool's folder `.jobs`. `stopped`: why it cannot be read; nothing of the jobs is served then."""

    def __init__(self, engine: Engine, jobs: Jobs, spool: str, *, sync_ms: int | None, segment_bytes_max: int) -> None:
        """`sync_ms` and `segment_bytes_max` are those of a queue's journal."""
        super().__init__(0)
        self._engine = engine
        self._jobs = jobs
        self.folder = f"{spool}/{FOLDER}"
        self._segment_bytes_max = segment_bytes_max
        self.sync_ms = sync_ms
        self.log: JobLog | None = None
        self.writer: LogWriter | None = None
        self._journal: JobJournal | None = None
        self._recovery: JobRecovery | None = None
        self._last_number = 0  # of any segment of an earlier log
        self._work: Work | None = None  # a rewrite, or the end of dead segments
        self.stopped: JournalCorrupt | None = None
        self.is_loading = False
        self.is_fresh = False  # it does not yet hold all jobs there are
        self.is_rewriting = False
        self.is_rewrite_wanted = False
        self.last_rewrite_failed = False
        self._rewrite_again_at_ms = 0
        self.base_bytes = 0  # the log's length after the last rewrite
        self.growth_percent = 100  # a rewrite is due when it is so much longer than what lives in it, 0 = never
        self.rewrite_bytes_min = 1 << 26  # and not shorter than this
        self.restores_queues = False  # a stop says which jobs are queued, and a load heeds that

    @property
    def is_on(self) -> bool:
        return self.writer is not None

    @property
    def disk_bytes(self) -> int:
        return self._journal.disk_bytes if self._journal is not None else 0

    @property
    def refusal(self) -> str:
        """Why nothing may be changed, as the disk has failed; "" where all is well."""
        failure = self.writer.failure if self.writer is not None else None
        return failure.reason if failure is not None else ""

    @property
    def loaded(self) -> tuple[int, int]:
        """Bytes read so far, and of how many, while it is loading."""
        state = self._recovery.state if self._recovery is not None else None
        return (state.bytes_read, state.bytes_total) if state is not None else (0, 0)

    # Loading

    def load(self, done: Done, *, is_kept: bool = True, may_cut: bool = True) -> None:
        """Read the log, and unless it is not `is_kept`, go on in it. The jobs are empty.

        `may_cut`: a torn tail is cut off, else it stops the log.
        """
        self.is_loading = True
        self._engine.slices.take_on(self._load(done, is_kept=is_kept, may_cut=may_cut))

    def _load(self, done: Done, *, is_kept: bool, may_cut: bool) -> Work:
        engine = self._engine
        recovery = self._recovery = JobRecovery(engine.files, engine.clock, self.folder, may_cut=may_cut)
        problem = ""
        try:
            yield from recovery.run()
            yield from self._restore(recovery.state)
            if is_kept:
                yield from self._go_on_behind(recovery.state)
        except JournalCorrupt as corrupt:
            self.stopped, problem = corrupt, str(corrupt)
        except OSError as error:
            must_be_the_systems(error)
            problem = f"{self.folder}: cannot be read: {error.strerror}"
            self.stopped = JournalCorrupt(self.folder, 0, f"cannot be read: {error.strerror}")
        except JournalFailed as failure:
            problem = str(failure)
            self.stopped = JournalCorrupt(self.folder, 0, failure.reason)
        self._recovery = None
        self.is_loading = False
        for note in recovery.state.notes:
            engine.report(note)
        if problem:
            engine.report(f"jobs: {problem}")
        done(problem)

    def _restore(self, state: RecoveredJobs) -> Work:
        """Give the jobs what was read."""
        jobs = self._jobs
        jobs.go_on_from(state.latest_at_ms)
        jobs.adopt(state.jobs)
        is_all_known = state.is_sealed or self.sync_ms == 0
        for number, part in enumerate(state.jobs.parts):
            if part:
                jobs.restore(part.values(), is_all_known=is_all_known)
                state.jobs.count += len(part)
            if number % PARTS_AT_ONCE == 0:
                yield None
        for key in state.client_keys.values():
            jobs.keys.remember(key.key, key.job_id, key.until_ms)
        if self.restores_queues and state.was_stopped:
            for _, ids in state.queued:
                for job_id in ids:
                    jobs.put_back(job_id)
                yield None

    def _go_on_behind(self, state: RecoveredJobs) -> Work:
        """Append to the log from now on. What it says of a controlled stop must not count twice: that is on disk first.

        Raises JournalFailed.
        """
        found = state.found
        journal = self._open(found.log_id or self._engine.clock.wall_ms, found.last_number)
        journal.go_on_behind(state.segments, found.marker, state.synced_bytes)
        writer = self._start_writing(journal)
        assert self.log is not None
        self.log.found(state.jobs_in)
        self.base_bytes = journal.disk_bytes
        writer.rewrite_wanted = state.is_distrusted
        if state.was_stopped:
            journal.begin_segment()
            writer.choose_segment()
            yield from self._on_disk(journal, (journal.live.number, journal.live.used_bytes))

    def _open(self, log_id: int, last_number: int) -> JobJournal:
        engine = self._engine
        journal = JobJournal(engine.files, engine.clock, engine.open_files, self.folder, log_id, last_number)
        journal.make_folder()
        return journal

    def _start_writing(self, journal: JobJournal) -> LogWriter:
        engine = self._engine
        writer = LogWriter(journal, engine.clock, engine.commit, engine.report, lambda: self._jobs.now_ms)
        writer.configure(self.sync_ms, self._segment_bytes_max)
        self._journal, self.writer = journal, writer
        self.log = JobLog(writer)
        self._jobs.listen(self.log)
        self._plan_round()
        return writer

    # On and off

    def turn_on(self) -> None:
        """Write a log of what there is; one that is there from before is replaced once that is done.

        Raises JournalFailed or OSError, with nothing changed.
        """
        if self.writer is not None:
            return
        files = self._engine.files
        names = files.list_dir(self.folder) if files.is_dir(self.folder) else []
        self._last_number = max(self._last_number, last_job_segment(names))
        journal = self._open(max(self._engine.clock.wall_ms, 1), self._last_number)
        journal.go_on_behind([], find_marker(names))
        journal.may_mark = False
        self.stopped = None
        self.is_fresh = self.is_rewrite_wanted = True
        self._start_writing(journal)

    def turn_off(self) -> None:
        """Write nothing any more. What is on disk stays there, and counts for nothing once a log is begun again."""
        self._jobs.listen(None)
        if self._journal is not None:
            self._last_number = self._journal.last_number
            self._journal.close()
        self.log = self.writer = self._journal = None
        self.is_fresh = False

    # Once a second

    def _plan_round(self) -> None:
        self.due_at_ms = self._engine.clock.monotonic_ms + ROUND_MS
        self._engine.agenda.add(self)

    def fall_due(self, now_ms: int) -> None:
        """Look after the log."""
        writer, journal, log = self.writer, self._journal, self.log
        if writer is None or journal is None or log is None:
            return
        self._plan_round()
        writer.try_again()
        if self._work is not None or writer.failure is not None:
            return
        is_due = self._is_rewrite_due(journal) or writer.rewrite_wanted
        if (is_due and now_ms >= self._rewrite_again_at_ms) or self.is_rewrite_wanted:
            self._take_on(self._rewrite(writer, journal, log))
        elif journal.segments and log.first_needed() > journal.segments[0].number:
            self._take_on(self._drop_dead(writer, journal, log))
        elif journal.unproven or not journal.is_marked:
            self._engine.sync(writer)

    def _is_rewrite_due(self, journal: JobJournal) -> bool:
        jobs = self._jobs
        live_bytes = jobs.memory.used_bytes - BASE_BYTES - jobs.table.count * (JOB_BYTES - JOB_HEADER_BYTES)
        if len(journal.segments) > SEGMENTS_MAX + 2 * live_bytes // self._segment_bytes_max:
            return True
        if not self.growth_percent or journal.disk_bytes < self.rewrite_bytes_min:
            return False
        closed_bytes = journal.disk_bytes - self._segment_bytes_max
        return closed_bytes > live_bytes * (100 + self.growth_percent) // 100

    def rewrite(self) -> bool:
        """Write what lives in the log anew, soon; False where that is under way already."""
        if self.is_rewriting or self.is_rewrite_wanted:
            return False
        self.is_rewrite_wanted = True
        self.fall_due(self._engine.clock.monotonic_ms)
        return True

    def _take_on(self, work: Work) -> None:
        self._work = self._guarded(work)
        self._engine.slices.take_on(self._work)

    def _guarded(self, work: Work) -> Work:
        try:
            yield from work
        except JournalFailed as failure:
            self._engine.report(f"jobs: {failure}; will be retried")
        except OSError as error:
            must_be_the_systems(error)
            self._engine.report(f"{self.folder}: {error.strerror}; will be retried")
        finally:
            self._work = None

    # Shorter logs

    def _rewrite(self, writer: LogWriter, journal: JobJournal, log: JobLog) -> Work:
        """Write all jobs anew behind what there is, which is dead then. Raises JournalFailed or OSError."""
        self.is_rewriting, self.is_rewrite_wanted, self.last_rewrite_failed = True, False, True
        writer.rewrite_wanted = False
        self._rewrite_again_at_ms = self._engine.clock.monotonic_ms + AGAIN_MS
        try:
            writer.roll()
            boundary = writer.segment_number
            written = 0
            for job in self._jobs.table:
                if job.segment < boundary and job.state != GONE:
                    log.again(job)
                    written += 1
                    if written % REWRITTEN_AT_ONCE == 0:
                        yield None
                    while writer.unwritten_bytes > UNWRITTEN_BYTES_MAX:
                        self._must_be_sound(writer)
                        yield WAITS
            for key in self._jobs.keys.remembered():
                log.key(*key)
            self._must_be_sound(writer)
            yield from self._drop_dead(writer, journal, log)
            self.last_rewrite_failed = self.is_fresh = False
            self.base_bytes = journal.disk_bytes
        finally:
            self.is_rewriting = False
            if self.last_rewrite_failed:
                writer.rewrite_wanted = True

    def _must_be_sound(self, writer: LogWriter) -> None:
        if writer.failure is not None:
            raise writer.failure
        if writer is not self.writer:
            raise JournalFailed(self.folder, "the log was turned off")

    def _drop_dead(self, writer: LogWriter, journal: JobJournal, log: JobLog) -> Work:
        """Let go of segments that nobody needs, once what made them so is on disk. Raises JournalFailed or OSError."""
        floor = log.first_needed()
        commits = writer.next_commit
        while writer.commits < commits:
            self._must_be_sound(writer)
            yield WAITS
        if not journal.segments or journal.live.number < floor:
            journal.begin_segment()
            writer.choose_segment()
        yield from self._on_disk(journal, (journal.live.number, journal.live.used_bytes))
        self._must_be_sound(writer)
        journal.may_mark = True
        journal.mark(floor)
        outcome: list[OSError | None] = []
        files = self._engine.files
        files.in_background(lambda: files.sync_dir(self.folder), outcome.append)
        while not outcome:
            yield WAITS
        if outcome[0] is not None:
            raise outcome[0]
        for name in files.list_dir(self.folder):
            if journal.is_dead(name, floor):
                files.unlink(f"{self.folder}/{name}")
                yield None
        for segment in [one for one in journal.segments if one.number < floor]:
            journal.forget(segment)

    def _on_disk(self, journal: JobJournal, position: tuple[int, int]) -> Work:
        """Wait until all before that segment and offset is. Raises JournalFailed."""
        writer = self.writer
        assert writer is not None
        while journal.synced_at < position:
            self._must_be_sound(writer)
            if journal.failed is not None:
                raise journal.failed
            if not journal.syncing:
                self._engine.sync(writer)
            yield WAITS

    # Stopping

    def close(self) -> None:
        """Put the log on disk. Nobody is served any more."""
        writer, journal = self.writer, self._journal
        if writer is None or journal is None:
            return
        if self.restores_queues:
            self._say_queued(writer)
        try:
            self._engine.commit.settle(writer)
            if journal.segments:
                journal.sync()
                journal.seal(0)
        except JournalFailed as failure:
            self._engine.report(f"jobs: {failure}")
        journal.close()

    def _say_queued(self, writer: LogWriter) -> None:
        """Have the next start queue what is queued now."""
        queued = 0
        for queue in self._jobs.queues:
            ids: list[bytes] = []
            for job in queue.jobs.oldest():
                ids.append(job.id)
                if len(ids) == QUEUED_AT_ONCE:
                    writer.say(queued_record(queue.name, ids))
                    ids = []
            if ids:
                writer.say(queued_record(queue.name, ids))
            queued += queue.jobs.count
        writer.say(stopped_record(self._jobs.now_ms, queued))
