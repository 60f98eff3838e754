"""Counters of a cache, under memcached's names."""

from typing import Final

COUNTS: Final = (
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "cmd_meta",
    "get_hits",
    "get_misses",
    "get_expired",
    "get_flushed",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
    "evictions",
    "evicted_unfetched",
    "expired_unfetched",
    "reclaimed",
    "total_items",
)


class Counts:
    """Counters, which the code that executes a command increments."""

    __slots__ = (
        "cas_badval",
        "cas_hits",
        "cas_misses",
        "cmd_flush",
        "cmd_meta",
        "cmd_set",
        "decr_hits",
        "decr_misses",
        "delete_hits",
        "delete_misses",
        "evicted_unfetched",
        "evictions",
        "expired_unfetched",
        "get_expired",
        "get_flushed",
        "get_hits",
        "get_misses",
        "incr_hits",
        "incr_misses",
        "reclaimed",
        "store_too_large",
        "total_items",
        "touch_hits",
        "touch_misses",
    )

    def __init__(self) -> None:
        self.reset()

    def add(self, hits: int, sets: int) -> None:
        """Count keys that were got and items that were set."""
        self.get_hits += hits
        self.cmd_set += sets
        self.total_items += sets

    def reset(self) -> None:
        """Set all counters to zero."""
        self.cas_badval = 0
        self.cas_hits = 0
        self.cas_misses = 0
        self.cmd_flush = 0
        self.cmd_meta = 0
        self.cmd_set = 0
        self.decr_hits = 0
        self.decr_misses = 0
        self.delete_hits = 0
        self.delete_misses = 0
        self.evicted_unfetched = 0
        self.evictions = 0
        self.expired_unfetched = 0
        self.get_expired = 0
        self.get_flushed = 0
        self.get_hits = 0
        self.get_misses = 0
        self.incr_hits = 0
        self.incr_misses = 0
        self.reclaimed = 0
        self.store_too_large = 0
        self.total_items = 0
        self.touch_hits = 0
        self.touch_misses = 0

    @property
    def cmd_get(self) -> int:
        return self.get_hits + self.get_misses

    @property
    def cmd_touch(self) -> int:
        return self.touch_hits + self.touch_misses

    def figures(self) -> dict[str, int]:
        """The counters by name."""
        return {name: getattr(self, name) for name in COUNTS}
