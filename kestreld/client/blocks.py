"""The blocks in which DUMP_STATS and DUMP_CONFIG describe queues.

queue 'work' {
  items=3
  bytes=120
}
"""

import re
from typing import Final

Cell = int | str
QueueBlock = dict[str, Cell]  # "queue": its name, then the keys in the server's order

_OPENING: Final = re.compile(rb"queue '(.*)' \{")
# Kestrel 1.3 forgets the = here: `move_expired_to(none)`.
_PAIR: Final = re.compile(rb"  (?:(move_expired_to)(?!=)|([^=]+)=)(.*)")


def text(data: bytes) -> str:
    """Bytes of the wire as text that turns into the same bytes when written."""
    return data.decode("utf-8", "surrogateescape")


def parse_blocks(answer: bytes) -> list[QueueBlock]:
    """One dictionary per queue, in the server's order. Other lines are left out."""
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
    """Every key of any queue, in the order they first come."""
    return list(dict.fromkeys(key for block in blocks for key in block))


def render_blocks(blocks: list[QueueBlock]) -> bytes:
    """As a server writes them."""
    lines = []
    for block in blocks:
        lines.append(f"queue '{block['queue']}' {{\n")
        lines += [f"  {key}={value}\n" for key, value in block.items() if key != "queue"]
        lines.append("}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")
