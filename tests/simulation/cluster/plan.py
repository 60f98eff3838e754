"""What a seed decides before a run of a cluster begins: nodes, how each keeps its jobs, clients, what goes wrong."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final
from unittest.mock import patch

from kestreld.cluster import ack_confirmations, ack_gc, federating
from kestreld.config.config import Config, QueueConfig, RetryFrom
from kestreld.config.job_rules import JobRule, JobRules
from kestreld.jobs import jobs, log, maintenance, recovery, storage, store, table
from kestreld.jobs.dead_letters import DEAD_SUFFIX
from kestreld.server.disque import node, parts
from tests.simulation.cluster.watching import WatchedJobs, watched_messages
from tests.simulation.plan import SPOOL

QUEUES: Final = (b"mail", b"work")
RETRIES_S: Final = (1, 1, 2, 2, 5)
LONG_TTL_S: Final = 3600
# What goes wrong, by what it is done to.
LINKS: Final = ("cut", "cut one way", "part", "break", "delay")
CRASHES: Final = ("kill", "kill", "power", "kill all", "restart")
STOPS: Final = ("stop", "slow disk")
DISKS: Final = ("disk fails", "disk fills")
OPERATORS: Final = ("leave", "forget", "reset", "reload", "memory")
KINDS: Final = {
    "calm": (),
    "links": LINKS,
    "crashes": CRASHES,
    "links and crashes": (*LINKS, *CRASHES),
    "stops": (*STOPS, "stop", "break", "delay"),
    "disks": (*DISKS, *CRASHES),
    "clocks": ("clock", "clock", *CRASHES, *LINKS),
    "operators": (*OPERATORS, "kill"),
    "all": (*LINKS, *CRASHES, *STOPS, *DISKS, *OPERATORS, "clock"),
}
WEIGHTS: Final = {
    "calm": 4, "links": 5, "crashes": 5, "links and crashes": 4, "stops": 3, "disks": 2, "clocks": 2, "operators": 3,
    "all": 4,
}  # fmt: skip


@dataclass(slots=True)
class NodePlan:
    """How one node keeps its jobs, and what its clocks show."""

    has_log: bool
    sync_ms: int | None
    segment_bytes_max: int
    wall_skew_ms: int
    drift_ppm: int


@dataclass(slots=True)
class ClusterPlan:
    """`troubles` is how many there are, of `kinds`. `small` are the sizes of the engine's steps."""

    nodes: list[NodePlan] = field(default_factory=list)
    timeout_ms: int = 2000
    run_ms: int = 20_000
    clients: list[str] = field(default_factory=list)
    name: str = "calm"
    kinds: tuple[str, ...] = ()
    troubles: int = 0
    adds_max: int = 30
    max_retries: int | None = None
    backoff_ms: tuple[int, ...] = ()
    retry_from: RetryFrom = RetryFrom.QUEUEING
    has_keys: bool = False
    has_operators: bool = False
    network_breaks: float = 0.0  # of clients
    reboots_at_end: bool = False
    idle_ms: int = 300_000  # after which queues that nobody uses are collected
    small: dict[str, int] = field(default_factory=dict)

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong."""
        return not self.kinds

    @property
    def all_queues(self) -> list[bytes]:
        return [*QUEUES, *[name + DEAD_SUFFIX for name in QUEUES]]

    def config(self, number: int) -> Config:
        """The configuration of one node."""
        one = self.nodes[number]
        return Config(
            queue_path=SPOOL,
            jobs_journal=one.has_log,
            jobs_sync_journal_ms=one.sync_ms,
            jobs_retry_from=self.retry_from,
            job_rules=JobRules((JobRule("work", self.backoff_ms, self.max_retries),)),
            cluster_node_timeout_ms=self.timeout_ms,
            insecure=True,
            request_timeout_ms=20_000,
            defaults=QueueConfig(max_journal_size_bytes=one.segment_bytes_max),
            source="a seed",
        )


def draw(chance: Random) -> ClusterPlan:
    """The plan of a seed."""
    plan = ClusterPlan()
    plan.name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    plan.kinds = KINDS[plan.name]
    count = chance.choices([3, 5, 7], [6, 3, 1])[0]
    keeping = chance.choice(["logs", "logs", "memory", "mixed", "mixed"])
    for _ in range(count):
        has_log = keeping == "logs" or (keeping == "mixed" and chance.random() < 0.6)
        plan.nodes.append(
            NodePlan(
                has_log,
                chance.choice([0, 0, 1000, None]),
                chance.choice([1000, 4000, 1 << 24]),
                chance.choice([0, 0, -90_000, 40, 3_600_000, -86_400_000 * 30]),
                chance.choice([0, 0, 0, 200, -200]),
            )
        )
    plan.timeout_ms = chance.choice([1000, 2000, 4000])
    plan.run_ms = int(chance.uniform(8_000, 24_000) * (0.7 if count == 7 else 1))
    plan.clients = ["producer", "worker", "worker"]
    plan.clients += [chance.choice(["producer", "worker", "worker", "meddler"]) for _ in range(chance.randint(1, 3))]
    plan.troubles = 0 if plan.is_calm else chance.choice([1, 2, 4, 6, 10, 15])
    plan.adds_max = chance.choice([10, 25, 40])
    plan.max_retries = chance.choice([None, None, None, 1, 3])
    plan.backoff_ms = chance.choice([(), (), (), (300,), (200, 1100)])
    plan.retry_from = chance.choice([RetryFrom.QUEUEING] * 4 + [RetryFrom.DELIVERY])
    plan.has_keys = chance.random() < 0.4
    plan.has_operators = chance.random() < 0.5
    plan.network_breaks = 0.0 if plan.is_calm else chance.choice([0.0, 0.0, 0.05])
    plan.reboots_at_end = chance.random() < 0.3
    plan.small = {
        "rewritten": chance.choice([1, 3, 256]),
        "chunk": chance.choice([500, 1 << 20]),
        "records": chance.choice([1, 5, 1024]),
        "given bytes": chance.choice([100, 1 << 20]),
        "ack retry": chance.choice([2000, 5000]),
    }
    if "leave" in plan.kinds and chance.random() < 0.5:
        plan.kinds = (*plan.kinds, "flush")
    if chance.random() < 0.3:
        plan.clients.append("undertaker")
    plan.idle_ms = chance.choice([300_000, 300_000, 1000])
    return plan


@contextmanager
def small_steps(plan: ClusterPlan) -> Iterator[None]:
    """What is done in steps of hundreds with millions of jobs is done in steps of a few with tens.

    Tables have one part: their order is that in which jobs came, and not that of hashes that are others each time. Acks
    are collected after seconds at the latest, not after minutes.
    """
    small = plan.small
    with ExitStack() as patched:
        for module in (jobs, store, recovery, table, ack_gc):
            patched.enter_context(patch.object(module, "MASK", 0))
        for module, name, value in (
            (table, "PARTS", 1),
            (maintenance, "REWRITTEN_AT_ONCE", small["rewritten"]),
            (maintenance, "AGAIN_MS", 1000),
            (recovery, "CHUNK_BYTES", small["chunk"]),
            (recovery, "RECORDS_AT_ONCE", small["records"]),
            (storage, "QUEUED_AT_ONCE", 3),
            (log, "KEPT_BYTES_MAX", 1 << 24),
            (federating, "GIVEN_BYTES_MAX", small["given bytes"]),
            (ack_confirmations, "RETRY_MS_MAX", small["ack retry"]),
            (parts, "ReplicatedJobs", WatchedJobs),
            (node, "IDLE_MS", (plan.idle_ms, min(plan.idle_ms, 10_000), min(plan.idle_ms, 2000))),
        ):
            patched.enter_context(patch.object(module, name, value))
        patched.enter_context(watched_messages())
        yield
