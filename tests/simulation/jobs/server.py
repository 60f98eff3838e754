"""One server process with jobs: the daemon's own parts, put together as daemon.py and listening.py do."""

from random import Random
from typing import Final

from kestreld.jobs.storage import JobStorage
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.disque.assemble import disque_protocol, keep_id, keep_on_disk, new_jobs, open_bus
from kestreld.server.disque.disque_nodes import NODES_NAME
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.service import Service
from kestreld.spool_lock import take_lock
from tests.simulation.server import Server

FACTS: Final = ProcessFacts(1, "kestreld", "Linux", lambda: 1 << 20, lambda: (0.0, 0.0))
PORT: Final = 7711
BUS_PORT: Final = 17_711


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
        jobs = new_jobs(collection, self.config, random_bytes)
        protocol, node = disque_protocol(service, jobs, random_bytes, PORT, FACTS)
        self.node = node
        fabric = self.network.fabric
        if fabric is not None:
            keep_id(service, node, self.report, f"{self.config.queue_path}/{NODES_NAME}")
        self.storage = keep_on_disk(service, node, self.config, self.report, lambda: None)
        clients = self.network.listen_tcp(self.network.host, PORT)
        if fabric is not None:
            bus = self.network.listen_tcp(self.network.host, BUS_PORT)
            open_bus(service, node, self.config, [bus], PORT, self.report, self.report)  # type: ignore[list-item]
        node.cluster.start([service.listen(clients, protocol)])  # type: ignore[arg-type]
        self.service = service

    def put_on_disk(self, until_us: int) -> None:
        assert self.service is not None
        for put_on_disk in self.service.at_close:
            put_on_disk(until_us)
