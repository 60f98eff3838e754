"""The list of all settings: name, field of Config, and syntax of each.

Reading, suggestions, stats, and the settings that need a restart are all derived from it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from kestreld.config import values
from kestreld.config.cluster import EXPECTED, PORT_MAX, Announce
from kestreld.config.config import (
    BUS_PORT_OF_CLIENTS,
    LEASE_GRACE_MS_MIN,
    Address,
    Compat,
    Config,
    LogFormat,
    PerQueue,
    QueueConfig,
    RetryFrom,
)
from kestreld.config.job_rules import job_rules
from kestreld.config.queue_names import queue_name_problem
from kestreld.config.yaml_tree import Kind, Node

LINE_BYTES_MAX: Final = 1024**2
CACHE_BYTES_MIN: Final = 1024**2
CACHE_ITEM_BYTES_MIN, CACHE_ITEM_BYTES_MAX = 1024, 1024**3  # as memcached
NODE_TIMEOUT_MS_MIN: Final = 100
REPLICATE_MAX: Final = 65_535
MAX_AGE_MS_MAX: Final = 36_500 * 86_400_000  # a century

Parse = Callable[[Node], object]


def _queue(node: Node) -> str:
    name = values.as_clients_send_it(values.text_of(node, "a queue name or none"))
    if problem := queue_name_problem(name):
        raise values.BadValue(node, f"{node}: {problem}")
    return name


def _max_age_ms(node: Node) -> int | None:
    return values.milliseconds_from(0, MAX_AGE_MS_MAX)(node) or None


def _address(node: Node) -> Address:
    text = values.text_of(node, "HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:/PATH")
    try:
        return Address.parse(text)
    except ValueError as error:
        raise values.BadValue(node, f"{node}: {error}") from None


def _host_names(node: Node) -> tuple[str, ...]:
    expected = "a host name, such as queues.example.org"
    names = [values.text_of(item, expected) for item in (node.items if node.kind is Kind.LIST else [node])]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
            raise values.BadValue(node, f"expected {expected}, not {name!r}")
    return tuple(name.lower() for name in names)


def _delays_ms(node: Node) -> tuple[int, ...]:
    delay_ms = values.seconds_from(1, MAX_AGE_MS_MAX)
    return tuple([delay_ms(item) for item in (node.items if node.kind is Kind.LIST else [node])])


def _per_queue(node: Node) -> PerQueue:
    expected = "all, off, top:N or regex:PATTERN"
    if node.kind is Kind.SWITCH and not values.switch(node):
        return PerQueue(most=0)
    word, colon, rest = values.text_of(node, expected).partition(":")
    if word == "all" and not colon:
        return PerQueue()
    if word == "off" and not colon:
        return PerQueue(most=0)
    if word == "top" and re.fullmatch(r"[0-9]{1,9}", rest):
        return PerQueue(most=int(rest))
    if word == "regex" and rest:
        try:
            re.compile(rest)
        except re.error as error:
            raise values.BadValue(node, f"{rest!r} is not a valid regular expression: {error}") from None
        return PerQueue(pattern=rest)
    raise values.unexpected(node, expected)


def _addresses(node: Node) -> tuple[Address, ...]:
    items = node.items if node.kind is Kind.LIST else [node]
    addresses = tuple(_address(item) for item in items)
    if not addresses:
        raise values.BadValue(node, "expected at least one address")
    for at, address in enumerate(addresses):
        if address in addresses[:at] and (address.path or address.port):
            raise values.BadValue(items[at], f"{address} is listed twice")
    return addresses


def _bus_port(node: Node) -> int:
    if node.kind is Kind.TEXT and node.text == "auto":
        return BUS_PORT_OF_CLIENTS
    return values.count_from(0, PORT_MAX)(node)


def _announce(node: Node) -> Announce:
    text = values.text_of(node, EXPECTED)
    try:
        return Announce.parse(text)
    except ValueError as error:
        raise values.BadValue(node, f"{node}: {error}") from None


def _one_of(choices: type[Enum]) -> Parse:
    """Return a parser of an Enum's values."""
    expected = " or ".join(choice.value for choice in choices)

    def parse(node: Node) -> Enum:
        try:
            return choices(values.text_of(node, expected))
        except ValueError:
            raise values.unexpected(node, expected) from None

    return parse


def _certificate_required(node: Node) -> bool:
    text = values.text_of(node, "required or optional")
    if text not in ("required", "optional"):
        raise values.unexpected(node, "required or optional")
    return text == "required"


def _account(node: Node) -> str:
    name = values.text_of(node, "the name of an account on this machine")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise values.unexpected(node, "the name of an account on this machine")
    return name


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in the guide, the field it fills and the parser of its value."""

    name: str
    field: str
    parse: Parse
    unset: str = ""  # the word that, like null, means None; empty = a value is required
    per_queue: bool = False
    of_family: bool = False  # of the journal, which parent and children share: not for a child's block
    restart: bool = False  # a change takes effect at the next start


def _queue_setting(name: str, field: str, parse: Parse, unset: str = "", *, of_family: bool = False) -> Setting:
    return Setting(name, field, parse, unset, per_queue=True, of_family=of_family, restart=field == "journal")


SETTINGS: Final = (
    Setting("listen.memcache", "memcache", _addresses, restart=True),
    Setting("listen.admin", "admin", _address, "null", restart=True),
    Setting("listen.cache", "cache", _addresses, "null", restart=True),
    Setting("listen.disque", "disque", _addresses, "null", restart=True),
    Setting("listen.admin_hosts", "admin_hosts", _host_names),
    Setting("metrics.per_queue", "metrics_per_queue", _per_queue),
    Setting("jobs.retry_from", "jobs_retry_from", _one_of(RetryFrom), restart=True),
    Setting("jobs.queues", "job_rules", job_rules, restart=True),
    Setting("jobs.journal", "jobs_journal", values.switch, restart=True),
    Setting("jobs.sync_journal", "jobs_sync_journal_ms", values.sync_interval_ms, "false", restart=True),
    Setting("jobs.min_replicate", "jobs_min_replicate", values.count_from(1, REPLICATE_MAX), "null"),
    Setting("cluster.port", "cluster_port", _bus_port, "null", restart=True),
    Setting("cluster.announce", "cluster_announce", _announce, "null", restart=True),
    Setting("cluster.secret_file", "cluster_secret_file", values.path_of, "null"),
    Setting("cluster.tls", "cluster_tls", values.switch, restart=True),
    Setting(
        "cluster.node_timeout",
        "cluster_node_timeout_ms",
        values.seconds_from(NODE_TIMEOUT_MS_MIN),
    ),
    Setting("log.format", "log_format", _one_of(LogFormat), restart=True),
    Setting("tls.certificate", "tls_certificate", values.path_of, "null"),
    Setting("tls.key", "tls_key", values.path_of, "null"),
    Setting("tls.client_ca", "tls_client_ca", values.path_of, "null"),
    Setting("tls.client_certificate", "tls_client_certificate_required", _certificate_required),
    Setting("insecure", "insecure", values.switch),
    Setting("user", "user", _account, "null", restart=True),
    Setting("compat", "compat", _one_of(Compat), restart=True),
    Setting("queue_path", "queue_path", values.path_of, restart=True),
    Setting("archive_path", "archive_path", values.path_of, "null", restart=True),
    Setting("timeout", "timeout_ms", values.seconds_from(0)),
    Setting("request_timeout", "request_timeout_ms", values.seconds_from(1)),
    Setting("expiration_timer_frequency_seconds", "expiration_timer_ms", values.seconds_from(0)),
    Setting("sync_together", "sync_together", values.switch),
    Setting("max_open_reads", "max_open_reads", values.count_from(1)),
    Setting("max_line", "max_line_bytes", values.size_bytes_from(1024, LINE_BYTES_MAX), restart=True),
    Setting("max_memory", "max_memory_bytes", values.size_bytes_from(1), "infinite"),
    Setting("cache_memory", "cache_memory_bytes", values.size_bytes_from(CACHE_BYTES_MIN)),
    Setting(
        "cache_item_size_max",
        "cache_item_size_max_bytes",
        values.size_bytes_from(CACHE_ITEM_BYTES_MIN, CACHE_ITEM_BYTES_MAX),
    ),
    Setting("max_inflight", "max_inflight_bytes", values.size_bytes_from(1), "auto"),
    Setting("max_queues", "max_queues", values.count_from(1), "infinite"),
    Setting("max_bindings", "max_bindings", values.count_from(1)),
    Setting("max_declared", "max_declared", values.count_from(0)),
    Setting("max_connections", "max_connections", values.count_from(1), "infinite"),
    Setting("max_connections_per_ip", "max_connections_per_ip", values.count_from(1), "infinite"),
    _queue_setting("max_items", "max_items", values.count_from(1), "infinite"),
    _queue_setting("max_size", "max_size_bytes", values.size_bytes_from(1), "infinite"),
    _queue_setting("max_item_size", "max_item_size_bytes", values.size_bytes_from(1), "infinite"),
    _queue_setting("discard_old_when_full", "discard_old_when_full", values.switch),
    _queue_setting("journal", "journal", values.switch, of_family=True),
    _queue_setting("journal_leases", "journal_leases", values.switch),
    _queue_setting("sync_journal", "sync_journal_ms", values.sync_interval_ms, "false", of_family=True),
    _queue_setting("max_journal_size", "max_journal_size_bytes", values.size_bytes_from(1024), of_family=True),
    _queue_setting("max_journal_overflow", "max_journal_overflow", values.count_from(1), of_family=True),
    _queue_setting("max_memory_size", "max_memory_size_bytes", values.size_bytes_from(1)),
    _queue_setting("max_age", "max_age_ms", _max_age_ms, "0"),
    _queue_setting("move_expired_to", "move_expired_to", _queue, "none"),
    _queue_setting("max_retries", "max_retries", values.count_from(1), "infinite"),
    _queue_setting("move_failed_to", "move_failed_to", _queue, "none"),
    _queue_setting("retry_delays", "retry_delays_ms", _delays_ms, "none"),
    _queue_setting("open_transaction_timeout", "open_transaction_timeout_ms", values.seconds_from(1), "infinite"),
    _queue_setting("max_lease", "max_lease_ms", values.seconds_from(1, MAX_AGE_MS_MAX)),
    _queue_setting("lease_grace", "lease_grace_ms", values.seconds_from(LEASE_GRACE_MS_MIN, MAX_AGE_MS_MAX)),
    _queue_setting("max_delay", "max_delay_ms", values.seconds_from(1, MAX_AGE_MS_MAX)),
    _queue_setting("key_time", "key_time_ms", values.seconds_from(1, MAX_AGE_MS_MAX)),
    _queue_setting("max_keys", "max_keys", values.count_from(1)),
    _queue_setting("trash_seconds", "trash_ms", values.seconds_from(0, MAX_AGE_MS_MAX)),
    _queue_setting("idle_delete", "idle_delete_ms", values.seconds_from(1, MAX_AGE_MS_MAX), "none"),
    _queue_setting("fanout_only", "fanout_only", values.switch, of_family=True),
)
GROUPED: Final = {
    group: {s.name.removeprefix(f"{group}."): s for s in SETTINGS if s.name.startswith(f"{group}.")}
    for group in ("listen", "metrics", "jobs", "cluster", "log", "tls")
}
TOP_LEVEL: Final = {s.name: s for s in SETTINGS if "." not in s.name}
PER_QUEUE: Final = {s.name: s for s in SETTINGS if s.per_queue}
GROUPS: Final = (*GROUPED, "queues", "users")
PLAIN_MS: Final = frozenset(
    {"sync_journal", "jobs.sync_journal", "max_age"}
)  # where a plain number is milliseconds; else it is seconds


def queue_setting_lines(config: QueueConfig) -> list[tuple[str, str]]:
    """Return every per-queue setting with its value, by the guide's names and in a configuration file's syntax."""
    return [(name, written(setting, getattr(config, setting.field))) for name, setting in PER_QUEUE.items()]


def written(setting: Setting, value: object) -> str:
    """Return a value in a configuration file's syntax, but for quotes."""
    if value is None:
        return setting.unset
    if setting.name == "tls.client_certificate":
        return "required" if value else "optional"
    if setting.name == "cluster.port" and value == BUS_PORT_OF_CLIENTS:
        return "auto"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if setting.field.endswith("sync_journal_ms") and value == 0:
        return "true"
    if isinstance(value, tuple):
        return f"[{', '.join(_in_seconds(ms) for ms in value)}]"
    if isinstance(value, int) and setting.field.endswith("_ms") and setting.name not in PLAIN_MS:
        return _in_seconds(value)
    return str(value)


def _in_seconds(span_ms: int) -> str:
    return f"{span_ms}ms" if span_ms % 1000 else str(span_ms // 1000)


def value_of(setting: Setting, node: Node) -> object:
    if setting.unset and (node.kind is Kind.NULL or (node.kind is Kind.TEXT and node.text == setting.unset)):
        return None
    return setting.parse(node)


def place_of(key: str) -> str:
    """Describe where in a file a known setting belongs; empty for an unknown one."""
    for group, settings in GROUPED.items():
        if key.removeprefix(f"{group}.") in settings:
            return f"under {group}"
    if key in PER_QUEUE:
        return "at the top level, or under a queue's name"
    return "at the top level" if key in TOP_LEVEL or key in GROUPS else ""


def needs_restart(old: Config, new: Config) -> list[str]:
    """Return the names of settings that differ but take effect only at the next start."""
    changed = []
    for setting in SETTINGS:
        before, after = (config.defaults if setting.per_queue else config for config in (old, new))
        if setting.restart and getattr(before, setting.field) != getattr(after, setting.field):
            changed.append(setting.name)
    for name in sorted({*old.queues, *new.queues}):
        named = any("journal" in config.queues.get(name, {}) for config in (old, new))
        if named and old.for_queue(name).journal != new.for_queue(name).journal:
            changed.append(f"queues.{name}.journal")
    return changed


def until_restart(running: Config, new: Config) -> Config:
    """Return the new configuration with the running values of settings that need a restart."""
    kept: dict[str, Any] = {
        setting.field: getattr(running, setting.field)
        for setting in SETTINGS
        if setting.restart and not setting.per_queue
    }
    return replace(new, **kept)
