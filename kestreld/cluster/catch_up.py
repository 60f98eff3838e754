"""Grace period of a restarted node: it requeues nothing until the others have sent it the missed messages."""

from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers


class Returning:
    """Nodes whose missed messages are still expected. After one node timeout the wait ends."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._awaited: set[bytes] = set()
        self._until_ms = 0

    def begin(self, timeout_ms: int) -> None:
        """Wait for all members: this node has just read its log."""
        self._awaited = {node.id for node in self._peers.table.members()}
        self._until_ms = self._peers.jobs.clock.monotonic_ms + timeout_ms

    def is_held_back(self) -> bool:
        """Return True while jobs have to wait."""
        if not self._awaited:
            return False
        if self._peers.jobs.clock.monotonic_ms >= self._until_ms:
            self._awaited = set()
        return bool(self._awaited)

    def caught_up(self, sender: Node) -> None:
        """Note that the sender has told all that it knows."""
        self._awaited.discard(sender.id)

    def went_down(self, node: Node) -> None:
        """Stop waiting for a node that cannot be reached."""
        self._awaited.discard(node.id)
