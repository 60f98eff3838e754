"""One server process with jobs: the daemon's own parts, put together as daemon.py and listening.py do."""

from random import Random
from typing import Final

from kestreld.jobs.storage import JobStorage
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.disque.disque_nodes import NODES_NAME
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.disque.parts import ClusterPart, JobsPart
from kestreld.server.service import Service
from kestreld.spool_lock import take_lock
from tests.simulation.server import Server

FACTS: Final = ProcessFacts(1, "kestreld", "Linux", lambda: 1 << 20, lambda: (0.0, 0.0))
PORT: Final = 7711
BUS_PORT: Final = 17_711


class Untuned:
    """The garbage collector left alone: it is the whole process's."""

    def collect_young(self) -> None: ...

    def exclude_loaded(self) -> None: ...

    def limit_full_collections(self, old_objects: int) -> None: ...


class JobServer(Server):
    """A process from its start to its end, which serves Disque's clients. In a fabric it has a cluster bus, too."""

    storage: JobStorage
    node: DisqueNode

    def start(self) -> None:
        """Raises Killed, SpoolUnusable, or OSError where the spool cannot be read."""
        self._lock = take_lock(self.files, self.config.queue_path)
        commit = GroupCommit(self.clock, self.files)
        collection = QueueCollection(self.files, self.clock, self.config, commit, self.report)
        collection.recover()
        self.collection = collection
        service = Service(self.loop, self.network, self.clock, collection, self._reload, self.report)  # type: ignore[arg-type]
        random_bytes = Random(f"{self._chance.random()}").randbytes
        jobs = JobsPart(service, self.config, random_bytes, PORT, FACTS, self.report, Untuned())
        service.add(jobs)
        self.node, self.storage = jobs.node, jobs.storage
        fabric = self.network.fabric
        if fabric is not None:
            jobs.keep_id(f"{self.config.queue_path}/{NODES_NAME}")
        jobs.load()
        clients = self.network.listen_tcp(self.network.host, PORT)
        if fabric is not None:
            bus = self.network.listen_tcp(self.network.host, BUS_PORT)
            cluster = ClusterPart(service, jobs.node, self.config, [bus], PORT, self.report, self.report)  # type: ignore[list-item]
            service.add(cluster)
        jobs.node.cluster.start([service.listen(clients, jobs.protocol)])  # type: ignore[arg-type]
        self.service = service

    def put_on_disk(self, until_us: int) -> None:
        assert self.service is not None
        self.service.close_parts(until_us)
