"""Health of a server and its queues for `check`, in the formats of nagios, JSON and Prometheus. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kestrelctl.remote.patterns import alike
from kestrelctl.remote.stopped import JOBS_REMEDY, repair_command
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted
from kestreld.client.blocks import QueueBlock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHOWN_FINDINGS_MAX: Final = 5
JOBS_CRITICAL_PERCENT: Final = 95
COPIES_WANTED: Final = 3  # of a job that is added without REPLICATE, or as many as there are nodes
# The server runs, but does not give its figures: unknown, because a wrong password is no outage.
UNKNOWN_CODES: Final = (ExitCode.USAGE, ExitCode.NO_INPUT, ExitCode.AUTHENTICATION, ExitCode.NO_RIGHTS)


class State(IntEnum):
    """States as nagios defines them; the numbers are exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Finding(NamedTuple):
    """A fault and its severity."""

    state: State
    words: str


def worst_first(findings: Iterable[Finding]) -> list[str]:
    """Texts of the findings, critical ones first, because only some may be shown."""
    return [one.words for one in sorted(findings, key=lambda one: -one.state)]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a queue; None = not checked."""

    items_warn: int | None = None
    items_crit: int | None = None
    oldest_warn_ms: int | None = None
    oldest_crit_ms: int | None = None
    waiters_min: int | None = None


@dataclass(slots=True)
class CheckedQueue:
    """Result for one queue. Fields are named as in the JSON output."""

    queue: str
    state: State = State.OK
    items: int | None = None  # None = there is no such queue
    oldest_ms: int | None = None  # wait of the head item so far; on an old Kestrel, wait of the item taken last
    waiters: int | None = None
    found: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        return worst_first(self.found)

    def find(self, state: State, words: str) -> None:
        self.state = max(self.state, state)
        self.found.append(Finding(state, words))


@dataclass(frozen=True, slots=True)
class CheckedJobs:
    """Result for the jobs of one server. Fields are named as in the JSON output."""

    server: str
    state: State
    jobs: int
    memory_bytes: int
    memory_limit_bytes: int
    memory_level: int  # the highest of 75, 95 and 100 % of maxmemory that is exceeded, else 0
    words: str  # "" = they are well
    nodes: int = 1  # of its cluster
    nodes_down: int = 0


@dataclass(slots=True)
class HealthReport:
    server: str
    state: State
    words: str
    queues: list[CheckedQueue]
    jobs: list[CheckedJobs] = field(default_factory=list)


def judge(
    server: str,
    blocks: Sequence[QueueBlock],
    wanted: Sequence[str],
    limits: Limits,
    counters: Iterable[tuple[str, Mapping[str, int | str]]] = (),
) -> HealthReport:
    """Check the `wanted` queues (* and ? as in a shell), or all, against the limits, and jobs by server `counters`."""
    by_name = {str(block["queue"]): block for block in blocks if len(block) > 1}
    names = [name for pattern in wanted for name in alike(pattern, by_name) or [pattern]] or sorted(by_name)
    queues = [_judge_queue(name, by_name.get(name), limits) for name in dict.fromkeys(names)]
    jobs = [_judge_jobs(address, figures) for address, figures in counters if "jobs_memory_level" in figures]
    state = max([queue.state for queue in queues] + [one.state for one in jobs], default=State.OK)
    found = [Finding(one.state, f"{queue.queue}: {one.words}") for queue in queues for one in queue.found]
    found += [Finding(one.state, f"jobs of {one.server}: {one.words}") for one in jobs if one.words]
    words = _some(worst_first(found))
    items = sum(queue.items or 0 for queue in queues)
    well = f"{counted(len(queues), 'queue')} with {counted(items, 'item')}"
    return HealthReport(server, state, words or well, queues, jobs)


def _judge_jobs(server: str, figures: Mapping[str, int | str]) -> CheckedJobs:
    level, used_bytes, limit_bytes = (int(figures[f"jobs_memory_{name}"]) for name in ("level", "bytes", "limit_bytes"))
    found: list[Finding] = []
    if figures.get("jobs_stopped"):
        found.append(Finding(State.CRITICAL, f"stopped: their log is corrupt; {JOBS_REMEDY}"))
    elif figures.get("jobs_log_failed"):
        found.append(Finding(State.CRITICAL, "their log cannot be written"))
    elif level:
        state = State.CRITICAL if level >= JOBS_CRITICAL_PERCENT else State.WARNING
        found.append(Finding(state, f"more than {level} % of maxmemory are used: {used_bytes} of {limit_bytes} bytes"))
    found += cluster_findings(figures)
    return CheckedJobs(
        server,
        max([one.state for one in found], default=State.OK),
        int(figures["jobs_registered"]),
        used_bytes,
        limit_bytes,
        level,
        "; ".join(worst_first(found)),
        int(figures.get("jobs_cluster_size", 1)),
        int(figures.get("jobs_cluster_down", 0)),
    )


def state_of_down(down: int, nodes: int) -> State:
    """Severity of `down` unreachable nodes of a cluster: jobs are served while most nodes are up."""
    return State.CRITICAL if 2 * down >= nodes else State.WARNING


def cluster_findings(figures: Mapping[str, int | str]) -> list[Finding]:
    """Faults of a cluster as one node sees it."""
    found: list[Finding] = []
    names = ("size", "down", "strangers", "copied_spools")
    size, down, strangers, copied = (int(figures.get(f"jobs_cluster_{name}", 0)) for name in names)
    if copied:
        found.append(
            Finding(State.CRITICAL, "a spool was copied: two nodes have one id; see kestrelctl cluster status")
        )
    if down:
        found.append(Finding(state_of_down(down, size), f"other nodes down: {down} of {size - 1}"))
    if strangers:
        found.append(Finding(State.WARNING, f"other nodes that do not know this one: {strangers} of {size - 1}"))
    copies = int(figures.get("jobs_default_copies", size))
    if copies < min(COPIES_WANTED, size):
        found.append(Finding(State.WARNING, too_few_copies(copies, size)))
    return found


def too_few_copies(copies: int, nodes: int) -> str:
    """The finding for jobs with fewer copies than a cluster of this size allows."""
    shown = f"{copies} copies" if copies > 1 else "1 copy"
    return f"a job without REPLICATE gets {shown}, not {min(COPIES_WANTED, nodes)}"


def unanswered(server: str, failure: Failure) -> HealthReport:
    """The report if the server gave no figures."""
    state = State.UNKNOWN if failure.code in UNKNOWN_CODES else State.CRITICAL
    return HealthReport(server, state, failure.words, [])


def _judge_queue(name: str, block: QueueBlock | None, limits: Limits) -> CheckedQueue:
    queue = CheckedQueue(name)
    if block is None:
        queue.find(State.CRITICAL, "no such queue")
        return queue
    queue.items, queue.waiters = _number(block, "items"), _number(block, "waiters")
    queue.oldest_ms = _number(block, "oldest_ms" if "oldest_ms" in block else "age")
    if block.get("stopped") == 1:
        queue.find(State.CRITICAL, f"stopped: its journal is corrupt; run: {repair_command(name)}")
    if block.get("journal_failed") == 1:
        queue.find(State.CRITICAL, "its journal cannot be written")
    _compare(queue, "items", queue.items, limits.items_warn, limits.items_crit)
    _compare(queue, "oldest_ms", queue.oldest_ms, limits.oldest_warn_ms, limits.oldest_crit_ms)
    if limits.waiters_min is not None and (queue.waiters or 0) < limits.waiters_min:
        queue.find(State.CRITICAL, f"waiters={queue.waiters or 0} (fewer than {limits.waiters_min})")
    return queue


def _number(block: QueueBlock, key: str) -> int | None:
    value = block.get(key)
    return value if isinstance(value, int) else None


def _compare(queue: CheckedQueue, name: str, value: int | None, warn: int | None, crit: int | None) -> None:
    for state, limit in ((State.CRITICAL, crit), (State.WARNING, warn)):
        if limit is not None and value is not None and value >= limit:
            queue.find(state, f"{name}={value} ({limit} or more)")
            return


# Output formats


def as_nagios(verdict: HealthReport, wanted: Sequence[str], limits: Limits) -> str:
    """One line: the verdict, then after a bar the figures of the named queues, or sums over all."""
    if wanted:
        figures = [word for queue in verdict.queues if queue.items is not None for word in _figures(queue, limits)]
    elif verdict.queues:
        figures = [f"queues={len(verdict.queues)}", f"items={sum(queue.items or 0 for queue in verdict.queues)}"]
    else:
        figures = []
    for jobs in verdict.jobs:
        limit_bytes = jobs.memory_limit_bytes
        figures.append(f"jobs={jobs.jobs}")
        figures.append(
            f"jobs_memory={jobs.memory_bytes}B;{limit_bytes * 3 // 4};{limit_bytes * 95 // 100};0;{limit_bytes}"
        )
    return nagios_line("KESTREL", verdict.state, [verdict.words], " ".join(figures))


def nagios_line(service: str, state: State, found: Sequence[str], figures: str) -> str:
    """One line: the first few findings, then after a bar the figures, if any."""
    words = _some(found).replace("|", "/").replace("\n", " ")
    return " | ".join([f"{service} {state.name} - {words}", *([figures] if figures else [])]) + "\n"


def _some(found: Sequence[str]) -> str:
    more = len(found) - SHOWN_FINDINGS_MAX
    return "; ".join(found[:SHOWN_FINDINGS_MAX]) + (f"; and {more} more" if more > 0 else "")


def _figures(queue: CheckedQueue, limits: Limits) -> list[str]:
    label = queue.queue.replace("'", "''").replace("=", "_").replace("|", "/")
    figures = [f"'{label} items'={queue.items};{_blank(limits.items_warn)};{_blank(limits.items_crit)};0"]
    if queue.oldest_ms is not None:
        warn, crit = _blank(limits.oldest_warn_ms), _blank(limits.oldest_crit_ms)
        figures.append(f"'{label} oldest'={queue.oldest_ms}ms;{warn};{crit};0")
    if queue.waiters is not None:
        figures.append(f"'{label} waiters'={queue.waiters};;{_blank(limits.waiters_min, ':')};0")
    return figures


def _blank(limit: int | None, suffix: str = "") -> str:
    return "" if limit is None else f"{limit}{suffix}"


def as_object(one: "DataclassInstance", findings: list[str]) -> dict[str, Any]:
    """Fields for JSON, with findings as texts."""
    return {"findings" if key == "found" else key: value for key, value in asdict(one).items()} | {"findings": findings}


def as_json(verdict: HealthReport) -> str:
    # age_ms is the former name of oldest_ms.
    queues = [
        as_object(queue, queue.findings) | {"state": queue.state.name.lower(), "age_ms": queue.oldest_ms}
        for queue in verdict.queues
    ]
    jobs = [asdict(one) | {"state": one.state.name.lower()} for one in verdict.jobs]
    record = {
        "state": verdict.state.name.lower(),
        "server": verdict.server,
        "words": verdict.words,
        "queues": queues,
        **({"jobs": jobs} if jobs else {}),
    }
    return json.dumps(record, indent=2) + "\n"


def as_prometheus(verdict: HealthReport) -> str:
    """The report for the textfile collector of node_exporter."""
    server = quoted_label(verdict.server)
    lines = [
        "# HELP kestrel_check_state 0 ok, 1 warning, 2 critical, 3 unknown",
        "# TYPE kestrel_check_state gauge",
        f"kestrel_check_state{{server={server}}} {verdict.state.value}",
    ]
    for name, help, values in (
        ("queue_state", "0 ok, 1 warning, 2 critical", [(queue, float(queue.state)) for queue in verdict.queues]),
        ("items", "items waiting", _known((queue, queue.items, 1) for queue in verdict.queues)),
        ("oldest_seconds", "how long the head has waited", _known((q, q.oldest_ms, 1000) for q in verdict.queues)),
        ("waiters", "clients waiting in a get", _known((queue, queue.waiters, 1) for queue in verdict.queues)),
    ):
        lines += [f"# HELP kestrel_check_{name} {help}", f"# TYPE kestrel_check_{name} gauge"]
        lines += [
            f"kestrel_check_{name}{{server={server},queue={quoted_label(queue.queue)}}} {value:.15g}"
            for queue, value in values
        ]
    for name, help, of_jobs in (
        ("jobs", "jobs, whatever their state", [(one.server, one.jobs) for one in verdict.jobs]),
        ("jobs_state", "0 ok, 1 warning, 2 critical", [(one.server, int(one.state)) for one in verdict.jobs]),
        ("jobs_memory_bytes", "memory of jobs", [(one.server, one.memory_bytes) for one in verdict.jobs]),
        ("jobs_memory_level", "75, 95 or 100, else 0", [(one.server, one.memory_level) for one in verdict.jobs]),
        ("jobs_nodes", "nodes of the cluster", [(one.server, one.nodes) for one in verdict.jobs]),
        ("jobs_nodes_down", "other nodes that do not answer", [(one.server, one.nodes_down) for one in verdict.jobs]),
    ):
        if of_jobs:
            lines += [f"# HELP kestrel_check_{name} {help}", f"# TYPE kestrel_check_{name} gauge"]
            lines += [f"kestrel_check_{name}{{server={quoted_label(address)}}} {value}" for address, value in of_jobs]
    return "\n".join(lines) + "\n"


def _known(figures: Iterable[tuple[CheckedQueue, int | None, int]]) -> list[tuple[CheckedQueue, float]]:
    return [(queue, value / unit) for queue, value, unit in figures if value is not None]


def quoted_label(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
