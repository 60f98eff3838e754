"""Counters and gauges of the server as a whole."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Final, Protocol

from kestreld.figures import OF_CACHE, compiled

Figures = Sequence[tuple[str, int | str]]
_read_cache: Final[Callable[[dict[str, int]], tuple[int, ...]]] = compiled("cache", (one.read for one in OF_CACHE))


class JobTotals(Protocol):
    """Source of the figures of jobs."""

    def adding_up(self) -> Iterator[None]:
        """Bring `totals` up to date, a few queues a step."""

    def totals(self) -> list[tuple[str, int]]:
        """Return the totals; each name begins with `jobs_`."""

    def report(self, sees: Callable[[str], bool] | None) -> Iterator[bytes | None]:
        """Yield a block for each queue of jobs that `sees` allows; None = all."""


@dataclass(slots=True)
class ServerStats:
    """Figures that only the server has. Bytes are those of the data ports."""

    started_at_ms: int = 0  # on the monotonic clock
    pid: int = 0
    cpu_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)  # of the process: its own, and the system's for it
    connections_max: int = 0  # as many as there are descriptors for
    curr_connections: int = 0
    total_connections: int = 0
    rejected_connections: int = 0
    logins: int = 0  # tries by password
    failed_logins: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    missed_gets: int = 0  # GETs that found nothing
    peeks: int = 0
    refused_sets: int = 0
    child_sets: int = 0  # SETs on a child, which its parent does not count
    admin_address: str = ""  # of the HTTP listener; "" = it is off
    cache_figures: Callable[[], dict[str, int]] | None = None  # by memcached's names; None = there is no cache
    jobs: JobTotals | None = None  # None = there are none

    def show_cache(self, figures: Callable[[], dict[str, int]]) -> None:
        """Show the cache's figures beside the server's."""
        self.cache_figures = figures

    def show_jobs(self, totals: JobTotals) -> None:
        """Show the figures of jobs beside the server's."""
        self.jobs = totals

    def of_cache(self) -> list[tuple[str, int]]:
        """Return the figures named in `OF_CACHE`; none without a cache."""
        if self.cache_figures is None:
            return []
        return [(one.key, value) for one, value in zip(OF_CACHE, _read_cache(self.cache_figures()), strict=True)]

    def of_jobs(self) -> list[tuple[str, int]]:
        """Return the totals of the last `adding_up`; none without jobs."""
        return self.jobs.totals() if self.jobs is not None else []


@dataclass(slots=True)
class Totals:
    """Counters of a reader over its life. The server's are sums over all readers, deleted ones included."""

    put_items: int = 0
    parent_items: int = 0  # those of them that parents count
    fetched_items: int = 0
    expired_items: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*map(sum, zip(astuple(self), astuple(other), strict=True)))
