"""Jobs and the cluster as parts of the server: their store, node, log and bus, wired to the service."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kestreld.cluster.nodes import Flag, NodeAddress
from kestreld.cluster.peers import Peers
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.config.config import Address, Config, RetryFrom, bus_exposure_reason
from kestreld.errors import ConfigError
from kestreld.files import must_be_the_systems
from kestreld.jobs.maintenance import Engine
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.storage import JobStorage
from kestreld.jobs.store import RandomBytes
from kestreld.journal.disque_aof import AOF_NAME
from kestreld.net import ListeningSocket
from kestreld.server.bus.bus import ClusterBus
from kestreld.server.bus.host_names import HostNames
from kestreld.server.bus.peers import Identity
from kestreld.server.disque.clustering import Announced
from kestreld.server.disque.conf_file import DisqueConf
from kestreld.server.disque.disque_nodes import take_over_nodes
from kestreld.server.disque.figures import JobFigures
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.disque.node_id import NodeIdFile
from kestreld.server.disque.nodes_file import NodesFile
from kestreld.server.disque.persistence import LoggedJobs, fsync_word
from kestreld.server.disque.protocol import Disque
from kestreld.server.disque.saved_settings import SavedSettings
from kestreld.server.parts import Part
from kestreld.server.rate_limited_log import RateLimitedLog
from kestreld.server.service import Service
from kestreld.tls import cluster_contexts

NODE_ID_RANDOM_BYTES = 20


class Collector(Protocol):
    """Python's garbage collector as jobs tune it: the module `kestreld.garbage`."""

    def collect_young(self) -> None:
        """Called at intervals while millions of jobs fall due."""

    def exclude_loaded(self) -> None:
        """Called at intervals while many objects are loaded that stay."""

    def limit_full_collections(self, old_objects: int) -> None:
        """Called once a second."""


class JobsPart(Part):
    """The jobs of a server: their store, the node that its sessions share, their log. Not ready while that is read."""

    def __init__(
        self,
        service: Service,
        config: Config,
        random_bytes: RandomBytes,
        port: int,
        process: ProcessFacts,
        report: Callable[[str], None],
        collector: Collector,
    ) -> None:
        collection = service.collection
        self._service = service
        self._config = config
        self._report = report
        self._collector = collector
        jobs = ReplicatedJobs(
            collection.clock,
            collection.agenda,
            random_bytes,
            random_bytes(NODE_ID_RANDOM_BYTES).hex().encode(),
            retry_from_delivery=config.jobs_retry_from is RetryFrom.DELIVERY,
            queues_max=config.max_queues,
            rules=config.job_rules.rules,
            tidy=collector.collect_young,
        )
        self.node = node = DisqueNode(service.state, jobs, random_bytes, port, process)
        self.protocol = Disque(node)
        self.figures = JobFigures(node)
        self._id_file: NodeIdFile | None = None  # None = the id is new at each start
        engine = Engine(
            collection.files,
            collection.clock,
            collection.agenda,
            collection.commit,
            collection.open_files,
            service.slices,
            service.maintenance.sync,
            report,
            collector.exclude_loaded,
        )
        self.storage = JobStorage(
            engine,
            jobs,
            collection.spool,
            sync_ms=config.jobs_sync_journal_ms,
            segment_bytes_max=config.defaults.max_journal_size_bytes,
        )
        service.stats.show_jobs(self.figures)

    def tick(self) -> None:
        self._collector.limit_full_collections(self.node.jobs.objects)
        self.node.look_after()
        if self._id_file is not None:
            self._id_file.look_after()

    def stop(self) -> None:
        self.node.end()

    def close(self, until_us: int | None) -> None:
        self.storage.close(until_us)

    def keep_id(self, nodes_conf: str) -> None:
        """Restore the node's id, in an empty spool that of Disque's `nodes_conf`, and keep it on disk."""
        collection, node = self._service.collection, self.node
        take_over_nodes(collection.files, collection.spool, nodes_conf, self._report)
        self._id_file = file = NodeIdFile(
            collection.files, collection.spool, node.jobs, self._report, node.cluster.use_id
        )
        self._id_file = file
        file.begin()
        file.look_after()
        node.change_id = file.change

    def load(self, conf: DisqueConf | None = None, fail: Callable[[str], None] = lambda problem: None) -> None:
        """Load the jobs and log their changes, by the configuration and the settings saved by CONFIG.

        `fail` is called with the reason if jobs cannot be loaded.
        """
        collection, config, node = self._service.collection, self._config, self.node
        settings, spool, report = node.settings, collection.spool, self._report
        log = LoggedJobs(self.storage, collection.clock, node.log_changed)
        node.persist(log)
        settings.start_with(b"appendonly", b"yes" if config.jobs_journal else b"no")
        settings.start_with(b"appendfsync", fsync_word(config.jobs_sync_journal_ms))
        settings.start_with(b"cluster-node-timeout", b"%d" % config.cluster_node_timeout_ms)
        node.cluster.set_timeout(config.cluster_node_timeout_ms)
        saved = SavedSettings(collection.files, spool) if conf is None else conf
        node.config_path = saved.path
        node.save_settings = lambda: saved.write(settings)
        try:
            found, problems = saved.read(settings)
        except OSError as error:
            must_be_the_systems(error)
            found, problems = [], [f"{saved.path}: cannot be read: {error.strerror}"]
        for problem in problems:
            report(problem)
        for name, value in found:
            node.set(name, value)
        was_controlled = settings[b"aof-enqueue-jobs-once"] == b"yes"

        def loaded(problem: str) -> None:
            if problem:
                fail(problem)
            elif was_controlled:  # the queues are restored once
                node.set(b"aof-enqueue-jobs-once", b"no")
                if problem := node.save_settings():
                    report(f"aof-enqueue-jobs-once was reset to no, but cannot be saved: {problem}")
            self.is_ready = True
            self._service.part_is_ready()

        self.is_ready = False
        aof = f"{spool}/{AOF_NAME}" if conf is None else conf.aof_path
        log.begin(
            loaded,
            on=settings[b"appendonly"] == b"yes",
            aof=aof if collection.files.is_file(aof) else "",
            members=lambda: frozenset(one.id for one in node.cluster.table.members()),
        )


class ClusterPart(Part):
    """The cluster bus of a node, on ports of its own. A start rejoins the cluster that the node was in."""

    def __init__(
        self,
        service: Service,
        node: DisqueNode,
        config: Config,
        bound: Sequence[ListeningSocket],
        client_port: int,
        note: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        """Raises ConfigError for certificates that cannot be used."""
        collection, cluster, jobs = service.collection, node.cluster, node.jobs
        self._node = node
        self._files = collection.files
        self._addresses = [Address.parse(one.address) for one in bound]
        self._timeout_ms = config.cluster_node_timeout_ms
        self._identity = Identity(
            cluster.hello,
            jobs.read_now_ms,
            node.random_bytes,
            config.cluster_secret,
            cluster_contexts(config, collection.files),
        )
        names = HostNames(service.loop, service.network)
        complaints = RateLimitedLog(service.clock, report)
        bus = ClusterBus(cluster, self._identity, service.turn, service.network, service.agenda, names, complaints)
        service.listeners += [bus.listen(one) for one in bound]
        cluster.announce(announced(config, self._addresses, client_port))
        file = NodesFile(collection.files, collection.spool, cluster.table, report)
        myself = cluster.join(bus, names, file, complaints, note, report)
        peers = Peers(jobs, cluster.table, bus, node.random_bytes, lambda: node.stores)
        node.join(SharedJobs(peers, service.take_on))
        node.min_replicate = config.jobs_min_replicate or 1
        if any(one.flags & Flag.LEAVING for one in myself):
            node.set_leaving(leaving=True)

    def tick(self) -> None:
        self._node.cluster.look_after()

    def stop(self) -> None:
        self._node.cluster.stop()

    def check(self, config: Config) -> Callable[[], None]:
        exposed = config.exposed_bus(self._addresses)
        if exposed is not None:
            raise ConfigError([config.problem("cluster_secret_file", f"cluster: {bus_exposure_reason(exposed)}")])
        contexts = cluster_contexts(config, self._files)

        def put_to_use() -> None:
            self._identity.change(config.cluster_secret, contexts)
            if config.cluster_node_timeout_ms != self._timeout_ms:
                self._timeout_ms = config.cluster_node_timeout_ms
                self._node.set(b"cluster-node-timeout", b"%d" % self._timeout_ms)

        return put_to_use


def announced(config: Config, addresses: Sequence[Address], client_port: int) -> Announced:
    """Return the address to announce to other nodes; `addresses` are those of the bus."""
    bus_port = addresses[0].port
    wanted = config.cluster_announce
    if wanted is not None:
        port = client_port if wanted.port is None else wanted.port
        return Announced(
            NodeAddress(wanted.host, port, bus_port if wanted.bus_port is None else wanted.bus_port), is_fixed=True
        )
    hosts = [one.host for one in addresses]
    if any(host in ("0.0.0.0", "::") for host in hosts):
        return Announced(NodeAddress("", client_port, bus_port))
    reachable = [one.host for one in addresses if one.is_exposed]
    return Announced(NodeAddress((reachable or hosts)[0], client_port, bus_port))
