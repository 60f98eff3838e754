"""The report as a self-contained HTML page without scripts; plots are SVG."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from kestrelspark.jobs.anomalies import Bucket, anomalies
from kestrelspark.jobs.plots import (
    Mark,
    Points,
    count,
    day_and_time,
    head,
    plot,
    rate,
    rate_unit,
    size,
    span,
    table_of,
    whole_buckets,
)
from kestrelspark.jobs.report import Report, percentile_names, rows

QUEUES_MAX: Final = 40
MARKS_MAX: Final = 30  # in words
MARKS_OF_A_QUEUE: Final = 5
UNKNOWN: Final = "unknown"
UNKNOWN_MAX: Final = 5  # queues that are named
SERVERS_MAX: Final = 3  # named below a queue in the table
AT_MOST: Final = "≤ "  # before an upper bound
AT_LEAST: Final = "≥ "
UNNAMED: Final = "(no name)"  # a server whose journals are in no folder server=NAME
OTHER_ENDS: Final = ("expired", "discarded", "moved", "flushed", "retried")
HEADS: Final = (
    "queue", "puts", "data", "gets", "backlog", "oldest", "wait p50", "p90", "p99", "p99.9", "longest",
    "busiest minute", "also",
)  # fmt: skip
CAN_BE_LEFT_OUT: Final = HEADS[-2:]
WORK_HEADS: Final = (
    "leases", "confirmed", "given back", "failed", "in work p50", "p95", "p99", "longest",
)  # fmt: skip
OTHER_HOLDERS: Final = "(others, and unknown)"
Row = dict[str, Any]


def page(report: Report) -> str:
    """The whole page. Queues where items wait longest come first; only QUEUES_MAX of them get plots."""
    queues = by_wait(rows(report.merged_queues))
    drawn = sorted({row["queue"] for row in queues[:QUEUES_MAX]})
    buckets = report.merged_buckets
    points = rows(buckets.where(buckets["queue"].isin(drawn)).orderBy("bucket_ms"))
    holders = rows(report.holders.where(report.holders["queue"].isin(drawn)))
    return page_of(report, queues, rows(report.queues), points, holders)


def page_of(
    report: Report, queues: Sequence[Row], own: Iterable[Row], points: Iterable[Row], holders: Iterable[Row] = ()
) -> str:
    """The page. `queues`: in page order; `own`: rows of single servers; `points`: by time, for the first queues.

    `holders`: of leases, for the first queues.
    """
    own_of, points_of, holders_of = _by_queue(own), _by_queue(points), _by_queue(holders)
    servers = sorted({name for row in queues for name in row["servers"]})
    drawn = queues[:QUEUES_MAX]
    filled = [list(_filled(points_of.get(_key(row), []), report, row["backlog_items"])) for row in drawn]
    found = [_anomalies(row, buckets, report) for row, buckets in zip(drawn, filled, strict=True)]
    parts = [_head(report, servers), _totals(queues, report), _listed(drawn, found), _table(queues, report)]
    parts.append(_work(queues))
    if len(queues) > QUEUES_MAX:
        words = f"Plots of the {QUEUES_MAX} queues where items wait longest"
        parts.append(f"<p>{words}; the Parquet tables have all {len(queues)}.</p>")
    for at, row in enumerate(drawn):
        inside = _section(row, filled[at], found[at], report)
        more = _by_server(own_of.get(_key(row), []), report) + _by_holder(holders_of.get(_key(row), []))
        parts.append(f'<section id="q{at}">{inside}\n{more}</section>')
    return "\n".join([*parts, "</body></html>\n"])


def by_wait(queues: Iterable[Row]) -> list[Row]:
    """Sort: queues with waiting items that none leaves, then by the 99th percentile of the waits, then by traffic."""

    def order(row: Row) -> tuple[bool, float, float, str]:
        is_stuck = row["backlog_items"] > 0 and not row["got"]
        return (
            not is_stuck,
            -(row["longest_wait_p99_ms"] or row["wait_p99_ms"] or 0),
            -row["puts"] - row["got"],
            name_of(row),
        )

    return sorted(queues, key=order)


def _by_queue(found: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        groups.setdefault(_key(row), []).append(row)
    return groups


def _key(row: Row) -> tuple[str, str]:
    return row["queue"], row["reader"]


def _totals(queues: Sequence[Row], report: Report) -> str:
    """Totals in words. Items put on a queue with children are counted once, although each child gets them."""
    seconds = _seconds(report)
    put_items = sum(row["puts"] for row in queues if not row["reader"])
    got_items, backlog_items = (sum(row[name] for row in queues) for name in ("got", "backlog_items"))
    puts = f"{put_items:,} puts ({rate(put_items / seconds)})"
    gets = f"{got_items:,} gets ({rate(got_items / seconds)})"
    words = f"In all {puts}, {gets} and {backlog_items:,} items that wait at the end; queues: {len(queues):,}."
    aged = [row for row in queues if row["oldest_age_ms"] is not None]
    if aged:
        oldest = max(aged, key=lambda row: float(row["oldest_age_ms"]))
        linked = _linked(oldest, list(queues).index(oldest))
        since = day_and_time(oldest["oldest_ms"])
        words += f" The oldest item that waits is in {linked}: {_oldest(oldest)}, since {since}."
    unknown = [_linked(row, at) for at, row in enumerate(queues) if row["backlog_without_put"]]
    if unknown:
        more = f" and {len(unknown) - UNKNOWN_MAX} more" if len(unknown) > UNKNOWN_MAX else ""
        named = ", ".join(unknown[:UNKNOWN_MAX]) + more
        words += f" Puts of items that wait are in none of the files of {named}: these items may be older."
    return f"<p>{words}</p>"


def _linked(row: Row, at: int) -> str:
    """A queue's name, with a link to its plots if it has any."""
    name = html.escape(name_of(row))
    return f'<a href="#q{at}">{name}</a>' if at < QUEUES_MAX else name


def _oldest(row: Row) -> str:
    """Wait of the oldest item. If puts are missing, of the oldest item that has one, marked as a lower bound."""
    if not row["backlog_items"]:
        return ""
    if row["oldest_age_ms"] is not None:
        return f"{AT_LEAST if row['backlog_without_put'] else ''}{span(row['oldest_age_ms'])}"
    return UNKNOWN if row["backlog_without_put"] else "not due yet"


def _seconds(report: Report) -> float:
    return max((report.last_ms - report.first_ms) / 1000, 1)


def name_of(row: Row) -> str:
    """Name of a queue, with its server if the row is of one server."""
    name = f"{row['queue']}+{row['reader']}" if row["reader"] else str(row["queue"])
    return f"{row['server']}: {name}" if row.get("server") else name


def _head(report: Report, servers: Sequence[str]) -> str:
    period = f"{day_and_time(report.first_ms)} to {day_and_time(report.last_ms)} UTC"
    words = f"{period}. Points of the plots are {span(report.bucket_s * 1000)} apart, each for a whole interval."
    if servers != [""]:
        kind = "Server" if len(servers) == 1 else f"{len(servers)} servers, each queue shown as one over all of them"
        words += f" {kind}: {html.escape(', '.join(name or UNNAMED for name in servers))}."
    return head("Queues: load", "Load of the queues", words, report.notes)


def _table(queues: Sequence[Row], report: Report) -> str:
    """The table of all queues, linked to their plots; if there are several servers, each row names its own."""
    is_one = len({name for row in queues for name in row["servers"]}) <= 1
    lines = []
    for at, row in enumerate(queues):
        linked = _linked(row, at)
        lines.append([linked if is_one else f"{linked}{_small(_named(row['servers']))}", *_cells(row, report)])
    return _without_empty(HEADS, lines)


def _by_server(own: Sequence[Row], report: Report) -> str:
    """The rows of a queue's servers, "" if there is only one."""
    if len(own) < 2:
        return ""
    own = sorted(own, key=lambda row: str(row["server"]))
    return _without_empty(
        ("server", *HEADS[1:]), [[html.escape(row["server"] or UNNAMED), *_cells(row, report)] for row in own]
    )


def _work(queues: Sequence[Row]) -> str:
    """The table of time in work, "" if nothing was leased."""
    lines = [[_linked(row, at), *_work_cells(row)] for at, row in enumerate(queues) if row.get("leases") is not None]
    return (
        "<p>Time in work, from the lease to the confirm:</p>" + table_of(["queue", *WORK_HEADS], lines) if lines else ""
    )


def _by_holder(holders: Sequence[Row]) -> str:
    """Time in work by holder, "" if nobody has leased anything. Those with the most leases come first."""
    ordered = sorted(holders, key=lambda row: (row["holder"] is None, -row["leases"], row["holder"] or ""))
    lines = [[html.escape(row["holder"] or OTHER_HOLDERS), *_work_cells(row)] for row in ordered]
    return table_of(["holder", *WORK_HEADS], lines) if lines else ""


def _work_cells(row: Row) -> list[str]:
    return [
        *(count(row[name]) for name in ("leases", "leases_confirmed", "leases_returned", "leases_failed")),
        *(span(row[f"work_{name}_ms"]) for name in ("p50", "p95", "p99", "max")),
    ]


def _named(servers: Sequence[str]) -> str:
    shown = [name or UNNAMED for name in servers[:SERVERS_MAX]]
    if len(servers) > SERVERS_MAX:
        shown.append(f"{len(servers) - SERVERS_MAX} more")
    return ", ".join(shown)


def _without_empty(heads: Sequence[str], lines: Sequence[list[str]]) -> str:
    """A table without columns that are empty in all rows, if they may be left out."""
    shown = [at for at in range(len(heads)) if heads[at] not in CAN_BE_LEFT_OUT or any(cells[at] for cells in lines)]
    return table_of([heads[at] for at in shown], [[cells[at] for at in shown] for cells in lines])


def _cells(row: Row, report: Report) -> list[str]:
    """The cells after the name, as in HEADS."""
    seconds = _seconds(report)
    busiest = ""
    if row["busiest_minute_puts"]:
        day, _, time = day_and_time(row["busiest_minute_ms"]).partition(" ")
        busiest = day + _small(
            f"{time[:5]}, {count(row['busiest_minute_puts'])} put" + "s" * (row["busiest_minute_puts"] != 1)
        )
    return [
        _figure(row["puts"], rate(row["puts"] / seconds)),
        size(row["put_bytes"] or 0),
        _figure(row["got"], rate(row["got"] / seconds)),
        _figure(row["backlog_items"], f"at most {count(row['backlog_max_items'])}" if row["backlog_max_items"] else ""),
        _oldest(row),
        *(_wait_cell(row, name) for name in percentile_names() if name != "p95"),
        _at_most(row["wait_max_ms"]) if _is_interval(row) else span(row["wait_max_ms"]),
        busiest,
        _small(*(f"{count(row[name])} {name}" for name in OTHER_ENDS if row[name])),
    ]


def _figure(items: int, words: str) -> str:
    return count(items) + (_small(words) if words else "")


def _small(*words: str) -> str:
    """Lines below a figure."""
    return "".join(f"<small>{html.escape(one)}</small>" for one in words)


def _is_interval(row: Row) -> bool:
    """True if waits are only known to lie between two times, as in Kestrel's own files."""
    return any(row[f"wait_{name}_ms"] != row[f"longest_wait_{name}_ms"] for name in percentile_names())


def _wait_cell(row: Row, name: str) -> str:
    """A percentile, or its bounds if it is not known exactly."""
    shortest, longest = row[f"wait_{name}_ms"], row[f"longest_wait_{name}_ms"]
    if shortest == longest:
        return span(shortest)
    return f"{AT_LEAST}{span(shortest)}{_small('at most ' * (longest is None) + _at_most(longest))}"


def _at_most(longest_ms: float | None) -> str:
    return UNKNOWN if longest_ms is None else f"{AT_MOST}{span(longest_ms)}"


def _anomalies(queue: Row, buckets: Sequence[Bucket], report: Report) -> list[Mark]:
    held = [*report.held.get(_key(queue), []), *report.held.get((queue["queue"], None), [])]
    return anomalies(buckets, report.bucket_s * 1000, held, is_interval=_is_interval(queue))


def _listed(queues: Sequence[Row], found: Sequence[Sequence[Mark]]) -> str:
    """Stalls and bursts in words, some for each queue. Bursts of a parent are not repeated for its children."""
    lines: list[str] = []
    more = 0
    for at, (row, own) in enumerate(zip(queues, found, strict=True)):
        counted = [one for one in own if one.kind == "stall" or not row["reader"]]
        longest = sorted(counted, key=lambda one: one.from_ms - one.until_ms)[:MARKS_OF_A_QUEUE]
        some = [one for one in counted if one in longest][: MARKS_MAX - len(lines)]
        more += len(counted) - len(some)
        lines += [f"<li>{_linked(row, at)}: {one.kind}, {html.escape(one.words)}.</li>" for one in some]
    if not lines:
        return "<p>No stalls and no bursts were found.</p>"
    rest = f"<p>{more:,} more are marked on the plots.</p>" if more else ""
    return '<p>Stalls and bursts, in UTC:</p><ul class="marks">\n' + "\n".join(lines) + f"\n</ul>{rest}"


def _section(queue: Row, filled: Sequence[Bucket], found: Sequence[Mark], report: Report) -> str:
    rates = _rates({"puts": "puts", "got": "gets"}, filled, report)
    gone = _rates({name: name for name in ("expired", "discarded", "retried") if queue[name]}, filled, report)
    waits = {
        f"{AT_MOST if _is_interval(queue) else ''}{name}": [
            (at_ms, row[f"longest_wait_{name}_ms"] if row else None) for at_ms, row, _ in filled
        ]
        for name in ("p50", "p90", "p99")
    }
    plots = [
        plot("Puts and gets", rates, marks=found),
        plot("Backlog, items", {"items": [(at_ms, backlog) for at_ms, _, backlog in filled]}, marks=found),
        plot("Wait", waits, are_waits=True, marks=found),
    ]
    if gone:
        plots.append(plot("Expired, discarded, retried", gone, marks=found))
    servers = [name or UNNAMED for name in queue["servers"]]
    on = f"<p>On {html.escape(', '.join(servers))}.</p>" if len(servers) > 1 else ""
    return f'<h2>{html.escape(name_of(queue))}</h2>\n{on}<div class="plots">\n' + "\n".join(plots) + "\n</div>"


def _rates(names: dict[str, str], filled: Sequence[Bucket], report: Report) -> dict[str, Points]:
    """Series of the counts with these names, with their labels, in the unit of time that suits the largest."""
    most = max((row[name] for _, row, _ in filled if row for name in names), default=0)
    unit, unit_s = rate_unit(most / report.bucket_s)
    scale = unit_s / report.bucket_s
    return {
        f"{called}/{unit}": [(at_ms, row[name] * scale if row else 0) for at_ms, row, _ in filled]
        for name, called in names.items()
    }


def _filled(points: Sequence[Row], report: Report, last_backlog: int) -> Iterator[Bucket]:
    """Every whole bucket with its row, None = no events, and the backlog at its end.

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
