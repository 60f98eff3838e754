"""Settings that clients declared for queues by name, over the configuration's defaults and under its blocks.

<queue_path>/.declared, a ledger: key = a queue's name, value = JSON {"settings": {name: text}, "by": who, "at_ms": …}.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kestreld.clock import utc_text
from kestreld.config.blocks import blocks_of, family_of
from kestreld.config.config import Config, QueueConfig
from kestreld.config.origins import origin_of
from kestreld.config.settings import PER_QUEUE, value_of, written
from kestreld.config.values import BadValue
from kestreld.config.yaml_tree import Kind, Node, SourceLocation
from kestreld.errors import DeclarationRefused
from kestreld.files import FileLayer
from kestreld.journal.ledger import Done, Ledger

FILE_NAME: Final = ".declared"  # in the spool
DECLARABLE: Final = {
    name: PER_QUEUE[name]
    for name in ("max_age", "max_items", "discard_old_when_full", "journal", "idle_delete", "fanout_only", "key_time")
}
_LIMITS: Final = frozenset({"max_age", "max_items", "idle_delete", "key_time"})  # not above those of the configuration
_OF_FAMILY: Final = frozenset({"journal", "fanout_only"})
_SWITCHES: Final = frozenset({"true", "false", "yes", "no", "on", "off"})
# What `Declaration.from_json` raises for anything else
NO_ENTRY: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, DeclarationRefused)
Options = Mapping[str, object]  # name of a setting -> value, as the field of QueueConfig has it


@dataclass(frozen=True, slots=True)
class Declaration:
    """What was declared for one queue: values by the names of the settings, who did it last, and when."""

    options: Options
    by: str
    at_ms: int

    @property
    def origin(self) -> str:
        return f"declared by {self.by or 'a client'} at {utc_text(self.at_ms)}"

    def to_json(self) -> bytes:
        settings = {name: written(DECLARABLE[name], value) for name, value in self.options.items()}
        return json.dumps({"settings": settings, "by": self.by, "at_ms": self.at_ms}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Declaration":
        """Raises one of NO_ENTRY for anything else."""
        known = json.loads(text)
        options = {name: read_option(name, str(value)) for name, value in known["settings"].items()}
        return cls(options, str(known["by"]), int(known["at_ms"]))


def read_option(name: str, text: str) -> object:
    """Parse a value written as in a configuration file. Raises DeclarationRefused."""
    setting = DECLARABLE.get(name)
    if setting is None:
        raise DeclarationRefused(f"{name}: unknown option; expected {', '.join(DECLARABLE)}")
    kind = Kind.SWITCH if text.lower() in _SWITCHES else Kind.TEXT
    try:
        return value_of(setting, Node(SourceLocation("declare"), kind, text))
    except BadValue as bad:
        raise DeclarationRefused(f"{name}={text}: {bad.reason}") from bad


class Declarations:
    """All declarations of a server, by the names of their queues. A new one counts before it is on disk."""

    def __init__(self, files: FileLayer, spool: str, queues_max: int, report: Callable[[str], None]) -> None:
        self.ledger = Ledger(files, f"{spool}/{FILE_NAME}", queues_max, report)
        self._report = report
        self._by_name: dict[str, Declaration] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> list[str]:
        return list(self._by_name)

    def read(self) -> None:
        """Read the file, at the start."""
        self.ledger.read()
        for key, value in self.ledger.items():
            try:
                self._by_name[key.decode("latin-1")] = Declaration.from_json(value)
            except NO_ENTRY as problem:
                self._report(f"{self.ledger.path}: entry of {key.decode('latin-1')!r} is ignored: {problem}")

    def of(self, name: str) -> Declaration | None:
        return self._by_name.get(name)

    def over(self, config: Config, name: str) -> QueueConfig:
        """Return a queue's settings: those of the configuration, and what is declared where no block of it says."""
        found = config.for_queue(name)
        if not self._by_name:
            return found
        options = dict(known.options) if (known := self._by_name.get(name)) is not None else {}
        if (parent := self._by_name.get(family_of(name))) is not None and "journal" in parent.options:
            options["journal"] = parent.options["journal"]
        in_blocks = _in_blocks(config, name)
        changes: dict[str, Any] = {
            DECLARABLE[option].field: value
            for option, value in options.items()
            if DECLARABLE[option].field not in in_blocks
        }
        return replace(found, **changes) if changes else found

    def origin_of(self, config: Config, name: str, option: str) -> str:
        """Return where a queue's setting is from, in the form of queue names."""
        known, field = self._by_name.get(name), PER_QUEUE[option].field
        if known is None or option not in known.options or field in _in_blocks(config, name):
            return origin_of(config, name, field)
        return known.origin

    def news(self, config: Config, name: str, wanted: Options) -> dict[str, object]:
        """Return those options that are neither declared nor in a block of the configuration with the same value.

        Raises DeclarationRefused for one that has another value there, or one beyond the configuration's limits.
        """
        known, in_blocks, configured = self._by_name.get(name), _in_blocks(config, name), config.for_queue(name)
        new: dict[str, object] = {}
        for option, value in wanted.items():
            setting = DECLARABLE[option]
            if option in _OF_FAMILY and "+" in name:
                raise DeclarationRefused(f"{option} is for a parent only: declare it for {family_of(name)!r}")
            limit = getattr(configured, setting.field)
            if setting.field in in_blocks:
                if limit != value:
                    place = origin_of(config, name, setting.field)
                    raise DeclarationRefused(
                        f"{option} of {name!r} is {written(setting, limit)} in the configuration: {place}"
                    )
            elif known is not None and option in known.options:
                if (declared := known.options[option]) != value:
                    raise DeclarationRefused(f"{option} of {name!r} is {written(setting, declared)}: {known.origin}")
            elif _exceeds(config, option, value, limit):
                most = written(setting, limit)
                raise DeclarationRefused(f"{option}={written(setting, value)}: the configuration allows {most}")
            else:
                new[option] = value
        return new

    def add(self, name: str, options: Options, by: str, at_ms: int) -> None:
        """Add options to a queue's declaration. Raises DeclarationRefused if too many queues have one."""
        known = self._by_name.get(name)
        if known is None and len(self._by_name) >= self.ledger.entries_max:
            raise DeclarationRefused(f"too many declared queues: the maximum is {self.ledger.entries_max}")
        before = known.options if known is not None else {}
        self._by_name[name] = Declaration({**before, **options}, by, at_ms)

    def put_back(self, name: str, before: Declaration | None) -> None:
        """Have what was declared before: the disk, or the queue, has refused the rest."""
        self._by_name.pop(name, None)
        if before is not None:
            self._by_name[name] = before

    def write(self, name: str, done: Done) -> None:
        """Call `done` once a queue's declaration is on disk. Raises as `Ledger.change`."""
        known = self._by_name.get(name)
        if known is None:
            done(None)
        else:
            self.ledger.change({name.encode("latin-1"): known.to_json()}, done)

    def forget(self, name: str) -> None:
        """Remove the declaration of a queue that is deleted; the ledger reports a failure."""
        if self._by_name.pop(name, None) is not None and self.ledger.problem is None:
            self.forgotten(name, lambda failure: None)

    def forgotten(self, name: str, done: Done) -> None:
        """Call `done` once it is on disk that a queue has no declaration. Raises as `Ledger.change`."""
        self.ledger.change({name.encode("latin-1"): None}, done)


def _in_blocks(config: Config, name: str) -> set[str]:
    """Fields that a block of the configuration sets for a queue."""
    return {field for block in blocks_of(config.queues, config.patterns, name) for field in config.queues[block]}


def _exceeds(config: Config, option: str, value: Any, limit: Any) -> bool:
    if option == "journal":
        return bool(value) and not limit
    if option not in _LIMITS or limit is None or (option == "key_time" and "key_time_ms" not in config.places):
        return False
    return value is None or value > limit
