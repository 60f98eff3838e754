"""Start of jobs: their store, node, log and cluster bus, wired to the service."""

from collections.abc import Callable, Sequence

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
from kestreld.queues.collection import QueueCollection
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
from kestreld.server.rate_limited_log import RateLimitedLog
from kestreld.server.service import Service
from kestreld.tls import cluster_contexts

NODE_ID_RANDOM_BYTES = 20


def new_jobs(
    collection: QueueCollection, config: Config, random_bytes: RandomBytes, tidy: Callable[[], None] = lambda: None
) -> ReplicatedJobs:
    """Make an empty store. `tidy` is called at intervals while millions of jobs fall due."""
    return ReplicatedJobs(
        collection.clock,
        collection.agenda,
        random_bytes,
        random_bytes(NODE_ID_RANDOM_BYTES).hex().encode(),
        retry_from_delivery=config.jobs_retry_from is RetryFrom.DELIVERY,
        queues_max=config.max_queues,
        rules=config.job_rules.rules,
        tidy=tidy,
    )


def disque_protocol(
    service: Service, jobs: ReplicatedJobs, random_bytes: RandomBytes, port: int, process: ProcessFacts
) -> tuple[Disque, DisqueNode]:
    """Make the protocol that serves these jobs, and the node that its sessions share."""
    node = DisqueNode(service.state, jobs, random_bytes, port, process)
    service.show_jobs(JobFigures(node))
    service.once_a_second.append(node.look_after)
    service.at_stop.append(node.end)
    return Disque(node), node


def keep_id(service: Service, node: DisqueNode, report: Callable[[str], None], nodes_conf: str) -> None:
    """Restore the node's id, in an empty spool that of Disque's `nodes_conf`, and keep it on disk."""
    collection = service.collection
    take_over_nodes(collection.files, collection.spool, nodes_conf, report)
    file = NodeIdFile(collection.files, collection.spool, node.jobs, report, node.cluster.use_id)
    file.begin()
    file.look_after()
    node.change_id = file.change
    service.once_a_second.append(file.look_after)


def keep_on_disk(
    service: Service,
    node: DisqueNode,
    config: Config,
    report: Callable[[str], None],
    settle: Callable[[], None],
    conf: DisqueConf | None = None,
    fail: Callable[[str], None] = lambda problem: None,
) -> JobStorage:
    """Load the node's jobs and log their changes, by the configuration and the settings saved by CONFIG.

    `settle` is called at intervals while many objects are loaded that stay, `fail` with the reason if jobs cannot be
    loaded.
    """
    collection, settings = service.collection, node.settings
    spool = collection.spool
    engine = Engine(
        collection.files,
        collection.clock,
        collection.agenda,
        collection.commit,
        collection.open_files,
        service.slices,
        service.maintenance.sync,
        report,
        settle,
    )
    storage = JobStorage(
        engine,
        node.jobs,
        spool,
        sync_ms=config.jobs_sync_journal_ms,
        segment_bytes_max=config.defaults.max_journal_size_bytes,
    )
    log = LoggedJobs(storage, collection.clock, node.log_changed)
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
                report(f"aof-enqueue-jobs-once is no again, but not saved: {problem}")
        service.serves_jobs()

    service.wait_for_jobs()
    aof = f"{spool}/{AOF_NAME}" if conf is None else conf.aof_path
    log.begin(
        loaded,
        on=settings[b"appendonly"] == b"yes",
        aof=aof if collection.files.is_file(aof) else "",
        members=lambda: frozenset(one.id for one in node.cluster.table.members()),
    )
    service.at_close.append(storage.close)
    return storage


def open_bus(
    service: Service,
    node: DisqueNode,
    config: Config,
    bound: Sequence[ListeningSocket],
    client_port: int,
    note: Callable[[str], None],
    report: Callable[[str], None],
) -> None:
    """Open the cluster bus on these ports, and rejoin the cluster that this node was in.

    Raises ConfigError for certificates that cannot be used.
    """
    collection, cluster, jobs = service.collection, node.cluster, node.jobs
    addresses = [Address.parse(one.address) for one in bound]
    identity = Identity(
        cluster.hello,
        jobs.read_now_ms,
        node.random_bytes,
        config.cluster_secret,
        cluster_contexts(config, collection.files),
    )
    names = HostNames(service.loop, service.network)
    complaints = RateLimitedLog(service.clock, report)
    bus = ClusterBus(cluster, identity, service.turn, service.network, service.agenda, names, complaints)
    service.listeners += [bus.listen(one) for one in bound]
    cluster.announce(announced(config, addresses, client_port))
    file = NodesFile(collection.files, collection.spool, cluster.table, report)
    myself = cluster.join(bus, names, file, complaints, note, report)
    peers = Peers(jobs, cluster.table, bus, node.random_bytes, lambda: node.stores)
    node.join(SharedJobs(peers, service.take_on))
    node.min_replicate = config.jobs_min_replicate or 1
    if any(one.flags & Flag.LEAVING for one in myself):
        node.set_leaving(leaving=True)
    service.once_a_second.append(cluster.look_after)
    service.at_stop.append(cluster.stop)
    before = config

    def check(new: Config) -> Callable[[], None]:
        exposed = new.exposed_bus(addresses)
        if exposed is not None:
            raise ConfigError([new.problem("cluster_secret_file", f"cluster: {bus_exposure_reason(exposed)}")])
        contexts = cluster_contexts(new, collection.files)

        def put_to_use() -> None:
            nonlocal before
            identity.secret, identity.contexts = new.cluster_secret, contexts
            if new.cluster_node_timeout_ms != before.cluster_node_timeout_ms:
                node.set(b"cluster-node-timeout", b"%d" % new.cluster_node_timeout_ms)
            before = new

        return put_to_use

    service.at_reload.append(check)


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
