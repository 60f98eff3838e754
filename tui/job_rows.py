"""Queues of jobs as rows with rates. Pure: no server, no screen, no clock."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Final, get_type_hints

from tui.formats import Number, printable, rate, span
from tui.queue_rows import Column
from tui.snapshots import JOB_KEYS, JobFigures, Snapshot

NOT_PAUSED: Final = "none"


@dataclass(slots=True)
class JobRow:
    """A queue of jobs. The fields are the columns, in JSON too. None = unknown so far."""

    queue: str
    queued: Annotated[int | None, Column(9)]
    active: Annotated[int | None, Column(9)]
    delayed: Annotated[int | None, Column(9)]
    in_per_s: Annotated[float | None, Column(8, rate, "in/s")]  # jobs queued, for the first time or again
    out_per_s: Annotated[float | None, Column(8, rate, "out/s")]  # jobs delivered
    clients: Annotated[int | None, Column(9)]  # clients waiting for its jobs
    oldest_ms: Annotated[int | None, Column(8, span, "oldest")]  # age of the oldest queued job
    import_per_s: Annotated[float | None, Column(10, rate, "import/s")]  # from other nodes
    pause: str = NOT_PAUSED  # none, in, out or all

    @property
    def key(self) -> str:
        return self.queue


JOB_FIGURES: Final[dict[str, Column]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(JobRow, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
JOB_COLUMNS: Final = ("queue", "pause", *JOB_FIGURES)
JOB_HEADINGS: Final = {column: column for column in JOB_COLUMNS} | {
    name: figure.heading for name, figure in JOB_FIGURES.items() if figure.heading
}
_AT: Final = {key: place for place, key in enumerate(JOB_KEYS)}


def job_rows_of(previous: Snapshot | None, current: Snapshot) -> list[JobRow]:
    """A row for each queue of jobs of one server. `previous` None = no rates yet."""
    elapsed_s = (current.clock_ms - previous.clock_ms) / 1000 if previous is not None else 0.0
    before = previous.jobs if previous is not None and elapsed_s > 0 else {}
    now_ms = current.at_ms - current.ahead_ms
    return [_row(name, before.get(name), figures, elapsed_s, now_ms) for name, figures in current.jobs.items()]


def _row(name: str, before: JobFigures | None, now: JobFigures, elapsed_s: float, now_ms: int) -> JobRow:
    def number(key: str) -> int | None:
        value = now[_AT[key]]
        return value if isinstance(value, int) else None

    def per_s(key: str) -> float | None:
        value, was = number(key), before[_AT[key]] if before is not None else None
        if value is None or not isinstance(was, int) or value < was:
            return None
        return (value - was) / elapsed_s

    oldest_at_ms = number("oldest_at_ms")
    return JobRow(
        name,
        number("queued"),
        number("active"),
        number("delayed"),
        per_s("jobs_in"),
        per_s("jobs_out"),
        number("blocked_clients"),
        max(now_ms - oldest_at_ms, 0) if oldest_at_ms else None,
        number("import_rate"),
        str(now[_AT["pause"]]),
    )


def summed_jobs(rows_by_server: Sequence[Sequence[JobRow]]) -> list[JobRow]:
    """The rows of several servers, with queues of the same name summed."""
    rows: dict[str, list[JobRow]] = {}
    for server_rows in rows_by_server:
        for row in server_rows:
            rows.setdefault(row.queue, []).append(row)
    return [same[0] if len(same) == 1 else total_jobs(same, name) for name, same in rows.items()]


def total_jobs(rows: Sequence[JobRow], name: str = "") -> JobRow:
    """All rows in one: the largest `oldest_ms`, sums of the other figures, and `pause` if it is the same in all, else
    "some".
    """
    sums: dict[str, Number] = {}
    for column in JOB_FIGURES:
        known = [value for row in rows if (value := getattr(row, column)) is not None]
        sums[column] = None if not known else max(known) if column == "oldest_ms" else sum(known)
    pauses = {row.pause for row in rows} or {NOT_PAUSED}
    return JobRow(queue=name, pause=pauses.pop() if len(pauses) == 1 else "some", **sums)  # type: ignore[arg-type]


def job_cell(row: JobRow, column: str) -> str:
    """A figure as text."""
    if column == "queue":
        return printable(row.queue)
    if column == "pause":
        return row.pause if row.pause != NOT_PAUSED else ""
    return JOB_FIGURES[column].form(getattr(row, column))


def job_figures(row: JobRow) -> list[str]:
    """The figures with their headings, unknown ones left out."""
    return [f"{JOB_HEADINGS[column]} {text}" for column in JOB_COLUMNS[1:] if (text := job_cell(row, column))]


def jobs_in_order(rows: Sequence[JobRow], column: str, *, descending: bool) -> list[JobRow]:
    """Rows sorted by a column, then by name. Unknown values come last in both directions."""
    by_name = sorted(rows, key=attrgetter("queue"), reverse=descending and column == "queue")
    if column == "queue":
        return by_name
    value = attrgetter(column)
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    return sorted(known, key=value, reverse=descending) + unknown


def as_job_record(row: JobRow) -> dict[str, Number | str]:
    """A row for JSON."""
    return asdict(row)
