"""Figures that need no Spark: percentiles, and how long a stretch of time a plot's point stands for."""

from collections.abc import Mapping, Sequence
from typing import Final

PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
BUCKETS_S: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
POINTS_MAX: Final = 300


def nearest_ranks(counts: Mapping[int, int], shares: Sequence[float] = PERCENTILES) -> list[int]:
    """For each share the smallest value that so large a part of all values does not exceed. `counts`: of each value."""
    total = sum(counts.values())
    ranks = []
    for share in shares:
        so_far = 0
        for value in sorted(counts):
            so_far += counts[value]
            if so_far >= share * total:
                ranks.append(value)
                break
    return ranks


def bucket_seconds(first_ms: int, last_ms: int) -> int:
    """So that there are not more points than a plot has room for."""
    for seconds in BUCKETS_S:
        if (last_ms - first_ms) // (seconds * 1000) < POINTS_MAX:
            return seconds
    return BUCKETS_S[-1]
