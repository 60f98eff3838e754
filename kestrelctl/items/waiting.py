"""Waiting until a queue holds a given number of items."""

import operator
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted

if TYPE_CHECKING:
    from kestrelctl.remote.fleet import Fleet

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "": operator.ge,
    ">=": operator.ge,
    ">": operator.gt,
    "=": operator.eq,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """A condition on the number of items in a queue."""

    sign: str
    items: int
    counts_open_reads: bool = False  # open reads count as items

    @classmethod
    def parse(cls, words: str) -> Self:
        """Parse `100` or `>=100`, `>100`, `=100`, `<=100`, `<100`. Raises ValueError."""
        found = re.fullmatch(r"([<>]?=?)(\d{1,18})", words)
        if found is None:
            raise ValueError(f"{words!r} is not a number of items: write 100, '<100' or '=0'")
        return cls(found[1], int(found[2]))

    def is_met(self, items: int, open_reads: int) -> bool:
        held = items + open_reads if self.counts_open_reads else items
        return _COMPARISONS[self.sign](held, self.items)


EMPTY: Final = Awaited("=", 0, counts_open_reads=True)


def wait_for(
    fleet: "Fleet",
    queue: str,
    awaited: Awaited,
    *,
    limit_ms: int | None,
    interval_ms: int,
    missing_ok: bool,
) -> int:
    """Poll until the condition is met; return the number of items then. `limit_ms` None = forever. Raises Failure."""
    until_s = None if limit_ms is None else time.monotonic() + limit_ms / 1000
    while True:
        found = fleet.items_of(queue)
        items, open_reads = found or (0, 0)
        if awaited.is_met(items, open_reads):
            if found is None and not missing_ok:
                raise Failure(ExitCode.NEGATIVE, f"no such queue: {queue}")
            return items
        left_s = interval_ms / 1000 if until_s is None else until_s - time.monotonic()
        if left_s <= 0:
            held = f"{counted(items, 'item')} and {counted(open_reads, 'open read')}"
            raise Failure(ExitCode.WAIT_EXPIRED, f"queue {queue} still holds {held}")
        time.sleep(min(left_s, interval_ms / 1000))
