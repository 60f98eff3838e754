"""Rules of federation: when a node asks other nodes for jobs, and which nodes want jobs of a queue.

A node whose queue is empty while a client wants a job of it asks the others (NEEDJOBS): all of them rarely, those that
have given jobs lately often. A node that has none to give remembers who asked, and gives that node the next job that no
client of its own wants. A node that imports jobs of a queue itself gives them only to nodes where a client waits.
"""

from collections.abc import Iterable
from typing import Final

ALL_EVERY_MS: Final = 2_000
ALL_EVERY_MS_MAX: Final = 30_000
SOURCES_EVERY_MS: Final = 25
SOURCES_EVERY_MS_MAX: Final = 2_000
SOURCE_MS: Final = 5_000  # how long a node that gave a job is asked for more, and how long a rate is remembered
PERIOD_MS_MIN: Final = 50
PERIOD_MS: Final = 1_000
ASKED_FOR_MIN, ASKED_FOR_MAX = 5, 100
INTEREST_MS: Final = 90_000  # a node that still waits asks again before that
_DOUBLED_MAX: Final = 16  # times


class Imports:
    """Jobs that one queue gets from other nodes. Nodes are ids; times are on one steady clock."""

    __slots__ = ("_all_at_ms", "_all_tries", "_began_at_ms", "_count", "_count_before", "_sources", "_sources_at_ms",
                 "_sources_tries")  # fmt: skip

    def __init__(self) -> None:
        self._sources: dict[bytes, int] = {}  # node id -> time of the last job it gave
        self._all_at_ms = self._sources_at_ms = 0  # when they may be asked again
        self._all_tries = self._sources_tries = 0
        self._began_at_ms = 0  # start of the period in which `_count` jobs came
        self._count = self._count_before = 0

    def came(self, source: bytes, count: int, now_ms: int) -> None:
        """Count jobs that came from a node."""
        if now_ms - self._began_at_ms >= PERIOD_MS:
            is_next = now_ms - self._began_at_ms < SOURCE_MS
            self._count_before, self._count, self._began_at_ms = self._count if is_next else 0, 0, now_ms
        self._count += count
        if source not in self.sources(now_ms):
            self._all_tries = 0
        self._sources[source] = now_ms
        self._sources_tries = self._sources_at_ms = 0

    def sources(self, now_ms: int) -> list[bytes]:
        """Return the nodes that have given jobs lately."""
        for gone in [one for one, at_ms in self._sources.items() if now_ms - at_ms >= SOURCE_MS]:
            del self._sources[gone]
        return list(self._sources)

    def rate(self, now_ms: int) -> int:
        """Return the rate of imported jobs per second; 0 if none came lately."""
        if not self.sources(now_ms):
            return 0
        period_ms = max(now_ms - self._began_at_ms + (PERIOD_MS if self._count_before else 0), PERIOD_MS_MIN)
        return -(-(self._count_before + self._count) * 1000 // period_ms)

    def ask_all(self, now_ms: int) -> bool:
        """Return True if all nodes may be asked for a job now, and begin the interval until they may be asked again."""
        if now_ms < self._all_at_ms:
            return False
        self._all_at_ms = now_ms + min(ALL_EVERY_MS << self._all_tries, ALL_EVERY_MS_MAX)
        self._all_tries = min(self._all_tries + 1, _DOUBLED_MAX)
        return True

    def ask_sources(self, now_ms: int, *, is_just_empty: bool) -> int:
        """Return how many jobs to ask each source for now, 0 = none, and begin the interval until the next time.

        `is_just_empty`: the queue had jobs a moment ago, so the interval need not be over.
        """
        sources = self.sources(now_ms)
        if not sources or (now_ms < self._sources_at_ms and not is_just_empty):
            return 0
        self._sources_at_ms = now_ms + min(SOURCES_EVERY_MS << self._sources_tries, SOURCES_EVERY_MS_MAX)
        self._sources_tries = min(self._sources_tries + 1, _DOUBLED_MAX)
        return min(max(self.rate(now_ms) // len(sources), ASKED_FOR_MIN), ASKED_FOR_MAX)

    def is_over(self, now_ms: int) -> bool:
        """Return True if nothing is left to remember: no node gives jobs, and all nodes may be asked again."""
        return not self.sources(now_ms) and now_ms >= self._all_at_ms


def to_give(count: int, waiting: int) -> int:
    """Return how many of `waiting` jobs go to a node that asks for `count`."""
    if not waiting:
        return 0
    return count if waiting >= 2 * count else max(waiting // 2, 1)


class Interest:
    """Nodes that want future jobs of one queue, and how many, in the order in which they get the next one."""

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted: dict[bytes, tuple[int, int]] = {}  # node id -> number of jobs, and expiry

    def add(self, node_id: bytes, count: int, now_ms: int) -> None:
        """Note that a node wants `count` jobs beyond those it was given."""
        self._wanted[node_id] = (count, now_ms + INTEREST_MS)

    def remove(self, node_id: bytes) -> None:
        """Drop a node: no client waits there any longer, or it has gone."""
        self._wanted.pop(node_id, None)

    def wants(self, node_id: bytes) -> bool:
        """Return True if the node has asked for a job that it was not given."""
        return node_id in self._wanted

    def take(self, now_ms: int, reachable: Iterable[bytes]) -> bytes | None:
        """Return the node that gets the next job, None if none wants one: the reachable one served longest ago."""
        there = set(reachable)
        for node_id, (count, until_ms) in list(self._wanted.items()):
            if until_ms <= now_ms:
                del self._wanted[node_id]
            elif node_id in there:
                del self._wanted[node_id]
                if count > 1:
                    self._wanted[node_id] = (count - 1, until_ms)
                return node_id
        return None

    def is_over(self, now_ms: int) -> bool:
        """Return True if all interest has expired."""
        return all(until_ms <= now_ms for _, until_ms in self._wanted.values())

    def __bool__(self) -> bool:
        return bool(self._wanted)
