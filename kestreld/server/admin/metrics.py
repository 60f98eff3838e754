"""Metrics in Prometheus' text format: totals, and the queues that `metrics.per_queue` selects.

A hundred thousand queues must not be too much for monitoring: by default the largest 500 are shown, and those in
trouble.
"""

import heapq
import re
from collections.abc import Iterator
from typing import Final

from kestreld import __version__
from kestreld.config.config import PerQueue
from kestreld.machine import ProcessUse
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import SYNC_BOUNDS_US
from kestreld.queues.figures import Sees
from kestreld.server.admin.rows import AT, STEP_ROWS, Row, RowBook, name_of
from kestreld.stats import ServerStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Column -> metric, type, help, divisor.
OF_QUEUES: Final = (
    ("items", "items", "gauge", "Items waiting.", 1),
    ("bytes", "bytes", "gauge", "Bytes of data waiting.", 1),
    ("mem_items", "mem_items", "gauge", "Items waiting in memory.", 1),
    ("mem_bytes", "mem_bytes", "gauge", "Bytes of data waiting in memory.", 1),
    ("logsize", "logsize_bytes", "gauge", "Bytes of the journal segments that the queue needs.", 1),
    ("age", "age_seconds", "gauge", "How long the last fetched item had waited.", 1000),
    ("oldest_at_ms", "oldest_seconds", "gauge", "How long the head item has waited; 0 if there is none.", 1000),
    ("waiters", "waiters", "gauge", "Clients waiting for an item.", 1),
    ("open_transactions", "open_reads", "gauge", "Items opened and neither closed nor aborted.", 1),
    ("total_items", "puts_total", "counter", "Items put.", 1),
    ("taken_items", "gets_total", "counter", "Items taken by a plain get.", 1),
    ("transactions", "opens_total", "counter", "Items opened.", 1),
    ("canceled_transactions", "aborts_total", "counter", "Open reads that were returned.", 1),
    ("expired_items", "expired_total", "counter", "Items that expired.", 1),
    ("discarded", "discarded_total", "counter", "Items dropped to make room.", 1),
    ("total_flushes", "flushes_total", "counter", "Flushes.", 1),
    ("journal_failed", "journal_failed", "gauge", "1 when journal writes are failing.", 1),
    ("stopped", "stopped", "gauge", "1 when the journal is damaged and the queue is stopped.", 1),
    ("delayed", "delayed", "gauge", "Items put for later that are not due yet.", 1),
    ("retrying", "retrying", "gauge", "Items that have failed and are not due yet.", 1),
    ("leased", "leased", "gauge", "Items leased to somebody.", 1),
    ("next_due_at_ms", "next_due_seconds", "gauge", "Time until the next item is due or lease ends; 0 if none.", 1000),
    ("leases_expired", "leases_expired_total", "counter", "Leases that ended by themselves.", 1),
    ("confirms_late", "confirms_late_total", "counter", "Confirms that came too late.", 1),
    ("keys", "keys", "gauge", "Keys remembered.", 1),
    ("keys_refused", "keys_refused_total", "counter", "Puts whose key was known.", 1),
    ("keys_forgotten", "keys_forgotten_total", "counter", "Keys forgotten early, beyond max_keys.", 1),
    ("dead_letters", "dead_letters_total", "counter", "Items sent to move_failed_to or move_expired_to.", 1),
)


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
        return collection.config.for_queue(name_of(shown)).discard_old_when_full

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
    for column, name, kind, words, divisor in OF_QUEUES:
        metric, at = f"kestrel_queue_{name}", AT[column]
        yield f"# HELP {metric} {words}\n# TYPE {metric} {kind}\n"
        for start in range(0, len(shown), STEP_ROWS):
            some = zip(labels[start : start + STEP_ROWS], shown[start : start + STEP_ROWS], strict=True)
            if column == "oldest_at_ms":
                yield "".join(
                    [
                        f"{metric}{label}{max(now_ms - int(row[at]), 0) / 1000 if row[at] else 0}\n"
                        for label, row in some
                    ]
                )
            elif column == "next_due_at_ms":
                yield "".join(
                    [
                        f"{metric}{label}{max(int(row[at]) - now_ms, 0) / 1000 if row[at] else 0}\n"
                        for label, row in some
                    ]
                )
            elif divisor == 1:
                yield "".join([f"{metric}{label}{row[at]}\n" for label, row in some])
            else:
                yield "".join([f"{metric}{label}{int(row[at]) / divisor}\n" for label, row in some])


# The figures of the cache -> metric, type, help.
OF_CACHE: Final = {
    "cache_items": ("kestrel_cache_items", "gauge", "Values in the cache."),
    "cache_bytes": ("kestrel_cache_bytes", "gauge", "Memory of the values in the cache, keys and overhead included."),
    "cache_limit_bytes": ("kestrel_cache_limit_bytes", "gauge", "Memory for values: cache_memory."),
    "cache_hits": ("kestrel_cache_hits_total", "counter", "Keys asked for that had a value."),
    "cache_misses": ("kestrel_cache_misses_total", "counter", "Keys asked for that had none."),
    "cache_sets": ("kestrel_cache_sets_total", "counter", "Values stored."),
    "cache_evictions": ("kestrel_cache_evictions_total", "counter", "Values dropped to make room."),
    "cache_expired": ("kestrel_cache_expired_total", "counter", "Values that expired."),
}


def total_metric(name: str, kind: str, words: str, value: float) -> str:
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n{name} {value}\n"


def _server_part(book: RowBook, collection: QueueCollection, stats: ServerStats) -> str:
    clock, sums, totals = collection.clock, book.sums, book.sums.totals
    uptime_s = (clock.monotonic_ms - stats.started_at_ms) / 1000
    parts = [
        "# HELP kestrel_build_info The running version.\n# TYPE kestrel_build_info gauge\n"
        f'kestrel_build_info{{version="{__version__}"}} 1\n',
        total_metric("kestrel_uptime_seconds", "gauge", "Seconds since the start.", uptime_s),
        total_metric("kestrel_queues", "gauge", "Queues, children included.", len(book.rows)),
        total_metric("kestrel_items", "gauge", "Items waiting.", sums.items),
        total_metric("kestrel_bytes", "gauge", "Bytes of data waiting.", sums.data_bytes),
        total_metric("kestrel_journal_bytes", "gauge", "Bytes of all journals on disk.", sums.journal_bytes),
        total_metric("kestrel_journals_failed", "gauge", "Journals whose writes are failing.", sums.journals_failed),
        total_metric("kestrel_queues_stopped", "gauge", "Queue families with a damaged journal.", sums.queues_stopped),
        total_metric("kestrel_connections", "gauge", "Memcache connections.", stats.curr_connections),
        total_metric("kestrel_connections_total", "counter", "Memcache connections accepted.", stats.total_connections),
        total_metric(
            "kestrel_rejected_connections_total", "counter", "Memcache connections refused.", stats.rejected_connections
        ),
        total_metric("kestrel_puts_total", "counter", "Items put, children included.", totals.put_items),
        total_metric("kestrel_gets_total", "counter", "Items fetched.", totals.fetched_items),
        total_metric("kestrel_missed_gets_total", "counter", "Gets that found nothing.", stats.missed_gets),
        total_metric("kestrel_expired_total", "counter", "Items that expired.", totals.expired_items),
        total_metric("kestrel_read_bytes_total", "counter", "Bytes read from memcache clients.", stats.bytes_read),
        total_metric("kestrel_written_bytes_total", "counter", "Bytes sent to memcache clients.", stats.bytes_written),
        total_metric("kestrel_logins_total", "counter", "Password logins, failed ones included.", stats.logins),
        total_metric("kestrel_failed_logins_total", "counter", "Failed password logins.", stats.failed_logins),
        _syncs(collection),
        *[total_metric(*OF_CACHE[name], value) for name, value in stats.of_cache()],
    ]
    return "".join(parts)


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
