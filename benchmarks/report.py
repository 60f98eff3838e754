"""`python -m benchmarks.report`: docs/benchmarks.md and its plots, from what is in results/."""

import argparse
import sys
from pathlib import Path
from string import Template
from typing import Final

from benchmarks.errors import Unusable
from benchmarks.plots import draw
from benchmarks.results import RESULTS, Results, load
from benchmarks.servers import ROOT
from benchmarks.tables import (
    Table,
    backlog_table,
    cache_table,
    compare_tables,
    growth_tables,
    jobs_table,
    load_test_table,
)

PAGE: Final = ROOT / "docs" / "benchmarks.md"
PLOTS: Final = "plots"  # beside the page
TEXT: Final = Path(__file__).with_name("page.md")
PARTS: Final = ("compare", "growth", "backlog", "load-tests", "cache", "jobs")


def page(results: dict[str, Results]) -> str:
    """The whole page: page.md with the figures in it."""
    compare, growth, backlog, load_tests, cache, jobs = (results[part] for part in PARTS)
    cost, synced, throughput, answers = compare_tables(compare)
    return Template(TEXT.read_text()).substitute(
        plots=PLOTS,
        machine=_machine(compare),
        compare_measured=_measured(compare),
        cost_table=_table(cost),
        throughput_table=_table(throughput),
        synced_table=_table(synced),
        answers_table=_table(answers),
        backlog_measured=_measured_on(backlog),
        backlog_table=_table(backlog_table(backlog)),
        growth_measured=_measured(growth),
        growth_tables="\n\n".join(map(_table, growth_tables(growth))),
        cache_measured=f"{_machine(cache)}\n{_measured(cache)}",
        cache_table=_table(cache_table(cache)),
        jobs_measured=f"{_machine(jobs)}\n{_measured(jobs)}",
        jobs_table=_table(jobs_table(jobs)),
        load_tests_measured=_measured_on(load_tests),
        load_tests_table=_table(load_test_table(load_tests)),
    )


def _machine(results: Results) -> str:
    machine = results.machine
    servers = "; ".join(f"{name} {version}" for name, version in machine.servers.items())
    missing = f" Not installed: {', '.join(machine.missing)}." if machine.missing else ""
    return (
        f"The machine: {machine.processor}, {machine.processors} processors, {machine.memory_gib:g} GiB, "
        f"{machine.kernel}, journals on {machine.file_system}.\nThe servers: {servers}.{missing}"
    )


def _measured_on(results: Results) -> str:
    machine = results.machine
    return f"Measured {machine.date}; load average before it {machine.load_average:.2f}."


def _measured(results: Results) -> str:
    rounds = "one round" if results.rounds == 1 else f"{results.rounds} rounds"
    return f"{_measured_on(results)[:-1]}; {rounds} of {results.seconds:g} s for each figure."


def _table(table: Table) -> str:
    """As Markdown: figures to the right."""
    title = table.title[0].upper() + table.title[1:]
    lines = [f"{title}:", "", _line(table.head), "|---|" + "---:|" * (len(table.head) - 1)]
    return "\n".join([*lines, *map(_line, table.rows)])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="docs/benchmarks.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are (benchmarks/results)")
    parser.add_argument("--page", type=Path, default=PAGE, help="what to write (docs/benchmarks.md)")
    options = parser.parse_args()
    try:
        results = {part: load(options.results / f"{part}.json") for part in PARTS}
        draw(results["compare"], results["growth"], options.page.parent / PLOTS)
    except Unusable as unusable:
        print(f"benchmarks: {unusable}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"benchmarks: plots need {error.name}: pip install '.[bench]'", file=sys.stderr)
        return 2
    options.page.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
