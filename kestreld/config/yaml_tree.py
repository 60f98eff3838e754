"""A tree of nodes that know where they stand, so that a mistake can be shown in its place."""

from dataclasses import dataclass, field
from enum import Enum

from kestreld.errors import ConfigProblem


class Kind(Enum):
    """What a node is, before anyone asks what it means."""

    TEXT = "text"
    SWITCH = "switch"
    NULL = "null"
    LIST = "list"
    MAPPING = "mapping"
    OTHER = "other"  # a tag of someone's own


@dataclass(frozen=True, slots=True, order=True)
class SourceLocation:
    """Where something stands; line and column from 1, 0 = not in a file."""

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
    """One line of a mapping: where its key stands, and the value."""

    place: SourceLocation
    node: Node
