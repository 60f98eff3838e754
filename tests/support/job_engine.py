"""The jobs and their log without a server: on a spool of their own, taken through turns, crashes and restarts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from kestreld.errors import JournalFailed
from kestreld.files import FileLayer
from kestreld.jobs.job import Job
from kestreld.jobs.maintenance import Engine, LogMaintenance
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.storage import JobStorage
from kestreld.jobs.waiting import JobWaiter
from kestreld.queues.commit import Committed, PendingCommit
from tests.support import engine as queues
from tests.support.clock import FakeClock
from tests.support.engine import LateFiles, OpenFiles

NODE_ID = b"0123456789abcdef0123456789abcdef01234567"
DAY_MS = 86_400_000
Said = tuple[bytes, bytes, bytes, int, int, int, int, int, int]


class JobEngine:
    """Jobs on `spool`, which is made if need be. `log` is what was reported, over all their lives."""

    def __init__(
        self,
        spool: Path,
        files: FileLayer | None = None,
        clock: FakeClock | None = None,
        *,
        sync_ms: int | None = None,
        segment_bytes_max: int = 1 << 24,
        restores_queues: bool = False,
        is_on: bool = True,
    ) -> None:
        self.spool = spool
        self.files = files if files is not None else queues.QuickFiles()
        self.clock = clock if clock is not None else FakeClock()
        self.sync_ms = sync_ms
        self.segment_bytes_max = segment_bytes_max
        self.restores_queues = restores_queues
        self.is_on = is_on
        self.random = Random(1)
        self.log: list[str] = []
        self._start()

    def _start(self) -> None:
        base = queues.Engine(self.spool, self.files, self.clock)
        self.base = base
        base.log = self.log
        self.commit = base.commit
        self.slices = base.slices
        engine = Engine(
            self.files, self.clock, base.collection.agenda, base.commit, base.collection.open_files, base.slices,
            base.maintenance.sync, self.log.append,
        )  # fmt: skip
        self.jobs = ReplicatedJobs(self.clock, base.collection.agenda, self.random.randbytes, NODE_ID)
        self.storage = JobStorage(
            engine, self.jobs, str(self.spool), sync_ms=self.sync_ms, segment_bytes_max=self.segment_bytes_max
        )
        self.storage.restores_queues = self.restores_queues
        self.problem: str | None = None
        if self.is_on or self.restores_queues:
            self.storage.load(self._loaded, is_kept=self.is_on)
            self.work_until(lambda: self.problem is not None)

    def _loaded(self, problem: str) -> None:
        self.problem = problem

    # What a server does

    def end_turn(self) -> dict[Committed, JournalFailed]:
        """Commit, then what follows the replies; what failed."""
        self.commit.run()
        self.commit.tell()
        failed = dict(self.commit.failed)
        self.base.maintenance.after_turn()
        return failed

    def work(self, slices: int = 1) -> None:
        """Slices of long work, each as short as they come, each with the turn behind it; and the disk's."""
        for _ in range(slices):
            self.slices.run(self.clock.stopwatch_us())
            self.end_turn()
            self.base.maintenance.sync_due()
            if isinstance(self.files, LateFiles):
                self.files.finish_background()

    def work_until(self, is_so: Callable[[], bool], slices_max: int = 100_000) -> None:
        for _ in range(slices_max):
            if is_so():
                return
            self.work()
        raise AssertionError("it does not come to an end")

    def turn_on(self) -> str:
        """Begin a log: why it could not be, "" = it is."""
        problems: list[str] = []
        self.storage.turn_on(problems.append)
        self.work_until(lambda: bool(problems))
        return problems[0]

    def pass_time(self, ms: int) -> None:
        """So much time passes, and what is due falls due."""
        self.clock.advance(ms)
        agenda = self.base.collection.agenda
        while (next_at_ms := agenda.next_at_ms()) is not None and next_at_ms <= self.clock.monotonic_ms:
            agenda.fall_due(self.clock.monotonic_ms)
        self.end_turn()

    def settle(self, rounds: int = 3) -> None:
        """A few seconds in which nobody does anything."""
        for _ in range(rounds):
            self.pass_time(1000)
            self.work_until(lambda: not self.slices.is_busy)

    def pending(self) -> PendingCommit | None:
        """What replies wait for."""
        return self.storage.writer.pending_commit if self.storage.writer is not None else None

    def restart(self) -> None:
        """A clean stop, and a new start on the same spool."""
        self.end_turn()
        while isinstance(self.files, LateFiles) and self.files.under_way:
            self.files.finish_background()
            self.end_turn()
        self.storage.close()
        self.base.collection.close()
        self._start()

    def crash(self) -> None:
        """kill -9, and a new start: what was not written is gone."""
        if isinstance(self.files, OpenFiles):
            self.files.die()
        self._start()

    # What clients do, in one line

    def add(
        self, queue: bytes = b"q", body: bytes = b"body", *, ttl_ms: int = DAY_MS, retry_ms: int = 300_000,
        delay_s: int = 0, key: bytes = b"", retries_max: int = -1,
    ) -> bytes:  # fmt: skip
        found = self.jobs.queue(queue)
        assert found is not None
        return self.jobs.add(body, found.terms_of((ttl_ms, retry_ms, delay_s, retries_max), key)).id

    def take(self, queue: bytes = b"q") -> bytes | None:
        """GETJOB: the id."""
        found = self.jobs.queue(queue)
        assert found is not None
        job = self.jobs.take(found)
        return None if job is None else job.id

    def drain(self, queue: bytes = b"q") -> list[bytes]:
        taken = []
        while (one := self.take(queue)) is not None:
            taken.append(one)
        return taken

    def ack(self, job_id: bytes) -> bool:
        job = self.jobs.table.get(job_id)
        if job is not None:
            self.jobs.remove(job)
        return job is not None

    def job(self, job_id: bytes) -> Job:
        found = self.jobs.table.get(job_id)
        assert found is not None
        return found

    def ids(self) -> set[bytes]:
        return {job.id for job in self.jobs.table}

    def said(self) -> dict[bytes, Said]:
        """What SHOW tells of every job that has to be the same after a restart."""
        return {job.id: said_of(job) for job in self.jobs.table}

    @property
    def maintenance(self) -> LogMaintenance:
        assert self.storage.maintenance is not None
        return self.storage.maintenance

    def segments(self) -> list[Path]:
        return sorted((self.spool / ".jobs").glob("*.jobs"))


class Consumer:
    """Waits for jobs, and notes which it is given."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        if job is not None:
            self.given.append(job.id)


def said_of(job: Job) -> Said:
    terms = job.terms
    return (
        terms.queue.name, job.body, terms.key, job.ctime, terms.ttl_ms, terms.retry_ms, terms.delay_s,
        job.nacks, job.deliveries,
    )  # fmt: skip


def numbered(count: int) -> Iterator[bytes]:
    return (b"body %d" % number for number in range(count))
