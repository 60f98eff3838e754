"""One ADDJOB on its way to as many nodes as are to hold the job: whom to ask, as a state machine.

The job goes to as many other nodes as are wanted. While one of them has not confirmed that it holds the job, one more
is asked every 50 ms; all that were asked may hold it, and are its owners. (Disque's README, "Job replication
strategy"; its code does so every 100 ms.)
"""

from collections.abc import Iterable
from typing import Final

MORE_AFTER_MS: Final = 50
AGAIN_AFTER_MS: Final = 2000  # who has not confirmed is asked again, each time after twice as long
AGAIN_MS_MAX: Final = 5000

Taker = tuple[bytes, int | None]  # a node's id, and since when there is a link to it


class Replication:
    """Whom the job was sent to, and who holds it. Nodes are ids.

    `wanted` copies are to be on other nodes; `takers` are those that may be asked, in the order in which they are.
    """

    __slots__ = ("_again_at_ms", "_again_ms", "_sent_over", "confirmed", "next_at_ms", "wanted")

    def __init__(self, wanted: int, takers: Iterable[Taker], now_ms: int) -> None:
        self.wanted = wanted
        self._sent_over: dict[bytes, int | None] = {}  # since when there was the link that it was sent over
        self.confirmed: set[bytes] = set()
        self.next_at_ms = now_ms + MORE_AFTER_MS
        self._again_ms = AGAIN_AFTER_MS
        self._again_at_ms = now_ms + AGAIN_AFTER_MS
        for node_id, linked_at_ms in takers:
            if len(self._sent_over) == wanted:
                break
            self._sent_over[node_id] = linked_at_ms

    @property
    def asked(self) -> list[bytes]:
        """Who may hold the job."""
        return list(self._sent_over)

    @property
    def is_achieved(self) -> bool:
        return len(self.confirmed) >= self.wanted

    def confirm(self, node_id: bytes) -> bool:
        """It holds a copy; whether that is news which counts."""
        if node_id not in self._sent_over or node_id in self.confirmed:
            return False
        self.confirmed.add(node_id)
        return True

    def forget(self, node_id: bytes) -> None:
        """That node is none of the cluster any more: a copy there does not count."""
        self._sent_over.pop(node_id, None)
        self.confirmed.discard(node_id)

    def ask_more(self, takers: Iterable[Taker], now_ms: int) -> tuple[list[bytes], list[bytes]]:
        """It takes long: whom to ask now for the first time, one at most, and whom again.

        Again are those asked over a link that has broken since: it may have got lost with that. Now and then it is all
        that have not confirmed: where there was no link back their answers were lost.
        """
        self.next_at_ms = now_ms + MORE_AFTER_MS
        is_time = now_ms >= self._again_at_ms
        if is_time:
            self._again_ms = min(2 * self._again_ms, AGAIN_MS_MAX)
            self._again_at_ms = now_ms + self._again_ms
        new: list[bytes] = []
        again: list[bytes] = []
        for node_id, linked_at_ms in takers:
            sent_over = self._sent_over.get(node_id)
            if sent_over is None:
                if not new:
                    new.append(node_id)
                    self._sent_over[node_id] = linked_at_ms
            elif (is_time or sent_over != linked_at_ms) and node_id not in self.confirmed:
                again.append(node_id)
                self._sent_over[node_id] = linked_at_ms
        return new, again
