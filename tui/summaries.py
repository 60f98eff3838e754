"""Summary lines of the console: totals of a view, health of its servers, and problems, as plain text."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from kestrelctl.remote.stopped import JOBS_REMEDY, repair_command
from tui.board import ServerState
from tui.formats import count, printable, rate, size, span
from tui.job_rows import JobRow, job_figures, total_jobs
from tui.node_rows import DOWN, NodeRow
from tui.node_rows import TROUBLE as NODE_TROUBLE
from tui.queue_rows import QueueRow, labelled, total
from tui.states import RANK, TROUBLE

TROUBLE_LINES_MAX: Final = 4
COPIES_WANTED: Final = 3  # of a job, or as many as there are nodes
NAMES_SHOWN_MAX: Final = 5
MEMORY_CROWDED_PERCENT: Final = 75
TOTALS: Final = ("items", "bytes", "logsize", "in_per_s", "out_per_s", "waiters", "open_reads", "expired", "discarded")


def totals_line(rows: Sequence[QueueRow]) -> str:
    return "  ".join([f"queues {count(len(rows))}", *labelled(total(rows), TOTALS)])


def trouble_lines(rows: Iterable[QueueRow], servers: Sequence[ServerState], nodes: Sequence[NodeRow] = ()) -> list[str]:
    """Queues in trouble and their problems, the worst first.

    One line for each queue, or one for each state if there are more than TROUBLE_LINES_MAX queues: one line for each
    state always fits.
    """
    of_jobs = [line for server in servers for line in job_trouble(server)] + cluster_trouble(nodes, servers)
    troubled = [row for row in rows if row.state in TROUBLE]
    if not troubled:
        return of_jobs
    troubled.sort(key=lambda row: (-RANK[row.state], -(row.items or 0), row.queue))
    reasons: dict[str, str] = {}
    for server in servers:
        if server.snapshot is not None:
            reasons.update(server.snapshot.reasons)
    if len(troubled) <= TROUBLE_LINES_MAX:
        groups = [[row] for row in troubled]
    else:
        groups = [list(same) for _, same in groupby(troubled, lambda row: row.state)]
    return [*of_jobs, *[_trouble(same, reasons) for same in groups]]


def _trouble(same: Sequence[QueueRow], reasons: dict[str, str]) -> str:
    row = same[0]
    names = [printable(each.queue) for each in same[:NAMES_SHOWN_MAX]]
    who = names[0] if len(same) == 1 else f"{count(len(same))} queues"
    more = "" if len(same) == 1 else f": {', '.join(names)}{', …' if len(same) > NAMES_SHOWN_MAX else ''}"
    reason = next((why for each in same if (why := reasons.get(each.queue))), "")
    total_items = sum(each.items or 0 for each in same)
    items = f"{count(total_items)} item{'' if total_items == 1 else 's'}"
    match row.state:
        case "stopped":
            remedy = repair_command(row.queue) if len(same) == 1 else "kestrelctl repair QUEUE"
            return f"✖ {who}  STOPPED ({printable(remedy)}): {reason or 'damaged journal'}{more}"
        case "failed":
            return f"✖ {who}  NOT WRITTEN: {reason or 'journal writes are failing'}{more}"
        case "full":
            return f"▲ {who}  FULL: {items}, max_items or max_size is reached{more}"
        case _:
            oldest_ms = max(each.oldest_ms or 0 for each in same)
            waited = f", the oldest for {span(oldest_ms)}" if oldest_ms else ""
            return f"▲ {who}  STUCK: {items} wait{'s' if total_items == 1 else ''}{waited}, and no client fetches{more}"


def health_line(server: ServerState, now_ms: int) -> str:
    """State of a server: ▲ does not answer, ✖ has failures, ● healthy."""
    if server.outage is not None:
        silent = span(max(0, now_ms - server.silent_since_ms))
        wait = span(max(0, server.outage.at_ms + server.outage.next_try_ms - now_ms))
        return f"▲ {server.address}  stale for {silent}, next attempt in {wait}: {server.outage.reason}"
    if server.snapshot is None:
        return f"… {server.address}  no reply yet"
    counters = server.snapshot.counters
    failed = [
        f"{words} {counters[name]}"
        for name, words in (("journals_failed", "JOURNALS NOT WRITTEN"), ("queues_stopped", "QUEUES STOPPED"))
        if counters.get(name)
    ]
    parts = [str(counters.get("version", ""))]
    for label, name, form in (
        ("up", "uptime", lambda value: span(value * 1000)),
        ("connections", "curr_connections", count),
        ("journals", "journal_bytes", size),
        ("sync mean", "sync_us_mean", lambda value: f"{value / 1000:.1f}ms"),
    ):
        value = counters.get(name)
        if isinstance(value, int):
            parts.append(f"{label} {form(value)}")
    for label, name in (("sets/s", "cmd_set"), ("gets/s", "cmd_get")):
        per_s = server.counter_per_s(name)
        if per_s is not None:
            parts.append(f"{label} {rate(per_s)}")
    return "  ".join([f"{'✖' if failed else '●'} {server.address}", *failed, *filter(None, parts)])


def server_lines(server: ServerState, now_ms: int) -> list[str]:
    """A server's health, followed by lines for its cache and its jobs if it has any."""
    return [health_line(server, now_ms), *_cache_lines(server), *job_lines(server)]


def _counters(server: ServerState) -> dict[str, int | str]:
    """Counters of a server that answers, else {}."""
    return server.snapshot.counters if server.snapshot is not None and server.outage is None else {}


def job_totals_line(rows: Sequence[JobRow]) -> str:
    """Totals of the job queues."""
    return "  ".join([f"queues {count(len(rows))}", *job_figures(total_jobs(rows))])


def job_lines(server: ServerState) -> list[str]:
    """A line on the server's jobs, if it has any."""
    counters = {name: value for name, value in _counters(server).items() if isinstance(value, int)}
    used_bytes, limit_bytes = counters.get("jobs_memory_bytes"), counters.get("jobs_memory_limit_bytes")
    if used_bytes is None or limit_bytes is None:
        return []
    level = counters.get("jobs_memory_level", 0)
    parts = [f"memory {size(used_bytes)} of {size(limit_bytes)}" + (f" ABOVE {level}%" if level else "")]
    parts += [
        f"{label} {count(counters.get(name))}"
        for label, name in (
            ("queued", "jobs_queued"),
            ("active", "jobs_active"),
            ("delayed", "jobs_delayed"),
            ("clients waiting", "jobs_blocked_clients"),
        )
    ]
    for label, name in (("in/s", "jobs_in"), ("out/s", "jobs_out")):
        per_s = server.counter_per_s(name)
        if per_s is not None:
            parts.append(f"{label} {rate(per_s)}")
    parts.append(f"import/s {rate(counters.get('jobs_import_rate'))}")
    if paused := counters.get("jobs_queues_paused"):
        parts.append(f"queues paused {count(paused)}")
    if (nodes := counters.get("jobs_cluster_size", 1)) > 1:
        parts.append(f"nodes (n) {nodes - counters.get('jobs_cluster_down', 0)} of {nodes} up")
    if counters.get("jobs_loading"):
        parts.append("LOADING")
    return ["  ".join(["└ jobs (g)", *parts])]


def job_trouble(server: ServerState) -> list[str]:
    """Problems of the server's jobs."""
    counters = _counters(server)
    lines = []
    if counters.get("jobs_stopped"):
        lines.append(f"✖ {server.address}  JOBS STOPPED: their log is damaged; {JOBS_REMEDY}")
    elif counters.get("jobs_log_failed"):
        lines.append(f"✖ {server.address}  JOBS NOT WRITTEN: writes to their log are failing")
    level = counters.get("jobs_memory_level")
    if isinstance(level, int) and level:
        full = "commands that need memory are refused" if level > MEMORY_CROWDED_PERCENT else "new jobs are refused"
        lines.append(f"▲ {server.address}  JOBS use more than {level}% of maxmemory: {full}")
    return lines


def node_totals_line(rows: Sequence[NodeRow]) -> str:
    """Totals of the nodes."""
    up = [row for row in rows if row.state not in NODE_TROUBLE]
    given = [row.given_per_s for row in rows if row.given_per_s is not None]
    parts = [f"{len(up)} of {len(rows)} up", f"jobs {count(sum(row.jobs or 0 for row in rows))}"]
    return "  ".join([*parts, *([f"given/s {rate(sum(given))}"] if given else [])])


def cluster_lines(servers: Sequence[ServerState]) -> list[str]:
    """A line for each server with its view of the cluster."""
    lines = []
    for server in servers:
        counters = {name: value for name, value in _counters(server).items() if isinstance(value, int)}
        if "jobs_cluster_size" not in counters:
            continue
        parts = [
            f"{label} {count(counters.get(name))}"
            for label, name in (
                ("nodes", "jobs_cluster_size"),
                ("copies of a job", "jobs_default_copies"),
                ("being added", "jobs_being_added"),
                ("acknowledgements to collect", "jobs_acked"),
            )
        ]
        leaving = ["LEAVING"] if counters.get("jobs_cluster_leaving") else []
        alone = ["no admin port: other nodes are not listed"] if _is_blind(server) else []
        lines.append("  ".join([f"● {server.address}", *leaving, *parts, *alone]))
    return lines or ["no server has jobs"]


def _is_blind(server: ServerState) -> bool:
    """True if the server has other nodes but does not list them."""
    return int(_counters(server).get("jobs_cluster_size", 1)) > 1 and not (server.snapshot and server.snapshot.nodes)


def cluster_trouble(nodes: Sequence[NodeRow], servers: Sequence[ServerState]) -> list[str]:
    """Problems of the cluster: nodes in trouble, and what only single servers report."""
    lines = []
    for server in servers:
        counters = {name: value for name, value in _counters(server).items() if isinstance(value, int)}
        if counters.get("jobs_cluster_copied_spools"):
            lines.append(f"✖ {server.address}  COPIED SPOOL: two nodes have one id; see its log for which")
        if _is_blind(server) and (down := counters.get("jobs_cluster_down")):
            lines.append(f"✖ {server.address}  NODES DOWN: {down} of {counters['jobs_cluster_size'] - 1} others")
        wanted = min(COPIES_WANTED, counters.get("jobs_cluster_size", 1))
        if (copies := counters.get("jobs_default_copies", wanted)) < wanted:
            lines.append(f"▲ {server.address}  COPIES: a job without REPLICATE gets {copies}, not {wanted}")
    troubled = [node for node in nodes if node.state in NODE_TROUBLE]
    lines += [_node_trouble(node) for node in troubled[:TROUBLE_LINES_MAX]]
    if len(troubled) > TROUBLE_LINES_MAX:
        more = len(troubled) - TROUBLE_LINES_MAX
        lines.append(f"▲ and {more} node{'' if more == 1 else 's'} more")
    return lines


def _node_trouble(node: NodeRow) -> str:
    reason = f": {printable(node.problem)}" if node.problem else ""
    return f"{'✖' if node.state == DOWN else '▲'} {node.address or node.id}  {node.state.upper()}{reason}"


def _cache_lines(server: ServerState) -> list[str]:
    counters = _counters(server)
    held_bytes, limit_bytes = counters.get("cache_bytes"), counters.get("cache_limit_bytes")
    if not isinstance(held_bytes, int) or not isinstance(limit_bytes, int):
        return []
    items = counters.get("cache_items")
    parts = [f"items {count(items)}"] if isinstance(items, int) else []
    parts.append(f"bytes {size(held_bytes)} of {size(limit_bytes)}")
    hits_s, misses_s = server.counter_per_s("cache_hits"), server.counter_per_s("cache_misses")
    if hits_s is not None and misses_s is not None:
        gets_s = hits_s + misses_s
        parts.append(f"gets/s {rate(gets_s)}" + (f" ({100 * hits_s / gets_s:.0f}% hits)" if gets_s else ""))
    for label, name in (("sets/s", "cache_sets"), ("evictions/s", "cache_evictions"), ("expired/s", "cache_expired")):
        per_s = server.counter_per_s(name)
        if per_s is not None:
            parts.append(f"{label} {rate(per_s)}")
    return ["  ".join(["└ cache", *parts])]
