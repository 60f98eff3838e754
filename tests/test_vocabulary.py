"""Names and words that the project has given up: an engineer would not search for them, or read them twice."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.sources import sources

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("kestreld", "kestrelctl", "tui", "kestrelspark")
CLASSES: Final = frozenset(
    [
        "Shop",
        "Door",
        "Entrance",
        "Greeting",
        "Thinker",
        "Line",
        "Lines",
        "Succession",
        "Ticket",
        "Flight",
        "Hold",
        "Wait",
        "Taking",
        "Move",
        "Mender",
        "Upkeep",
    ]
)
OTHER_NAMES: Final = frozenset(
    [
        "shop",
        "door",
        "entrance",
        "greeting",
        "thinker",
        "alone",
        "succession",
        "is_odd",
        "oddities",
        "odd",
        "look_again",
        "said",
        "given",
        "ticket",
        "flight",
        "taking",
        "mender",
        "mending",
        "upkeep",
        "fold",
        "room",
        "finding",
        "marks",
        "newness",
        "heard",
        "touch",
    ]
)
# Several classes had each of these names: each has one at most.
ONCE: Final = frozenset(["Place", "Wanted", "Verdict", "Damage", "Journal", "Connection"])
PHRASES: Final = (
    "wants a user",
    "these were two passwords",
    "numbers kestreld does not take",
    "may do nothing",
    "a number that cannot be",
    "answered unasked",
    "the disk takes no more of",
    "are content",
    "What is no item",
    "Who is faster waits",
    "Three ends to it",
    "chance that nobody else knows",
    "lets go of Python",
    "or the item too big",
    "does not speak Kestrel's protocol",
    "no TLS with",
    "needs the --cert",
    "exclude each other",
    "needs a terminal;",
    "is where the items are already",
    "readers do not go back",
    "already; --replace",
    "is a run with other options",
    "leaves the server no time",
    "takes admin of all queues",
    "cannot be used as spool",
    "tried again at the next start",
    "the other queues serve",
    "and its queues are well",
    "Let items trickle",
    "would not get in any more",
    "An SVG that fetches nothing",
    "to be patient with them",
    "for ever ",
)


def names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, bool]]:
    """Names of classes, functions and attributes that a module defines, and whether it is a class's."""
    for node in nodes:
        match node:
            case ast.ClassDef():
                yield node.name, True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, False
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, False
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, False


@cache
def modules() -> list[tuple[str, list[tuple[str, bool]]]]:
    """The path of each module, and the names in it."""
    return [(path, list(names(nodes))) for package in PACKAGES for path, nodes in sources(package)]


def test_no_class_function_attribute_or_module_has_a_name_that_was_given_up() -> None:
    found = set()
    for where, named in modules():
        if (stem := Path(where).stem) in OTHER_NAMES:
            found.add((where, stem))
        for name, is_class in named:
            bare = name.strip("_")
            if bare in (CLASSES if is_class else OTHER_NAMES):
                found.add((where, bare))
    assert found == set()


def test_one_class_at_most_has_a_name_that_several_had() -> None:
    classes = [name.strip("_") for _, named in modules() for name, is_class in named if is_class]
    assert [name for name in sorted(ONCE) if classes.count(name) > 1] == []


def test_no_phrase_that_was_given_up_is_left() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    own = ("CHANGELOG.md", Path(__file__).name)
    texts = [
        path for path in paths if path.suffix in (".py", ".md", ".yaml", ".toml", ".sh", "") and path.name not in own
    ]
    found = [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in texts
        if path.is_file() and not re.search("/(corpus|golden)/", str(path))
        for text in [path.read_bytes().decode(errors="replace")]
        for phrase in PHRASES
        if phrase in text
    ]
    assert found == []
