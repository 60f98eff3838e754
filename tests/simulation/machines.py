"""Several hosts with a disk and a server each, whose buses are connected by a fabric; all in one schedule."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Flag, Node
from kestreld.config.config import Config
from kestreld.server.disque.clustering import JobsSide
from tests.simulation.disk import Disk
from tests.simulation.fabric import Fabric
from tests.simulation.history import History, Life
from tests.simulation.jobs.server import BUS_PORT, PORT, JobServer
from tests.simulation.plan import SPOOL
from tests.simulation.process_files import Faults, ProcessFiles
from tests.simulation.schedule import Schedule

TIMEOUT_MS: Final = 1000


class Told(JobsSide):
    """What jobs are told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.messages: list[JobMessage] = []

    def receive(self, node: Node, message: JobMessage) -> None:
        self.messages.append(message)

    def came_up(self, node: Node) -> None:
        self.events.append(("up", node.address.host))

    def went_down(self, node: Node) -> None:
        self.events.append(("down", node.address.host))

    def link_broken(self, node: Node) -> None:
        self.events.append(("broken", node.address.host))


class Machines:
    """Hosts with a disk and a server each, in one schedule."""

    def __init__(self, seed: int, count: int = 3, **settings: Any) -> None:
        self.settings = settings
        self.schedule = Schedule()
        self.chance = Random(seed)
        self.history = History()
        self.fabric = Fabric(self.schedule, self.chance)
        self.hosts = [f"10.0.0.{number + 1}" for number in range(count)]
        self.disks: dict[str, Disk] = {}
        self.faults: dict[str, Faults] = {}
        self.servers: dict[str, JobServer] = {}
        self.told: dict[str, Told] = {}
        for host in self.hosts:
            disk = self.disks[host] = Disk()
            files = ProcessFiles(disk)
            files.make_dir(SPOOL)
            for path in ("/", SPOOL):
                files.sync_dir(path)
            self.start(host)

    def start(self, host: str) -> None:
        config = Config(
            queue_path=SPOOL, cluster_node_timeout_ms=TIMEOUT_MS, insecure=True, source="a test", **self.settings
        )
        faults = self.faults[host] = Faults(self.chance)
        server = self.servers[host] = JobServer(
            self.schedule, self.history, Life(1, 0, {}), self.disks[host], faults, config, lambda: config,
            Random(self.chance.random()), lambda: None, None, self.fabric, host,
        )  # fmt: skip
        server.start()
        told = self.told[host] = Told()
        server.node.cluster.attach_jobs(told)

    def kill(self, host: str, *, power_cut: bool = False) -> None:
        self.servers.pop(host).end(power_cut=power_cut)
        self.disks[host].locked.clear()

    def form(self) -> None:
        first = self.servers[self.hosts[0]]
        for host in self.hosts[1:]:
            first.loop.run(first.node.cluster.meet, host, PORT, BUS_PORT, lambda is_found: None)
        self.until(self.is_whole)

    def run(self, span_ms: int) -> None:
        self.schedule.run(self.schedule.now_us + span_ms * 1000)

    def until(self, is_so: Callable[[], bool], within_ms: int = 20_000) -> int:
        """Until it is so; how long that took, in ms."""
        began_us = self.schedule.now_us
        self.schedule.run(began_us + within_ms * 1000, is_so)
        assert is_so()
        return (self.schedule.now_us - began_us) // 1000

    def flags(self, host: str, of: str) -> Flag | None:
        nodes = [node for node in self.servers[host].node.cluster.table.others() if node.address.host == of]
        return nodes[0].flags if nodes else None

    def is_whole(self) -> bool:
        """Whether every server is up for every other."""
        return all(
            len(server.node.cluster.table.reachable()) == len(self.hosts) - 1 for server in self.servers.values()
        )
