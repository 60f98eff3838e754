"""Figures beside what they may be, and what another client waits for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.servers import Server
from benchmarks.waits import Prober, Talk, Waits, put_and_get

ABOVE_IDLE_MS_MAX: Final = 10
NO_LIMIT: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, and what it may be."""

    name: str
    value: float
    limit: float
    more: str = ""  # in words

    @property
    def is_above(self) -> bool:
        return self.value > self.limit


def line(one: Figure) -> str:
    limit = "" if one.limit == NO_LIMIT else f"of {one.limit:.5g}"
    return f"{'ABOVE' if one.is_above else '':<6}{one.name:<52}{one.value:>9.4g} {limit:<9}  {one.more}".rstrip()


def ratio(name: str, own_us: Sequence[float], peer_us: Sequence[float], limit: float) -> Figure:
    """The median of the rounds' ratios, beside the ratio of the minima."""
    ratios = [own / peer for own, peer in zip(own_us, peer_us, strict=True)]
    words = f"minima {min(own_us) / min(peer_us):.2f} ({min(own_us):.2f} and {min(peer_us):.2f} µs)"
    return Figure(name, median(ratios), limit, f"{words}; rounds {min(ratios):.2f} to {max(ratios):.2f}")


def waited(
    server: Server,
    command: Callable[[], None],
    *,
    rounds: int = 1,
    talk: Callable[[], Talk] = put_and_get,
    port: int = 0,
) -> Waits:
    """The longest waits of another client meanwhile; the best of the rounds, for what else runs only adds.

    The client is on the server's port, or another one.
    """
    best = None
    for _ in range(rounds):
        prober = Prober(port or server.port, server.pid, talk)
        prober.start()
        command()
        found = prober.stop()
        best = found if best is None else found.best(best)
    assert best is not None
    return best


def in_words(waits: Waits) -> str:
    return f"waited {waits.longest_ms:.1f} ms in all; took {waits.took_ms / 1000:.2f} s"


def best_of(rounds: int, measure: Callable[[], Iterable[Figure]]) -> list[Figure]:
    """The least of each figure, for what else runs only adds."""
    best: dict[str, Figure] = {}
    for _ in range(rounds):
        for figure in measure():
            if figure.name not in best or figure.value < best[figure.name].value:
                best[figure.name] = figure
    return list(best.values())


def above_idle(name: str, waits: Waits, idle: Waits) -> Figure:
    above_ms = waits.longest_alone_ms - idle.longest_alone_ms
    return Figure(f"wait above idle, ms: {name}", above_ms, ABOVE_IDLE_MS_MAX, in_words(waits))
