"""The report as a self-contained HTML page without scripts; plots are SVG."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from kestrelspark.jobs.plots import day_and_time, head, plot, span, table_of, whole_buckets
from kestrelspark.jobs.report import Report, percentile_names, rows

QUEUES_MAX: Final = 40
AT_MOST: Final = "≤ "  # before what is only an upper bound
ALWAYS_SHOWN: Final = 13  # columns
Row = dict[str, Any]


def page(report: Report) -> str:
    """The whole page. Queues where items wait longest come first; only QUEUES_MAX of them get plots."""
    queues = by_wait(rows(report.queues))
    shown = {name_of(row) for row in queues[:QUEUES_MAX]}
    points: dict[str, list[Row]] = {}
    for row in sorted(rows(_of_these(report.buckets, queues[:QUEUES_MAX])), key=lambda row: row["bucket_ms"]):
        if name_of(row) in shown:
            points.setdefault(name_of(row), []).append(row)
    parts = [_head(report), _totals(queues, report), _table(queues, report)]
    if len(queues) > QUEUES_MAX:
        words = f"Plots of the {QUEUES_MAX} queues where items wait longest"
        parts.append(f"<p>{words}; the Parquet tables have all {len(queues)}.</p>")
    parts += [
        f'<section id="q{at}">{_section(row, points.get(name_of(row), []), report)}</section>'
        for at, row in enumerate(queues[:QUEUES_MAX])
    ]
    return "\n".join([*parts, "</body></html>\n"])


def by_wait(queues: Iterable[Row]) -> list[Row]:
    """First those where items wait and none leaves, then by the 99th percentile of the waits, then by traffic."""

    def order(row: Row) -> tuple[bool, float, float, str]:
        is_stuck = row["backlog_items"] > 0 and not row["got"]
        return not is_stuck, -(row["longest_wait_p99_ms"] or 0), -row["puts"] - row["got"], name_of(row)

    return sorted(queues, key=order)


def _totals(queues: Sequence[Row], report: Report) -> str:
    """Items put on a queue with children are counted once; each child gets them."""
    seconds = max((report.last_ms - report.first_ms) / 1000, 1)
    put_items = sum(row["puts"] for row in queues if not row["reader"])
    got_items, backlog_items = (sum(row[name] for row in queues) for name in ("got", "backlog_items"))
    puts = f"{put_items:,} puts ({put_items / seconds:,.1f}/s)"
    gets = f"{got_items:,} gets ({got_items / seconds:,.1f}/s)"
    return f"<p>In all {puts}, {gets} and {backlog_items:,} items that wait at the end; rows: {len(queues):,}.</p>"


def _of_these(buckets: Any, queues: Sequence[Row]) -> Any:
    return buckets.where(buckets["queue"].isin(sorted({row["queue"] for row in queues})))


def name_of(row: Row) -> str:
    name = f"{row['queue']}+{row['reader']}" if row["reader"] else str(row["queue"])
    return f"{row['server']}: {name}" if row["server"] else name


def _head(report: Report) -> str:
    period = f"{day_and_time(report.first_ms)} to {day_and_time(report.last_ms)} UTC"
    words = f"{period}. Points of the plots are {span(report.bucket_s * 1000)} apart, each for a whole interval."
    return head("Queues: load", "Load of the queues", words, report.notes)


def _table(queues: Sequence[Row], report: Report) -> str:
    seconds = max((report.last_ms - report.first_ms) / 1000, 1)
    heads = ["queue", "puts", "puts/s", "MB", "gets", "gets/s", "backlog", "at most", "wait p50", "p90", "p99", "p99.9",
            "longest", "expired", "discarded", "moved", "flushed", "retried", "busiest minute"]  # fmt: skip
    lines = []
    for at, row in enumerate(queues):
        name = html.escape(name_of(row))
        cells = [
            f'<a href="#q{at}">{name}</a>' if at < QUEUES_MAX else name,
            f"{row['puts']:,}",
            f"{row['puts'] / seconds:,.1f}",
            f"{(row['put_bytes'] or 0) / 1e6:,.1f}",
            f"{row['got']:,}",
            f"{row['got'] / seconds:,.1f}",
            f"{row['backlog_items']:,}",
            f"{row['backlog_max_items'] or 0:,}",
            *(_wait_cell(row, name) for name in percentile_names() if name != "p95"),
            f"{AT_MOST if _is_interval(row) else ''}{span(row['wait_max_ms'])}",
            *(f"{row[name]:,}" for name in ("expired", "discarded", "moved", "flushed", "retried")),
            f"{day_and_time(row['busiest_minute_ms'])[:16]} ({row['busiest_minute_puts']:,} puts)"
            if row["busiest_minute_puts"]
            else "",
        ]
        lines.append(cells)
    # What happened in no queue takes no room.
    shown = [at for at in range(len(heads)) if at < ALWAYS_SHOWN or any(cells[at] not in ("", "0") for cells in lines)]
    return table_of([heads[at] for at in shown], [[cells[at] for at in shown] for cells in lines])


def _is_interval(row: Row) -> bool:
    """Whether waits are known only to lie between two times, as of Kestrel's own files."""
    return any(row[f"wait_{name}_ms"] != row[f"longest_wait_{name}_ms"] for name in percentile_names())


def _wait_cell(row: Row, name: str) -> str:
    """A percentile, or an interval if it is not known exactly."""
    shortest, longest = row[f"wait_{name}_ms"], row[f"longest_wait_{name}_ms"]
    return span(shortest) if shortest == longest else f"{span(shortest)} – {span(longest)}"


def _section(queue: Row, points: Sequence[Row], report: Report) -> str:
    filled = list(_filled(points, report, queue["backlog_items"]))
    per_s = 1 / report.bucket_s
    rates = {
        "puts/s": [(at_ms, row["puts"] * per_s if row else 0) for at_ms, row, _ in filled],
        "gets/s": [(at_ms, row["got"] * per_s if row else 0) for at_ms, row, _ in filled],
    }
    gone = {
        name: [(at_ms, row[name] * per_s if row else 0) for at_ms, row, _ in filled]
        for name in ("expired", "discarded", "retried")
        if queue[name]
    }
    waits = {
        f"{AT_MOST if _is_interval(queue) else ''}{name}": [
            (at_ms, row[f"longest_wait_{name}_ms"] if row else None) for at_ms, row, _ in filled
        ]
        for name in ("p50", "p90", "p99")
    }
    plots = [
        plot("Puts and gets", rates),
        plot("Backlog, items", {"items": [(at_ms, backlog) for at_ms, _, backlog in filled]}),
        plot("Wait", waits, are_waits=True),
    ]
    if gone:
        plots.append(plot("Expired, discarded, retried per second", gone))
    return f'<h2>{html.escape(name_of(queue))}</h2>\n<div class="plots">\n' + "\n".join(plots) + "\n</div>"


def _filled(points: Sequence[Row], report: Report, last_backlog: int) -> Iterator[tuple[int, Row | None, float]]:
    """Every whole bucket with its row, None if it has no events, and the backlog at its end.

    `last_backlog` is the one at the end of the report.
    """
    by_time = {row["bucket_ms"]: row for row in points}
    first = points[0] if points else None
    backlog = float(first["backlog_items"] - first["change"] if first else last_backlog)
    shown = whole_buckets(report.first_ms, report.last_ms, report.bucket_s)
    for before in sorted(at_ms for at_ms in by_time if shown and at_ms < shown[0]):
        backlog = float(by_time[before]["backlog_items"])
    for at_ms in shown:
        row = by_time.get(at_ms)
        backlog = float(row["backlog_items"]) if row else backlog
        yield at_ms, row, max(backlog, 0.0)
