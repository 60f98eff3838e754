"""The report as a self-contained HTML page without scripts; plots are SVG."""

import html
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kestrelspark.jobs.report import Report, day_and_time, percentile_names, rows

QUEUES_MAX: Final = 40
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 180, 64, 22, 8
COLORS: Final = ("#2a6fb0", "#c2571a", "#3c8a4e", "#8a4ea0")
Points = list[tuple[int, float | None]]
Row = dict[str, Any]

STYLE: Final = """
:root { color-scheme: light dark; --ink: #222; --faint: #8886; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #191b1e; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--faint); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .note { max-width: 60em; opacity: .8; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; } figcaption { font-size: .85rem; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--faint); } .line { fill: none; stroke-width: 1.6; } .key { font-weight: 600; }
"""


def page(report: Report) -> str:
    """The whole page. Queues with the most puts come first; only QUEUES_MAX of them get plots."""
    queues = sorted(rows(report.queues), key=lambda row: (-row["puts"] - row["got"], name_of(row)))
    shown = {name_of(row) for row in queues[:QUEUES_MAX]}
    points: dict[str, list[Row]] = {}
    for row in sorted(rows(_of_these(report.buckets, queues[:QUEUES_MAX])), key=lambda row: row["bucket_ms"]):
        if name_of(row) in shown:
            points.setdefault(name_of(row), []).append(row)
    parts = [_head(report), _table(queues, report)]
    if len(queues) > QUEUES_MAX:
        parts.append(f"<p>Plots of the {QUEUES_MAX} busiest queues; the Parquet tables have all {len(queues)}.</p>")
    parts += [_section(row, points.get(name_of(row), []), report) for row in queues[:QUEUES_MAX]]
    return "\n".join([*parts, "</body></html>\n"])


def _of_these(buckets: Any, queues: Sequence[Row]) -> Any:
    return buckets.where(buckets["queue"].isin(sorted({row["queue"] for row in queues})))


def name_of(row: Row) -> str:
    name = f"{row['queue']}+{row['reader']}" if row["reader"] else str(row["queue"])
    return f"{row['server']}: {name}" if row["server"] else name


def _head(report: Report) -> str:
    notes = "\n".join(f'<p class="note">{html.escape(note)}</p>' for note in report.notes)
    period = f"{day_and_time(report.first_ms)} to {day_and_time(report.last_ms)} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues: load</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<h1>Load of the queues</h1>\n<p>{period}. Points of the plots are"
        f" {span(report.bucket_s * 1000)} apart.</p>\n{notes}"
    )


def _table(queues: Sequence[Row], report: Report) -> str:
    seconds = max((report.last_ms - report.first_ms) / 1000, 1)
    head = ["queue", "puts", "puts/s", "MB", "gets", "gets/s", "wait p50", "p90", "p99", "p99.9", "longest",
            "expired", "discarded", "moved", "flushed", "retried", "backlog", "at most", "busiest minute"]  # fmt: skip
    lines = []
    for row in queues:
        cells = [
            html.escape(name_of(row)),
            f"{row['puts']:,}",
            f"{row['puts'] / seconds:,.1f}",
            f"{(row['put_bytes'] or 0) / 1e6:,.1f}",
            f"{row['got']:,}",
            f"{row['got'] / seconds:,.1f}",
            *(_wait_cell(row, name) for name in percentile_names() if name != "p95"),
            span(row["wait_max_ms"]),
            *(f"{row[name]:,}" for name in ("expired", "discarded", "moved", "flushed", "retried")),
            f"{row['backlog_items']:,}",
            f"{row['backlog_max_items'] or 0:,}",
            f"{day_and_time(row['busiest_minute_ms'])[:16]} ({row['busiest_minute_puts']:,} puts)"
            if row["busiest_minute_puts"]
            else "",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table>"


def _wait_cell(row: Row, name: str) -> str:
    """A percentile, or an interval if it is not known exactly."""
    shortest, longest = row[f"wait_{name}_ms"], row[f"longest_wait_{name}_ms"]
    return span(shortest) if shortest == longest else f"{span(shortest)} – {span(longest)}"


def span(span_ms: float | None) -> str:
    if span_ms is None:
        return ""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.3g} {unit}"
    return f"{span_ms:.0f} ms"


def _section(queue: Row, points: Sequence[Row], report: Report) -> str:
    filled = list(_filled(points, report))
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
        label: [(at_ms, row[f"longest_wait_{name}_ms"] if row else None) for at_ms, row, _ in filled]
        for label, name in (("p50", "p50"), ("p99", "p99"))
    }
    plots = [
        _plot("Puts and gets", rates),
        _plot("Backlog, items", {"items": [(at_ms, backlog) for at_ms, _, backlog in filled]}),
        _plot("Wait, ms", waits),
    ]
    if gone:
        plots.append(_plot("Expired, discarded, retried per second", gone))
    return f'<h2>{html.escape(name_of(queue))}</h2>\n<div class="plots">\n' + "\n".join(plots) + "\n</div>"


def _filled(points: Sequence[Row], report: Report) -> Iterator[tuple[int, Row | None, float]]:
    """Every bucket with its row, None if it has no events, and the backlog at its end."""
    step_ms = report.bucket_s * 1000
    by_time = {row["bucket_ms"]: row for row in points}
    first = points[0] if points else None
    backlog = float(first["backlog_items"] - first["change"]) if first else 0.0
    for at_ms in range(report.first_ms - report.first_ms % step_ms, report.last_ms + 1, step_ms):
        row = by_time.get(at_ms)
        backlog = float(row["backlog_items"]) if row else backlog
        yield at_ms, row, max(backlog, 0.0)


def _plot(title: str, lines: dict[str, Points]) -> str:
    values = [value for points in lines.values() for _, value in points if value is not None]
    instants = [at_ms for points in lines.values() for at_ms, _ in points]
    top = _round_up(max(values, default=0.0))
    first, last = min(instants, default=0), max(instants, default=0)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{html.escape(title)}">']
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 4}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(top * share)}</text>')
    for at_ms, anchor in ((first, "start"), (last, "end")):
        x = LEFT if anchor == "start" else WIDTH - 4
        parts.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{day_and_time(at_ms)}</text>')
    for (_, points), color in zip(lines.items(), COLORS, strict=False):
        parts += [
            f'<polyline class="line" stroke="{color}" points="{run}"/>' for run in _runs(points, first, last, top)
        ]
    keys = " · ".join(
        f'<span class="key" style="color:{color}">{html.escape(name)}</span>'
        for name, color in zip(lines, COLORS, strict=False)
    )
    return f"<figure><figcaption>{html.escape(title)}: {keys}</figcaption>{''.join(parts)}</svg></figure>"


def _runs(points: Points, first: int, last: int, top: float) -> Iterator[str]:
    """Unbroken segments of a line; a single point becomes a short one."""
    run: list[str] = []
    for at_ms, value in [*points, (0, None)]:
        if value is not None:
            x = LEFT + (WIDTH - 4 - LEFT) * (at_ms - first) / max(last - first, 1)
            run.append(f"{x:.1f},{_y(value, top):.1f}")
        elif run:
            if len(run) == 1:
                left, _, height = run[0].partition(",")
                run.append(f"{float(left) + 2:.1f},{height}")
            yield " ".join(run)
            run = []


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - value / top)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _round_up(value: float) -> float:
    """To one or two digits, for an axis."""
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value > 0:
        step /= 10
    return next((step * share for share in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * share >= value), step) or 1.0
