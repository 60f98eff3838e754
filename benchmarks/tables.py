"""The measurements as tables of words: for the terminal and for docs/benchmarks.md alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from benchmarks.results import Backlog, Cell, Results, cells

Cells = dict[tuple[str, int, str], Cell]

SYNCED: Final = "synced"  # how the rows begin in which journals are synced before each answer
NOTHING: Final = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is words, the others are figures."""

    title: str
    head: list[str]
    rows: list[list[str]]


def ours(results: Results) -> list[str]:
    """The kestrelds: the only servers of which is known what runs them."""
    return [name for name, version in results.machine.servers.items() if ", " in version]


def compare_tables(results: Results) -> list[Table]:
    found = cells(results.runs)
    names = list(dict.fromkeys(row for row, _, _ in found))
    unsynced = [name for name in names if not name.startswith(SYNCED)]
    synced = [name for name in names if name.startswith(SYNCED)]
    cost = "server CPU, µs per operation; in brackets kestreld's divided by the peer's"
    sync_cost = "a sync before every answer: operations a second; in brackets kestreld's divided by the peer's"
    return [
        _beside_peers(results, found, unsynced, cost, lambda cell: cell.cpu_us, "{:.2f}"),
        _beside_peers(results, found, synced, sync_cost, lambda cell: cell.ops_s, "{:,.0f}"),
        _columns(results, found, unsynced, "operations a second", lambda cell: f"{cell.ops_s:,.0f}"),
        _columns(results, found, names, "answers, µs: half of them, 99 %, 99.9 % within", _answer_times),
    ]


def cache_table(results: Results) -> Table:
    return _of_some(results, "the cache: server CPU, µs per operation; in brackets kestreld's divided by memcached's")


def jobs_table(results: Results) -> Table:
    return _of_some(results, "jobs: server CPU, µs per command; in brackets kestreld's divided by redis's")


def _of_some(results: Results, title: str) -> Table:
    """Of the servers that were measured."""
    found = cells(results.runs)
    servers = {name: version for name, version in results.machine.servers.items() if any(name == at[2] for at in found)}
    results = replace(results, machine=replace(results.machine, servers=servers))
    names = list(dict.fromkeys(row for row, _, _ in found))
    return _beside_peers(results, found, names, title, lambda cell: cell.cpu_us, "{:.2f}")


def _beside_peers(
    results: Results, found: Cells, names: Sequence[str], title: str, figure: Callable[[Cell], float], form: str
) -> Table:
    mine = ours(results)
    rows = []
    for name in names:
        row = [name]
        for server in results.machine.servers:
            cell = found.get((name, 0, server))
            if cell is None or not figure(cell):
                row.append(NOTHING)
                continue
            ratios = [
                f"{figure(found[name, 0, own]) / figure(cell):.2f}"
                for own in mine
                if server not in mine and (name, 0, own) in found
            ]
            row.append(form.format(figure(cell)) + (f" ({', '.join(ratios)})" if ratios else "") + _marks(cell))
        rows.append(row)
    return Table(title, ["", *results.machine.servers], rows)


def _columns(results: Results, found: Cells, names: Sequence[str], title: str, words: Callable[[Cell], str]) -> Table:
    rows = [
        [
            name,
            *(
                words(found[name, 0, server]) if (name, 0, server) in found else NOTHING
                for server in results.machine.servers
            ),
        ]
        for name in names
    ]
    return Table(title, ["", *results.machine.servers], rows)


def _answer_times(cell: Cell) -> str:
    return f"{cell.p50_us:,.0f} / {cell.p99_us:,.0f} / {cell.p99_9_us:,.0f}"


def _marks(cell: Cell) -> str:
    return f" {cell.faults} FAULTS" if cell.faults else ""


def growth_tables(results: Results) -> list[Table]:
    found = cells(results.runs)
    tables = []
    for name in dict.fromkeys(row for row, _, _ in found):
        places = list(dict.fromkeys(at for row, at, _ in found if row == name))
        rows = []
        for at in places:
            row = [f"{at:,}"]
            for server in ours(results):
                cell, first = found[name, at, server], found[name, places[0], server]
                row.append(f"{cell.cpu_us:.2f} ({cell.cpu_us / first.cpu_us:.2f})" + _marks(cell))
                row.append(f"{cell.p99_us:,.0f} / {cell.p99_9_us:,.0f}")
            rows.append(row)
        head = [name]
        for server in ours(results):
            head += [f"{server}: CPU, µs per operation (of the first row's)", "99 %, 99.9 % of answers within, µs"]
        tables.append(Table(f"set+get, 64 clients: {name}", head, rows))
    return tables


def backlog_table(results: Results) -> Table:
    gathered: dict[tuple[str, int], list[Backlog]] = {}
    for backlog in results.backlogs:
        gathered.setdefault((backlog.server, backlog.items), []).append(backlog)
    rows = [
        [
            server,
            f"{items:,}",
            f"{median(each_bytes(backlog) for backlog in rounds):.0f}" if items else NOTHING,
            f"{min(backlog.stopped_ms for backlog in rounds):,.0f}",
            f"{min(backlog.killed_ms for backlog in rounds):,.0f}",
            str(sum(backlog.faults for backlog in rounds)),
        ]
        for (server, items), rounds in gathered.items()
    ]
    head = ["", "64-byte items", "memory of each, bytes", "stopped: ms to the first item", "killed: ms to it", "faults"]
    return Table("many items in one queue, and a start with them", head, rows)


def each_bytes(backlog: Backlog) -> float:
    """Memory for each item."""
    return (backlog.full_bytes - backlog.empty_bytes) / backlog.items


def load_test_table(results: Results) -> Table:
    rows = []
    for test in results.load_tests:
        times = test["latency"]
        rows.append(
            [
                f"`{test['command']}`",
                f"{test['ops_s']:,.0f}",
                f"{test['server_cpu_us_op']:.1f}",
                *(
                    f"{times[name]['p50_us']:,.0f} / {times[name]['p99_us']:,.0f}" if name in times else NOTHING
                    for name in ("put", "delivery")
                ),
                "yes" if test["verdict"]["good"] else test["verdict"]["words"],
            ]
        )
    head = ["", "operations a second", "server CPU, µs", "put, µs: half, 99 % within", "delivery, µs", "all intact"]
    return Table("against a kestreld on its defaults", head, rows)
