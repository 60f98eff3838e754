"""A node that was down queues nothing again before the others had time to say what has become of its jobs."""

from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers


class Returning:
    """Which nodes have yet to tell this one what it has missed. One node timeout later nobody is waited for."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._awaited: set[bytes] = set()
        self._until_ms = 0

    def begin(self, timeout_ms: int) -> None:
        """The node has just read its log."""
        self._awaited = {node.id for node in self._peers.table.members()}
        self._until_ms = self._peers.jobs.clock.monotonic_ms + timeout_ms

    def is_held_back(self) -> bool:
        """Whether jobs have to wait."""
        if not self._awaited:
            return False
        if self._peers.jobs.clock.monotonic_ms >= self._until_ms:
            self._awaited = set()
        return bool(self._awaited)

    def caught_up(self, sender: Node) -> None:
        """It has told all that it knows."""
        self._awaited.discard(sender.id)

    def went_down(self, node: Node) -> None:
        """It cannot be reached."""
        self._awaited.discard(node.id)
