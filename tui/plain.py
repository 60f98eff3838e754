"""The console without a terminal: the same figures as text or JSON, for cron, pipes and screen readers."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure
from tui.board import ALL_SERVERS, Board
from tui.choosing import chosen, in_order
from tui.figures import COLUMNS, Number, QueueRow, as_record, total
from tui.formats import count, printable, rate, size, span
from tui.polling import Poller
from tui.summaries import health_line, totals_line

HEADINGS = {
    "oldest_ms": "oldest",
    "age_ms": "age",
    "open_reads": "open",
    "in_per_s": "in/s",
    "out_per_s": "out/s",
}
FORMS = {
    "items": count,
    "bytes": size,
    "logsize": size,
    "mem_items": count,
    "mem_bytes": size,
    "oldest_ms": span,
    "age_ms": span,
    "waiters": count,
    "open_reads": count,
    "in_per_s": rate,
    "out_per_s": rate,
    "expired": count,
    "discarded": count,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be shown."""

    filter: str = ""
    sort: str = "queue"
    descending: bool = False
    as_json: bool = False
    looks: int | None = None  # None = until interrupted


def cell(row: QueueRow, column: str) -> str:
    """One figure as it is shown."""
    return printable(row.queue) if column == "queue" else FORMS[column](getattr(row, column))


def run_plain(pollers: Sequence[Poller], wanted: Wanted, interval_ms: int) -> None:
    """Print look after look. One before the first is not printed: it is there for the rates.

    Raises Failure when the last look found no server at all.
    """
    board = Board([poller.address for poller in pollers])
    for number, at_ms in enumerate(_looks(pollers, board, wanted.looks, interval_ms)):
        if wanted.as_json:
            output.write_data(json.dumps(record(board, wanted, at_ms)).encode() + b"\n")
        else:
            separator = "\n" if number else ""
            output.write_data((separator + page(board, wanted, at_ms)).encode("utf-8", "replace"))
    if len(board.outages()) == len(board.servers):
        outages = [state.outage for state in board.outages() if state.outage is not None]
        raise Failure(ExitCode.UNREACHABLE, "; ".join(outage.reason for outage in outages))


def _looks(pollers: Sequence[Poller], board: Board, looks: int | None, interval_ms: int) -> Iterator[int]:
    done = -1
    retry_at: dict[str, float] = {}
    while looks is None or done < looks:
        started = time.monotonic()
        for poller in pollers:
            if retry_at.get(poller.address, 0.0) <= started or done < 0:
                news = poller.poll()
                board.receive(news)
                outage = board.servers[poller.address].outage
                retry_at[poller.address] = started + outage.next_try_ms / 1000 if outage is not None else 0.0
        at_ms = time.time_ns() // 1_000_000
        board.advance(at_ms)
        if done >= 0:
            yield at_ms
        done += 1
        if looks is None or done < looks:
            time.sleep(max(0.0, started + interval_ms / 1000 - time.monotonic()))


def rows_wanted(board: Board, wanted: Wanted, view: str = ALL_SERVERS) -> list[QueueRow]:
    return in_order(chosen(board.rows(view), wanted.filter), wanted.sort, descending=wanted.descending)


def page(board: Board, wanted: Wanted, at_ms: int) -> str:
    """Totals, servers and a table."""
    rows = rows_wanted(board, wanted)
    heads = [HEADINGS.get(column, column) for column in COLUMNS]
    lines = [heads, *([cell(row, column) for column in COLUMNS] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
    head = [f"{stamp}  {totals_line(rows)}", *(health_line(server, at_ms) for server in board.servers.values())]
    table = [
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*head, *table]) + "\n"


def record(board: Board, wanted: Wanted, at_ms: int) -> dict[str, object]:
    """The same as one JSON object."""
    rows = rows_wanted(board, wanted)
    totals: dict[str, Number | str] = {"queues": len(rows), **as_record(total(rows))}
    del totals["queue"]
    return {
        "at_ms": at_ms,
        "servers": [
            {
                "server": server.address,
                "answers": server.outage is None,
                "reason": server.outage.reason if server.outage is not None else None,
                "counters": server.snapshot.counters if server.snapshot is not None else {},
            }
            for server in board.servers.values()
        ],
        "totals": totals,
        "queues": [as_record(row) for row in rows],
    }
