"""Metrics of jobs in Prometheus' text format: totals, and the queues that `metrics.per_queue` selects."""

import re
from collections.abc import Iterator
from typing import Final

from kestreld.config.config import PerQueue
from kestreld.figures import OF_JOB_QUEUES, OF_JOBS, OF_NODES
from kestreld.server.admin.metrics import heading, label_of, total_metric
from kestreld.server.disque.figures import AT, STEP_ROWS, JobFigures, Row, Sees

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PAUSED: Final = {"none": 0, "in": 1, "out": 2, "all": 3}


def render_jobs(figures: JobFigures, per_queue: PerQueue, sees: Sees | None) -> Iterator[str | None]:
    """Yield the jobs' part of the page, and None at intervals. `figures` have been added up."""
    for figure, (key, value) in zip(OF_JOBS, figures.totals(), strict=True):
        assert figure.key == key
        yield total_metric(f"kestrel_jobs_{figure.metric}", figure.metric_type, figure.help, value)
    yield _commands(figures)
    yield _other_nodes(figures)
    shown: list[Row] = []
    for found in _shown(figures, per_queue, sees):
        yield None
        shown = found or shown
    yield total_metric("kestrel_jobs_queues_shown", "gauge", "Queues of jobs with their own metrics.", len(shown))
    now_ms = figures.jobs.clock.wall_ms
    labels: list[str] = []
    for start in range(0, len(shown), STEP_ROWS):
        some_rows = shown[start : start + STEP_ROWS]
        labels += [f'{{queue="{label_of(_printable(str(row[0])))}"}}' for row in some_rows]
        yield None
    for figure in OF_JOB_QUEUES if shown else ():
        if not figure.metric:
            continue
        metric, at = f"kestrel_jobs_queue_{figure.metric}", AT[figure.key]
        yield heading(metric, figure.metric_type, figure.help)
        for start in range(0, len(shown), STEP_ROWS):
            cells = [row[at] for row in shown[start : start + STEP_ROWS]]
            values = figure.metric_values([_PAUSED[one] if isinstance(one, str) else one for one in cells], now_ms)
            some = zip(labels[start : start + STEP_ROWS], values, strict=True)
            yield "".join([f"{metric}{label} {value}\n" for label, value in some])


def _printable(name: str) -> str:
    """Escape the control characters of a name: a label must not end its line."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", name)


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
    for figure in OF_NODES if rows else ():
        if not figure.metric:
            continue
        metric = f"kestrel_jobs_node_{figure.metric}"
        lines.append(heading(metric, figure.metric_type, figure.help))
        for row in rows:
            if (value := row[figure.key]) is not None:
                (shown,) = figure.metric_values([int(value)], 0)
                lines.append(f'{metric}{{node="{row["id"]}",address="{label_of(str(row["address"]))}"}} {shown}\n')
    return "".join(lines)


def _commands(figures: JobFigures) -> str:
    commands, seconds = "kestrel_jobs_commands_total", "kestrel_jobs_command_seconds_total"
    known = figures.commands()
    lines = [heading(commands, "counter", "Commands executed, by name.")]
    lines += [f'{commands}{{command="{name}"}} {calls}\n' for name, calls, _ in known]
    lines.append(heading(seconds, "counter", "Time of the commands executed, by name."))
    lines += [f'{seconds}{{command="{name}"}} {spent_us / 1e6}\n' for name, _, spent_us in known]
    return "".join(lines)
