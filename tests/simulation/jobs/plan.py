"""What a seed decides before a run of jobs begins: how the log is kept, who the clients are, what goes wrong."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final
from unittest.mock import patch

from kestreld.config.config import Config, QueueConfig, RetryFrom
from kestreld.config.job_rules import JobRule, JobRules
from kestreld.jobs import jobs, log, maintenance, recovery, storage, store, table
from kestreld.jobs.dead_letters import DEAD_SUFFIX
from tests.simulation.plan import SPOOL

QUEUES: Final = (b"mail", b"work")
RETRIES_S: Final = (1, 1, 2, 3)
BACKOFFS_MS: Final = ((), (), (300,), (200, 1100))
SYNCS_MS: Final = (0, 0, 0, None, 20, 1000)
LONG_TTL_S: Final = 86_400


@dataclass(slots=True)
class JobPlan:
    """`max_retries` is the rule of `work`, None = as often as may be. `small` are the sizes of the engine's steps."""

    sync_ms: int | None = 0
    clients: list[str] = field(default_factory=list)
    lives: int = 1
    segment_bytes_max: int = 1 << 24
    max_retries: int | None = None
    backoff_ms: tuple[int, ...] = ()
    retry_from: RetryFrom = RetryFrom.QUEUEING
    has_keys: bool = False
    is_flushed: bool = False
    is_switched: bool = False  # the log, off and on
    disk_fails: bool = False
    disk_fills: bool = False
    clock_steps: bool = False
    network_breaks: float = 0.0
    big_bodies: bool = False
    adds_max: int = 0
    small: dict[str, int] = field(default_factory=dict)

    @property
    def all_queues(self) -> list[bytes]:
        return [*QUEUES, *[name + DEAD_SUFFIX for name in QUEUES]]

    @property
    def wait_max_ms(self) -> int:
        """No job that is there waits longer for its next delivery, but for a DELAY."""
        return max(RETRIES_S) * 1000 + 250 + max((0, *self.backoff_ms))

    def config(self) -> Config:
        """The configuration of one life."""
        rule = JobRule("work", self.backoff_ms, self.max_retries)
        return Config(
            queue_path=SPOOL,
            jobs_journal=True,
            jobs_sync_journal_ms=self.sync_ms,
            jobs_retry_from=self.retry_from,
            job_rules=JobRules((rule,)),
            request_timeout_ms=20_000,
            defaults=QueueConfig(max_journal_size_bytes=self.segment_bytes_max),
            source="a seed",
        )


def draw(chance: Random) -> JobPlan:
    """The plan of a seed."""
    plan = JobPlan()
    plan.sync_ms = chance.choice(SYNCS_MS)
    plan.clients = ["producer", "worker", "operator"]
    plan.clients += [chance.choice(["producer", "worker", "worker"]) for _ in range(chance.randint(1, 3))]
    plan.lives = chance.randint(2, 6)
    plan.segment_bytes_max = chance.choice([300, 1000, 1000, 4000, 1 << 24])
    plan.max_retries = chance.choice([None, None, 0, 2])
    plan.backoff_ms = chance.choice(BACKOFFS_MS)
    plan.retry_from = chance.choice([RetryFrom.QUEUEING] * 5 + [RetryFrom.DELIVERY])
    plan.has_keys = chance.random() < 0.5
    plan.is_flushed = chance.random() < 0.15
    plan.disk_fails = chance.random() < 0.35
    plan.disk_fills = chance.random() < 0.25
    plan.clock_steps = chance.random() < 0.2
    plan.network_breaks = chance.choice([0.0, 0.0, 0.03, 0.1])
    plan.big_bodies = chance.random() < 0.3
    plan.adds_max = chance.choice([20, 50, 100])
    plan.small = {
        "rewritten": chance.choice([1, 3, 256]),
        "unwritten": chance.choice([200, 1 << 20]),
        "kept": chance.choice([500, 1 << 24, 1 << 24]),
        "chunk": chance.choice([64, 500, 1 << 20]),
        "records": chance.choice([1, 5, 1024]),
        "again": chance.choice([1000, 60_000]),
    }
    return plan


def redraw(plan: JobPlan, chance: Random) -> None:
    """Another way of keeping the log, from the next start on."""
    plan.sync_ms = chance.choice(SYNCS_MS)
    plan.segment_bytes_max = chance.choice([300, 1000, 4000, 1 << 24])


@contextmanager
def small_steps(plan: JobPlan) -> Iterator[None]:
    """What is done in steps of hundreds with millions of jobs is done in steps of a few with tens.

    The table has one part: its order is that in which jobs came, and not that of hashes that are others each time.
    """
    small = plan.small
    with ExitStack() as patched:
        for module in (jobs, store, recovery, table):
            patched.enter_context(patch.object(module, "MASK", 0))
        for module, name, value in (
            (table, "PARTS", 1),
            (maintenance, "REWRITTEN_AT_ONCE", small["rewritten"]),
            (maintenance, "UNWRITTEN_BYTES_MAX", small["unwritten"]),
            (maintenance, "AGAIN_MS", small["again"]),
            (log, "KEPT_BYTES_MAX", small["kept"]),
            (recovery, "CHUNK_BYTES", small["chunk"]),
            (recovery, "RECORDS_AT_ONCE", small["records"]),
            (storage, "QUEUED_AT_ONCE", 3),
        ):
            patched.enter_context(patch.object(module, name, value))
        yield
