"""Parser for the blocks in which DUMP_STATS and DUMP_CONFIG describe queues.

queue 'work' {
  items=3
  bytes=120
}
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

Cell = int | str
QueueBlock = dict[str, Cell]  # "queue": its name, then the keys in the server's order

_OPENING: Final = re.compile(rb"queue '(.*)' \{")
# Kestrel 1.3 forgets the = here: `move_expired_to(none)`.
_END: Final = b"\n}\n"
_MANY_BYTES: Final = 50_000  # from this size on, compiling an expression pays
_PAIR: Final = re.compile(rb"  (?:(move_expired_to)(?![=_])|([^=]+)=)(.*)")


def text(data: bytes) -> str:
    """Decode bytes of the wire to text that encodes to the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def parse_blocks(answer: bytes, keys: Collection[str] = ()) -> list[QueueBlock]:
    """Return one dictionary for each queue, in the server's order. Other lines are ignored.

    With `keys`, other keys of a queue may be left out if there are many queues.
    """
    if len(answer) < _MANY_BYTES:
        return _parse_lines(answer)
    blocks: list[QueueBlock] = []
    names: tuple[str, ...] = ()
    alike, at = re.compile(rb"(?!)"), 0
    while at < len(answer):
        if found := alike.match(answer, at):
            queue, *numbers = found.groups()
            blocks.append(dict(zip(names, (text(queue), *map(int, numbers)), strict=True)))
            at = found.end()
            continue
        end = answer.find(_END, at)
        end = len(answer) if end < 0 else end + len(_END)
        other = _parse_lines(answer[at:end])
        at = end
        blocks += other
        if other:
            numbered = tuple(name for name in other[-1] if name != "queue")
            alike = _alike(numbered, frozenset(keys or numbered))
            names = ("queue", *(name for name in numbered if not keys or name in keys))
    return blocks


@lru_cache(16)
def _alike(names: tuple[str, ...], keys: frozenset[str]) -> re.Pattern[bytes]:
    """Compile a pattern for a block of these numbers: most blocks match it, which saves two thirds of the work."""
    lines = [
        b"  " + re.escape(name.encode("utf-8", "surrogateescape")) + (b"=([0-9]+)\n" if name in keys else b"=.*\n")
        for name in names
    ]
    return re.compile(rb"queue '(.*)' \{\n" + b"".join(lines) + rb"\}\n")


def _parse_lines(answer: bytes) -> list[QueueBlock]:
    blocks: list[QueueBlock] = []
    for line in answer.splitlines():
        if opening := _OPENING.fullmatch(line):
            blocks.append({"queue": text(opening[1])})
        elif blocks and (pair := _PAIR.fullmatch(line)):
            blocks[-1][text(pair[1] or pair[2])] = _number_or_text(pair[3])
    return blocks


def _number_or_text(value: bytes) -> Cell:
    return int(value) if value.isdigit() else text(value)


def columns_of(blocks: list[QueueBlock]) -> list[str]:
    """Return every key of any queue, in order of first appearance."""
    return list(dict.fromkeys(key for block in blocks for key in block))


def render_blocks(blocks: list[QueueBlock]) -> bytes:
    """Return blocks as a server writes them."""
    lines = []
    for block in blocks:
        lines.append(f"queue '{block['queue']}' {{\n")
        lines += [f"  {key}={value}\n" for key, value in block.items() if key != "queue"]
        lines.append("}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")
