"""Settings: YAML and `--set` in, one frozen Config out, or a ConfigError naming every mistake and its place.

SETTINGS is the one list of settings: reading, suggestions, dump_config and needs_restart all come from it.
The room knows names, units and places; nothing of queues at work or of sockets.
"""

import difflib
import graphlib
import ipaddress
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kestreld.errors import ConfigError, ConfigProblem
from kestreld.files import FileLayer
from kestreld.users import UserConfig, read_users
from kestreld.values import (
    BadValue,
    as_clients_send_it,
    count_from,
    milliseconds_from,
    path_of,
    seconds_from,
    size_bytes_from,
    switch,
    sync_interval_ms,
    text_of,
    unexpected,
    usable_path,
)
from kestreld.yaml_tree import Entry, Kind, Node, Place, read_tree, read_value

BUILT_IN: Final = "built-in defaults"
DEFAULT_QUEUE_PATH: Final = "~/.local/state/kestreld/spool"
FILE_BYTES_MAX: Final = 1024**2
QUEUE_FILE_NAME_BYTES_MAX: Final = 200  # leaves room for our suffixes in the 255 a file system allows
SOCKET_PATH_BYTES_MAX: Final = 107  # sun_path less its NUL, unix(7)
MAX_AGE_MS_MAX: Final = 36_500 * 86_400_000  # a century


class Compat(Enum):
    """Whose bytes the memcache listener speaks."""

    NONE = "none"
    KESTREL_1 = "kestrel-1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens: host and port, or a Unix socket where `path` is not empty."""

    host: str = ""
    port: int = 0  # 0 = any free one
    path: str = ""
    tls: bool = False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.tls else ''}{host}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it, as far as its name tells."""
        if self.path or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`127.0.0.1:22133`, `[::1]:22133`, `tls:` before either, `unix:/path`. ValueError has the reason."""
        if text.startswith("unix:"):
            path = usable_path(text.removeprefix("unix:"))
            if len(path.encode("utf-8", "surrogateescape")) > SOCKET_PATH_BYTES_MAX:
                raise ValueError(f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes")
            return cls(path=path)
        match = re.fullmatch(r"(?:tls:)?(?:\[([^\[\]]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
        if match is None:
            raise ValueError("expected HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:/PATH")
        ip6, host, port = match[1], match[2], int(match[3])
        if port > 65535:
            raise ValueError("a port is at most 65535")
        if ip6:
            ipaddress.IPv6Address(ip6)
        elif re.fullmatch(r"[0-9.]+", host):
            ipaddress.IPv4Address(host)
        return cls(host=ip6 or host, port=port, tls=text.startswith("tls:"))


@dataclass(frozen=True, slots=True)
class PerQueue:
    """Which queues have metrics of their own. Both None = all of them."""

    most: int | None = None  # so many, those with the most items
    pattern: str | None = None  # those whose whole name this regular expression matches


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """What one queue or child may hold, and how it is journaled."""

    max_items: int | None = None  # None = unlimited
    max_size_bytes: int | None = None  # None = unlimited
    max_item_size_bytes: int | None = None  # None = unlimited
    discard_old_when_full: bool = False
    journal: bool = True
    sync_journal_ms: int | None = None  # None = left to the kernel; 0 = before every reply; n = every n ms
    max_journal_size_bytes: int = 16 * 1024**2
    max_journal_overflow: int = 10  # so many times max_journal_size before live items are rewritten into one segment
    max_memory_size_bytes: int = 128 * 1024**2
    max_age_ms: int | None = None  # None = items never expire by age
    move_expired_to: str | None = None  # None = expired items are dropped
    max_retries: int | None = None  # None = an item may come back for ever
    move_failed_to: str | None = None  # set exactly where max_retries is
    trash_ms: int = 0  # how long what was deleted or flushed can be had back; 0 = not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the server was told, in ms and bytes."""

    memcache: tuple[Address, ...] = (Address("127.0.0.1", 22133),)
    admin: Address | None = None  # None = no admin listener
    admin_hosts: tuple[str, ...] = ()  # names by which its clients may call it
    metrics_per_queue: PerQueue = PerQueue(most=500)
    compat: Compat = Compat.NONE
    queue_path: str
    archive_path: str | None = None  # None = dead segments are deleted
    timeout_ms: int = 0  # 0 = an idle client may stay for ever
    request_timeout_ms: int = 60_000
    expiration_timer_ms: int = 0  # 0 = no timer
    sync_together: bool = False  # journals that are to be synced at the same time: the whole file system at once
    max_open_reads: int = 1
    max_line_bytes: int = 8192
    max_connections: int | None = None  # None = as many as there are descriptors for
    max_connections_per_ip: int | None = None  # None = unlimited
    insecure: bool = False  # other machines may connect although nobody has to log in
    user: str | None = None  # None = whoever starts it
    tls_certificate: str | None = None
    tls_key: str | None = None  # None = in the certificate's file
    tls_client_ca: str | None = None  # None = clients are not asked for certificates
    tls_client_certificate_required: bool = True
    users: Mapping[str, UserConfig] = field(default_factory=dict)  # empty = nobody has to log in
    defaults: QueueConfig = QueueConfig()
    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # name -> QueueConfig field -> value
    source: str = BUILT_IN
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)  # field -> where it is set

    @property
    def asks_for_certificates(self) -> bool:
        """Whether nobody gets in by TLS who has no certificate."""
        return self.tls_client_ca is not None and self.tls_client_certificate_required

    def problem(self, field: str, reason: str) -> ConfigProblem:
        """A mistake found after reading, at the place where the field was set."""
        return self.places.get(field, Place(self.source)).problem(reason)

    def exposed(self) -> Address | None:
        """An address that other machines can reach and where nobody has to show who he is; None when there is none."""
        if self.users or self.insecure:
            return None
        for address in (*self.memcache, *([self.admin] if self.admin is not None else [])):
            if address.is_exposed and not (address.tls and self.asks_for_certificates):
                return address
        return None

    def for_queue(self, name: str) -> QueueConfig:
        """The defaults, over them the parent's block, over it the child's own.

        A move into the queue's own family is none, so a default for all queues can name a queue.
        """
        changes: dict[str, Any] = dict(_effective(self.queues, name))
        config = replace(self.defaults, **changes)
        if config.move_expired_to is not None and _family(config.move_expired_to) == _family(name):
            config = replace(config, move_expired_to=None)
        if config.move_failed_to is not None and _family(config.move_failed_to) == _family(name):
            config = replace(config, move_failed_to=None, max_retries=None)
        return config


def queue_name_problem(name: str) -> str | None:
    """Why no queue can have this name (latin-1 text), or None when one can."""
    if not name:
        return "a queue name cannot be empty"
    if bad := re.search("[/~.]", name):
        return f"a queue name cannot have {bad[0]!r} in it"
    if re.search("[\x00-\x20\x7f]", name):
        return "a queue name cannot have blanks or control characters in it"
    if re.search("[^\x00-\xff]", name):
        return "a queue name is made of single bytes"
    if name.startswith("+") or name.endswith("+"):
        return "a queue name cannot begin or end with '+', which stands between parent and child"
    if (size_bytes := len(encode_queue_name(name))) > QUEUE_FILE_NAME_BYTES_MAX:
        return f"a queue name's file name has at most {QUEUE_FILE_NAME_BYTES_MAX} bytes, not {size_bytes}"
    return None


def encode_queue_name(name: str) -> str:
    """The name as a file name: all bytes but A-Za-z0-9_- as %XX. Raises UnicodeEncodeError if not latin-1."""
    quoted = re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"%%%02X" % byte[0][0], name.encode("latin-1"))
    return quoted.decode("ascii")


def decode_queue_name(encoded: str) -> str:
    """The name behind a file name. One that no queue made has an unusable name, or does not encode back."""
    return re.sub("%([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), encoded)


def _family(name: str) -> str:
    return name.partition("+")[0]


def _effective(queues: Mapping[str, Mapping[str, object]], name: str) -> Mapping[str, object]:
    """What the blocks say about a queue: its parent's, and over it its own."""
    return {**queues.get(_family(name), {}), **queues.get(name, {})}


def _queue(node: Node) -> str:
    name = as_clients_send_it(text_of(node, "the name of a queue or none"))
    if problem := queue_name_problem(name):
        raise BadValue(node, f"{node}: {problem}")
    return name


def _max_age_ms(node: Node) -> int | None:
    return milliseconds_from(0, MAX_AGE_MS_MAX)(node) or None


def _address(node: Node) -> Address:
    text = text_of(node, "HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:/PATH")
    try:
        return Address.parse(text)
    except ValueError as error:
        raise BadValue(node, f"{node}: {error}") from None


def _host_names(node: Node) -> tuple[str, ...]:
    expected = "a host name, such as queues.example.org"
    names = [text_of(item, expected) for item in (node.items if node.kind is Kind.LIST else [node])]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
            raise BadValue(node, f"expected {expected}, not {name!r}")
    return tuple(name.lower() for name in names)


def _per_queue(node: Node) -> PerQueue:
    expected = "all, off, top:N or regex:PATTERN"
    if node.kind is Kind.SWITCH and not switch(node):
        return PerQueue(most=0)
    word, colon, rest = text_of(node, expected).partition(":")
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
            raise BadValue(node, f"{rest!r} is no regular expression: {error}") from None
        return PerQueue(pattern=rest)
    raise unexpected(node, expected)


def _addresses(node: Node) -> tuple[Address, ...]:
    items = node.items if node.kind is Kind.LIST else [node]
    addresses = tuple(_address(item) for item in items)
    if not addresses:
        raise BadValue(node, "expected at least one address")
    for at, address in enumerate(addresses):
        if address in addresses[:at] and (address.path or address.port):
            raise BadValue(items[at], f"{address} is listed twice")
    return addresses


def _compat(node: Node) -> Compat:
    expected = " or ".join(compat.value for compat in Compat)
    try:
        return Compat(text_of(node, expected))
    except ValueError:
        raise unexpected(node, expected) from None


def exposure_reason(address: Address) -> str:
    """Why such an address is refused, and what to do."""
    return (
        f"other machines can reach {address} and nobody would have to log in: set users, take a loopback address "
        "or, if that is meant, --insecure"
    )


def _certificate_required(node: Node) -> bool:
    text = text_of(node, "required or optional")
    if text not in ("required", "optional"):
        raise unexpected(node, "required or optional")
    return text == "required"


def _account(node: Node) -> str:
    name = text_of(node, "the name of a user of this machine")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise unexpected(node, "the name of a user of this machine")
    return name


Parse = Callable[[Node], object]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the guide's name, the field it fills and how it is written."""

    name: str
    field: str
    parse: Parse
    unset: str = ""  # the word for None, as null is; empty = there must be a value
    per_queue: bool = False
    of_family: bool = False  # of the journal, which parent and children share: not for a child's block
    restart: bool = False  # a change takes effect at the next start


def _queue_setting(name: str, field: str, parse: Parse, unset: str = "", *, of_family: bool = False) -> Setting:
    return Setting(name, field, parse, unset, per_queue=True, of_family=of_family, restart=field == "journal")


SETTINGS: Final = (
    Setting("listen.memcache", "memcache", _addresses, restart=True),
    Setting("listen.admin", "admin", _address, "null", restart=True),
    Setting("listen.admin_hosts", "admin_hosts", _host_names),
    Setting("metrics.per_queue", "metrics_per_queue", _per_queue),
    Setting("tls.certificate", "tls_certificate", path_of, "null"),
    Setting("tls.key", "tls_key", path_of, "null"),
    Setting("tls.client_ca", "tls_client_ca", path_of, "null"),
    Setting("tls.client_certificate", "tls_client_certificate_required", _certificate_required),
    Setting("insecure", "insecure", switch),
    Setting("user", "user", _account, "null", restart=True),
    Setting("compat", "compat", _compat, restart=True),
    Setting("queue_path", "queue_path", path_of, restart=True),
    Setting("archive_path", "archive_path", path_of, "null", restart=True),
    Setting("timeout", "timeout_ms", seconds_from(0)),
    Setting("request_timeout", "request_timeout_ms", seconds_from(1)),
    Setting("expiration_timer_frequency_seconds", "expiration_timer_ms", seconds_from(0)),
    Setting("sync_together", "sync_together", switch),
    Setting("max_open_reads", "max_open_reads", count_from(1)),
    Setting("max_line", "max_line_bytes", size_bytes_from(1024, FILE_BYTES_MAX), restart=True),
    Setting("max_connections", "max_connections", count_from(1), "infinite"),
    Setting("max_connections_per_ip", "max_connections_per_ip", count_from(1), "infinite"),
    _queue_setting("max_items", "max_items", count_from(1), "infinite"),
    _queue_setting("max_size", "max_size_bytes", size_bytes_from(1), "infinite"),
    _queue_setting("max_item_size", "max_item_size_bytes", size_bytes_from(1), "infinite"),
    _queue_setting("discard_old_when_full", "discard_old_when_full", switch),
    _queue_setting("journal", "journal", switch, of_family=True),
    _queue_setting("sync_journal", "sync_journal_ms", sync_interval_ms, "false", of_family=True),
    _queue_setting("max_journal_size", "max_journal_size_bytes", size_bytes_from(1024), of_family=True),
    _queue_setting("max_journal_overflow", "max_journal_overflow", count_from(1), of_family=True),
    _queue_setting("max_memory_size", "max_memory_size_bytes", size_bytes_from(1)),
    _queue_setting("max_age", "max_age_ms", _max_age_ms, "0"),
    _queue_setting("move_expired_to", "move_expired_to", _queue, "none"),
    _queue_setting("max_retries", "max_retries", count_from(1), "infinite"),
    _queue_setting("move_failed_to", "move_failed_to", _queue, "none"),
    _queue_setting("trash_seconds", "trash_ms", seconds_from(0, MAX_AGE_MS_MAX)),
)
_GROUPED: Final = {
    group: {s.name.removeprefix(f"{group}."): s for s in SETTINGS if s.name.startswith(f"{group}.")}
    for group in ("listen", "metrics", "tls")
}
_TOP: Final = {s.name: s for s in SETTINGS if "." not in s.name}
_PER_QUEUE: Final = {s.name: s for s in SETTINGS if s.per_queue}
_GROUPS: Final = (*_GROUPED, "queues", "users")


def queue_setting_lines(config: QueueConfig) -> list[tuple[str, str]]:
    """Every per-queue setting with its value, as the guide names and a configuration file writes them."""
    return [(name, _written(setting, getattr(config, setting.field))) for name, setting in _PER_QUEUE.items()]


def _written(setting: Setting, value: object) -> str:
    if value is None:
        return setting.unset
    if isinstance(value, bool):
        return "true" if value else "false"
    if setting.name == "sync_journal" and value == 0:
        return "true"
    if setting.name == "trash_seconds" and isinstance(value, int):
        return f"{value}ms" if value % 1000 else str(value // 1000)
    return str(value)


def needs_restart(old: Config, new: Config) -> list[str]:
    """Names of the settings that differ but take effect only at the next start."""
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
    """A new configuration with what takes effect only at the next start left as it is."""
    kept: dict[str, Any] = {
        setting.field: getattr(running, setting.field)
        for setting in SETTINGS
        if setting.restart and not setting.per_queue
    }
    return replace(new, **kept)


# --- Reading.


def find_config_path(files: FileLayer, explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The file to load: --config, $KESTRELD_CONFIG, the user's, the system's; None when there is none.

    Raises ConfigError when one that was asked for does not exist.
    """
    for asked, path in (("--config", explicit), ("$KESTRELD_CONFIG", environ.get("KESTRELD_CONFIG") or None)):
        if path is not None:
            if not files.exists(path):
                raise ConfigError([ConfigProblem(path, 0, 0, f"there is no such file ({asked})")])
            return path
    searched = ["/etc/kestreld/kestreld.yaml"]
    if home := environ.get("HOME"):
        searched.insert(0, posixpath.join(home, ".config/kestreld/kestreld.yaml"))
    return next((path for path in searched if files.exists(path)), None)


def load_file(files: FileLayer, path: str | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, or the defaults (path None), under the overrides. Raises ConfigError."""
    if path is None:
        return _Draft(files, BUILT_IN, overrides).finish()
    return load(_file_text(files, path), path, overrides, files)


def load(text: str, source: str, overrides: Sequence[str] = (), files: FileLayer | None = None) -> Config:
    """The configuration in a file's text, under `key=value` overrides. ConfigError lists every problem.

    `files` has the password files that the text names.
    """
    draft = _Draft(files or FileLayer(), source, overrides)
    # A file asks for a daemon that is looked after; on bare defaults nobody waits for metrics.
    draft.values["admin"] = Address("127.0.0.1", 2223)
    draft.read_text(text)
    return draft.finish()


def _file_text(files: FileLayer, path: str) -> str:
    try:
        if files.size_bytes(path) > FILE_BYTES_MAX:
            raise ConfigError([ConfigProblem(path, 0, 0, f"larger than {FILE_BYTES_MAX} bytes")])
        content = files.read_operators_file(path)
    except OSError as error:
        raise ConfigError([ConfigProblem(path, 0, 0, str(error.strerror))]) from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = ConfigProblem(path, line, column, "not UTF-8 text")
        raise ConfigError([problem]) from error


class _Draft:
    """A configuration being read: values by field, where each came from, and the problems so far.

    `queues[""]` holds the defaults for all queues.
    """

    def __init__(self, files: FileLayer, source: str, overrides: Sequence[str]) -> None:
        self.files = files
        self.source = source
        self.overrides = overrides
        self.values: dict[str, Any] = {}
        self.users: dict[str, UserConfig] = {}
        self.queues: dict[str, dict[str, Any]] = {"": {}}
        self._places: dict[tuple[str, str], Place] = {}  # (queue, field) -> where it is set
        self._problems: dict[ConfigProblem, None] = {}  # a set in order: aliases show one mistake many times
        self._bad_fields: set[str] = set()
        self._is_whole = True  # False where a file was no YAML: what it says is unknown

    def finish(self) -> Config:
        """Read the overrides and check what hangs together. Raises ConfigError."""
        for override in self.overrides:
            self._read_override(override)
        if "queue_path" not in self.values:
            self._default_queue_path()
        if self._is_whole:
            self._check_blocks()
            for name in ("move_expired_to", "move_failed_to"):
                if name not in self._bad_fields:
                    self._check_circles(name)
            self._check_tls()
        self._raise_problems()
        config = Config(
            **self.values,
            users=self.users,
            defaults=QueueConfig(**self.queues.pop("")),
            queues=self.queues,
            source=self.source,
            places={name: place for (queue, name), place in self._places.items() if not queue},
        )
        if (address := config.exposed()) is not None:
            field = "admin" if address == config.admin else "memcache"
            self._problems[config.problem(field, f"listen.{field}: {exposure_reason(address)}")] = None
        self._raise_problems()
        return config

    def _raise_problems(self) -> None:
        if self._problems:
            raise ConfigError(sorted(self._problems, key=lambda at: (at.line == 0, at.line, at.column)))

    def read_text(self, text: str) -> None:
        root, problems = read_tree(text, self.source)
        self._problems |= dict.fromkeys(problems)
        self._is_whole = root is not None
        if root is not None:
            self._read_top(root)

    def _read_override(self, override: str) -> None:
        """`a.b=value` is the mapping {a: {b: value}}, read over what is already there."""
        key, equals, text = override.partition("=")
        place = Place(f"--set {key}")
        if not equals:
            self._problem(place, "expected KEY=VALUE, such as queues.work.max_items=5")
            return
        node, problems = read_value(text, place)
        self._problems |= dict.fromkeys(problems)
        for part in reversed(key.split(".")):
            node = Node(place, Kind.MAPPING, entries={part: Entry(place, node)})
        self._read_top(node)

    def _default_queue_path(self) -> None:
        try:
            self.values["queue_path"] = usable_path(DEFAULT_QUEUE_PATH)
        except ValueError as error:
            self._problem(Place(self.source), f"queue_path: {error}; set queue_path")

    def _read_top(self, node: Node) -> None:
        for key, entry in self._entries(node).items():
            if key in _GROUPED:
                self._read_group(_GROUPED[key], entry.node)
            elif key == "queues":
                self._read_queues(entry.node)
            elif key == "users":
                users, problems = read_users(entry.node, self.files)
                self._problems |= dict.fromkeys(problems)
                self.users |= users
            elif setting := _TOP.get(key):
                self._read_setting(setting, "", entry.node)
            else:
                self._unknown(key, entry, [*_TOP, *_GROUPS])

    def _read_group(self, settings: Mapping[str, Setting], node: Node) -> None:
        for key, entry in self._entries(node).items():
            if setting := settings.get(key):
                self._read_setting(setting, "", entry.node)
            else:
                self._unknown(key, entry, list(settings))

    def _read_queues(self, node: Node) -> None:
        for text, entry in self._entries(node).items():
            name = as_clients_send_it(text)
            if problem := queue_name_problem(name):
                self._problem(entry.place, f"{text!r}: {problem}")
            else:
                self._read_queue(name, entry.node)

    def _read_queue(self, name: str, node: Node) -> None:
        self.queues.setdefault(name, {})
        for key, entry in self._entries(node).items():
            setting = _PER_QUEUE.get(key)
            if setting is None:
                self._unknown(key, entry, list(_PER_QUEUE))
            elif setting.of_family and "+" in name:
                reason = f"a child shares its parent's journal: set {key} under {_family(name)!r}"
                self._problem(entry.place, reason)
            else:
                self._read_setting(setting, name, entry.node)

    def _read_setting(self, setting: Setting, queue: str, node: Node) -> None:
        try:
            value = _value(setting, node)
        except BadValue as bad:
            self._bad_fields.add(setting.field)
            self._problem(bad.node.place, f"{setting.name}: {bad.reason}")
            return
        values = self.queues[queue] if setting.per_queue else self.values
        values[setting.field] = value
        self._places[queue, setting.field] = node.place

    def _entries(self, node: Node) -> dict[str, Entry]:
        if node.kind not in (Kind.MAPPING, Kind.NULL):
            self._problem(node.place, f"expected a mapping, such as max_items: 1000, not {node}")
        return node.entries

    def _unknown(self, key: str, entry: Entry, known: list[str]) -> None:
        if place := _place_of(key):
            reason = f"{key} does not belong here: it stands {place}"
        elif near := difflib.get_close_matches(key, known, n=1):
            reason = f"unknown setting {key!r}; did you mean {near[0]}?"
        elif entry.node.kind is Kind.MAPPING:
            reason = f"unknown setting {key!r}; a queue's settings stand under queues"
        else:
            reason = f"unknown setting {key!r}"
        self._problem(entry.place, reason)

    def _problem(self, place: Place, reason: str) -> None:
        self._problems[place.problem(reason)] = None

    # What settings mean together.

    def _check_tls(self) -> None:
        addresses = self.values.get("memcache", ())
        if self.values.get("tls_certificate") is None and "tls_certificate" not in self._bad_fields:
            if any(address.tls for address in addresses):
                self._problem(self._places["", "memcache"], "listen.memcache: tls: needs tls.certificate and tls.key")
            admin = self.values.get("admin")
            if admin is not None and admin.tls:
                self._problem(self._places["", "admin"], "listen.admin: tls: needs tls.certificate and tls.key")
            for name in ("tls_key", "tls_client_ca"):
                if self.values.get(name) is not None:
                    self._problem(
                        self._places["", name], f"{name.replace('_', '.', 1)} has no effect without tls.certificate"
                    )

    def _check_blocks(self) -> None:
        for queue, block in self.queues.items():
            for name in ("move_expired_to", "move_failed_to"):
                to = block.get(name)
                if to and to != queue and _family(to) == _family(queue):
                    self._problem(self._places[queue, name], f"{name}: {to!r} is of the same family as {queue!r}")
            if {"max_retries", "move_failed_to"} & block.keys():
                self._check_retries(queue)

    def _check_retries(self, queue: str) -> None:
        """An item past max_retries needs somewhere to go, and a place to go needs a number."""
        values = {**self.queues[""], **_effective(self.queues, queue)}
        missing = [name for name in ("max_retries", "move_failed_to") if values.get(name) is None]
        if len(missing) == 1 and not {"max_retries", "move_failed_to"} & self._bad_fields:
            given = "move_failed_to" if missing == ["max_retries"] else "max_retries"
            place = self._places[queue, given if given in self.queues[queue] else missing[0]]
            self._problem(place, f"{given} has no effect without {missing[0]}: set both or none")

    def _check_circles(self, name: str) -> None:
        """Items that move on must come to rest: no queue may send them, by others, to itself."""
        graph = self._moves(name)
        while circle := _circle(graph):
            places = {queue: self._origin(queue, name) for queue in circle}
            first = circle.index(min(circle, key=lambda queue: places[queue]))
            path = " -> ".join(map(repr, [*circle[first:], *circle[: first + 1]]))
            self._problem(places[circle[first]], f"{name}: items would go round: {path}")
            for queue in circle:
                del graph[queue]

    def _moves(self, name: str) -> dict[str, list[str]]:
        """Every queue that sends items on, and where they arrive: the queue named and its children."""
        queues = dict.fromkeys(queue for queue in self.queues if queue)
        queues |= dict.fromkeys(block[name] for block in self.queues.values() if block.get(name))
        children: dict[str, list[str]] = {}
        for queue in queues:
            if "+" in queue:
                children.setdefault(_family(queue), []).append(queue)
        graph = {}
        for queue in queues:
            to: Any = {**self.queues[""], **_effective(self.queues, queue)}.get(name)
            if to and _family(to) != _family(queue):
                graph[queue] = [to, *children.get(to, ())]
        return graph

    def _origin(self, queue: str, name: str) -> Place:
        """Where the value that holds for a queue is set: by itself, its parent or for all."""
        owner = next(owner for owner in (queue, _family(queue), "") if (owner, name) in self._places)
        return self._places[owner, name]


def _value(setting: Setting, node: Node) -> object:
    if setting.unset and (node.kind is Kind.NULL or (node.kind is Kind.TEXT and node.text == setting.unset)):
        return None
    return setting.parse(node)


def _place_of(key: str) -> str:
    """Where a known setting stands, in words; empty for an unknown one."""
    for group, settings in _GROUPED.items():
        if key.removeprefix(f"{group}.") in settings:
            return f"under {group}"
    if key in _PER_QUEUE:
        return "at the top level, or under a queue's name"
    return "at the top level" if key in _TOP or key in _GROUPS else ""


def _circle(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Queues that send items round, each to the next and the last to the first; empty when there are none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # Each stands before the one it gets items from, and the first is repeated at the end.
        circle: list[str] = error.args[1][:0:-1]
        return circle
    return []
