"""Who has to know that a job is acknowledged before all may forget it.

Whoever has a job that is acknowledged tells all its owners (SETACK), and remembers the job until each has said that it
knows (GOTACK); then all may forget it (DELJOB). Owners are compared as sets: whoever imported a job is one, and each
answer brings the owners that its sender knows. A node that does not have the job tells all nodes, as one of them may: a
dummy acknowledgement. It goes once all have answered.
"""

from collections.abc import Collection, Iterable
from typing import Final

FIRST_RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 180_000
TOLD_FIRST_MS: Final = 3_000  # who was told by another leaves it to that one for so long


class Ack:
    """One job that is acknowledged, at one node. Nodes are ids, `myself` among the owners of a job that is here."""

    __slots__ = ("_myself", "_tries", "confirmed", "is_dummy", "next_at_ms", "owners")

    def __init__(self, myself: bytes, owners: Iterable[bytes], now_ms: int, *, is_dummy: bool, was_told: bool) -> None:
        """`was_told`: another node has said so and is collecting already."""
        self._myself = myself
        self.owners: set[bytes] = set(owners)
        self.confirmed: set[bytes] = {myself}
        self.is_dummy = is_dummy
        self._tries = 0
        self.next_at_ms = now_ms + TOLD_FIRST_MS if was_told else now_ms

    def missing(self, members: Collection[bytes]) -> list[bytes]:
        """Who has yet to say that it knows. A node that is none of the `members` any more is not waited for."""
        wanted = members if self.is_dummy else self.owners
        return sorted([node for node in wanted if node not in self.confirmed and node in members])

    def try_again(self, now_ms: int, jitter_ms: int) -> None:
        """All that are missing are being told now; when to do so again."""
        self.next_at_ms = now_ms + min(FIRST_RETRY_MS << self._tries, RETRY_MS_MAX) + jitter_ms
        self._tries = min(self._tries + 1, 10)

    def hurry(self, now_ms: int) -> None:
        """A node is there again which is missing: tell it now."""
        self._tries = 0
        self.next_at_ms = now_ms

    def confirm(self, node: bytes, owners: Iterable[bytes]) -> None:
        """That node knows, or has never had the job; these are the owners it knows of."""
        self.learn(owners)
        self.confirmed.add(node)

    def learn(self, owners: Iterable[bytes]) -> None:
        """There are more owners: whoever has said before that it does not have the job may have got it since."""
        for node in owners:
            if node not in self.owners:
                self.owners.add(node)
                self.is_dummy = False
                if node != self._myself:
                    self.confirmed.discard(node)
