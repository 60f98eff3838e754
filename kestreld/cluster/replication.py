"""State machine of one ADDJOB with copies: the nodes to ask, and the answers so far.

The job goes to as many other nodes as are wanted. While one of them has not confirmed that it holds the job, one more
is asked every 50 ms; all that were asked may hold it, and are its owners. (Disque's README, "Job replication strategy";
its code does so every 100 ms.)
"""

from collections.abc import Iterable
from typing import Final

MORE_AFTER_MS: Final = 50
AGAIN_AFTER_MS: Final = 2000  # before nodes that have not confirmed are asked again; doubles each time
AGAIN_MS_MAX: Final = 5000

Taker = tuple[bytes, int | None]  # a node's id, and the time at which its link was opened


class Replication:
    """Nodes to which a job was sent, and nodes that hold it, by id.

    `wanted` is the number of copies on other nodes; `takers` are the nodes that may be asked, in order of preference.
    """

    __slots__ = ("_again_at_ms", "_again_ms", "_sent_over", "confirmed", "next_at_ms", "wanted")

    def __init__(self, wanted: int, takers: Iterable[Taker], now_ms: int) -> None:
        self.wanted = wanted
        self._sent_over: dict[bytes, int | None] = {}  # node id -> opening time of the link over which the job was sent
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
        """Ids of the nodes that may hold the job."""
        return list(self._sent_over)

    @property
    def is_achieved(self) -> bool:
        return len(self.confirmed) >= self.wanted

    def confirm(self, node_id: bytes) -> bool:
        """Note that a node holds a copy. Return True if that counts and was not known."""
        if node_id not in self._sent_over or node_id in self.confirmed:
            return False
        self.confirmed.add(node_id)
        return True

    def forget(self, node_id: bytes) -> None:
        """Drop a node that has left the cluster: its copy does not count."""
        self._sent_over.pop(node_id, None)
        self.confirmed.discard(node_id)

    def ask_more(self, takers: Iterable[Taker], now_ms: int) -> tuple[list[bytes], list[bytes]]:
        """Return the nodes to ask now for the first time, one at most, and those to ask again.

        A node is asked again if the link over which it was asked has broken, because the job may be lost. Every few
        seconds all nodes that have not confirmed are asked again: without a link back their answers were lost.
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
