"""Metrics in Prometheus' text format: totals, and the queues that `metrics.per_queue` selects.

A hundred thousand queues must not be too much for monitoring: by default the largest 500 are shown, and those in
trouble.
"""

import heapq
import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from kestreld import __version__
from kestreld.config.config import PerQueue
from kestreld.figures import OF_CACHE, OF_QUEUES, OF_SERVER, Figure, in_json
from kestreld.machine import ProcessUse
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import SYNC_BOUNDS_US
from kestreld.queues.figures import Sees, read_server
from kestreld.server.admin.rows import AT, STEP_ROWS, Row, RowBook, name_of
from kestreld.stats import ServerStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METRICS: Final = {column: one for column, one in in_json(OF_QUEUES).items() if one.metric}


def label_of(name: str) -> str:
    """Escape a queue name as a label's value. Bytes that are not UTF-8 are escaped, so that names stay distinct."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\\", r"\\").replace('"', r"\"")


def _largest(rows: list[Row], count: int, may_be_full: Sees) -> Iterator[list[Row] | None]:
    """Yield None at intervals, and last the `count` rows with the most items and all of queues in trouble."""
    at, at_full = AT["items"], AT["full"]
    found: list[Row] = []
    troubled: list[Row] = []
    for start in range(0, len(rows), STEP_ROWS):
        some = rows[start : start + STEP_ROWS]
        found = heapq.nlargest(count, [*found, *some], key=lambda row: row[at])
        troubled += [row for row in some if row[AT["stopped"]] or row[AT["journal_failed"]]]
        troubled += [row for row in some if row[at_full] and not may_be_full(str(row[0]))]
        yield None
    yield list({row[0]: row for row in [*found, *troubled]}.values())


def _shown(rows: list[Row], per_queue: PerQueue, may_be_full: Sees) -> Iterator[list[Row] | None]:
    if per_queue.pattern is not None:
        pattern = re.compile(per_queue.pattern)
        found: list[Row] = []
        for start in range(0, len(rows), STEP_ROWS):
            found += [row for row in rows[start : start + STEP_ROWS] if pattern.fullmatch(str(row[0]))]
            yield None
        yield found
    elif per_queue.most == 0:
        yield []
    elif per_queue.most is not None and len(rows) > per_queue.most:
        yield from _largest(rows, per_queue.most, may_be_full)
    else:
        yield rows


def render(
    book: RowBook, collection: QueueCollection, stats: ServerStats, per_queue: PerQueue, sees: Sees | None = None
) -> Iterator[str | None]:
    """Yield the page in pieces, and None at intervals. `book` is up to date."""

    def may_be_full(shown: str) -> bool:
        """Return True if a full queue is no trouble, because it discards old items."""
        return collection.config_for(name_of(shown)).discard_old_when_full

    yield _server_part(book, collection, stats)
    shown: list[Row] = []
    for seen in book.seen_rows(sees):
        yield None
        for found in _shown(seen, per_queue, may_be_full) if seen is not None else ():
            yield None
            shown = found or shown
    yield total_metric("kestrel_queues_shown", "gauge", "Queues included with their own metrics.", len(shown))
    if not shown:
        return
    labels = []
    for place, row in enumerate(shown):
        labels.append(f'{{queue="{label_of(str(row[0]))}"}} ')
        if place % STEP_ROWS == 0:
            yield None
    now_ms = collection.clock.wall_ms
    for column, figure in METRICS.items():
        metric, at = f"kestrel_queue_{figure.metric}", AT[column]
        yield heading(metric, figure.metric_type, figure.help)
        for start in range(0, len(shown), STEP_ROWS):
            values = figure.metric_values(list(map(itemgetter(at), shown[start : start + STEP_ROWS])), now_ms)
            some = zip(labels[start : start + STEP_ROWS], values, strict=True)
            yield "".join([f"{metric}{label}{value}\n" for label, value in some])


def total_metric(name: str, kind: str, words: str, value: float) -> str:
    return f"{heading(name, kind, words)}{name} {value}\n"


def heading(name: str, kind: str, words: str) -> str:
    """The two lines before the values of a metric."""
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def _server_part(book: RowBook, collection: QueueCollection, stats: ServerStats) -> str:
    values = read_server(collection, stats, book.sums)
    cache = zip(OF_CACHE, [value for _, value in stats.of_cache()], strict=False)
    return "".join(
        [
            "# HELP kestrel_build_info The running version.\n# TYPE kestrel_build_info gauge\n"
            f'kestrel_build_info{{version="{__version__}"}} 1\n',
            *[_metric(one, value) for one, value in zip(OF_SERVER, values, strict=True) if one.metric],
            _syncs(collection),
            *[_metric(one, value) for one, value in cache],
        ]
    )


def _metric(figure: Figure, value: int | str) -> str:
    (shown,) = figure.metric_values([int(value)], 0)
    return total_metric(f"kestrel_{figure.metric}", figure.metric_type, figure.help, shown)


def process_part(use: ProcessUse | None, open_descriptors: int, max_descriptors: int) -> str:
    """Return the process metrics that Prometheus' own client libraries have, under the same names."""
    parts = [
        total_metric("process_open_fds", "gauge", "Open file descriptors.", open_descriptors),
        total_metric("process_max_fds", "gauge", "Maximum number of open file descriptors.", max_descriptors),
    ]
    if use is not None:
        parts += [
            total_metric("process_cpu_seconds_total", "counter", "User and system CPU time.", use.cpu_s),
            total_metric("process_virtual_memory_bytes", "gauge", "Virtual memory.", use.virtual_bytes),
            total_metric("process_resident_memory_bytes", "gauge", "Resident memory.", use.resident_bytes),
            total_metric("process_start_time_seconds", "gauge", "Start time in seconds since 1970.", use.started_at_s),
        ]
    return "".join(parts)


def _syncs(collection: QueueCollection) -> str:
    """Return the histogram of the durations of syncs that replies waited for."""
    commit, name = collection.commit, "kestrel_journal_fsync_seconds"
    lines = [f"# HELP {name} Syncs that replies waited for.", f"# TYPE {name} histogram"]
    so_far = 0
    for bound_us, count in zip(SYNC_BOUNDS_US, commit.sync_counts, strict=False):
        so_far += count
        lines.append(f'{name}_bucket{{le="{bound_us / 1e6:g}"}} {so_far}')
    lines.append(f'{name}_bucket{{le="+Inf"}} {commit.syncs}')
    lines.append(f"{name}_sum {commit.sync_us_total / 1e6}")
    lines.append(f"{name}_count {commit.syncs}\n")
    return "\n".join(lines)
