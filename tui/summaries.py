"""The lines above the table: totals of a view and the health of its servers, as plain text."""

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from tui.board import ServerState
from tui.figures import QueueRow, labelled, total
from tui.formats import count, printable, rate, size, span
from tui.states import RANK, TROUBLE

TROUBLE_LINES_MAX: Final = 4
TOTALS: Final = ("items", "bytes", "logsize", "in_per_s", "out_per_s", "waiters", "open_reads", "expired", "discarded")


def totals_line(rows: Sequence[QueueRow]) -> str:
    return "  ".join([f"queues {count(len(rows))}", *labelled(total(rows), TOTALS)])


def trouble_lines(rows: Iterable[QueueRow], servers: Sequence[ServerState], most: int) -> list[str]:
    """The queues that need somebody, the worst first, and what is the matter with them."""
    troubled = [row for row in rows if row.state in TROUBLE]
    shown = most if len(troubled) <= most else most - 1
    worst = heapq.nsmallest(shown, troubled, key=lambda row: (-RANK[row.state], -(row.items or 0), row.queue))
    lines = [_trouble(row, servers) for row in worst]
    if left := len(troubled) - len(lines):
        lines.append(f"… {count(left)} more; press ! to see the worst first")
    return lines


def _trouble(row: QueueRow, servers: Sequence[ServerState]) -> str:
    snapshots = [server.snapshot for server in servers if server.snapshot is not None]
    reason = next((why for snapshot in snapshots if (why := snapshot.reasons.get(row.queue))), "")
    name, items = printable(row.queue), f"{count(row.items)} item{'' if row.items == 1 else 's'}"
    match row.state:
        case "stopped":
            return f"✖ {name}  STOPPED: {reason or 'its journal is damaged'}"
        case "failed":
            return f"✖ {name}  NOT WRITTEN: {reason or 'journal writes are failing'}"
        case "full":
            return f"▲ {name}  FULL: {items} reached max_items or max_size"
        case _:
            waited = f", the oldest for {span(row.oldest_ms)}" if row.oldest_ms else ""
            return f"▲ {name}  STUCK: {items} wait{'s' if row.items == 1 else ''}{waited}, and nobody fetches"


def health_line(server: ServerState, now_ms: int) -> str:
    """▲ does not answer, ✖ has failures, ● healthy."""
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
