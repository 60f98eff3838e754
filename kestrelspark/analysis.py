"""Figures that need no Spark: percentiles and the bucket size of plots."""

from typing import Final

PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
BUCKETS_S: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
POINTS_MAX: Final = 300


def bucket_seconds(first_ms: int, last_ms: int) -> int:
    """The smallest bucket size, in seconds, that gives at most POINTS_MAX points."""
    for seconds in BUCKETS_S:
        if (last_ms - first_ms) // (seconds * 1000) < POINTS_MAX:
            return seconds
    return BUCKETS_S[-1]
