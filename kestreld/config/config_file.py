"""Reading of a configuration: YAML and `--set` become a Config, or a ConfigError with every mistake."""

import difflib
import graphlib
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kestreld.config.blocks import block_for, blocks_of, family_of, is_pattern, matches, patterns_in
from kestreld.config.cluster import read_secret
from kestreld.config.config import BUILT_IN, Config, QueueConfig, bus_exposure_reason, exposure_reason
from kestreld.config.queue_names import queue_name_problem
from kestreld.config.settings import GROUPED, GROUPS, PER_QUEUE, TOP_LEVEL, Setting, place_of, value_of
from kestreld.config.users import UserConfig, read_users
from kestreld.config.values import BadValue, as_clients_send_it, usable_path
from kestreld.config.yaml_reading import read_tree, read_value
from kestreld.config.yaml_tree import Entry, Kind, Node, SourceLocation
from kestreld.errors import ConfigError, ConfigProblem
from kestreld.files import FileLayer

DEFAULT_QUEUE_PATH: Final = "~/.local/state/kestreld/spool"
FILE_BYTES_MAX: Final = 1024**2


def find_config_path(files: FileLayer, explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """Find the file to load: --config, $KESTRELD_CONFIG, the user's, the system's; None if there is none.

    Raises ConfigError if a file named explicitly does not exist.
    """
    for asked, path in (("--config", explicit), ("$KESTRELD_CONFIG", environ.get("KESTRELD_CONFIG") or None)):
        if path is not None:
            if not files.exists(path):
                raise ConfigError([ConfigProblem(path, 0, 0, f"no such file ({asked})")])
            return path
    searched = ["/etc/kestreld/kestreld.yaml"]
    if home := environ.get("HOME"):
        searched.insert(0, posixpath.join(home, ".config/kestreld/kestreld.yaml"))
    return next((path for path in searched if files.exists(path)), None)


def load_file(files: FileLayer, path: str | None, overrides: Sequence[str] = ()) -> Config:
    """Load the configuration in a file, or the defaults (path None), and apply the overrides. Raises ConfigError."""
    if path is None:
        return _Draft(files, BUILT_IN, overrides).finish()
    return load(_file_text(files, path), path, overrides, files)


def load(text: str, source: str, overrides: Sequence[str] = (), files: FileLayer | None = None) -> Config:
    """Load a configuration from its text, and apply `key=value` overrides. Raises ConfigError with every problem.

    `files` is used to read the password files that the text names.
    """
    draft = _Draft(files or FileLayer(), source, overrides)
    draft.read_text(text)
    return draft.finish()


def _file_text(files: FileLayer, path: str) -> str:
    try:
        if files.size_bytes(path) > FILE_BYTES_MAX:
            raise ConfigError([ConfigProblem(path, 0, 0, f"file larger than {FILE_BYTES_MAX} bytes")])
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
    """A configuration being read: values by field, the source of each, and the problems so far.

    `queues[""]` has the defaults for all queues.
    """

    def __init__(self, files: FileLayer, source: str, overrides: Sequence[str]) -> None:
        self.files = files
        self.source = source
        self.overrides = overrides
        self.values: dict[str, Any] = {}
        self.users: dict[str, UserConfig] = {}
        self.queues: dict[str, dict[str, Any]] = {"": {}}
        self._places: dict[tuple[str, str], SourceLocation] = {}  # (queue, field) -> where it is set
        self._problems: dict[ConfigProblem, None] = {}  # an ordered set: aliases repeat a mistake
        self._bad_fields: set[str] = set()
        self._is_whole = True  # False if a file was not YAML, so that its settings are unknown

    def finish(self) -> Config:
        """Read the overrides, and check settings that depend on each other. Raises ConfigError."""
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
        self._read_secret()
        self._raise_problems()
        places: dict[str, dict[str, SourceLocation]] = {queue: {} for queue in self.queues}
        for (queue, name), place in self._places.items():
            places[queue][name] = place
        config = Config(
            **self.values,
            users=self.users,
            defaults=QueueConfig(**self.queues.pop("")),
            queues=self.queues,
            source=self.source,
            places=places.pop(""),
            block_places=places,
        )
        if (address := config.exposed()) is not None:
            field = config.listener_of(address)
            self._problems[config.problem(field, f"listen.{field}: {exposure_reason(address)}")] = None
        if config.cluster_port is not None and "cluster_port" in config.places:
            exposed = config.exposed_bus([one for one in config.disque or () if not one.path])
            if exposed is not None:
                reason = f"cluster.port: {bus_exposure_reason(exposed)}"
                self._problems[config.problem("cluster_port", reason)] = None
        if config.cache_item_size_max_bytes > config.cache_memory_bytes:
            fields = ("cache_item_size_max_bytes", "cache_memory_bytes")
            field = next(field for field in fields if field in config.places)
            self._problems[config.problem(field, "cache_item_size_max must not exceed cache_memory")] = None
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
        """Read `a.b=value` as the mapping {a: {b: value}}, over the values read so far."""
        key, equals, text = override.partition("=")
        place = SourceLocation(f"--set {key}")
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
            self._problem(SourceLocation(self.source), f"queue_path: {error}; set queue_path")

    def _read_top(self, node: Node) -> None:
        for key, entry in self._entries(node).items():
            if key in GROUPED:
                self._read_group(GROUPED[key], entry.node)
            elif key == "queues":
                self._read_queues(entry.node)
            elif key == "users":
                users, problems = read_users(entry.node, self.files)
                self._problems |= dict.fromkeys(problems)
                self.users |= users
                self._places |= {("", f"users.{name}"): entry.node.entries[name].place for name in users}
            elif setting := TOP_LEVEL.get(key):
                self._read_setting(setting, "", entry.node)
            else:
                self._unknown(key, entry, [*TOP_LEVEL, *GROUPS])

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
        if is_pattern(name) and name not in self.queues and node.place.source != self.source:
            self.queues = {"": self.queues[""], name: {}, **self.queues}  # an override comes before the file's patterns
        self.queues.setdefault(name, {})
        for key, entry in self._entries(node).items():
            setting = PER_QUEUE.get(key)
            if setting is None:
                self._unknown(key, entry, list(PER_QUEUE))
            elif setting.of_family and "+" in name:
                shares = "a child shares its parent's journal" if key != "fanout_only" else "a child has no children"
                reason = f"{shares}: set {key} under {family_of(name)!r}"
                self._problem(entry.place, reason)
            else:
                self._read_setting(setting, name, entry.node)

    def _read_setting(self, setting: Setting, queue: str, node: Node) -> None:
        try:
            value = value_of(setting, node)
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
        if place := place_of(key):
            reason = f"{key} is not allowed here: set it {place}"
        elif near := difflib.get_close_matches(key, known, n=1):
            reason = f"unknown setting {key!r}; did you mean {near[0]}?"
        elif entry.node.kind is Kind.MAPPING:
            reason = f"unknown setting {key!r}; queue settings go under queues"
        else:
            reason = f"unknown setting {key!r}"
        self._problem(entry.place, reason)

    def _problem(self, place: SourceLocation, reason: str) -> None:
        self._problems[place.problem(reason)] = None

    # Checks of settings that depend on each other.

    def _check_tls(self) -> None:
        admin = self.values.get("admin")
        listeners = {
            "memcache": self.values.get("memcache", ()),
            "admin": (admin,) if admin is not None else (),
            "cache": self.values.get("cache") or (),
            "disque": self.values.get("disque") or (),
        }
        if self.values.get("tls_certificate") is None and "tls_certificate" not in self._bad_fields:
            for name, addresses in listeners.items():
                if any(address.tls for address in addresses):
                    self._problem(self._places["", name], f"listen.{name}: tls: requires tls.certificate and tls.key")
            for name in ("tls_key", "tls_client_ca"):
                if self.values.get(name) is not None:
                    self._problem(
                        self._places["", name], f"{name.replace('_', '.', 1)} has no effect without tls.certificate"
                    )

        if self.values.get("cluster_tls"):
            for name in ("tls_certificate", "tls_client_ca"):
                if self.values.get(name) is None and name not in self._bad_fields:
                    self._problem(
                        self._places["", "cluster_tls"],
                        "cluster.tls requires tls.certificate, tls.key and tls.client_ca",
                    )

    def _read_secret(self) -> None:
        path = self.values.get("cluster_secret_file")
        if path is None:
            return
        place = self._places["", "cluster_secret_file"]
        try:
            self.values["cluster_secret"] = read_secret(self.files, path)
        except OSError as error:
            self._problem(place, f"cluster.secret_file: {path}: {error.strerror}")
        except ValueError as error:
            self._problem(place, f"cluster.secret_file: {path}: {error}")

    def _check_blocks(self) -> None:
        for queue, block in self.queues.items():
            for name in ("move_expired_to", "move_failed_to"):
                to = block.get(name)
                if to and to != queue and family_of(to) == family_of(queue):
                    self._problem(self._places[queue, name], f"{name}: {to!r} belongs to the same family as {queue!r}")
            if {"max_retries", "move_failed_to"} & block.keys():
                problems = len(self._problems)
                self._check_retries(queue)
                if len(self._problems) == problems:
                    self._check_half(queue)

    def _check_retries(self, queue: str) -> None:
        """Check that max_retries and move_failed_to are set both or neither."""
        values = {**self.queues[""], **self._block_for(queue)}
        missing = [name for name in ("max_retries", "move_failed_to") if values.get(name) is None]
        if len(missing) == 1 and not {"max_retries", "move_failed_to"} & self._bad_fields:
            given = "move_failed_to" if missing == ["max_retries"] else "max_retries"
            place = self._places[queue, given if given in self.queues[queue] else missing[0]]
            self._problem(place, f"{given} has no effect without {missing[0]}: set both or neither")

    def _check_half(self, pattern: str) -> None:
        """Check that no other block makes half a policy of a pattern that sets max_retries or move_failed_to only."""
        given = [name for name in ("max_retries", "move_failed_to") if name in self.queues[pattern]]
        if not is_pattern(pattern) or len(given) == 2:
            return
        name = given[0]
        missing = "move_failed_to" if name == "max_retries" else "max_retries"
        is_off = self.queues[pattern][name] is None
        others = [block for one, block in self.queues.items() if one not in ("", pattern) and missing in block]
        if any((block[missing] is None) != is_off for block in others):
            self._problem(self._places[pattern, name], f"{name}: set {missing} as well, as other blocks do")

    def _check_circles(self, name: str) -> None:
        """Check that no queue moves items to itself, directly or by way of others."""
        graph = self._moves(name)
        while circle := _circle(graph):
            places = {queue: self._origin(queue, name) for queue in circle}
            first = circle.index(min(circle, key=lambda queue: places[queue]))
            path = " -> ".join(map(repr, [*circle[first:], *circle[: first + 1]]))
            self._problem(places[circle[first]], f"{name}: items would loop: {path}")
            for queue in circle:
                del graph[queue]

    def _block_for(self, queue: str) -> dict[str, Any]:
        return block_for(self.queues, patterns_in(self.queues), queue)

    def _moves(self, name: str) -> dict[str, list[str]]:
        """Map every queue that moves items to their destinations: the queue named and its children.

        A pattern stands for a queue of that name, and one of children also for a child of each queue that it matches.
        """
        queues = dict.fromkeys(queue for queue in self.queues if queue)
        queues |= dict.fromkeys(block[name] for block in self.queues.values() if block.get(name))
        for parent, _, label in [pattern.partition("+") for pattern in patterns_in(self.queues) if "+" in pattern]:
            families = dict.fromkeys(family_of(queue) for queue in queues)
            queues |= dict.fromkeys(f"{family}+{label}" for family in families if matches(parent, family))
        children: dict[str, list[str]] = {}
        for queue in queues:
            if "+" in queue:
                children.setdefault(family_of(queue), []).append(queue)
        graph = {}
        for queue in queues:
            to: Any = {**self.queues[""], **self._block_for(queue)}.get(name)
            if to and family_of(to) != family_of(queue):
                graph[queue] = [to, *children.get(to, ())]
        return graph

    def _origin(self, queue: str, name: str) -> SourceLocation:
        """Return where the value that applies to a queue is set: in one of its blocks, or for all."""
        owners = [*blocks_of(self.queues, patterns_in(self.queues), queue), ""]
        owner = next(owner for owner in owners if (owner, name) in self._places)
        return self._places[owner, name]


def _circle(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return queues that move items in a circle, each to the next and the last to the first; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # Each stands before the one it gets items from, and the first is repeated at the end.
        circle: list[str] = error.args[1][:0:-1]
        return circle
    return []
