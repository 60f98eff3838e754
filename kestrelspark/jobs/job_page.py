"""The report of jobs as a self-contained HTML page without scripts."""

import html
from collections.abc import Sequence
from typing import Any, Final

from kestrelspark.jobs.job_report import JobReport
from kestrelspark.jobs.page import QUEUES_MAX
from kestrelspark.jobs.plots import day_and_time, head, plot, span, table_of, whole_buckets
from kestrelspark.jobs.report import percentile_names, rows

Row = dict[str, Any]
NOTES: Final = [
    "Waits begin when a job was added. The log does not say when it was fetched: its first delivery is between"
    " “queued” (the first time) and “delivered by” (its acknowledgement or first NACK).",
    "The log is no archive: jobs that are done go with their segments. Retries are the highest count in any log:"
    " NACKs and deliveries after the first.",
]
HEADS: Final = [
    "queue", "jobs", "open", "acked", "deleted", "expired", "flushed", "dead letters", "left to others",
    "retried jobs", "retries", "NACKs", "queued p50", "p99", "delivered by p50", "p99", "acked p50", "p90", "p99",
    "p99.9", "longest",
]  # fmt: skip
COUNTS: Final = (
    "jobs", "open", "acked", "deleted", "expired", "flushed", "dead_letters", "let_go", "retried_jobs", "retries",
    "nacks",
)  # fmt: skip
SPANS: Final = (
    "queued_p50_ms", "queued_p99_ms", "delivered_by_p50_ms", "delivered_by_p99_ms",
    *(f"acked_{name}_ms" for name in percentile_names() if name != "p95"),
    "acked_max_ms",
)  # fmt: skip


def job_page(report: JobReport) -> str:
    """The whole page. Queues with the most jobs come first; only QUEUES_MAX of them get plots."""
    queues = sorted(rows(report.queues), key=lambda row: (-row["jobs"], row["queue"]))
    shown = [row["queue"] for row in queues[:QUEUES_MAX]]
    points: dict[str, list[Row]] = {name: [] for name in shown}
    for row in rows(report.buckets.where(report.buckets["queue"].isin(shown)).orderBy("bucket_ms")):
        points[row["queue"]].append(row)
    period = f"{day_and_time(report.first_ms)} to {day_and_time(report.last_ms)} UTC"
    words = f"{period}. Points of the plots are {span(report.bucket_s * 1000)} apart, each for a whole interval."
    parts = [head("Jobs", "Jobs", words, NOTES), table_of(HEADS, [_cells(row) for row in queues])]
    if len(queues) > QUEUES_MAX:
        parts.append(f"<p>Plots of the {QUEUES_MAX} busiest queues; the Parquet tables have all {len(queues)}.</p>")
    parts += [_section(name, points[name], report) for name in shown]
    return "\n".join([*parts, "</body></html>\n"])


def _cells(row: Row) -> list[str]:
    return [
        html.escape(row["queue"]), *(f"{row[name]:,}" for name in COUNTS), *(span(row[name]) for name in SPANS)
    ]  # fmt: skip


def _section(name: str, points: Sequence[Row], report: JobReport) -> str:
    by_time = {row["bucket_ms"]: row for row in points}
    shown = whole_buckets(report.first_ms, report.last_ms, report.bucket_s)
    rates = {
        f"{words}/s": [(at_ms, by_time[at_ms][words] / report.bucket_s if at_ms in by_time else 0) for at_ms in shown]
        for words in ("added", "acked")
    }
    waits = {
        label: [(at_ms, by_time[at_ms][f"acked_{label}_ms"] if at_ms in by_time else None) for at_ms in shown]
        for label in ("p50", "p99")
    }
    open_jobs, count = [], 0
    for at_ms in sorted({*by_time, *shown}):
        count = by_time[at_ms]["open"] if at_ms in by_time else count
        open_jobs.append((at_ms, count))
    plots = [
        plot("Added and acknowledged", rates),
        plot("Open jobs", {"jobs": [(at_ms, count) for at_ms, count in open_jobs if at_ms in shown]}),
        plot("Until the acknowledgement, ms", waits),
    ]
    return f'<h2>{html.escape(name)}</h2>\n<div class="plots">\n' + "\n".join(plots) + "\n</div>"
