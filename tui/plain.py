"""The console without a terminal: the same figures as text or JSON, for cron, pipes and screen readers."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure
from tui.board import ALL_SERVERS, Board
from tui.choosing import chosen, in_order
from tui.formats import Number
from tui.job_rows import JOB_COLUMNS, JOB_HEADINGS, as_job_record, job_cell, jobs_in_order
from tui.node_rows import NODE_COLUMNS, NODE_HEADINGS, as_node_record, node_cell, nodes_in_order
from tui.polling import Poller
from tui.queue_rows import COLUMNS, HEADINGS, QueueRow, as_record, cell, total
from tui.recording import Recorder
from tui.summaries import server_lines, totals_line, trouble_lines


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options of `kestrelctl top` for the view."""

    filter: str = ""
    sort: str = "queue"
    descending: bool = False
    as_json: bool = False
    samples: int | None = None  # None = until interrupted
    is_silent: bool = False  # print nothing, only record


def run_plain(
    pollers: Sequence[Poller], options: ViewOptions, interval_ms: int, recorder: Recorder | None = None
) -> None:
    """Print all samples except the first, because rates need a previous one. `recorder` gets them all.

    Raises Failure if no server answered in the last sample, or if one refused the login from the start.
    """
    board = Board([poller.address for poller in pollers])
    for number, at_ms in enumerate(_samples(pollers, board, options.samples, interval_ms, recorder)):
        if options.is_silent:
            continue
        if options.as_json:
            output.write_data(json.dumps(record(board, options, at_ms)).encode() + b"\n")
        else:
            separator = "\n" if number else ""
            output.write_data((separator + page(board, options, at_ms)).encode("utf-8", "replace"))
    if len(board.outages()) == len(board.servers):
        outages = [state.outage for state in board.outages() if state.outage is not None]
        raise Failure(ExitCode.UNREACHABLE, "; ".join(outage.reason for outage in outages))


def _samples(
    pollers: Sequence[Poller], board: Board, samples: int | None, interval_ms: int, recorder: Recorder | None
) -> Iterator[int]:
    done = -1
    retry_at: dict[str, float] = {}
    while samples is None or done < samples:
        started = time.monotonic()
        for poller in pollers:
            if retry_at.get(poller.address, 0.0) <= started or done < 0:
                news = poller.poll()
                board.receive(news)
                if (refusal := board.servers[poller.address].login_refusal) is not None:
                    raise refusal
                if recorder is not None:
                    recorder.write(news)
                outage = board.servers[poller.address].outage
                retry_at[poller.address] = started + outage.next_try_ms / 1000 if outage is not None else 0.0
        at_ms = time.time_ns() // 1_000_000
        board.advance(at_ms)
        if done >= 0:
            yield at_ms
        done += 1
        if samples is None or done < samples:
            time.sleep(max(0.0, started + interval_ms / 1000 - time.monotonic()))


def shown_rows(board: Board, options: ViewOptions, view: str = ALL_SERVERS) -> list[QueueRow]:
    return in_order(chosen(board.rows(view), options.filter), options.sort, descending=options.descending)


def page(board: Board, options: ViewOptions, at_ms: int) -> str:
    """A sample as text: totals, servers and tables."""
    rows = shown_rows(board, options)
    heads = list(HEADINGS.values())
    lines = [heads, *([cell(row, column) for column in COLUMNS] for row in rows)]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
    head = [f"{stamp}  {totals_line(rows)}"]
    head += [line for server in board.servers.values() for line in server_lines(server, at_ms)]
    head += trouble_lines(rows, list(board.servers.values()), board.node_rows(ALL_SERVERS))
    return "\n".join([*head, *_aligned(lines), *_job_table(board), *_node_table(board)]) + "\n"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns, right-aligned except for the first."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _job_table(board: Board) -> list[str]:
    """The table of job queues, empty if there are none."""
    rows = jobs_in_order(board.job_rows(ALL_SERVERS), "queue", descending=False)
    if not rows:
        return []
    heads = ["queue of jobs", *list(JOB_HEADINGS.values())[1:]]
    cells = [[job_cell(row, column) for column in JOB_COLUMNS] for row in rows]
    return ["", *_aligned([heads, *cells])]


def _node_table(board: Board) -> list[str]:
    """The table of nodes, empty unless there are several."""
    rows = nodes_in_order(board.node_rows(ALL_SERVERS), "address", descending=False)
    if len(rows) < 2:
        return []
    heads = ["node", *list(NODE_HEADINGS.values())[1:]]
    cells = [[node_cell(row, column) for column in NODE_COLUMNS] for row in rows]
    return ["", *_aligned([heads, *cells])]


def record(board: Board, options: ViewOptions, at_ms: int) -> dict[str, object]:
    """A sample as a JSON object."""
    rows = shown_rows(board, options)
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
        "job_queues": [
            as_job_record(row) for row in jobs_in_order(board.job_rows(ALL_SERVERS), "queue", descending=False)
        ],
        "nodes": [
            as_node_record(row) for row in nodes_in_order(board.node_rows(ALL_SERVERS), "address", descending=False)
        ],
    }
