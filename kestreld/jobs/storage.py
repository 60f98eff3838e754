"""The job log of a server: loads it, turns it on and off, imports Disque's file, and closes it at a stop.

Long work is done in slices. While the log is loaded nobody may use the jobs.
"""

from collections.abc import Callable, Generator
from shlex import quote
from typing import Final

from kestreld.errors import JournalCorrupt, JournalFailed, JournalUnreadable, LaterVersion, SegmentsMissing
from kestreld.files import must_be_the_systems, why_unread
from kestreld.jobs.importing import AofImport
from kestreld.jobs.job import Job
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.log import JobLog, LogWriter
from kestreld.jobs.maintenance import Engine, LogMaintenance, RewriteRules, on_disk
from kestreld.jobs.recovery import JobRecovery, RecoveredJobs
from kestreld.journal.disque_aof import AofReader
from kestreld.journal.job_records import queued_record, stopped_record
from kestreld.journal.job_segments import FOLDER, JobJournal, last_job_segment
from kestreld.journal.marker import find_marker
from kestreld.journal.replacement import finish_repairs
from kestreld.queues.slices import WAITS, Work

PARTS_AT_ONCE: Final = 4  # of a table, while it is restored
SETTLED_AT_ONCE: Final = 16  # steps of loading
QUEUED_AT_ONCE: Final = 1000  # ids in a record

Done = Callable[[str], None]  # told why something has failed; "" = it has not


class JobStorage:
    """The log in the spool's folder `.jobs`. `stopped`: the reason why it cannot be read; no jobs are served then."""

    def __init__(self, engine: Engine, jobs: Jobs, spool: str, *, sync_ms: int | None, segment_bytes_max: int) -> None:
        """`sync_ms` and `segment_bytes_max` are as for a queue's journal."""
        self._engine = engine
        self._jobs = jobs
        self._spool = spool
        self.folder = f"{spool}/{FOLDER}"
        self._segment_bytes_max = segment_bytes_max
        self.sync_ms = sync_ms
        self.rules = RewriteRules()
        self._changed: Callable[[], None] = lambda: None
        self.maintenance: LogMaintenance | None = None  # None = nothing is written
        self._leaving: LogMaintenance | None = None  # the log that was turned off last
        self._reading: RecoveredJobs | AofReader | None = None
        self.stopped: JournalCorrupt | None = None
        self.is_loading = False
        self.load_began_at_ms = 0  # on the system clock
        self.restores_queues = False

    @property
    def writer(self) -> LogWriter | None:
        return self.maintenance.writer if self.maintenance is not None else None

    @property
    def is_on(self) -> bool:
        return self.maintenance is not None

    @property
    def disk_bytes(self) -> int:
        return self.maintenance.journal.disk_bytes if self.maintenance is not None else 0

    @property
    def refusal(self) -> str:
        """Reason for which nothing may be changed, because writes fail; "" if all is well."""
        writer = self.writer
        failure = writer.failure or writer.dropped if writer is not None else None
        return failure.reason if failure is not None else ""

    @property
    def loaded(self) -> tuple[int, int]:
        """Bytes read so far, and bytes in all, while the log is loading."""
        reading = self._reading
        return (reading.bytes_read, reading.bytes_total) if reading is not None else (0, 0)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when there is another log or none, and when writes to it begin or cease to fail."""
        self._changed = changed

    def _tell(self) -> None:
        writer = self.writer
        self._jobs.keep_back(wanted=writer is not None and writer.is_behind)
        self._changed()

    def restore_queues(self, *, wanted: bool) -> None:
        """Set whether a stop records which jobs are queued, and a load restores that."""
        self.restores_queues = wanted

    def sync_within(self, sync_ms: int | None) -> None:
        """Set sync_journal: None = left to the kernel, 0 = before each reply, else the interval in ms."""
        self.sync_ms = sync_ms
        if self.maintenance is not None:
            self.maintenance.writer.configure(sync_ms, self._segment_bytes_max)
            self._engine.commit.sync_within(self.maintenance.writer)

    # Loading

    def load(self, done: Done, *, is_kept: bool = True, may_cut: bool = True) -> None:
        """Read the log into the empty store, and append to it from now on if it `is_kept`.

        `may_cut`: a torn tail is cut off, else it stops the log.
        """
        self._begin_loading()
        self._engine.slices.take_on(self._load(done, is_kept=is_kept, may_cut=may_cut))

    def reload(self, done: Done, *, may_cut: bool = True) -> None:
        """Drop all jobs, and load them from the log again."""
        self._begin_loading()
        self._engine.slices.take_on(self._reload(done, may_cut=may_cut))

    def _begin_loading(self) -> None:
        self.is_loading = True
        self.load_began_at_ms = self._engine.clock.wall_ms
        self._tell()

    def _reload(self, done: Done, *, may_cut: bool) -> Work:
        maintenance, is_kept = self.maintenance, self.is_on
        while maintenance is not None and not maintenance.is_at_rest:
            if maintenance.writer.failure is not None:
                self.is_loading = False
                self._tell()
                done(maintenance.writer.failure.reason)
                return
            yield WAITS
        self.turn_off()
        yield from self._jobs.clear()
        yield from self._have_left()
        yield from self._load(done, is_kept=is_kept, may_cut=may_cut)

    def _load(self, done: Done, *, is_kept: bool, may_cut: bool) -> Work:
        engine = self._engine
        recovery = JobRecovery(engine.files, engine.clock, self.folder, self._jobs.node_sets, may_cut=may_cut)
        problem = yield from self._problem_of(self._advised(self._recover(recovery, is_kept=is_kept)))
        self._jobs.restored()
        for note in recovery.state.notes:
            engine.report(note)
        self._finish_loading(problem, done)

    def _recover(self, recovery: JobRecovery, *, is_kept: bool) -> Work:
        if not self._engine.files.is_dir(self.folder):
            finish_repairs(self._engine.files, self._spool)  # else a missing repaired log would go unnoticed
        for step in self._settling(recovery.run()):
            self._reading = recovery.state
            yield step
        doubtful: list[Job] = []
        yield from self._settling(self._restore(recovery.state, doubtful))
        if is_kept:
            yield from self._go_on_behind(recovery.state, doubtful)

    def _advised(self, work: Work) -> Work:
        """Read the log; add to an error about damage the command that repairs it."""
        try:
            yield from work
        except LaterVersion:
            raise
        except JournalCorrupt as corrupt:
            advice = f"stop the server and run: kestrelctl journal-verify {quote(self._spool)} --repair"
            reason = f"{corrupt.reason}; {advice}"
            if isinstance(corrupt, SegmentsMissing):
                raise SegmentsMissing(corrupt.path, reason) from corrupt
            raise JournalCorrupt(corrupt.path, corrupt.offset, reason) from corrupt

    def _problem_of(self, work: Work) -> Generator[int | None, None, str]:
        """Load something. Return why that has failed, "" if it has not."""
        try:
            yield from work
        except JournalCorrupt as corrupt:
            self.stopped = corrupt
        except OSError as error:
            must_be_the_systems(error)
            path = error.filename or self.folder
            self.stopped = JournalUnreadable(path, f"cannot be read: {why_unread(error, path)}")
        except JournalFailed as failure:
            self.stopped = JournalCorrupt(failure.path, 0, failure.reason)
            return str(failure)
        else:
            return ""
        return str(self.stopped)

    def _finish_loading(self, problem: str, done: Done) -> None:
        self._reading = None
        self.is_loading = False
        if problem:
            self._engine.report(f"jobs: {problem}")
        self._engine.settle()
        self._tell()
        done(problem)

    def _settling(self, work: Work) -> Work:
        """Run a load, and spare the garbage collector the many objects that stay."""
        for number, step in enumerate(work):
            if number % SETTLED_AT_ONCE == 0:
                self._engine.settle()
            yield step

    def _restore(self, state: RecoveredJobs, doubtful: list[Job]) -> Work:
        """Restore the jobs that were read, and note those that may have been delivered."""
        jobs = self._jobs
        jobs.go_on_from(state.latest_at_ms)
        jobs.adopt(state.jobs)
        for number, part in enumerate(state.jobs.parts):
            if part:
                doubtful += jobs.restore(part.values(), is_all_known=state.is_sealed)
                state.jobs.count += len(part)
            if number % PARTS_AT_ONCE == 0:
                yield None
        for keys in state.client_keys.parts:
            for key in keys.values():
                jobs.keys.remember(key.key, key.job_id, key.until_ms)
            if keys:
                keys.clear()
                yield None
        for name, pause in state.pauses.items():
            jobs.pause_again(name, pause)
        for _, ids in state.queued:
            if self.restores_queues and state.was_stopped:
                for job_id in ids:
                    jobs.put_back(job_id)
            ids.clear()
            yield None

    def _go_on_behind(self, state: RecoveredJobs, doubtful: list[Job]) -> Work:
        """Append to the log from now on. Raises JournalFailed.

        A controlled stop must not count twice: if the log ends with one, a new segment is on disk first. Doubtful jobs
        are logged as delivered, so that later starts do not deliver them either.
        """
        found = state.found
        # Numbers are consecutive: a segment that was set aside is replaced.
        last_number = state.segments[-1].number if state.segments else found.last_number
        journal = self._open(found.log_id or self._engine.clock.wall_ms, last_number)
        journal.go_on_behind(state.segments, found.marker, state.synced_bytes, is_distrusted=state.is_distrusted)
        maintenance = self._start_writing(journal, is_fresh=False)
        maintenance.log.found(state.jobs_in, state.keys_until_ms, state.paused_in)
        if state.is_distrusted:
            maintenance.writer.distrust()
        is_begun = state.was_stopped or (state.is_sealed and self._jobs.awaits_once)
        if is_begun:
            maintenance.writer.begin_segment()
        # A killed server's last writes may be in the page cache only, and replies rely on them from now on.
        if is_begun or (self.sync_ms == 0 and journal.segments and not state.is_sealed):
            position = (journal.live.number, journal.live.used_bytes)
            yield from on_disk(self._engine, journal, maintenance.writer, position)
            if state.is_distrusted and not is_begun:
                # After a failed sync another one proves nothing about the same bytes.
                journal.go_on_behind(state.segments, journal.marker, state.synced_bytes)
        for number, job in enumerate(doubtful):
            maintenance.log.changed(job)
            if number % QUEUED_AT_ONCE == 0:
                yield None

    # Disque's own file

    def import_aof(
        self, path: str, done: Done, *, may_cut: bool = True, members: Callable[[], frozenset[bytes]] = frozenset
    ) -> None:
        """Import the jobs of an append-only file of Disque, and move it aside once they are in the log, if any.

        `may_cut` is as for `load`. With `restores_queues` jobs that were queued are queued again. `members` returns the
        other nodes of the cluster, once it is known.
        """
        self._begin_loading()
        self._engine.slices.take_on(self._import(path, done, members, may_cut=may_cut))

    def _import(self, path: str, done: Done, members: Callable[[], frozenset[bytes]], *, may_cut: bool) -> Work:
        engine = self._engine
        aof = AofImport(
            engine.files,
            self._jobs,
            path,
            engine.report,
            may_cut=may_cut,
            restores_queues=self.restores_queues,
            members=members(),
        )
        self._reading = aof.reader
        self._finish_loading((yield from self._problem_of(self._take_over(aof))), done)

    def _take_over(self, aof: AofImport) -> Work:
        maintenance = self.maintenance
        for step in self._settling(aof.run()):
            yield step
            if maintenance is not None:
                yield from maintenance.make_room()
        if maintenance is not None:
            yield from maintenance.put_on_disk()
        aof.move_aside(self._spool, self._engine.clock.wall_ms)

    def _open(self, log_id: int, last_number: int) -> JobJournal:
        engine = self._engine
        journal = JobJournal(engine.files, engine.clock, engine.open_files, self.folder, log_id, last_number)
        journal.make_folder()
        return journal

    def _start_writing(self, journal: JobJournal, *, is_fresh: bool) -> LogMaintenance:
        engine = self._engine
        writer = LogWriter(journal, engine.clock, engine.commit, engine.report, self._jobs.read_now_ms)
        writer.configure(self.sync_ms, self._segment_bytes_max)
        writer.tell_failures(self._tell)
        log = JobLog(writer, self._jobs.node_sets)
        self.maintenance = LogMaintenance(engine, self._jobs, journal, writer, log, self.rules, is_fresh=is_fresh)
        self._jobs.listen(log)
        return self.maintenance

    # On and off

    def turn_on(self, done: Done) -> None:
        """Begin to write a log of all jobs; one that exists from before is replaced once that is done."""
        self._engine.slices.take_on(self._turn_on(done))

    def _turn_on(self, done: Done) -> Work:
        try:
            yield from self._begin_log()
        except JournalFailed as failure:
            done(str(failure))
        except OSError as error:
            must_be_the_systems(error)
            done(error.strerror or str(error))
        else:
            done("")

    def _have_left(self) -> Work:
        """Wait until the log that was turned off last makes no further changes in the folder."""
        while self._leaving is not None and not self._leaving.is_left:
            yield WAITS

    def _begin_log(self) -> Work:
        """Begin a log. Raises JournalFailed or OSError, with nothing changed."""
        yield from self._have_left()
        if self.maintenance is not None:
            return
        if self.is_loading or self.stopped is not None:
            raise JournalFailed(self.folder, "not all jobs are in memory" if self.is_loading else str(self.stopped))
        files, clock = self._engine.files, self._engine.clock
        names = files.list_dir(self.folder) if files.is_dir(self.folder) else []
        log_id, last_number = clock.wall_ms, last_job_segment(names)
        if self._leaving is not None:
            # Not the id of the log that was turned off, even if the clock stands still or was set back.
            log_id = max(log_id, self._leaving.journal.journal_id + 1)
            # Nor a segment number that jobs have from it, even of a segment that was never written.
            last_number = max(last_number, self._leaving.writer.segment_number)
        journal = self._open(log_id, last_number)
        journal.begin_beside(find_marker(names))
        maintenance = self._start_writing(journal, is_fresh=True)
        maintenance.look(clock.monotonic_ms)
        self._tell()

    def turn_off(self) -> None:
        """Stop writing the log. Its files stay, and no longer count once a log is begun again."""
        maintenance, self.maintenance = self.maintenance, None
        self._jobs.listen(None)
        if maintenance is not None:
            self._leaving = maintenance
            maintenance.leave()
        self._tell()

    def rewrite(self) -> bool:
        """Rewrite the log soon; False if a rewrite is already under way, or there is no log."""
        return self.maintenance is not None and self.maintenance.rewrite()

    # Stopping

    def save(self, done: Done) -> None:
        """Write all jobs to the log, even if there is none so far: the server is about to stop."""
        self._engine.slices.take_on(self._save(done))

    def _save(self, done: Done) -> Work:
        while self.is_loading:
            yield WAITS
        try:
            yield from self._begin_log()
        except (JournalFailed, OSError) as problem:
            done(str(problem))
            return
        maintenance = self.maintenance
        assert maintenance is not None
        while maintenance.is_fresh and not maintenance.last_rewrite_failed:
            yield WAITS
        while maintenance.is_rewriting:
            yield WAITS
        done(self.refusal or ("the log could not be written" if maintenance.is_fresh else ""))

    def close(self, until_us: int | None = None) -> None:
        """Write and sync the log, until the stopwatch says `until_us` at most. No client is served any longer."""
        leaving, maintenance = self._leaving, self.maintenance
        if leaving is not None and not leaving.is_left:
            self._put_on_disk(leaving, until_us, is_all=False)
        if maintenance is not None:
            if self.restores_queues:
                self._say_queued(maintenance.writer)
            self._put_on_disk(maintenance, until_us, is_all=True)

    def _put_on_disk(self, maintenance: LogMaintenance, until_us: int | None, *, is_all: bool) -> None:
        """Write, sync and close one log. `is_all`: the log was told of everything that happened."""
        journal, writer, clock = maintenance.journal, maintenance.writer, self._engine.clock
        writer.try_once_more()
        try:
            self._engine.commit.settle(writer)
            left_us = None if until_us is None else max(until_us - clock.stopwatch_us(), 0)
            is_synced = journal.segments and self._engine.files.in_time(journal.sync, left_us)
            if is_synced and is_all and not writer.is_doubtful:
                journal.seal(0)
        except JournalFailed as failure:
            self._engine.report(f"jobs: {failure}")
        self._engine.commit.tell()
        journal.close()

    def _say_queued(self, writer: LogWriter) -> None:
        """Write which jobs are queued, so that the next start queues them."""
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
