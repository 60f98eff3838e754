"""Figures beside what they may be, and what another client waits for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.servers import Server
from benchmarks.waits import Prober, Waits

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


def waited(server: Server, command: Callable[[], None], *, rounds: int = 1) -> Waits:
    """The longest waits of another client meanwhile; the best of the rounds, for what else runs only adds."""
    best = None
    for _ in range(rounds):
        prober = Prober(server.port, server.pid)
        prober.start()
        command()
        found = prober.stop()
        best = found if best is None else found.best(best)
    assert best is not None
    return best


def in_words(waits: Waits) -> str:
    return f"waited {waits.longest_ms:.1f} ms in all; took {waits.took_ms / 1000:.2f} s"


def above_idle(name: str, waits: Waits, idle: Waits) -> Figure:
    above_ms = waits.longest_alone_ms - idle.longest_alone_ms
    return Figure(f"wait above idle, ms: {name}", above_ms, ABOVE_IDLE_MS_MAX, in_words(waits))
