"""Samples of one server, and the parser of the reply to DUMP_STATS.

The reply for 5,000 queues has 110,000 lines: blocks with the same keys in the same order are parsed by one regular
expression, which is made from the first of them.
"""

import heapq
import re
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode
from kestreld.figures import HELD, OF_QUEUES, in_json

# The figures that the console shows, in the order of a `Figures` and of the servers' lines. Old Kestrels lack some.
_SHOWN: Final = {column: one for column, one in in_json(OF_QUEUES).items() if one.console}
KEYS: Final = tuple(_SHOWN)
# The last of them are left out of DUMP_STATS for a queue that has none, and older servers have none at all.
HELD_COUNT: Final = sum(one.console for one in HELD)
NO_HELD: Final = (0,) * HELD_COUNT
# The same for queues of jobs; None = not reported by an older server.
JOB_KEYS: Final = (
    "queued",
    "active",
    "delayed",
    "blocked_clients",
    "import_rate",
    "jobs_in",
    "jobs_out",
    "pause",
    "oldest_at_ms",  # 0 = none is queued
)
JobFigures = tuple[int | str | None, ...]
# The same of nodes of a cluster, from `/stats.json`. The server itself has "myself" among its flags.
NODE_KEYS: Final = (
    "address",
    "flags",
    "jobs",
    "link",
    "up",
    "knows_us",
    "lag_us",
    "queued_bytes",
    "links",
    "jobs_given",
    "jobs_taken",
    "problem",
)
NodeFigures = tuple[int | str | None, ...]
Figures = tuple[int | None, ...]  # one for each of KEYS; None = not reported
NOTHING: Final[Figures] = (None,) * len(KEYS)
_ITEMS: Final = KEYS.index("items")
_OLDEST: Final = KEYS.index("oldest_at_ms")
_NEXT_DUE: Final = KEYS.index("next_due_at_ms")
_BAD: Final = (KEYS.index("journal_failed"), KEYS.index("stopped"))
_DUMPED_KEYS: Final = tuple(one.key for one in _SHOWN.values())


@dataclass(slots=True)
class Snapshot:
    server: str
    at_ms: int  # by the wall clock
    clock_ms: int  # by a clock that never jumps: only differences mean something
    queues: dict[str, Figures]
    counters: dict[str, int | str]  # of the server itself
    ahead_ms: int = 0  # lead of at_ms over the server's clock
    jobs: dict[str, JobFigures] = field(default_factory=dict)  # of the queues with the most jobs
    reasons: dict[str, str] = field(default_factory=dict)  # reasons why some queues are stopped or cannot be written
    nodes: dict[str, NodeFigures] = field(default_factory=dict)  # by id: itself and the nodes it knows, if it has jobs


@dataclass(slots=True)
class Outage:
    """A failed poll: the server did not answer."""

    server: str
    at_ms: int
    reason: str
    next_try_ms: int  # from then
    code: int = ExitCode.UNREACHABLE  # exit code for a command that needs the server


class _Layout:
    """The keys of a queue's block in their order, and a parser for blocks with exactly these keys."""

    def __init__(self, body: str) -> None:
        keys = [line.strip().partition("=")[0] for line in body.splitlines() if "=" in line]
        lines = [
            rf"  {re.escape(key)}=(-?\d+)\r?\n" if key in _DUMPED_KEYS else rf"  {re.escape(key)}=[^\n]*\n"
            for key in keys
        ]
        self._match = re.compile(r"\r?\n" + "".join(lines) + r"\}").match
        present = [key for key in keys if key in _DUMPED_KEYS]
        has_held = any(key in present for key in _DUMPED_KEYS[-HELD_COUNT:])
        self._missing = () if has_held else NO_HELD
        wanted = list(_DUMPED_KEYS if has_held else _DUMPED_KEYS[:-HELD_COUNT])
        # None = all of them, in the order of KEYS: the fast case.
        self._groups = (
            [present.index(key) + 1 if key in present else None for key in wanted] if present != wanted else None
        )

    def read(self, body: str, now_ms: int) -> Figures | None:
        """Figures of a block; None if it has another layout."""
        found = self._match(body)
        if found is None:
            return None
        if self._groups is None:
            figures: list[int | None] = list(map(int, found.groups()))
        else:
            figures = [int(found[group]) if group else None for group in self._groups]
        oldest_ms = figures[_OLDEST]
        if oldest_ms is not None and figures[_ITEMS]:  # 0 is also reported for a head that was put just now
            figures[_OLDEST] = now_ms - oldest_ms
        figures += self._missing
        if next_due_ms := figures[_NEXT_DUE]:
            figures[_NEXT_DUE] = now_ms + next_due_ms
        return tuple(figures)


def parse_dump(answer: bytes, now_ms: int) -> dict[str, Figures]:
    """Figures of every queue in a reply to DUMP_STATS that arrived at `now_ms`."""
    queues: dict[str, Figures] = {}
    layouts: list[_Layout] = []
    for block in answer.decode("utf-8", "surrogateescape").split("queue '")[1:]:
        name, _, body = block.partition("' {")
        for layout in layouts:
            figures = layout.read(body, now_ms)
            if figures is not None:
                break
        else:
            layout = _Layout(body)
            layouts.insert(0, layout)
            figures = layout.read(body, now_ms)
        queues[name] = figures or NOTHING
    return queues


def bad_queues(queues: dict[str, Figures], most: int) -> list[str]:
    """At most `most` stopped queues and `most` with failing journals, those with the most items first."""
    found = []
    for kind in _BAD:
        bad = [(-(figures[_ITEMS] or 0), name) for name, figures in queues.items() if figures[kind]]
        found += [name for _, name in heapq.nsmallest(most, bad)]
    return found
