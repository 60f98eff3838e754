"""A cluster of simulated nodes that does what a test says, with clients of the test's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.plan import ClusterPlan, NodePlan, small_steps
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.history import KILLED
from tests.simulation.jobs.talk import RespTalk

PATIENCE_US: Final = 20_000_000


class Asked:
    """A command, and its reply once that has come."""

    def __init__(self, stage: "Stage", machine: Machine, words: list[bytes | int]) -> None:
        self.replies: list[Any] = []
        self._stage = stage
        world = stage.world
        assert machine.server is not None
        trace = world.trace_of(machine, "test")
        self.talk = RespTalk(world.schedule, machine.server.network, machine.life, lambda: None, lambda: None, trace)
        self.talk.send(words, lambda reply, served_us: self.replies.append(reply))

    @property
    def reply(self) -> Any:
        """Waits for it."""
        schedule = self._stage.world.schedule
        schedule.run(schedule.now_us + PATIENCE_US, lambda: bool(self.replies))
        assert self.replies
        return self.replies[0]


class Stage:
    """Nodes that know each other. They are numbered from 0 on."""

    def __init__(self, count: int = 3, *, has_log: bool = True, sync_ms: int | None = 0, seed: int = 1) -> None:
        plan = ClusterPlan()
        plan.nodes = [NodePlan(has_log, sync_ms, 1 << 24, 0, 0) for _ in range(count)]
        self.plan = plan
        self.world = ClusterWorld(seed, plan)
        self.world.form()

    def ask(self, node: int, *words: bytes | int) -> Asked:
        """Send a command on a connection of its own."""
        return Asked(self, self.world.machines[node], list(words))

    def __call__(self, node: int, *words: bytes | int) -> Any:
        """The reply to a command."""
        return self.ask(node, *words).reply

    def run(self, span_ms: int) -> None:
        schedule = self.world.schedule
        schedule.run(schedule.now_us + span_ms * 1000)

    def kill(self, node: int, how: str = KILLED) -> None:
        self.world.over(self.world.machines[node], how)

    def shut_down(self, node: int) -> None:
        """SIGTERM."""
        self.world.shut_down(self.world.machines[node])

    def start(self, node: int) -> None:
        self.world.start(self.world.machines[node])

    def part(self, *inside: int) -> None:
        """Cut these off from the others."""
        self.world.fabric.partition(*[self.world.machines[node].host for node in inside])

    def heal(self) -> None:
        self.world.fabric.heal()

    def until_well(self) -> None:
        """Until all nodes are up for all others."""
        self.world.wait_until(self.world.is_well, "all nodes")

    def queued_at(self, job_id: bytes) -> list[int]:
        """Which nodes have it queued."""
        stores = self.world.watch.stores
        return [one.number for one in self.world.machines if one.host in stores and stores[one.host].has_queued(job_id)]


@contextmanager
def stage(count: int = 3, *, has_log: bool = True, sync_ms: int | None = 0, seed: int = 1) -> Iterator[Stage]:
    """See `Stage`."""
    sizes = {"rewritten": 256, "chunk": 1 << 20, "records": 1024, "given bytes": 1 << 20, "ack retry": 5000}
    with small_steps(ClusterPlan(small=sizes)):
        yield Stage(count, has_log=has_log, sync_ms=sync_ms, seed=seed)
