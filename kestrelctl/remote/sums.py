"""Figures of several servers added up as those of one. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from kestreld.client.blocks import Cell, QueueBlock

# Figures of which the largest counts: a sum of ages means nothing, and of states the worst counts.
LARGEST: Final = frozenset({"age", "oldest_ms", "sync_us", "full", "journal_failed", "stopped"})
OF_ONE_SERVER: Final = frozenset({"head_id", "next_id"})


def sum_blocks(servers: Sequence[Iterable[QueueBlock]]) -> list[QueueBlock]:
    """A block for each queue of any server, in order of first appearance."""
    if len(servers) == 1:
        return list(servers[0])
    sums: dict[str, QueueBlock] = {}
    for blocks in servers:
        for block in blocks:
            total = sums.setdefault(str(block["queue"]), {"queue": block["queue"]})
            for key, value in block.items():
                if key not in OF_ONE_SERVER and key != "queue":
                    total[key] = _sum(key, total[key], value) if key in total else value
    return list(sums.values())


def _sum(key: str, one: Cell, other: Cell) -> Cell:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other) if key in LARGEST else one + other
    if key == "children":
        return ",".join(sorted({*str(one).split(","), *str(other).split(",")}))
    return one if one == other else f"{one},{other}"
