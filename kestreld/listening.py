"""Opening the ports: where systemd has opened sockets, else where the configuration says."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestreld import garbage
from kestreld.config.config import Address, Config, exposure_reason
from kestreld.errors import ConfigError
from kestreld.log import Level, Log
from kestreld.machine import OwnProcess, cpu_s
from kestreld.net import ListeningSocket, Network
from kestreld.server.service import Service
from kestreld.server.wire_protocol import WireProtocol
from kestreld.systemd import PassedSocket

if TYPE_CHECKING:
    from kestreld.server.admin.listener import AdminListener
    from kestreld.server.disque.conf_file import DisqueConf

# In the name of a passed socket, as words of their own: "memcache" is the queues'.
CACHE_WORD: Final = re.compile(r"(?<![A-Za-z0-9])cache(?![A-Za-z0-9])")
JOBS_WORD: Final = re.compile(r"(?<![A-Za-z0-9])disque(?![A-Za-z0-9])")


def listen(service: Service, network: Network, config: Config, passed: Sequence[PassedSocket]) -> list[str]:
    """Open the ports of the queues; the addresses that they are really at.

    Raises ConfigError for a passed socket that is open to all, and OSError.
    """
    sockets = [one for one in passed if not (CACHE_WORD.search(one.name) or JOBS_WORD.search(one.name))]
    if not sockets and not config.memcache:
        return []
    # disque-server, which has no queues but those of jobs, starts without.
    from kestreld.server.memcache.protocol import Memcache

    return _serve(service, Memcache(service.state), _open(network, config, sockets, config.memcache))


def listen_for_cache(service: Service, network: Network, config: Config, passed: Sequence[PassedSocket]) -> list[str]:
    """As `listen` for the ports of the cache, and make it, if there is to be one."""
    sockets = [one for one in passed if CACHE_WORD.search(one.name)]
    if not sockets and not config.cache:
        return []
    # Not loaded by servers without a cache.
    from kestreld.cache.dictionary import Dictionary
    from kestreld.server.cache.protocol import Cache

    dictionary = Dictionary(service.clock, config.cache_memory_bytes, config.cache_item_size_max_bytes)
    service.look_after(dictionary)
    return _serve(service, Cache(service.state, dictionary), _open(network, config, sockets, config.cache or ()))


@dataclass(frozen=True, slots=True)
class ProcessOfJobs:
    """What jobs need to know of their process, and get from it."""

    process_id: int
    system: str  # name, release and machine
    random_bytes: Callable[[int], bytes]


def listen_for_jobs(
    service: Service,
    network: Network,
    config: Config,
    passed: Sequence[PassedSocket],
    log: Log,
    process: ProcessOfJobs,
    conf: "DisqueConf | None" = None,
    fail: Callable[[str], None] = lambda problem: None,
) -> list[str]:
    """As `listen` for the ports of Disque's clients, and load the jobs, if there are to be any.

    `conf` is a disque.conf. `fail` is told why jobs cannot be loaded.
    """
    sockets = [one for one in passed if JOBS_WORD.search(one.name)]
    if not sockets and not config.disque:
        return []
    # Who has no jobs loads nothing of them.
    from kestreld.server.disque.node import ProcessFacts
    from kestreld.server.disque.starting import disque_protocol, keep_id, keep_on_disk, new_jobs

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
    keep_id(service, node, report)
    keep_on_disk(service, node, config, report, garbage.exclude_loaded, conf, fail)
    return _serve(service, protocol, ports)


def _port_of(address: str) -> int:
    """Of HOST:PORT; 0 where there is none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _open(
    network: Network, config: Config, passed: Sequence[PassedSocket], configured: Sequence[Address]
) -> list[tuple[ListeningSocket, bool]]:
    """The sockets, those passed or else those configured, and whether each is for TLS."""
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


def _serve(service: Service, protocol: WireProtocol, ports: Sequence[tuple[ListeningSocket, bool]]) -> list[str]:
    return [
        service.listen(bound, protocol, is_tls=is_tls, is_trusted=bound.is_private).address for bound, is_tls in ports
    ]


def listen_for_operators(service: Service, network: Network, config: Config, log: Log) -> "AdminListener | None":
    """Open the admin port, if there is to be one. Raises OSError for an address that somebody has asked for."""
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
    # aiohttp takes more time and memory than all the rest: clients of the data port are let in before.
    from kestreld.server.admin.listener import AdminListener

    return AdminListener(service, bound, is_tls=config.admin.tls, is_trusted=bound.is_private)


def bind(network: Network, address: Address) -> ListeningSocket:
    """Raises OSError, whose `filename` is the address."""
    try:
        if address.path:
            Path(address.path).parent.mkdir(parents=True, exist_ok=True)
            return network.listen_unix(address.path, address.mode)
        return network.listen_tcp(address.host, address.port)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
