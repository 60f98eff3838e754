"""Health of a cluster of jobs from its nodes' reports, as text and for nagios, JSON and Prometheus. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.remote.checking import (
    COPIES_WANTED,
    JOBS_CRITICAL_PERCENT,
    UNKNOWN_CODES,
    Finding,
    State,
    as_object,
    nagios_line,
    quoted_label,
    state_of_down,
    too_few_copies,
    worst_first,
)
from kestrelctl.remote.job_cluster import ClusterView, Member, NodeView
from kestrelctl.shell.exit_codes import Failure
from kestrelctl.shell.output import counted
from kestreld.client.blocks import Cell

READS_LOG: Final = "is reading its job log"
LAG_WARN_US: Final = 500_000
QUEUED_WARN_BYTES: Final = 1 << 20  # from here on the other node sends it no jobs
COLUMNS: Final = ["address", "state", "jobs", "acked", "memory_level", "lag_ms", "queued_bytes", "version", "words"]


@dataclass(slots=True)
class CheckedNode:
    """Result for one node. Fields are named as in the JSON output; None = unknown."""

    id: str
    address: str
    state: State = State.OK
    condition: str = "up"  # or leaving, loading, suspected, down, stopped, away (reachable for others, not from here)
    jobs: int | None = None
    acked: int | None = None  # jobs whose acknowledgement not all nodes know yet
    memory_level: int | None = None
    lag_us: int | None = None  # longest round trip that another node measured to it
    queued_bytes: int | None = None  # bytes waiting on other nodes to be sent to it
    version: str = ""
    found: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        return worst_first(self.found)

    def find(self, state: State, words: str) -> None:
        self.state = max(self.state, state)
        self.found.append(Finding(state, words))

    def row(self) -> dict[str, Cell]:
        """The node as a row of a table."""
        lag_ms = None if self.lag_us is None else round(self.lag_us / 1000, 1)
        cells = (self.jobs, self.acked, self.memory_level, lag_ms, self.queued_bytes)
        shown = ["" if cell is None else str(cell) for cell in cells]
        return dict(zip(COLUMNS, [self.address, self.condition, *shown, self.version, self._words], strict=True))

    @property
    def _words(self) -> str:
        return "; ".join(self.findings)


@dataclass(slots=True)
class ClusterReport:
    """All nodes, and the faults of the cluster as a whole."""

    server: str
    state: State
    words: str
    nodes: list[CheckedNode]
    found: list[Finding] = field(default_factory=list)  # of the cluster as a whole
    default_copies: int | None = None  # of a job that is added without REPLICATE now

    @property
    def findings(self) -> list[str]:
        return worst_first(self.found)

    @property
    def all_found(self) -> list[str]:
        """Findings of the cluster and of its nodes."""
        of_nodes = [
            Finding(one.state, f"{node.address or node.id}: {one.words}") for node in self.nodes for one in node.found
        ]
        return worst_first([*self.found, *of_nodes])


def judge(server: str, view: ClusterView) -> ClusterReport:
    """Check the cluster. `server` is the node that was asked first."""
    nodes = [_Judge(view, member).node for member in view.members.values()]
    found: list[Finding] = []
    copies = [number for one in view.nodes if (number := one.number("default_copies")) is not None]
    if copies and min(copies) < min(COPIES_WANTED, len(nodes)):
        found.append(Finding(State.WARNING, too_few_copies(min(copies), len(nodes))))
    if all("leaving" in one.members[one.id].flags for one in view.nodes):
        found = [Finding(State.CRITICAL, "all nodes are leaving, and take no jobs")]
    found += [Finding(State.CRITICAL, words) for words in sorted({w for one in view.nodes for w in one.copied_spools})]
    state = max([State.OK, *[one.state for one in found], *[node.state for node in nodes]])
    report = ClusterReport(server, state, "", nodes, found, min(copies, default=None))
    report.words = "; ".join(report.all_found) or _all_is_well(nodes)
    return report


def _all_is_well(nodes: Sequence[CheckedNode]) -> str:
    what = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes, which know each other"
    return f"{what}; {counted(sum(node.jobs or 0 for node in nodes), 'job')}, copies included"


def unanswered(server: str, failure: Failure) -> ClusterReport:
    """The report if the first node has not answered."""
    if " refused: LOADING " in failure.words:
        return ClusterReport(server, State.WARNING, f"{server} {READS_LOG}", [])
    state = State.UNKNOWN if failure.code in UNKNOWN_CODES else State.CRITICAL
    return ClusterReport(server, state, failure.words, [])


def _down_at(view: ClusterView, node_id: str) -> list[str]:
    """The nodes that consider this one down."""
    return [one.place for one in view.nodes if (seen := one.members.get(node_id)) and seen.is_down]


class _Judge:
    """Checks of one node."""

    def __init__(self, view: ClusterView, member: Member) -> None:
        self._view = view
        self.node = CheckedNode(member.id, member.address)
        self._others = [one for one in view.nodes if one.id != member.id]
        own = view.view(member.id)
        if own is None:
            self._judge_silent(member)
        else:
            self._take_figures(own)
            self._judge_cut_off(own)
            self._judge_itself(own)
        self._judge_links()

    def _down_at(self) -> list[str]:
        return _down_at(self._view, self.node.id)

    @property
    def _state_of_down(self) -> State:
        down = sum(bool(_down_at(self._view, node_id)) for node_id in self._view.members)
        return state_of_down(down, len(self._view.members))

    def _judge_silent(self, member: Member) -> None:
        """Check a node that could not be asked."""
        node, down_at = self.node, self._down_at()
        failures = {address.removeprefix("tls:"): failure for address, failure in self._view.failures.items()}
        failure = failures.get(member.address)
        reason = failure.words.partition(";")[0] if failure is not None else "its address is not known"
        if down_at:
            problems = [problem for one in self._others if (problem := one.links.get(node.id, {}).get("problem"))]
            has_failed = any("fail" in one.members[node.id].flags for one in self._others if node.id in one.members)
            node.condition = "down" if has_failed else "suspected"
            why = f": {problems[0]}" if problems else ""
            node.find(self._state_of_down, f"does not answer {', '.join(down_at)}{why}")
        elif " refused: LOADING " in reason:
            node.condition = "loading"
            node.find(State.WARNING, READS_LOG)
        elif " refused: MISCONF " in reason:
            node.condition = "stopped"
            node.find(State.CRITICAL, f"serves no jobs: {reason.partition(' refused: MISCONF ')[2]}")
        else:
            node.condition = "away"
            node.find(State.WARNING, f"cannot be asked from here: {reason}")

    def _take_figures(self, own: NodeView) -> None:
        node = self.node
        node.jobs, node.acked = own.number("registered_jobs"), own.number("acked_jobs")
        node.memory_level = own.number("maxmemory_level_percent")
        node.version = own.info.get("kestreld_version") or own.info.get("disque_version", "")
        lags = [self._of_link(one, "lag_usec") for one in self._others]
        queued = [self._of_link(one, "queued_bytes") for one in self._others]
        node.lag_us = max((lag for lag in lags if lag is not None and lag >= 0), default=None)
        node.queued_bytes = sum(found) if (found := [size for size in queued if size is not None]) else None

    def _of_link(self, one: NodeView, name: str) -> int | None:
        value = one.links.get(self.node.id, {}).get(name, "")
        return int(value) if value.lstrip("-").isdecimal() else None

    def _judge_cut_off(self, own: NodeView) -> None:
        """Check that a node that answers here also answers the other nodes and is known to them."""
        node = self.node
        if down_at := self._down_at():
            node.condition = "suspected"
            node.find(self._state_of_down, f"answers here, but not {', '.join(down_at)}")
        if unknown_at := [one.place for one in self._others if one.id in own.ids and node.id not in one.ids]:
            node.find(State.WARNING, f"is not known to {', '.join(unknown_at)}")
        elif strangers := [one.place for one in self._others if one.id not in own.ids and node.id not in one.ids]:
            node.find(State.WARNING, f"does not know {', '.join(strangers)}")

    def _judge_itself(self, own: NodeView) -> None:
        node = self.node
        if own.number("loading"):
            node.condition = "loading"
            node.find(State.WARNING, READS_LOG)
        if "leaving" in own.members[own.id].flags:
            node.condition = "leaving"
        if own.info.get("aof_last_write_status") == "err":
            node.find(State.CRITICAL, "cannot write its job log")
        if node.memory_level:
            state = State.CRITICAL if node.memory_level >= JOBS_CRITICAL_PERCENT else State.WARNING
            node.find(state, f"uses more than {node.memory_level} % of its maxmemory")

    def _judge_links(self) -> None:
        """Check the links from the other nodes to this one."""
        node = self.node
        for one in self._others:
            seen, link = one.members.get(node.id), one.links.get(node.id, {})
            if seen is None or seen.is_down:
                continue
            if not seen.is_linked and self._view.view(node.id) is not None:
                problem = f": {link['problem']}" if link.get("problem") else ""
                node.find(State.WARNING, f"{one.place} has no link to it{problem}")
            lag_us, queued_bytes = self._of_link(one, "lag_usec") or 0, self._of_link(one, "queued_bytes") or 0
            if lag_us >= LAG_WARN_US:
                node.find(State.WARNING, f"lags: its answer to {one.place} took {lag_us // 1000} ms")
            if queued_bytes >= QUEUED_WARN_BYTES:
                node.find(
                    State.WARNING,
                    f"does not read: {queued_bytes} bytes wait at {one.place} to be sent to it",
                )


# Output formats


def as_text(report: ClusterReport) -> str:
    """The verdict and a line for each finding; the rows of nodes follow."""
    lines = [f"CLUSTER {report.state.name}", *[f"  {words}" for words in report.all_found]]
    if len(lines) == 1:
        lines = [f"{lines[0]} - {report.words}"]
    return "\n".join(lines) + "\n"


def as_nagios(report: ClusterReport) -> str:
    figures = [f"nodes={len(report.nodes)}", f"up={sum(node.jobs is not None for node in report.nodes)}"]
    if report.default_copies is not None:
        figures.append(f"default_copies={report.default_copies}")
    for name in ("jobs", "acked"):
        figures.append(f"{name}={sum(getattr(node, name) or 0 for node in report.nodes)}")
    found = report.all_found or [report.words]
    return nagios_line("CLUSTER", report.state, found, " ".join(figures) if report.nodes else "")


def as_json(report: ClusterReport) -> str:
    nodes = [as_object(node, node.findings) | {"state": node.state.name.lower()} for node in report.nodes]
    record = as_object(report, report.findings) | {"state": report.state.name.lower(), "nodes": nodes}
    return json.dumps(record, indent=2) + "\n"


def as_prometheus(report: ClusterReport) -> str:
    """The report for the textfile collector of node_exporter."""
    server = quoted_label(report.server)
    lines = [
        "# HELP kestrel_cluster_state 0 ok, 1 warning, 2 critical, 3 unknown",
        "# TYPE kestrel_cluster_state gauge",
        f"kestrel_cluster_state{{server={server}}} {report.state.value}",
    ]
    for name, help, values in (
        ("state", "0 ok, 1 warning, 2 critical", [float(node.state) for node in report.nodes]),
        ("jobs", "jobs it holds, whatever their state", [node.jobs for node in report.nodes]),
        ("acked", "acknowledgements that not all nodes know of", [node.acked for node in report.nodes]),
        ("lag_seconds", "longest round trip of a ping to it", list(_lags_s(report))),
        ("queued_bytes", "bytes waiting to be sent to it", [node.queued_bytes for node in report.nodes]),
    ):
        lines += [f"# HELP kestrel_cluster_node_{name} {help}", f"# TYPE kestrel_cluster_node_{name} gauge"]
        for node, value in zip(report.nodes, values, strict=True):
            if value is not None:
                labels = f"server={server},node={quoted_label(node.id)},address={quoted_label(node.address)}"
                lines.append(f"kestrel_cluster_node_{name}{{{labels}}} {value:.15g}")
    return "\n".join(lines) + "\n"


def _lags_s(report: ClusterReport) -> Iterator[float | None]:
    for node in report.nodes:
        yield None if node.lag_us is None else node.lag_us / 1e6
