"""Metrics of jobs in Prometheus' text format: totals, and the queues that `metrics.per_queue` selects."""

import re
from collections.abc import Iterator
from typing import Final

from kestreld.config.config import PerQueue
from kestreld.server.admin.metrics import label_of, total_metric
from kestreld.server.disque.figures import AT, STEP_ROWS, JobFigures, Row, Sees

# Figure of the node -> metric, type, help.
OF_NODE: Final = {
    "jobs_registered": ("registered", "gauge", "Jobs, whatever their state."),
    "jobs_queued": ("queued", "gauge", "Jobs that wait in their queues."),
    "jobs_active": ("active", "gauge", "Jobs that workers have."),
    "jobs_delayed": ("delayed", "gauge", "Jobs that wait for a time to be queued at."),
    "jobs_queues": ("queues", "gauge", "Queues of jobs."),
    "jobs_queues_paused": ("queues_paused", "gauge", "Queues of jobs that are paused."),
    "jobs_in": ("in_total", "counter", "Jobs queued, for the first time or again."),
    "jobs_out": ("out_total", "counter", "Jobs handed out."),
    "jobs_import_rate": ("import_rate", "gauge", "Jobs imported from other nodes per second."),
    "jobs_clients": ("clients", "gauge", "Connections of clients of jobs."),
    "jobs_blocked_clients": ("blocked_clients", "gauge", "Clients that wait for a job."),
    "jobs_memory_bytes": ("memory_bytes", "gauge", "Memory of the jobs, as maxmemory counts it."),
    "jobs_memory_limit_bytes": ("memory_limit_bytes", "gauge", "maxmemory."),
    "jobs_memory_level": ("memory_level", "gauge", "75, 95 or 100 where more percent of maxmemory are used, else 0."),
    "jobs_log_bytes": ("log_bytes", "gauge", "Bytes of the log of jobs."),
    "jobs_log_failed": ("log_failed", "gauge", "1 when writes to the log of jobs are failing."),
    "jobs_stopped": ("stopped", "gauge", "1 when the log of jobs cannot be read: no job is served."),
    "jobs_loading": ("loading", "gauge", "1 while jobs are loaded from their log."),
    "jobs_acked": ("acked", "gauge", "Acknowledgements that not all nodes know of yet."),
    "jobs_being_added": ("being_added", "gauge", "Jobs whose producers wait for copies."),
    "jobs_default_copies": ("default_copies", "gauge", "Copies that ADDJOB without REPLICATE makes now."),
    "jobs_default_copies_below_three": (
        "default_copies_below_three_total",
        "counter",
        "Jobs added without REPLICATE that got fewer than three copies, for want of nodes.",
    ),
    "jobs_async_copies_missed": (
        "async_copies_missed_total",
        "counter",
        "Copies of jobs added with ASYNC that no node could take.",
    ),
    "jobs_given": ("given_total", "counter", "Jobs given to other nodes whose clients waited for them."),
    "jobs_taken": ("taken_total", "counter", "Jobs taken from other nodes."),
    "jobs_cluster_size": ("cluster_size", "gauge", "Nodes of the cluster, this one included, up or not."),
    "jobs_cluster_known": ("cluster_known", "gauge", "Nodes known, this one and those being met included."),
    "jobs_cluster_reachable": ("cluster_reachable", "gauge", "Other nodes that are neither down nor leaving."),
    "jobs_cluster_down": ("cluster_down", "gauge", "Other nodes that do not answer."),
    "jobs_cluster_strangers": ("cluster_strangers", "gauge", "Other nodes that do not know this one."),
    "jobs_cluster_copied_spools": ("cluster_copied_spools", "gauge", "Processes that have the id of another node."),
    "jobs_cluster_leaving": ("cluster_leaving", "gauge", "1 while this node leaves the cluster."),
}
# Column -> metric, type, help, divisor. With the labels node and address, of each other node.
OF_OTHER_NODES: Final = (
    ("up", "up", "gauge", "1 when it takes messages about jobs.", 1),
    ("lag_us", "lag_seconds", "gauge", "Round trip of the latest ping.", 1_000_000),
    ("queued_bytes", "queued_bytes", "gauge", "Bytes that wait to be sent to it.", 1),
    ("messages_out", "messages_sent_total", "counter", "Messages sent to it.", 1),
    ("messages_in", "messages_received_total", "counter", "Messages received from it.", 1),
    ("messages_lost", "messages_lost_total", "counter", "Messages to it that were dropped, for want of a link.", 1),
    ("bytes_out", "sent_bytes_total", "counter", "Bytes sent to it.", 1),
    ("bytes_in", "received_bytes_total", "counter", "Bytes received from it.", 1),
    ("links", "links_total", "counter", "Links established to it; each but the first is a reconnect.", 1),
    ("refused", "refused_total", "counter", "Links that it or this node has refused.", 1),
    ("jobs_given", "given_total", "counter", "Jobs given to it, whose clients waited for them.", 1),
    ("jobs_taken", "taken_total", "counter", "Jobs taken from it.", 1),
)
# Column -> metric, type, help.
OF_QUEUES: Final = (
    ("queued", "queued", "gauge", "Jobs that wait in the queue."),
    ("active", "active", "gauge", "Jobs of the queue that workers have."),
    ("delayed", "delayed", "gauge", "Jobs that wait for a time to be queued at."),
    ("oldest_at_ms", "oldest_seconds", "gauge", "How long ago the oldest job in the queue was added; 0 if none."),
    ("blocked_clients", "blocked_clients", "gauge", "Clients that wait for a job of the queue."),
    ("import_rate", "import_rate", "gauge", "Jobs imported from other nodes per second."),
    ("jobs_in", "in_total", "counter", "Jobs queued, for the first time or again."),
    ("jobs_out", "out_total", "counter", "Jobs handed out."),
    ("pause", "paused", "gauge", "0 not paused, 1 in, 2 out, 3 both."),
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PAUSED: Final = {"none": 0, "in": 1, "out": 2, "all": 3}


def render_jobs(figures: JobFigures, per_queue: PerQueue, sees: Sees | None) -> Iterator[str | None]:
    """Yield the jobs' part of the page, and None at intervals. `figures` have been added up."""
    for name, value in figures.totals():
        of_node, kind, words = OF_NODE[name]
        yield total_metric(f"kestrel_jobs_{of_node}", kind, words, value)
    yield _commands(figures)
    yield _other_nodes(figures)
    shown: list[Row] = []
    for found in _shown(figures, per_queue, sees):
        yield None
        shown = found or shown
    yield total_metric("kestrel_jobs_queues_shown", "gauge", "Queues of jobs with their own metrics.", len(shown))
    now_ms = figures.jobs.clock.wall_ms
    for column, name, kind, words in OF_QUEUES if shown else ():
        full_name, at = f"kestrel_jobs_queue_{name}", AT[column]
        yield f"# HELP {full_name} {words}\n# TYPE {full_name} {kind}\n"
        for start in range(0, len(shown), STEP_ROWS):
            yield "".join(
                [
                    f'{full_name}{{queue="{label_of(_printable(str(row[0])))}"}} {_value(column, row[at], now_ms)}\n'
                    for row in shown[start : start + STEP_ROWS]
                ]
            )


def _printable(name: str) -> str:
    """Escape the control characters of a name: a label must not end its line."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", name)


def _value(column: str, value: int | str, now_ms: int) -> float:
    if column == "oldest_at_ms":
        return max(now_ms - int(value), 0) / 1000 if value else 0
    return _PAUSED[value] if isinstance(value, str) else value


def _shown(figures: JobFigures, per_queue: PerQueue, sees: Sees | None) -> Iterator[list[Row] | None]:
    """Yield None at intervals, and last the rows to show."""
    if per_queue.most is not None:
        yield from figures.largest(per_queue.most, sees)
        return
    pattern = re.compile(per_queue.pattern) if per_queue.pattern is not None else None
    found: list[Row] = []
    for some in figures.rows(sees):
        found += [row for row in some if pattern is None or pattern.fullmatch(str(row[0]))]
        yield None
    yield found


def _other_nodes(figures: JobFigures) -> str:
    _, *rows = [dict(zip(figures.NODE_COLUMNS, row, strict=True)) for row in figures.nodes()]
    lines: list[str] = []
    for column, name, kind, words, divisor in OF_OTHER_NODES if rows else ():
        metric = f"kestrel_jobs_node_{name}"
        lines.append(f"# HELP {metric} {words}\n# TYPE {metric} {kind}\n")
        for row in rows:
            if (value := row[column]) is not None:
                shown = value if divisor == 1 else int(value) / divisor
                lines.append(f'{metric}{{node="{row["id"]}",address="{label_of(str(row["address"]))}"}} {shown}\n')
    return "".join(lines)


def _commands(figures: JobFigures) -> str:
    commands, seconds = "kestrel_jobs_commands_total", "kestrel_jobs_command_seconds_total"
    known = figures.commands()
    lines = [f"# HELP {commands} Commands executed, by name.\n# TYPE {commands} counter\n"]
    lines += [f'{commands}{{command="{name}"}} {calls}\n' for name, calls, _ in known]
    lines.append(f"# HELP {seconds} Time of the commands executed, by name.\n# TYPE {seconds} counter\n")
    lines += [f'{seconds}{{command="{name}"}} {spent_us / 1e6}\n' for name, _, spent_us in known]
    return "".join(lines)
