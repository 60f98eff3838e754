"""Latencies of a load test, all kept, and their exact percentiles."""

from array import array
from math import ceil
from typing import Final

PERCENTILES: Final = {"p50_us": 50.0, "p90_us": 90.0, "p99_us": 99.0, "p99_9_us": 99.9}


class Latencies:
    """Every measured time, at eight bytes each, so that percentiles are exact."""

    def __init__(self) -> None:
        self._took_ns = array("q")

    def add(self, took_ns: int) -> None:
        self._took_ns.append(took_ns)

    def summary(self) -> dict[str, int | float]:
        """`count`, the percentiles and `max_us`, times in microseconds. Empty if nothing was measured."""
        if not self._took_ns:
            return {}
        ordered = sorted(self._took_ns)
        count = len(ordered)
        # Nearest rank: the smallest time that at least this percentage does not exceed.
        ranks = {name: ceil(count * percent / 100) - 1 for name, percent in PERCENTILES.items()}
        figures = {name: round(ordered[rank] / 1000, 1) for name, rank in ranks.items()}
        return {"count": count, **figures, "max_us": round(ordered[-1] / 1000, 1)}
