"""Figures that need no Spark: which percentiles there are, and how long a stretch of time a plot's point stands for."""

from typing import Final

PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
BUCKETS_S: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
POINTS_MAX: Final = 300


def bucket_seconds(first_ms: int, last_ms: int) -> int:
    """So that there are not more points than a plot has room for."""
    for seconds in BUCKETS_S:
        if (last_ms - first_ms) // (seconds * 1000) < POINTS_MAX:
            return seconds
    return BUCKETS_S[-1]
