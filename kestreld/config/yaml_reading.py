"""YAML text as a tree of nodes with locations; knows no settings.

Duplicate keys, unusable keys and syntax errors become problems; aliases and merge keys are resolved. Scalars stay
text, so that the reader of the tree can refuse forms such as `1_000` and `0x10`.
"""

from collections.abc import Callable, Iterator
from typing import Final

import yaml

from kestreld.config.yaml_tree import Entry, Kind, Node, SourceLocation
from kestreld.errors import ConfigProblem

MERGED_ENTRIES_MAX: Final = 100_000  # with aliases, a small file can have an unbounded number

_YAML: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_YAML}merge"

_TAGS: Final = {
    Kind.TEXT: ("str", "int", "float", "timestamp", "value", "merge"),
    Kind.SWITCH: ("bool",),
    Kind.NULL: ("null",),
    Kind.LIST: ("seq",),
    Kind.MAPPING: ("map",),
}
_KINDS: Final = {f"{_YAML}{tag}": kind for kind, tags in _TAGS.items() for tag in tags}


def read_tree(text: str, source: str) -> tuple[Node | None, list[ConfigProblem]]:
    """Return the tree of a file's text, None if it cannot be parsed, and the mistakes in it."""
    tree = _Tree(lambda mark: SourceLocation(source, mark.line + 1, mark.column + 1))
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        place = SourceLocation(source, line, error.position - text.rfind("\n", 0, error.position))
        return None, [place.problem(f"YAML: character {chr(error.character)!r} is not allowed")]
    try:
        root = loader.get_single_node()
        return (tree.node(root) if root is not None else Node(SourceLocation(source), Kind.NULL)), tree.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        reasons = [reason for reason in (error.context, error.problem) if reason]
    except (ValueError, OverflowError) as error:  # PyYAML's own int() and chr() of an escape or a version
        mark, reasons = loader.get_mark(), [str(error)]
    except RecursionError:
        mark, reasons = loader.get_mark(), ["nested too deeply"]
    return None, [SourceLocation(source, mark.line + 1, mark.column + 1).problem(f"YAML: {', '.join(reasons)}")]


def read_value(text: str, place: SourceLocation) -> tuple[Node, list[ConfigProblem]]:
    """Return the tree of a value given at one place. Text that is not YAML, such as `[::1]:22133`, is a scalar."""
    tree = _Tree(lambda _: place)
    try:
        root = yaml.SafeLoader(text).get_single_node()
        return (tree.node(root) if root is not None else Node(place, Kind.NULL)), tree.problems
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return Node(place, Kind.TEXT, text), []


class _Tree:
    """Converter of PyYAML's nodes to ours, each once however many aliases refer to it."""

    def __init__(self, place_of: Callable[[yaml.Mark], SourceLocation]) -> None:
        self.problems: list[ConfigProblem] = []
        self._place_of = place_of
        self._made: dict[int, Node] = {}
        self._merged_entries = 0

    def node(self, source: yaml.Node) -> Node:
        if (made := self._made.get(id(source))) is not None:
            return made
        node = self._made[id(source)] = Node(self._place_of(source.start_mark), Kind.OTHER, text=source.tag)
        kind = _KINDS.get(source.tag, Kind.OTHER)
        if isinstance(source, yaml.MappingNode) and kind is Kind.MAPPING:
            node.kind = kind
            self._fill(node, source)
        elif isinstance(source, yaml.SequenceNode) and kind is Kind.LIST:
            node.kind = kind
            node.items += map(self.node, source.value)
        elif isinstance(source, yaml.ScalarNode) and kind not in (Kind.MAPPING, Kind.LIST):
            node.kind = kind
            node.text = source.tag if kind is Kind.OTHER else source.value
        return node

    def _fill(self, node: Node, source: yaml.MappingNode) -> None:
        merged: list[Node] = []
        for key, value in source.value:
            place = self._place_of(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(place.problem("a key must be a plain name"))
            elif key.tag == _MERGE:
                merged += self._merged(self.node(value))
            elif (first := node.entries.get(key.value)) is not None:
                before = f", first on line {first.place.line}" if first.place.line else ""
                self.problems.append(place.problem(f"{key.value!r} is set twice{before}"))
            else:
                node.entries[key.value] = Entry(place, self.node(value))
        for other in merged:
            self._merge(node, other)

    def _merged(self, node: Node) -> Iterator[Node]:
        for item in node.items if node.kind is Kind.LIST else [node]:
            if item.kind is Kind.MAPPING:
                yield item
            else:
                self.problems.append(item.place.problem(f"<< requires a mapping or a list of mappings, not {item}"))

    def _merge(self, node: Node, other: Node) -> None:
        """Add merged entries that are not set: a mapping's own entries win, then those merged first."""
        self._merged_entries += len(other.entries)
        if self._merged_entries <= MERGED_ENTRIES_MAX:
            for key, entry in other.entries.items():
                node.entries.setdefault(key, entry)
        elif self._merged_entries - len(other.entries) <= MERGED_ENTRIES_MAX:
            self.problems.append(node.place.problem("YAML: << merges too many entries"))
