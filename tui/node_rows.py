"""Nodes of a cluster of jobs as rows, from the servers' reports on themselves and each other. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, get_type_hints

from tui.formats import Number, printable, rate, size, span
from tui.queue_rows import Column
from tui.snapshots import NODE_KEYS, NodeFigures, Snapshot

# From best to worst; the state of a node is the worst that any server reports.
UP, LEAVING, NOT_READY, STRANGER, NO_LINK, SUSPECTED, DOWN = STATES = (
    "up", "leaving", "not ready", "stranger", "no link", "suspected", "down",
)  # fmt: skip
TROUBLE: Final = frozenset({STRANGER, NO_LINK, SUSPECTED, DOWN})


def _lag(value: Number) -> str:
    return f"{value:.1f}ms" if value is not None and value < 100 else span(value)


@dataclass(slots=True)
class NodeRow:
    """A node. The fields are the columns, in JSON too. None = no server reports it."""

    id: str
    address: str
    state: str
    lag_ms: Annotated[float | None, Column(9, _lag, "lag")]  # longest round trip of a ping to it
    queued_bytes: Annotated[int | None, Column(8, size, "queued")]  # bytes waiting on other nodes to be sent to it
    jobs: Annotated[int | None, Column(10)]  # jobs it holds, copies included
    given_per_s: Annotated[float | None, Column(9, rate, "given/s")]  # jobs sent to nodes where clients wait
    taken_per_s: Annotated[float | None, Column(9, rate, "taken/s")]  # jobs received because clients wait here
    links: Annotated[int | None, Column(7)]  # links established to it; more than one from each node are reconnects
    problem: str = ""  # reason of a missing link, or the node that does not know it

    @property
    def key(self) -> str:
        return self.id


NODE_FIGURES: Final[dict[str, Column]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(NodeRow, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
NODE_COLUMNS: Final = ("address", "id", "state", *NODE_FIGURES)
NODE_HEADINGS: Final = {column: column for column in NODE_COLUMNS} | {
    name: figure.heading for name, figure in NODE_FIGURES.items() if figure.heading
}
ID_SHOWN: Final = 8
_AT: Final = {key: place for place, key in enumerate(NODE_KEYS)}


class _Seen:
    """One server's report on a node, now and one sample before."""

    def __init__(self, by: str, before: NodeFigures | None, now: NodeFigures, elapsed_s: float) -> None:
        self.by = by  # address of the reporting server
        self._before = before
        self._now = now
        self._elapsed_s = elapsed_s

    def __getitem__(self, key: str) -> Any:
        return self._now[_AT[key]]

    @property
    def is_own(self) -> bool:
        return "myself" in str(self["flags"])

    @property
    def state(self) -> str:
        flags = str(self["flags"]).split(",")
        found = [
            (DOWN, "fail" in flags),
            (SUSPECTED, "fail?" in flags),
            (NO_LINK, self["link"] == 0),
            (STRANGER, self["knows_us"] == 0),
            (LEAVING, "leaving" in flags),
            (NOT_READY, self["up"] == 0),
        ]
        return next((state for state, is_so in found if is_so), UP)

    @property
    def problem(self) -> str:
        return f"{self.by} is not known to it" if self.state == STRANGER else str(self["problem"] or "")

    def per_s(self, key: str) -> float | None:
        """Rate of a counter."""
        now, before = self[key], self._before[_AT[key]] if self._before is not None else None
        if not isinstance(now, int) or not isinstance(before, int) or now < before or self._elapsed_s <= 0:
            return None
        return (now - before) / self._elapsed_s


def node_rows_of(samples: Sequence[tuple[Snapshot | None, Snapshot]]) -> list[NodeRow]:
    """A row for each node that a server knows.

    `samples`: the previous sample of each server, None = no rates yet, and the last one.
    """
    seen: dict[str, list[_Seen]] = {}
    rates_of: dict[str, dict[str, float | None]] = {}  # of nodes that are among the servers
    for previous, current in samples:
        elapsed_s = (current.clock_ms - previous.clock_ms) / 1000 if previous is not None else 0.0
        before = previous.nodes if previous is not None else {}
        own = next(
            (node_id for node_id, figures in current.nodes.items() if "myself" in str(figures[_AT["flags"]])), ""
        )
        by = str(current.nodes[own][_AT["address"]] or current.server) if own else current.server
        said = {
            node_id: _Seen(by, before.get(node_id), figures, elapsed_s) for node_id, figures in current.nodes.items()
        }
        for node_id, one in said.items():
            seen.setdefault(node_id, []).append(one)
        others = [one for one in said.values() if not one.is_own]
        rates_of[own] = {key: _sum([one.per_s(key) for one in others]) for key in ("jobs_given", "jobs_taken")}
    return [_row(node_id, found, rates_of.get(node_id)) for node_id, found in seen.items()]


def _row(node_id: str, found: Sequence[_Seen], own_rates: dict[str, float | None] | None) -> NodeRow:
    others = [one for one in found if not one.is_own]
    lags = [one["lag_us"] for one in others if one["lag_us"] is not None]
    # Without its own report: jobs that others took from it are jobs it gave, and vice versa.
    rates = own_rates or {
        "jobs_given": _sum([one.per_s("jobs_taken") for one in others]),
        "jobs_taken": _sum([one.per_s("jobs_given") for one in others]),
    }
    return NodeRow(
        node_id,
        next((address for one in found if (address := str(one["address"] or ""))), ""),
        max((one.state for one in found), key=STATES.index),
        max(lags) / 1000 if lags else None,
        _whole_sum([one["queued_bytes"] for one in others]),
        next((one["jobs"] for one in found if one["jobs"] is not None), None),
        rates["jobs_given"],
        rates["jobs_taken"],
        _whole_sum([one["links"] for one in others]),
        next((problem for one in found if (problem := one.problem)), ""),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def node_cell(row: NodeRow, column: str) -> str:
    """A figure as text."""
    if column == "address":
        return printable(row.address) or "unknown address"
    if column == "id":
        return row.id[:ID_SHOWN]
    return row.state if column == "state" else NODE_FIGURES[column].form(getattr(row, column))


def nodes_in_order(rows: Sequence[NodeRow], column: str, *, descending: bool) -> list[NodeRow]:
    """Rows sorted by a column, then by address. Unknown values come last in both directions."""
    by_name = sorted(rows, key=attrgetter("address", "id"), reverse=descending and column == "address")
    if column == "address":
        return by_name
    value = (lambda row: STATES.index(row.state)) if column == "state" else attrgetter(column)
    known = [row for row in by_name if getattr(row, column) is not None]
    unknown = [row for row in by_name if getattr(row, column) is None]
    return sorted(known, key=value, reverse=descending) + unknown


def as_node_record(row: NodeRow) -> dict[str, Number | str]:
    """A row for JSON."""
    return asdict(row)
