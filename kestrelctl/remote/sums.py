"""Figures of several servers added up as those of one. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from kestreld.client.blocks import Cell, QueueBlock
from kestreld.figures import OF_QUEUES

# How figures of two servers become one; None = they mean something on one server only.
SUMS: Final = {one.key: one.over_servers for one in OF_QUEUES}


def sum_blocks(servers: Sequence[Iterable[QueueBlock]]) -> list[QueueBlock]:
    """A block for each queue of any server, in order of first appearance."""
    if len(servers) == 1:
        return list(servers[0])
    sums: dict[str, QueueBlock] = {}
    for blocks in servers:
        for block in blocks:
            total = sums.setdefault(str(block["queue"]), {"queue": block["queue"]})
            for key, value in block.items():
                if key != "queue" and SUMS.get(key, int.__add__) is not None:
                    total[key] = _sum(key, total[key], value) if key in total else value
    return list(sums.values())


def _sum(key: str, one: Cell, other: Cell) -> Cell:
    if isinstance(one, int) and isinstance(other, int):
        return (SUMS.get(key) or int.__add__)(one, other)
    if key == "children":
        return ",".join(sorted({*str(one).split(","), *str(other).split(",")}))
    return one if one == other else f"{one},{other}"
