"""Tree of configuration nodes with their locations in the file, for messages about mistakes."""

from dataclasses import dataclass, field
from enum import Enum

from kestreld.errors import ConfigProblem


class Kind(Enum):
    """Kind of a node, before its meaning is known."""

    TEXT = "text"
    SWITCH = "switch"
    NULL = "null"
    LIST = "list"
    MAPPING = "mapping"
    OTHER = "other"  # a non-standard tag


@dataclass(frozen=True, slots=True, order=True)
class SourceLocation:
    """Location in a source; line and column from 1, 0 = not in a file."""

    source: str
    line: int = 0
    column: int = 0

    def problem(self, reason: str) -> ConfigProblem:
        return ConfigProblem(self.source, self.line, self.column, reason)


@dataclass(slots=True)
class Node:
    """A value of the tree: `text` of a scalar, `items` of a list, `entries` of a mapping."""

    place: SourceLocation
    kind: Kind
    text: str = ""
    items: list["Node"] = field(default_factory=list)
    entries: dict[str, "Entry"] = field(default_factory=dict)

    def __str__(self) -> str:
        match self.kind:
            case Kind.MAPPING:
                return "a mapping"
            case Kind.LIST:
                return "a list"
            case Kind.NULL:
                return "nothing"
            case Kind.OTHER:
                return f"something tagged {self.text!r}"
            case _:
                return repr(self.text if len(self.text) <= 40 else f"{self.text[:40]}...")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a mapping: its key's location, and the value."""

    place: SourceLocation
    node: Node
