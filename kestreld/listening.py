"""Opens all ports of the server: on sockets passed by systemd, else at the configured addresses."""

import errno
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestreld import garbage
from kestreld.config.cluster import PORT_MAX
from kestreld.config.config import (
    BUS_PORT_OF_CLIENTS,
    BUS_PORT_OFFSET,
    Address,
    Config,
    bus_exposure_reason,
    exposure_reason,
)
from kestreld.errors import ConfigError
from kestreld.log import Level, Log
from kestreld.machine import OwnProcess, cpu_s
from kestreld.net import ListeningSocket, Network
from kestreld.server.listener import Listener
from kestreld.server.service import Service
from kestreld.server.wire_protocol import WireProtocol
from kestreld.systemd import PassedSocket

if TYPE_CHECKING:
    from kestreld.server.admin.listener import AdminListener
    from kestreld.server.disque.conf_file import DisqueConf

# In the name of a passed socket, as words of their own: "memcache" is the queues'.
CACHE_WORD: Final = re.compile(r"(?<![A-Za-z0-9])cache(?![A-Za-z0-9])")
ALL_HOSTS: Final = ("0.0.0.0", "::")
JOBS_WORD: Final = re.compile(r"(?<![A-Za-z0-9])disque(?![A-Za-z0-9])")


def listen(service: Service, network: Network, config: Config, passed: Sequence[PassedSocket]) -> list[str]:
    """Open the ports of the queues; returns the addresses actually bound.

    Raises OSError, and ConfigError for a passed socket that is open to all or lacks its certificate.
    """
    sockets = [one for one in passed if not (CACHE_WORD.search(one.name) or JOBS_WORD.search(one.name))]
    if not sockets and not config.memcache:
        return []
    # Not loaded by disque-server, whose only queues are those of jobs.
    from kestreld.server.memcache.protocol import Memcache

    return _addresses(_serve(service, Memcache(service.state), _open(network, config, sockets, config.memcache)))


def listen_for_cache(service: Service, network: Network, config: Config, passed: Sequence[PassedSocket]) -> list[str]:
    """Open the ports of the cache as `listen` does, and create the cache, if one is configured."""
    sockets = [one for one in passed if CACHE_WORD.search(one.name)]
    if not sockets and not config.cache:
        return []
    # Not loaded by servers without a cache.
    from kestreld.cache.dictionary import Dictionary
    from kestreld.server.cache.protocol import Cache

    dictionary = Dictionary(service.clock, config.cache_memory_bytes, config.cache_item_size_max_bytes)
    service.look_after(dictionary)
    ports = _open(network, config, sockets, config.cache or ())
    return _addresses(_serve(service, Cache(service.state, dictionary), ports))


@dataclass(frozen=True, slots=True)
class ProcessOfJobs:
    """Facts about this process that jobs need, and its source of random bytes."""

    process_id: int
    system: str  # name, release and machine
    random_bytes: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Names of the bus's settings in the configuration in use, for messages."""

    port: str = "cluster.port"
    authentication: str = "cluster.secret_file or cluster.tls"


def listen_for_jobs(
    service: Service,
    network: Network,
    config: Config,
    passed: Sequence[PassedSocket],
    log: Log,
    process: ProcessOfJobs,
    conf: "DisqueConf | None" = None,
    fail: Callable[[str], None] = lambda problem: None,
) -> tuple[list[str], list[str]]:
    """Open the ports of Disque's clients as `listen` does, and load the jobs, if jobs are configured.

    Also returns the addresses of the cluster bus. `conf` is a disque.conf. `fail` is called with the reason if jobs
    cannot be loaded.
    """
    sockets = [one for one in passed if JOBS_WORD.search(one.name)]
    if not sockets and not config.disque:
        return [], []
    # Not loaded by servers without jobs.
    from kestreld.server.disque.assemble import disque_protocol, keep_id, keep_on_disk, new_jobs, open_bus
    from kestreld.server.disque.disque_nodes import NODES_NAME
    from kestreld.server.disque.node import ProcessFacts

    ports = _open(network, config, sockets, config.disque or ())
    own = OwnProcess(service.collection.files)
    facts = ProcessFacts(
        process.process_id,
        sys.executable,
        process.system,
        lambda: use.resident_bytes if (use := own.use()) is not None else 0,
        cpu_s,
    )
    jobs = new_jobs(service.collection, config, process.random_bytes, garbage.collect_young)
    service.once_a_second.append(lambda: garbage.limit_full_collections(jobs.objects))
    protocol, node = disque_protocol(service, jobs, process.random_bytes, _port_of(ports[0][0].address), facts)
    if conf is not None:
        for bound, _ in ports:
            bound.tune(backlog=conf.backlog, keepalive_s=conf.keepalive_s)
        conf.apply(node, log)
    report = log.of("jobs", Level.WARNING)
    spool = service.collection.spool
    keep_id(service, node, report, f"{spool}/{NODES_NAME}" if conf is None else conf.nodes_path)
    keep_on_disk(service, node, config, report, garbage.exclude_loaded, conf, fail)
    names = BusSettings() if conf is None else BusSettings("cluster-port", "cluster-secret-file or tls-cluster")
    clients = [bound for bound, _ in ports]
    bus_ports, node.cluster.why_alone = _open_bus_ports(network, config, clients, log, names)
    if bus_ports:
        open_bus(service, node, config, bus_ports, _tcp_port(clients), log.of("cluster", Level.INFO), report)
    listeners = _serve(service, protocol, ports)
    node.cluster.start([*listeners])
    return _addresses(listeners), [bound.address for bound in bus_ports]


def _open_bus_ports(
    network: Network, config: Config, clients: Sequence[ListeningSocket], log: Log, names: BusSettings
) -> tuple[list[ListeningSocket], str]:
    """Open the ports for other nodes at the clients' addresses; without any, the second value is the reason.

    Raises ConfigError, or OSError for a port that the configuration names.
    """
    hosts = list(dict.fromkeys([Address.parse(one.address).host for one in clients if not one.is_unix]))
    hosts = [host for host in hosts if host in ALL_HOSTS] or hosts
    if config.cluster_port is None or not hosts:
        return [], "cluster.port is null" if config.cluster_port is None else "it has no TCP address for clients"
    is_asked_for = "cluster_port" in config.places
    port = _bus_port(config, clients)
    exposed = config.exposed_bus([Address(host, port) for host in hosts])
    if exposed is not None:
        reason = bus_exposure_reason(exposed, names.authentication)
        if is_asked_for:
            raise ConfigError([config.problem("cluster_port", f"{names.port}: {reason}")])
        log.say(Level.INFO, "cluster", f"cluster bus not opened: {reason}")
        return [], reason
    try:
        if port > PORT_MAX:
            raise OSError(errno.EINVAL, f"it is greater than {PORT_MAX}")
        return _bind_all(network, hosts, port), ""
    except OSError as error:
        if is_asked_for:
            raise
        reason = f"cannot listen on port {port}, the default of {names.port}: {error.strerror}"
        log.say(Level.WARNING, "cluster", f"cluster bus disabled: {reason}")
        return [], reason


def _bind_all(network: Network, hosts: Sequence[str], port: int) -> list[ListeningSocket]:
    """Listen on one port, 0 = any free one, at all of these hosts. Raises OSError, with none of them bound."""
    bound: list[ListeningSocket] = []
    try:
        for host in hosts:
            bound.append(bind(network, Address(host, port)))
            port = Address.parse(bound[0].address).port
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def _bus_port(config: Config, clients: Sequence[ListeningSocket]) -> int:
    """Return the port of the bus, 0 = any free one."""
    if config.cluster_port != BUS_PORT_OF_CLIENTS:
        assert config.cluster_port is not None
        return config.cluster_port
    configured = next((one for one in config.disque or () if not one.path), None)
    is_any = configured is not None and configured.port == 0
    return 0 if is_any else _tcp_port(clients) + BUS_PORT_OFFSET


def _tcp_port(clients: Sequence[ListeningSocket]) -> int:
    return next(Address.parse(one.address).port for one in clients if not one.is_unix)


def _port_of(address: str) -> int:
    """Return the port of HOST:PORT; 0 if there is none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _open(
    network: Network, config: Config, passed: Sequence[PassedSocket], configured: Sequence[Address]
) -> list[tuple[ListeningSocket, bool]]:
    """Open the passed sockets, or else the configured addresses; the flag is True for TLS."""
    ports = []
    for one in passed:
        bound, is_tls = ListeningSocket(one.bound), "tls" in one.name
        address = Address.parse(f"tls:{bound.address}" if is_tls else bound.address)
        exposed = replace(config, memcache=(address,)).exposed()
        if exposed is not None:
            raise ConfigError([config.problem("memcache", f"{one.name}: {exposure_reason(exposed)}")])
        if is_tls and config.tls_certificate is None:
            raise ConfigError([config.problem("tls_certificate", f"{one.name}: requires tls.certificate")])
        ports.append((bound, is_tls))
    return ports or [(bind(network, address), address.tls) for address in configured]


def _serve(service: Service, protocol: WireProtocol, ports: Sequence[tuple[ListeningSocket, bool]]) -> list[Listener]:
    return [service.listen(bound, protocol, is_tls=is_tls, is_trusted=bound.is_private) for bound, is_tls in ports]


def _addresses(listeners: Sequence[Listener]) -> list[str]:
    return [listener.address for listener in listeners]


def listen_for_operators(service: Service, network: Network, config: Config, log: Log) -> "AdminListener | None":
    """Open the admin port, if one is configured. Raises OSError for an address that the configuration names."""
    if config.admin is None:
        return None
    try:
        bound = bind(network, config.admin)
    except OSError as error:
        if "admin" in config.places:
            raise
        reason = f"cannot listen on {config.admin}, the default of listen.admin: {error.strerror}"
        log.say(Level.WARNING, "daemon", f"admin port disabled: {reason}")
        return None
    # aiohttp takes more time and memory than all the rest: it is loaded after the data ports are open.
    from kestreld.server.admin.listener import AdminListener

    return AdminListener(service, bound, is_tls=config.admin.tls, is_trusted=bound.is_private)


def bind(network: Network, address: Address) -> ListeningSocket:
    """Listen at an address. Raises OSError, with the address as its `filename`."""
    try:
        if address.path:
            Path(address.path).parent.mkdir(parents=True, exist_ok=True)
            return network.listen_unix(address.path, address.mode)
        return network.listen_tcp(address.host, address.port)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
