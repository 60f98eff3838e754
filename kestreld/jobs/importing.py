"""Import of an original Disque's append-only file: its jobs become jobs of this store, once.

A job keeps its id, its times and its counters. As after a crash it comes back active: Disque records which jobs are
queued only if it was stopped for a controlled restart.
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
SHARED_MAX: Final = 4096  # terms remembered at a time


class JobImporter:
    """Converter of jobs that Disque has saved. `restores_queues`: jobs that were queued are queued again.

    `members` are the other nodes that may hold copies: a job is shared with those that do.
    """

    def __init__(self, jobs: Jobs, *, restores_queues: bool = False, members: frozenset[bytes] = frozenset()) -> None:
        self._jobs = jobs
        self._restores_queues = restores_queues
        self._members = members
        self._shared: dict[tuple[bytes, int, int, int, int, int], JobTerms] = {}

    def take_over(self, saved: SavedJob) -> bool:
        """Take a job over. Return False if it has expired, was acknowledged or is known here already."""
        jobs = self._jobs
        ctime = ctime_of(saved.ctime)
        ttl_ms = _ttl_ms(saved)
        if not is_alive(saved, jobs.now_ms) or jobs.table.get(saved.job_id) is not None:
            return False
        terms = self._terms(saved, ttl_ms)
        job = Job(saved.job_id, saved.body, terms, ctime, 0, nacks=saved.nacks, deliveries=saved.deliveries)
        jobs.take_over(job, is_queued=self._restores_queues and saved.state == JobState.QUEUED)
        return True

    def _terms(self, saved: SavedJob, ttl_ms: int) -> JobTerms:
        held_by = self._members.intersection(saved.nodes)
        owners = self._jobs.node_sets.of_all(sorted(held_by)) | self._jobs.me if held_by and saved.retry_s else 0
        options = (saved.queue, ttl_ms, saved.retry_s, saved.delay_s, saved.replicas, owners)
        terms = self._shared.get(options)
        if terms is None or not terms.queue.total:  # a queue without jobs may have been forgotten
            queue = self._jobs.unlisted_queue(saved.queue)
            terms = JobTerms(
                queue, ttl_ms, saved.retry_s * 1000, saved.delay_s, replicate=saved.replicas, owners=owners
            )
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[options] = terms
        return terms


def _ttl_ms(saved: SavedJob) -> int:
    return (saved.expires_at_s - (ctime_of(saved.ctime) >> CTIME_BITS) // 1000) * 1000


def is_alive(saved: SavedJob, now_ms: int) -> bool:
    """Return True if a job is neither acknowledged nor expired."""
    ttl_ms = _ttl_ms(saved)
    return saved.state != JobState.ACKED and ttl_ms > 0 and (ctime_of(saved.ctime) >> CTIME_BITS) + ttl_ms > now_ms


class AofImport:
    """Import of one file. No job is taken over before the whole file was read."""

    def __init__(
        self,
        files: FileLayer,
        jobs: Jobs,
        path: str,
        report: Callable[[str], None],
        *,
        may_cut: bool,
        restores_queues: bool,
        members: frozenset[bytes] = frozenset(),
    ) -> None:
        """`may_cut`: a truncated last command is left out, else the file counts as corrupt."""
        self._files = files
        self._report = report
        self._may_cut = may_cut
        self._jobs = jobs
        self._importer = JobImporter(jobs, restores_queues=restores_queues, members=members)
        self.reader = AofReader(files, path)
        self.found: Table[SavedJob] = Table()
        self.imported = 0

    def run(self) -> Work:
        """Take the jobs over. Raises JournalCorrupt, JournalFailed or OSError."""
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
                reason = "the last command is cut short, and aof-load-truncated is no"
                raise JournalCorrupt(reader.path, reader.torn_at, reason)
            left_bytes = reader.bytes_total - reader.torn_at
            self._report(f"{reader.path}: byte {reader.torn_at}: cut short; the last {left_bytes} bytes are left out")
        for part in found.parts:
            for saved in part.values():
                self._must_be_ours(saved)
            yield None
        for part in found.parts:
            while part:
                self.imported += self._importer.take_over(part.popitem()[1])
                yield None

    def _must_be_ours(self, saved: SavedJob) -> None:
        """Raise JournalFailed for copies of a cluster that this node is not in: each node would deliver them."""
        if len(saved.nodes) > 1 and self._jobs.node_id not in saved.nodes and is_alive(saved, self._jobs.now_ms):
            raise JournalFailed(
                self.reader.path,
                f"other nodes of a Disque cluster have copies of jobs such as {saved.job_id.decode('latin-1')}, and"
                " each would deliver them: keep the nodes.conf of this Disque beside the file for the first start,"
                " in an empty spool, or import the files of all nodes at one node, by `kestrelctl jobs import FILE`",
            )

    def move_aside(self, spool: str, at_ms: int) -> None:
        """Move the file to a folder of the spool, and report that. Raises JournalFailed."""
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
            + (f", not {left_out} that have expired or were imported before" if left_out else "")
            + f"; the file is now {folder}/{name}"
        )
