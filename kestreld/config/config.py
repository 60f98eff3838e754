"""The configuration as values: one frozen Config with its defaults, and a QueueConfig for each queue.

settings.py has the list of settings and their syntax, config_file.py reads them. Nothing here depends on running
queues or on sockets.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kestreld import checks
from kestreld.config.blocks import block_for, family_of, patterns_in
from kestreld.config.cluster import Announce
from kestreld.config.job_rules import NO_JOB_RULES, JobRules
from kestreld.config.queue_names import queue_name_problem
from kestreld.config.users import UserConfig
from kestreld.config.values import usable_path
from kestreld.config.yaml_tree import SourceLocation
from kestreld.errors import ConfigProblem, InvalidType, InvalidValue

BUILT_IN: Final = "built-in defaults"
SOCKET_PATH_BYTES_MAX: Final = 107  # sun_path less its NUL, unix(7)
BUS_PORT_OFFSET: Final = 10_000
LEASE_GRACE_MS_MIN: Final = 2000  # a client tries to connect once in two seconds at most
BUS_PORT_OF_CLIENTS: Final = -1  # as `cluster_port`: BUS_PORT_OFFSET above the clients'


class Compat(Enum):
    """Server whose replies the memcache listener imitates."""

    NONE = "none"
    KESTREL_1 = "kestrel-1"


class LogFormat(Enum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class RetryFrom(Enum):
    """Event at which a job's retry time starts."""

    QUEUEING = "queueing"
    DELIVERY = "delivery"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listener: host and port, or a Unix socket if `path` is not empty."""

    host: str = ""
    port: int = 0  # 0 = any free one
    path: str = ""
    tls: bool = False
    mode: int = 0o600  # of the Unix socket

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.tls else ''}{host}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """True if other machines can reach it, as far as its host name tells."""
        if self.path or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `127.0.0.1:22133`, `[::1]:22133`, `tls:` before either, or `unix:/path`. Raises ValueError."""
        if text.startswith("unix:"):
            path = usable_path(text.removeprefix("unix:"))
            if len(path.encode("utf-8", "surrogateescape")) > SOCKET_PATH_BYTES_MAX:
                raise ValueError(f"socket path too long: the maximum is {SOCKET_PATH_BYTES_MAX} bytes")
            return cls(path=path)
        match = re.fullmatch(r"(?:tls:)?(?:\[([^\[\]]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
        if match is None:
            raise ValueError("expected HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:/PATH")
        ip6, host, port = match[1], match[2], int(match[3])
        if port > 65535:
            raise ValueError("port out of range: the maximum is 65535")
        if ip6:
            ipaddress.IPv6Address(ip6)
        elif re.fullmatch(r"[0-9.]+", host):
            ipaddress.IPv4Address(host)
        return cls(host=ip6 or host, port=port, tls=text.startswith("tls:"))


@dataclass(frozen=True, slots=True)
class PerQueue:
    """Selection of the queues that have metrics of their own. Both None = all queues."""

    most: int | None = None  # number of queues, those with the most items
    pattern: str | None = None  # those whose whole name this regular expression matches

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"regex:{self.pattern}"
        return "all" if self.most is None else f"top:{self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Limits of one queue or child, and how its items are journaled, retried and kept."""

    max_items: int | None = None  # None = unlimited
    max_size_bytes: int | None = None  # None = unlimited
    max_item_size_bytes: int | None = None  # None = unlimited
    discard_old_when_full: bool = False
    journal_leases: bool = True  # running leases are journaled, and outlive a kill
    journal: bool = True
    sync_journal_ms: int | None = None  # None = left to the kernel; 0 = before every reply; n = every n ms
    max_journal_size_bytes: int = 16 * 1024**2
    max_journal_overflow: int = 10  # multiple of max_journal_size at which live items are rewritten into one segment
    max_memory_size_bytes: int = 128 * 1024**2
    max_age_ms: int | None = None  # None = items never expire by age
    move_expired_to: str | None = None  # None = expired items are dropped
    max_retries: int | None = None  # None = an item may come back forever
    move_failed_to: str | None = None  # set if and only if max_retries is
    retry_delays_ms: tuple[int, ...] | None = None  # delays of a failed item's retries; the last one repeats
    open_transaction_timeout_ms: int | None = None  # a limit on open reads; None = as long as their connections
    key_time_ms: int = 300_000  # time after a put, or after its item is due, in which its key is refused
    max_keys: int = 1_000_000  # remembered ones
    max_lease_ms: int = 12 * 3_600_000
    lease_grace_ms: int = 30_000  # what is left at least, after a start, of a lease that ran when the server stopped
    max_delay_ms: int = 365 * 86_400_000
    trash_ms: int = 0  # time in which a delete or flush can be undone; 0 = not at all
    idle_delete_ms: int | None = None  # a queue that nobody reads for so long is deleted; None = never
    fanout_only: bool = False  # a parent keeps no items, only its children do; False for every child

    def __post_init__(self) -> None:
        """Raises InvalidType or InvalidValue for a value that no setting can have."""
        for count in ("max_items", "max_size_bytes", "max_item_size_bytes", "max_retries"):
            checks.whole_or_none(getattr(self, count), count, 1)
        for count in ("max_journal_size_bytes", "max_journal_overflow", "max_memory_size_bytes"):
            checks.whole(getattr(self, count), count, 1)
        for span in ("sync_journal_ms", "max_age_ms"):
            checks.whole_or_none(getattr(self, span), span)
        if self.retry_delays_ms is not None:
            if not isinstance(self.retry_delays_ms, (tuple, list)):
                raise InvalidType("retry_delays_ms", "None or a tuple of ints", self.retry_delays_ms)
            for delay_ms in self.retry_delays_ms:
                checks.whole(delay_ms, "each of retry_delays_ms", 1)
            object.__setattr__(self, "retry_delays_ms", tuple(self.retry_delays_ms))  # it may be a list
        for span in ("open_transaction_timeout_ms", "idle_delete_ms"):
            checks.whole_or_none(getattr(self, span), span, 1)
        for most in ("max_lease_ms", "max_delay_ms", "key_time_ms", "max_keys"):
            checks.whole(getattr(self, most), most, 1)
        checks.whole(self.lease_grace_ms, "lease_grace_ms", LEASE_GRACE_MS_MIN)
        checks.whole(self.trash_ms, "trash_ms")
        for switch in ("discard_old_when_full", "journal", "journal_leases", "fanout_only"):
            checks.switch(getattr(self, switch), switch)
        for name in ("move_expired_to", "move_failed_to"):
            queue = getattr(self, name)
            problem = None if queue is None else queue_name_problem(checks.text(queue, name))
            if problem is not None:
                raise InvalidValue(name, f"the name of a queue ({problem})", queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of the server, in ms and bytes."""

    memcache: tuple[Address, ...] = (Address("127.0.0.1", 22133),)
    admin: Address | None = Address("127.0.0.1", 2223)  # None = no admin listener
    cache: tuple[Address, ...] | None = None  # None = no cache
    disque: tuple[Address, ...] | None = None  # None = no jobs
    jobs_retry_from: RetryFrom = RetryFrom.QUEUEING
    job_rules: JobRules = NO_JOB_RULES
    jobs_journal: bool = False
    jobs_sync_journal_ms: int | None = 1000  # as sync_journal_ms of queues
    jobs_min_replicate: int | None = None  # None = a default REPLICATE may come out as low as 1
    cluster_port: int | None = BUS_PORT_OF_CLIENTS  # of the bus between nodes; None = there is none, 0 = any free one
    cluster_announce: Announce | None = None  # None = other nodes find out the address
    cluster_secret_file: str | None = None  # None = other nodes need no secret
    cluster_secret: bytes = field(default=b"", repr=False)  # content of cluster_secret_file
    cluster_tls: bool = False
    cluster_node_timeout_ms: int = 15_000
    admin_hosts: tuple[str, ...] = ()  # names by which its clients may call it
    metrics_per_queue: PerQueue = PerQueue(most=500)
    log_format: LogFormat = LogFormat.TEXT
    compat: Compat = Compat.NONE
    queue_path: str
    archive_path: str | None = None  # None = dead segments are deleted
    timeout_ms: int = 0  # 0 = an idle client may stay forever
    request_timeout_ms: int = 60_000
    expiration_timer_ms: int = 0  # 0 = no timer
    sync_together: bool = False  # sync the whole file system when several journals are due at once
    max_open_reads: int = 1
    max_line_bytes: int = 8192
    max_memory_bytes: int | None = None  # of all queues together; None = unlimited
    cache_memory_bytes: int = 64 * 1024**2  # of all values of the cache, with what each costs beside its data
    cache_item_size_max_bytes: int = 1024**2  # of one of them, its key included
    max_inflight_bytes: int | None = None  # of unfinished items; None = by the machine's memory
    max_queues: int | None = 100_000  # children count; None = unlimited
    max_bindings: int = 100_000
    max_declared: int = 10_000  # queues with settings that clients declared
    max_connections: int | None = None  # None = as many as there are descriptors for
    max_connections_per_ip: int | None = None  # None = unlimited
    insecure: bool = False  # other machines may connect although nobody has to log in
    has_password: bool = False  # clients need the password of a disque.conf, requirepass
    user: str | None = None  # None = the account that starts the server
    tls_certificate: str | None = None
    tls_key: str | None = None  # None = in the certificate's file
    tls_client_ca: str | None = None  # None = clients are not asked for certificates
    tls_client_certificate_required: bool = True
    users: Mapping[str, UserConfig] = field(default_factory=dict)  # empty = nobody has to log in
    defaults: QueueConfig = QueueConfig()
    # Name or pattern -> QueueConfig field -> value.
    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    patterns: tuple[str, ...] = field(init=False, repr=False)  # those of `queues`, in order
    source: str = BUILT_IN
    places: Mapping[str, SourceLocation] = field(
        default_factory=dict, compare=False
    )  # field, or users.NAME -> where it is set
    block_places: Mapping[str, Mapping[str, SourceLocation]] = field(default_factory=dict, compare=False)  # by queue

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", patterns_in(self.queues))

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Every address that the server listens on, but for the cluster bus."""
        return (
            *self.memcache,
            *([self.admin] if self.admin is not None else []),
            *(self.cache or ()),
            *(self.disque or ()),
        )

    def listener_of(self, address: Address) -> str:
        """Return the field of the setting that contains one of `addresses`."""
        if address == self.admin:
            return "admin"
        if address in (self.cache or ()):
            return "cache"
        return "disque" if address in (self.disque or ()) else "memcache"

    @property
    def asks_for_certificates(self) -> bool:
        """True if TLS clients without a certificate are refused."""
        return self.tls_client_ca is not None and self.tls_client_certificate_required

    def problem(self, field: str, reason: str) -> ConfigProblem:
        """Describe a mistake found after reading, with the location at which the field was set."""
        return self.places.get(field, SourceLocation(self.source)).problem(reason)

    def exposed(self) -> Address | None:
        """Return an address that other machines can reach without authentication; None if there is none."""
        if self.users or self.insecure or self.has_password:
            return None
        for address in self.addresses:
            if address.is_exposed and not (address.tls and self.asks_for_certificates):
                return address
        return None

    def exposed_bus(self, addresses: Iterable[Address]) -> Address | None:
        """Return the first of the bus's addresses that other machines can reach without authentication, if any."""
        if self.insecure or self.cluster_secret or self.cluster_tls:
            return None
        return next((address for address in addresses if address.is_exposed), None)

    def for_queue(self, name: str) -> QueueConfig:
        """Return a queue's settings: the defaults, overridden by the blocks of its parent, then by its own.

        A move into the queue's own family is ignored, so that a default for all queues can name a queue. A child is
        not `fanout_only`.
        """
        changes: dict[str, Any] = block_for(self.queues, self.patterns, name)
        config = replace(self.defaults, **changes) if changes else self.defaults  # a copy is expensive
        if config.move_expired_to is not None and family_of(config.move_expired_to) == family_of(name):
            config = replace(config, move_expired_to=None)
        if config.move_failed_to is not None and family_of(config.move_failed_to) == family_of(name):
            config = replace(config, move_failed_to=None, max_retries=None)
        if config.fanout_only and "+" in name:
            config = replace(config, fanout_only=False)
        return config


def exposure_reason(address: Address) -> str:
    """Explain why an exposed address is refused, with the remedy."""
    return (
        f"{address} is reachable from other machines without authentication: set users, use a loopback address, "
        "or pass --insecure"
    )


def bus_exposure_reason(address: Address, settings: str = "cluster.secret_file or cluster.tls") -> str:
    """Explain why an exposed address of the bus is refused; `settings` are those that prevent it."""
    return (
        f"{address.host} is reachable from other machines, and other nodes are not authenticated: set "
        f"{settings}, use a loopback address, or pass --insecure"
    )
