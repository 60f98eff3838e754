"""Who has to know that a job is acknowledged before all may forget it.

Whoever has an acknowledged job tells all its owners (SETACK), and remembers it until each has said that it knows
(GOTACK); then all may forget it (DELJOB). Owners are compared as sets: whoever imported the job is one, and each answer
brings the owners that its sender knows. A node that does not hold the job tells all nodes, as one of them may: a dummy
acknowledgement, which goes once all have answered.
"""

from typing import Final

FIRST_RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 180_000
TOLD_FIRST_MS: Final = 3_000  # who was told by another node leaves it to that one for so long,
TOLD_MS_MAX: Final = 60_000  # or for so long while that one is up
_TRIES_MAX: Final = 10


class Ack:
    """One acknowledged job, at one node. Sets of nodes are those of `NodeSets`; no `owners` = a dummy.

    `told_by` is the node that has said so and is collecting, nobody where this one is.
    """

    __slots__ = ("_tries", "confirmed", "is_left", "next_at_ms", "owners", "told_by")

    def __init__(self, me: int, owners: int, now_ms: int, told_by: int | None = None) -> None:
        """`told_by` None = nobody: this node collects at once; 0 = a node that is not known any more."""
        self.owners = owners
        self.confirmed = me
        self.told_by = told_by or 0
        self.is_left = False
        self._tries = 0
        self.next_at_ms = now_ms if told_by is None else now_ms + TOLD_FIRST_MS

    def leave_it(self, now_ms: int) -> None:
        """The node that has told this one is up: leave it to that one, but not forever."""
        self.next_at_ms, self.is_left = now_ms + TOLD_MS_MAX, True

    def missing(self, members: int) -> int:
        """Who has yet to say that it knows. A node that is none of the `members` any more is not waited for."""
        return (self.owners or members) & members & ~self.confirmed

    def try_again(self, now_ms: int, jitter_ms: int) -> None:
        """All that are missing are being told now; when to do so again."""
        self.next_at_ms = now_ms + min(FIRST_RETRY_MS << self._tries, RETRY_MS_MAX) + jitter_ms
        self._tries = min(self._tries + 1, _TRIES_MAX)

    def leave(self, node: int) -> None:
        """That node is none of the owners any more."""
        self.owners &= ~node
        self.confirmed |= node

    def confirm(self, node: int, owners: int) -> bool:
        """That node knows, and these are the owners it knows of; whether there are new ones.

        A new owner that has said before that it does not hold the job may have got it since.
        """
        new = owners & ~self.owners
        self.owners |= owners
        self.confirmed = (self.confirmed & ~new) | node
        return bool(new)
