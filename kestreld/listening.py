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
    from kestreld.server.disque.figures import JobFigures

# In the name of a passed socket, as words of their own: "memcache" is the queues'.
CACHE_WORD: Final = re.compile(r"(?<![A-Za-z0-9])cache(?![A-Za-z0-9])")
ALL_HOSTS: Final = ("0.0.0.0", "::")
JOBS_WORD: Final = re.compile(r"(?<![A-Za-z0-9])disque(?![A-Za-z0-9])")
Port = tuple[ListeningSocket, bool]  # True: with TLS


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


class Ports:
    """The ports of a server. Each method opens those of one part and makes the part, if that is configured.

    They return the addresses actually bound. They raise OSError for an address of the configuration, and ConfigError
    for a passed socket that is open to all or lacks its certificate.
    """

    def __init__(
        self, service: Service, network: Network, config: Config, passed: Sequence[PassedSocket], log: Log
    ) -> None:
        self._service = service
        self._network = network
        self._config = config
        self._passed = passed
        self._log = log
        self._jobs: JobFigures | None = None  # None = there are no jobs, or not yet

    def open_queues(self) -> list[str]:
        sockets = [one for one in self._passed if not (CACHE_WORD.search(one.name) or JOBS_WORD.search(one.name))]
        if not sockets and not self._config.memcache:
            return []
        # Not loaded by disque-server, whose only queues are those of jobs.
        from kestreld.server.memcache.protocol import Memcache

        return _addresses(self._serve(Memcache(self._service.state), self._open(sockets, self._config.memcache)))

    def open_cache(self) -> list[str]:
        sockets = [one for one in self._passed if CACHE_WORD.search(one.name)]
        if not sockets and not self._config.cache:
            return []
        # Not loaded by servers without a cache.
        from kestreld.server.cache.part import CachePart

        cache = CachePart(self._service, self._config)
        self._service.add(cache)
        return _addresses(self._serve(cache.protocol, self._open(sockets, self._config.cache or ())))

    def open_jobs(
        self,
        process: ProcessOfJobs,
        conf: "DisqueConf | None" = None,
        fail: Callable[[str], None] = lambda problem: None,
    ) -> tuple[list[str], list[str]]:
        """Open the ports of Disque's clients and of the cluster bus, and load the jobs.

        `conf` is a disque.conf. `fail` is called with the reason if jobs cannot be loaded.
        """
        service, config, log = self._service, self._config, self._log
        sockets = [one for one in self._passed if JOBS_WORD.search(one.name)]
        if not sockets and not config.disque:
            return [], []
        # Not loaded by servers without jobs.
        from kestreld.server.disque.disque_nodes import NODES_NAME
        from kestreld.server.disque.node import ProcessFacts
        from kestreld.server.disque.parts import ClusterPart, JobsPart

        ports = self._open(sockets, config.disque or ())
        own = OwnProcess(service.collection.files)
        facts = ProcessFacts(
            process.process_id,
            sys.executable,
            process.system,
            lambda: use.resident_bytes if (use := own.use()) is not None else 0,
            cpu_s,
        )
        report = log.of("jobs", Level.WARNING)
        port = _port_of(ports[0][0].address)
        jobs = JobsPart(service, config, process.random_bytes, port, facts, report, garbage)
        node, self._jobs = jobs.node, jobs.figures
        service.add(jobs)
        if conf is not None:
            for bound, _ in ports:
                bound.tune(backlog=conf.backlog, keepalive_s=conf.keepalive_s)
            conf.apply(node, log)
        jobs.keep_id(f"{service.collection.spool}/{NODES_NAME}" if conf is None else conf.nodes_path)
        jobs.load(conf, fail)
        names = BusSettings() if conf is None else BusSettings("cluster-port", "cluster-secret-file or tls-cluster")
        clients = [bound for bound, _ in ports]
        bus_ports, node.cluster.why_alone = self._open_bus(clients, names)
        if bus_ports:
            note = log.of("cluster", Level.INFO)
            service.add(ClusterPart(service, node, config, bus_ports, _tcp_port(clients), note, report))
        listeners = self._serve(jobs.protocol, ports)
        node.cluster.start([*listeners])
        return _addresses(listeners), [bound.address for bound in bus_ports]

    def _open_bus(self, clients: Sequence[ListeningSocket], names: BusSettings) -> tuple[list[ListeningSocket], str]:
        """Open the ports for other nodes at the clients' addresses; without any, the second value is the reason.

        Raises ConfigError, or OSError for a port that the configuration names.
        """
        config, log = self._config, self._log
        hosts = list(dict.fromkeys([Address.parse(one.address).host for one in clients if not one.is_unix]))
        hosts = [host for host in hosts if host in ALL_HOSTS] or hosts
        if config.cluster_port is None or not hosts:
            return [], "cluster.port is null" if config.cluster_port is None else "no TCP address for clients is set"
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
            return _bind_all(self._network, hosts, port), ""
        except OSError as error:
            if is_asked_for:
                raise
            reason = f"cannot listen on port {port}, the default of {names.port}: {error.strerror}"
            log.say(Level.WARNING, "cluster", f"cluster bus disabled: {reason}")
            return [], reason

    def open_admin(self) -> "AdminListener | None":
        """Open the admin port, after all others; a default address that cannot be used is only logged."""
        service, config = self._service, self._config
        if config.admin is None:
            return None
        try:
            bound = bind(self._network, config.admin)
        except OSError as error:
            if "admin" in config.places:
                raise
            reason = f"cannot listen on {config.admin}, the default of listen.admin: {error.strerror}"
            self._log.say(Level.WARNING, "daemon", f"admin port disabled: {reason}")
            return None
        # aiohttp takes more time and memory than all the rest: it is loaded after the data ports are open.
        from kestreld.server.admin.listener import AdminListener

        return AdminListener(
            service, bound, is_tls=config.admin.tls, is_trusted=bound.is_private, job_figures=self._jobs
        )

    def _open(
        self, passed: Sequence[PassedSocket], configured: Sequence[Address]
    ) -> list[tuple[ListeningSocket, bool]]:
        """Open the passed sockets, or else the configured addresses; see `Port`."""
        config = self._config
        ports: list[Port] = []
        for one in passed:
            bound, is_tls = ListeningSocket(one.bound), "tls" in one.name
            address = Address.parse(f"tls:{bound.address}" if is_tls else bound.address)
            exposed = replace(config, memcache=(address,)).exposed()
            if exposed is not None:
                raise ConfigError([config.problem("memcache", f"{one.name}: {exposure_reason(exposed)}")])
            if is_tls and config.tls_certificate is None:
                raise ConfigError([config.problem("tls_certificate", f"{one.name}: requires tls.certificate")])
            ports.append((bound, is_tls))
        return ports or [(bind(self._network, address), address.tls) for address in configured]

    def _serve(self, protocol: WireProtocol, ports: Sequence[Port]) -> list[Listener]:
        return [
            self._service.listen(bound, protocol, is_tls=is_tls, is_trusted=bound.is_private) for bound, is_tls in ports
        ]


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


def _addresses(listeners: Sequence[Listener]) -> list[str]:
    return [listener.address for listener in listeners]


def bind(network: Network, address: Address) -> ListeningSocket:
    """Listen at an address. Raises OSError, with the address as its `filename`."""
    try:
        if address.path:
            Path(address.path).parent.mkdir(parents=True, exist_ok=True)
            return network.listen_unix(address.path, address.mode)
        return network.listen_tcp(address.host, address.port)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
