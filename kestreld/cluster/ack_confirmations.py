"""State of one acknowledged job: the nodes that still have to confirm before all may forget it.

A node with an acknowledged job tells all its owners (SETACK) and remembers it until each has confirmed (GOTACK); then
all may forget it (DELJOB). Owners are compared as sets: a node that imported the job is an owner, and each answer
brings the owners that its sender knows. A node that never held the job tells all nodes, because any of them may hold
it: a dummy acknowledgement, which is dropped once all have answered.
"""

from typing import Final

FIRST_RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 180_000
TOLD_FIRST_MS: Final = 3_000  # how long a node that was told leaves collecting to the one that told it,
TOLD_MS_MAX: Final = 60_000  # and how long while that one is up
_TRIES_MAX: Final = 10


class Ack:
    """One acknowledged job at one node. Sets of nodes are those of `NodeSets`; no `owners` = a dummy.

    `told_by` is the node that is collecting and told this one, an empty set if this node collects itself.
    """

    __slots__ = ("_tries", "confirmed", "is_left", "next_at_ms", "owners", "told_by")

    def __init__(self, me: int, owners: int, now_ms: int, told_by: int | None = None) -> None:
        """`told_by` None = this node collects at once; 0 = another node was collecting, and it is not known which."""
        self.owners = owners
        self.confirmed = me
        self.told_by = told_by or 0
        self.is_left = False
        self._tries = 0
        self.next_at_ms = now_ms if told_by is None else now_ms + TOLD_FIRST_MS

    def leave_it(self, now_ms: int) -> None:
        """Leave the collecting to the node that told this one, which is up, for TOLD_MS_MAX at most."""
        self.next_at_ms, self.is_left = now_ms + TOLD_MS_MAX, True

    def missing(self, members: int) -> int:
        """Return the set of nodes that have yet to confirm. Nodes that have left the cluster are not waited for."""
        return (self.owners or members) & members & ~self.confirmed

    def try_again(self, now_ms: int, jitter_ms: int) -> None:
        """Set the next retry time: all missing nodes are being told now."""
        self.next_at_ms = now_ms + min(FIRST_RETRY_MS << self._tries, RETRY_MS_MAX) + jitter_ms
        self._tries = min(self._tries + 1, _TRIES_MAX)

    def leave(self, node: int) -> None:
        """Remove a node from the owners."""
        self.owners &= ~node
        self.confirmed |= node

    def confirm(self, node: int, owners: int) -> bool:
        """Note that a node knows, and the owners that it knows of. Return True if some of those were unknown.

        A new owner is asked again even if it has answered that it does not hold the job: it may have got it since.
        """
        new = owners & ~self.owners
        self.owners |= owners
        self.confirmed = (self.confirmed & ~new) | node
        return bool(new)
