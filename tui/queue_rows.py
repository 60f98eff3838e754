"""Rows and totals of queues, computed from samples of servers. Pure: no server, no screen, no clock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Final, get_type_hints

from tui.formats import Number, count, printable, rate, size, span
from tui.snapshots import KEYS, Figures, Snapshot
from tui.states import FAILED, FULL, OK, RANK, STOPPED, STUCK


@dataclass(frozen=True, slots=True)
class Column:
    """Format of a figure: `width` fits the longest value and a blank before it; `heading` "" = the figure's name."""

    width: int
    form: Callable[[Number], str] = count
    heading: str = ""


@dataclass(slots=True)
class QueueRow:
    """A queue or fanout child. The fields are the columns of the console, of JSON and CSV, and of filters."""

    queue: str
    items: Annotated[int | None, Column(8)]
    in_per_s: Annotated[float | None, Column(8, rate, "in/s")]  # None until two samples of the same run of the server
    # Taken, flushed or moved: whatever left without expiring or being discarded.
    out_per_s: Annotated[float | None, Column(8, rate, "out/s")]
    oldest_ms: Annotated[int | None, Column(7, span, "oldest")]  # wait of the head so far
    waiters: Annotated[int | None, Column(8)]
    open_reads: Annotated[int | None, Column(6, heading="open")]
    bytes: Annotated[int | None, Column(7, size)]
    logsize: Annotated[int | None, Column(8, size)]
    mem_items: Annotated[int | None, Column(10)]
    mem_bytes: Annotated[int | None, Column(10, size)]
    expired: Annotated[int | None, Column(8)]
    discarded: Annotated[int | None, Column(10)]
    age_ms: Annotated[int | None, Column(7, span, "age")]  # wait of the item taken last
    delayed: Annotated[int | None, Column(8)]
    retrying: Annotated[int | None, Column(9)]  # failed items that wait for their retry_delays
    leased: Annotated[int | None, Column(7)]
    next_due_ms: Annotated[int | None, Column(9, span, "next due")]  # until the next of these is due; None = none
    is_stopped: bool = False  # its journal is corrupt or cannot be written
    state: str = OK  # one of `states`
    quiet_ms: int = 0  # time since an item left it, as far as known; not shown

    @property
    def key(self) -> str:
        return self.queue


FIGURES: Final[dict[str, Column]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(QueueRow, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
COLUMNS: Final = ("queue", *FIGURES, "state")
HEADINGS: Final = {column: column for column in COLUMNS} | {
    name: figure.heading for name, figure in FIGURES.items() if figure.heading
}
STUCK_MS: Final = 10_000
# A consumer that holds an item open may work on it for a while.
STUCK_WITH_OPEN_READS_MS: Final = 60_000
_ITEMS, _TOTAL, _EXPIRED, _DISCARDED, _OLDEST, _NEXT_DUE = (
    KEYS.index(key) for key in ("items", "total_items", "expired_items", "discarded", "oldest_at_ms", "next_due_at_ms")
)
_DELAYED, _RETRYING = KEYS.index("delayed"), KEYS.index("retrying")
# Figures that are not summed over servers: one value counts.
_ONE_COUNTS: Final[dict[str, Callable[..., int | None]]] = {"oldest_ms": max, "age_ms": max, "next_due_ms": min}
_SUMMED: Final = tuple(column for column in FIGURES if column not in _ONE_COUNTS)


def rows_of(previous: Snapshot | None, current: Snapshot, rows_before: Sequence[QueueRow] = ()) -> list[QueueRow]:
    """A row for each queue of one server. `previous` None = no rates yet.

    `rows_before` are the rows of `previous`: the row of an idle queue is reused.
    """
    elapsed_s = (current.clock_ms - previous.clock_ms) / 1000 if previous is not None else 0.0
    before = previous.queues if previous is not None else {}
    if elapsed_s <= 0 or (previous is not None and _has_restarted(previous, current)):
        before = {}
    known = {row.queue: row for row in rows_before} if before else {}
    now_ms, elapsed_ms = current.at_ms - current.ahead_ms, round(elapsed_s * 1000)
    rows = []
    for name, figures in current.queues.items():
        row = known.get(name)
        if row is not None and row.in_per_s == row.out_per_s == 0.0 and before.get(name) == figures:
            if due_at_ms := figures[_NEXT_DUE]:
                row.next_due_ms = max(due_at_ms - now_ms, 0)
            if row.items:
                row.quiet_ms += elapsed_ms
                if oldest_at_ms := figures[_OLDEST]:
                    row.oldest_ms = max(now_ms - oldest_at_ms, 0)
                if row.state == OK and _is_stuck(row):
                    row.state = STUCK
            rows.append(row)
            continue
        # Unrolled, not a loop over columns: there may be thousands of queues each second.
        items, data_bytes, _, logsize, expired, mem_items, mem_bytes, age, discarded, waiters, opened, put, *flags = (
            figures
        )
        full, failed, stopped, delayed, retrying, leased, due_at_ms = flags
        in_per_s, out_per_s = _rates(before[name], figures, elapsed_s) if name in before else (None, None)
        oldest_ms = max(now_ms - put, 0) if put else put
        if out_per_s is None:  # bounded by the wait of the head
            quiet_ms = oldest_ms or 0
        elif out_per_s or not items:
            quiet_ms = 0
        else:
            quiet_ms = (row.quiet_ms if row is not None else 0) + elapsed_ms
        row = QueueRow(
            name,
            items,
            in_per_s,
            out_per_s,
            oldest_ms,
            waiters,
            opened,
            data_bytes,
            logsize,
            mem_items,
            mem_bytes,
            expired,
            discarded,
            age,
            delayed,
            retrying,
            leased,
            max(due_at_ms - now_ms, 0) if due_at_ms else None,
            bool(failed or stopped),
            STOPPED if stopped else FAILED if failed else FULL if full else OK,
            quiet_ms,
        )
        if row.state == OK and quiet_ms and _is_stuck(row):
            row.state = STUCK
        rows.append(row)
    return rows


def _is_stuck(row: QueueRow) -> bool:
    """True if items have waited long enough without any being fetched."""
    if not row.items or row.out_per_s != 0.0:
        return False
    patience_ms = STUCK_WITH_OPEN_READS_MS if row.open_reads else STUCK_MS
    return row.quiet_ms >= patience_ms and (row.oldest_ms is None or row.oldest_ms >= patience_ms)


def _has_restarted(previous: Snapshot, current: Snapshot) -> bool:
    before, now = previous.counters.get("uptime"), current.counters.get("uptime")
    return isinstance(before, int) and isinstance(now, int) and now < before


def _rates(before: Figures, now: Figures, elapsed_s: float) -> tuple[float | None, float | None]:
    """Items in and out, per second."""
    total_now, total_before = now[_TOTAL], before[_TOTAL]
    if total_now is None or total_before is None:
        return None, None
    if before == now:
        return 0.0, 0.0
    came = total_now - total_before
    try:  # almost always all are known; this is a large part of the cost of a tick
        gone = now[_EXPIRED] - before[_EXPIRED] + now[_DISCARDED] - before[_DISCARDED]  # type: ignore[operator]
        left = came - now[_ITEMS] + before[_ITEMS] - gone  # type: ignore[operator]
        # Held items were put, but do not wait.
        left += before[_DELAYED] - now[_DELAYED] + before[_RETRYING] - now[_RETRYING]  # type: ignore[operator]
    except TypeError:
        left = came - sum(_more(before, now, index) for index in (_ITEMS, _DELAYED, _RETRYING, _EXPIRED, _DISCARDED))
    if came < 0:
        return None, None
    return came / elapsed_s, left / elapsed_s if left > 0 else 0.0


def _more(before: Figures, now: Figures, index: int) -> int:
    return (now[index] or 0) - (before[index] or 0)


def summed(rows_by_server: Sequence[Sequence[QueueRow]]) -> list[QueueRow]:
    """The rows of several servers, with queues of the same name summed."""
    if len(rows_by_server) == 1:
        return list(rows_by_server[0])
    rows: dict[str, list[QueueRow]] = {}
    for server_rows in rows_by_server:
        for row in server_rows:
            rows.setdefault(row.queue, []).append(row)
    return [same[0] if len(same) == 1 else total(same, name) for name, same in rows.items()]


def total(rows: Sequence[QueueRow], name: str = "") -> QueueRow:
    """All rows in one. A figure unknown in every row stays unknown."""
    sums = {column: _sum(rows, column) for column in _SUMMED}
    for column, which in _ONE_COUNTS.items():
        sums[column] = which([value for row in rows if (value := getattr(row, column)) is not None], default=None)
    is_stopped = any(row.is_stopped for row in rows)
    state = max([row.state for row in rows], key=RANK.__getitem__, default=OK)
    return QueueRow(queue=name, is_stopped=is_stopped, state=state, **sums)  # type: ignore[arg-type]


def _sum(rows: Sequence[QueueRow], column: str) -> Number:
    value_of = attrgetter(column)
    try:
        return sum(map(value_of, rows)) if rows else None
    except TypeError:  # rare: some are unknown
        known = [value for row in rows if (value := value_of(row)) is not None]
        return sum(known) if known else None


def as_record(row: QueueRow) -> dict[str, Number | str]:
    """A row for JSON and CSV."""
    record = asdict(row)
    del record["quiet_ms"]
    return record


def cell(row: QueueRow, column: str) -> str:
    """A figure as text."""
    if column == "queue":
        return printable(row.queue)
    return row.state if column == "state" else FIGURES[column].form(getattr(row, column))


def labelled(row: QueueRow, columns: Iterable[str]) -> list[str]:
    """Figures with their headings, unknown ones left out."""
    return [f"{HEADINGS[column]} {text}" for column in columns if (text := cell(row, column))]
