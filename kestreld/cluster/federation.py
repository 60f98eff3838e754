"""Jobs go to where somebody waits for them: what a node asks of others, and what it remembers of who has asked.

A node whose queue is empty while somebody wants a job of it asks the others (NEEDJOBS), all of them seldom and those
that have given jobs lately often. Who has none remembers that for a while, and gives the next job that comes and that
nobody wants there. A node that imports jobs of a queue itself gives none of it.
"""

from collections.abc import Iterable
from typing import Final

ALL_EVERY_MS: Final = 2_000
ALL_EVERY_MS_MAX: Final = 30_000
SOURCES_EVERY_MS: Final = 25
SOURCES_EVERY_MS_MAX: Final = 2_000
SOURCE_MS: Final = 5_000  # so long a node that gave a job is asked for more, and so long a rate lasts
PERIOD_MS_MIN: Final = 50
PERIOD_MS: Final = 1_000
ASKED_FOR_MIN, ASKED_FOR_MAX = 5, 100
INTEREST_MS: Final = 30_000
_DOUBLED_MAX: Final = 16  # times


class Imports:
    """What one queue gets from other nodes. Nodes are ids, instants those of one steady clock."""

    __slots__ = ("_all_at_ms", "_all_tries", "_began_at_ms", "_count", "_count_before", "_sources", "_sources_at_ms",
                 "_sources_tries")  # fmt: skip

    def __init__(self) -> None:
        self._sources: dict[bytes, int] = {}  # and when each has given a job last
        self._all_at_ms = self._sources_at_ms = 0  # when they may be asked again
        self._all_tries = self._sources_tries = 0
        self._began_at_ms = 0  # of the period in which so many came:
        self._count = self._count_before = 0

    def came(self, source: bytes, count: int, now_ms: int) -> None:
        """So many jobs have come from there."""
        if now_ms - self._began_at_ms >= PERIOD_MS:
            is_next = now_ms - self._began_at_ms < SOURCE_MS
            self._count_before, self._count, self._began_at_ms = self._count if is_next else 0, 0, now_ms
        self._count += count
        if source not in self.sources(now_ms):
            self._all_tries = 0
        self._sources[source] = now_ms
        self._sources_tries = self._sources_at_ms = 0

    def sources(self, now_ms: int) -> list[bytes]:
        """Who has given jobs lately."""
        for gone in [one for one, at_ms in self._sources.items() if now_ms - at_ms >= SOURCE_MS]:
            del self._sources[gone]
        return list(self._sources)

    def rate(self, now_ms: int) -> int:
        """Jobs a second; 0 when none has come for a while."""
        if not self.sources(now_ms):
            return 0
        period_ms = max(now_ms - self._began_at_ms + (PERIOD_MS if self._count_before else 0), PERIOD_MS_MIN)
        return -(-(self._count_before + self._count) * 1000 // period_ms)

    def ask_all(self, now_ms: int) -> bool:
        """Whether to ask all nodes for a job now; then it is some time until the next."""
        if now_ms < self._all_at_ms:
            return False
        self._all_at_ms = now_ms + min(ALL_EVERY_MS << self._all_tries, ALL_EVERY_MS_MAX)
        self._all_tries = min(self._all_tries + 1, _DOUBLED_MAX)
        return True

    def ask_sources(self, now_ms: int, *, is_just_empty: bool) -> int:
        """How many jobs to ask each source for now, 0 = none; then it is some time until the next.

        `is_just_empty`: the queue had jobs a moment ago.
        """
        sources = self.sources(now_ms)
        if not sources or (now_ms < self._sources_at_ms and not is_just_empty):
            return 0
        self._sources_at_ms = now_ms + min(SOURCES_EVERY_MS << self._sources_tries, SOURCES_EVERY_MS_MAX)
        self._sources_tries = min(self._sources_tries + 1, _DOUBLED_MAX)
        return min(max(self.rate(now_ms) // len(sources), ASKED_FOR_MIN), ASKED_FOR_MAX)

    def next_at_ms(self, now_ms: int) -> int:
        """When there is somebody to ask again, as long as somebody waits."""
        return min(self._all_at_ms, self._sources_at_ms) if self.sources(now_ms) else self._all_at_ms


def to_give(count: int, waiting: int) -> int:
    """Of so many jobs that wait here, how many go to a node that asks for `count`."""
    if not waiting:
        return 0
    return count if waiting >= 2 * count else max(waiting // 2, 1)


class Interest:
    """Who would like a job of one queue, in the order they asked; each is given one at a time."""

    __slots__ = ("_until_ms",)

    def __init__(self) -> None:
        self._until_ms: dict[bytes, int] = {}

    def add(self, node: bytes, now_ms: int) -> None:
        """It has asked, and there was nothing."""
        self._until_ms.setdefault(node, 0)
        self._until_ms[node] = now_ms + INTEREST_MS

    def remove(self, node: bytes) -> None:
        """Nobody waits there any more, or it is gone."""
        self._until_ms.pop(node, None)

    def take(self, now_ms: int, reachable: Iterable[bytes]) -> bytes | None:
        """Who is to be given the next job: the one that was given one longest ago. None where nobody is there."""
        there = set(reachable)
        for node, until_ms in list(self._until_ms.items()):
            if until_ms <= now_ms:
                del self._until_ms[node]
            elif node in there:
                self._until_ms[node] = self._until_ms.pop(node)
                return node
        return None

    def __bool__(self) -> bool:
        return bool(self._until_ms)
