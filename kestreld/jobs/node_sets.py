"""Sets of nodes as integers: one bit for each node id that was ever named, in order of appearance."""

from collections.abc import Iterable
from typing import Final

NODES_MAX: Final = 4096  # ids beyond this are in no set
NOBODY: Final = 0


class NodeSets:
    """Assignment of bits to nodes. A set is valid in this process only; logs and messages have ids."""

    __slots__ = ("_bits", "_ids")

    def __init__(self) -> None:
        self._bits: dict[bytes, int] = {}
        self._ids: list[bytes] = []

    def of(self, node_id: bytes) -> int:
        """Return the set of this node alone."""
        bit = self._bits.get(node_id)
        if bit is None:
            if len(self._ids) >= NODES_MAX:
                return NOBODY
            bit = self._bits[node_id] = 1 << len(self._ids)
            self._ids.append(node_id)
        return bit

    def of_all(self, node_ids: Iterable[bytes]) -> int:
        """Return the set of these nodes."""
        nodes = NOBODY
        for node_id in node_ids:
            nodes |= self.of(node_id)
        return nodes

    def ids(self, nodes: int) -> tuple[bytes, ...]:
        """Return the ids of the nodes in a set, always in the same order for the same set."""
        found = []
        while nodes:
            lowest = nodes & -nodes
            found.append(self._ids[lowest.bit_length() - 1])
            nodes ^= lowest
        return tuple(found)
