"""One ADDJOB on its way to as many nodes as it is to be on.

The job goes to as many others as are wanted. As long as one of them has not confirmed that it has the job, one more is
asked every 50 ms; all that were asked may have it, and are its owners.
"""

from collections.abc import Iterable, Sequence
from typing import Final

MORE_AFTER_MS: Final = 50


class Replication:
    """Who was asked to take a copy, and who has it. Nodes are ids.

    `wanted` copies are to be on other nodes; `candidates` are those that may be asked, in the order in which they are.
    """

    __slots__ = ("_candidates", "asked", "confirmed", "next_at_ms", "wanted")

    def __init__(self, wanted: int, candidates: Sequence[bytes], now_ms: int) -> None:
        self.wanted = wanted
        self.asked: list[bytes] = list(candidates[:wanted])
        self._candidates = list(candidates[: wanted - len(candidates) - 1 : -1]) if wanted < len(candidates) else []
        self.confirmed: set[bytes] = set()
        self.next_at_ms = now_ms + MORE_AFTER_MS

    @property
    def is_achieved(self) -> bool:
        return len(self.confirmed) >= self.wanted

    def confirm(self, node_id: bytes) -> bool:
        """It has a copy; whether that is news which counts."""
        if node_id not in self.asked or node_id in self.confirmed:
            return False
        self.confirmed.add(node_id)
        return True

    def ask_more(self, now_ms: int, reachable: Iterable[bytes]) -> list[bytes]:
        """It takes long: whom to send it to now, of those that are there. The first of them may be new.

        Those that have confirmed are told of the new owner; those that have not may have had no chance to yet.
        """
        self.next_at_ms = now_ms + MORE_AFTER_MS
        there = set(reachable)
        while self._candidates:
            one = self._candidates.pop()
            if one in there:
                self.asked.append(one)
                return [node for node in reversed(self.asked) if node in there]
        return [node for node in self.asked if node in there and node not in self.confirmed]
