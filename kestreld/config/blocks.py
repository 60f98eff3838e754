"""Blocks of queue settings by name and by pattern: which of them apply to a queue, the first one first.

Children are matched in two parts, the parent's name and what follows its `+`: a pattern without a `+` is for queues,
whose children inherit it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

Blocks = Mapping[str, Mapping[str, object]]  # name or pattern -> field of QueueConfig -> value


def family_of(name: str) -> str:
    return name.partition("+")[0]


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def patterns_in(names: Iterable[str]) -> tuple[str, ...]:
    return tuple([name for name in names if is_pattern(name)])


def matches(pattern: str, name: str) -> bool:
    """True if the whole name matches: `*` stands for any characters, `?` for one; neither for the first `+`."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    parent, plus, label = pattern.partition("+")
    return re.compile(_expression(parent, "[^+]") + re.escape(plus) + _expression(label, "."), re.DOTALL)


def _expression(pattern: str, letter: str) -> str:
    # Names are bytes of UTF-8 as latin-1 text: what follows the first byte of a character belongs to it.
    words = {"*": f"{letter}*", "?": f"{letter}[\x80-\xbf]*"}
    return "".join([words.get(one) or re.escape(one) for one in re.sub(r"\*+", "*", pattern)])


def blocks_of(blocks: Blocks, patterns: Iterable[str], name: str) -> list[str]:
    """Return the names of the blocks that apply to a queue: what one sets, those behind it do not change.

    That of its own name, those of the `patterns` that match it, in their order, and then for a child its parent's.
    """
    found = [name] if name in blocks else []
    found += [pattern for pattern in patterns if pattern != name and matches(pattern, name)]
    if "+" in name:
        found += blocks_of(blocks, patterns, family_of(name))
    return found


def block_for(blocks: Blocks, patterns: Iterable[str], name: str) -> dict[str, object]:
    """Return what all blocks that apply to a queue set together."""
    merged: dict[str, object] = {}
    for block in reversed(blocks_of(blocks, patterns, name)):
        merged |= blocks[block]
    return merged
