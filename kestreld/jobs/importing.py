"""The jobs of an original Disque: those in its append-only file become jobs of this store, once.

A job keeps its id, its times and its counters. As after a crash it comes back active: which jobs are queued Disque says
only where it was stopped for a controlled restart.
"""

from collections.abc import Callable
from typing import Final

from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.jobs.job import CTIME_BITS, Job, JobTerms, ctime_of
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.table import Table
from kestreld.journal.disque_aof import AofReader, SavedJob
from kestreld.journal.job_records import JobState
from kestreld.queues.slices import Work

FOLDER: Final = ".imported"  # in the spool
AT_ONCE: Final = 64
SHARED_MAX: Final = 4096  # terms that are remembered at a time


class JobImporter:
    """Makes jobs of what Disque has saved. `restores_queues`: those that were queued are."""

    def __init__(self, jobs: Jobs, *, restores_queues: bool = False) -> None:
        self._jobs = jobs
        self._restores_queues = restores_queues
        self._shared: dict[tuple[bytes, int, int, int, int], JobTerms] = {}

    def take_over(self, saved: SavedJob) -> bool:
        """Whether it is a new job here: one that has expired, was acknowledged or is known is not taken over."""
        jobs = self._jobs
        ctime = ctime_of(saved.ctime)
        created_at_ms = ctime >> CTIME_BITS
        ttl_ms = (saved.expires_at_s - created_at_ms // 1000) * 1000
        if saved.state == JobState.ACKED or ttl_ms <= 0 or created_at_ms + ttl_ms <= jobs.now_ms:
            return False
        if jobs.table.get(saved.job_id) is not None:
            return False
        terms = self._terms(saved, ttl_ms)
        job = Job(saved.job_id, saved.body, terms, ctime, 0, nacks=saved.nacks, deliveries=saved.deliveries)
        jobs.take_over(job, is_queued=self._restores_queues and saved.state == JobState.QUEUED)
        return True

    def _terms(self, saved: SavedJob, ttl_ms: int) -> JobTerms:
        options = (saved.queue, ttl_ms, saved.retry_s, saved.delay_s, saved.replicas)
        terms = self._shared.get(options)
        if terms is None or not terms.queue.total:  # a queue without jobs may have been forgotten
            queue = self._jobs.unlisted_queue(saved.queue)
            terms = JobTerms(queue, ttl_ms, saved.retry_s * 1000, saved.delay_s, replicate=saved.replicas)
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[options] = terms
        return terms


class AofImport:
    """The import of one file. Nothing of it is taken over before all of it was read."""

    def __init__(
        self,
        files: FileLayer,
        jobs: Jobs,
        path: str,
        report: Callable[[str], None],
        *,
        may_cut: bool,
        restores_queues: bool,
    ) -> None:
        """`may_cut`: a last command that is cut short is left out, else the file counts as corrupt."""
        self._files = files
        self._report = report
        self._may_cut = may_cut
        self._importer = JobImporter(jobs, restores_queues=restores_queues)
        self.reader = AofReader(files, path)
        self.found: Table[SavedJob] = Table()
        self.imported = 0

    def run(self) -> Work:
        """Take the jobs over. Raises JournalCorrupt or OSError."""
        reader, found = self.reader, self.found
        for number, one in enumerate(reader, 1):
            job_id = one.job_id if isinstance(one, SavedJob) else one
            is_known = found.get(job_id) is not None
            if isinstance(one, SavedJob) and not is_known:
                found.add(job_id, one)
            elif not isinstance(one, SavedJob) and is_known:
                found.remove(job_id)
            if number % AT_ONCE == 0:
                yield None
        if reader.torn_at is not None:
            if not self._may_cut:
                reason = "the last command is cut short, which aof-load-truncated no does not allow"
                raise JournalCorrupt(reader.path, reader.torn_at, reason)
            left_bytes = reader.bytes_total - reader.torn_at
            self._report(f"{reader.path}: byte {reader.torn_at}: cut short; the last {left_bytes} bytes are left out")
        for part in found.parts:
            while part:
                self.imported += self._importer.take_over(part.popitem()[1])
                yield None

    def move_aside(self, spool: str, at_ms: int) -> None:
        """To a folder of the spool, and say so. Raises JournalFailed."""
        files, path = self._files, self.reader.path
        while files.exists(f"{spool}/{FOLDER}/{at_ms}"):
            at_ms += 1
        folder = f"{spool}/{FOLDER}/{at_ms}"
        there, _, name = path.rpartition("/")
        try:
            files.make_lasting_dir(folder)
            files.rename(path, f"{folder}/{name}")
            for changed in (folder, there):
                files.sync_dir(changed)
        except OSError as error:
            must_be_the_systems(error)
            raise JournalFailed(path, f"imported, but cannot be moved to {folder}: {error.strerror}") from error
        left_out = self.found.count - self.imported
        self._report(
            f"{path}: imported {self.imported} jobs of Disque's"
            + (f", not {left_out} that have expired or are known" if left_out else "")
            + f"; the file is now {folder}/{name}"
        )
