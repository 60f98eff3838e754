"""Figures of a load test as a table, as JSON, and compared with the figures of an older run."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from kestrelctl.bench.ledger import DeliveryResult
from kestrelctl.bench.load_tests import LoadTest
from kestrelctl.bench.trial import Trial
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import Layout, OutputFormat, write_rows

LATENCY_COLUMNS: Final = ["latency", "count", "p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"]
COMPARISON_COLUMNS: Final = ["figure", "old", "new", "ratio", "worse"]
# The tail beyond p99 says more about the machine's other work than about the server.
JUDGED_LATENCIES: Final = ("p50_us", "p99_us")


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a run as `-o json` prints and `--compare` reads them."""

    test: str
    server: str
    seed: int
    options: dict[str, object]
    puts: int
    gets: int  # that brought an item
    misses: int
    seconds: float
    ops_s: float  # puts, and gets that brought an item
    server_cpu_us_op: float | None  # None = the server's process is not known
    client_cpu_percent: int  # of one processor: near 100, the client is the bottleneck
    latency: dict[str, dict[str, int | float]]
    verdict: dict[str, object]


def make_report(test: LoadTest, trial: Trial, seed: int, verdict: DeliveryResult) -> Report:
    operations = trial.puts + trial.takes
    seconds = trial.measured_ns / 1e9
    cpu_us_op = trial.server_cpu_us / operations if trial.server_pid is not None and operations else None
    return Report(
        test=test.name,
        server=trial.address,
        seed=seed,
        options=_options(test),
        puts=trial.puts,
        gets=trial.takes,
        misses=trial.misses,
        seconds=round(seconds, 3),
        ops_s=round(operations / seconds, 1) if seconds else 0.0,
        server_cpu_us_op=None if cpu_us_op is None else round(cpu_us_op, 2),
        client_cpu_percent=round(trial.client_cpu_ns * 100 / max(1, trial.measured_ns)),
        latency={name: summary for name, times in trial.latencies.items() if (summary := times.summary())},
        verdict={"good": verdict.is_good, **asdict(verdict), "words": verdict.words()},
    )


def _options(test: LoadTest) -> dict[str, object]:
    return {
        field.name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        for field in fields(test)
        for value in [getattr(test, field.name)]
    }


def write_table(report: Report) -> None:
    figures: dict[str, int | str] = {
        "test": report.test,
        "seconds": f"{report.seconds:.2f}",
        "puts": report.puts,
        "gets": report.gets,
        "misses": report.misses,
        "ops_s": round(report.ops_s),
        "client_cpu_percent": report.client_cpu_percent,
    }
    if report.server_cpu_us_op is not None:
        figures["server_cpu_us_op"] = f"{report.server_cpu_us_op:.2f}"
    write_rows([figures], list(figures), Layout(OutputFormat.TABLE))
    rows: list[dict[str, int | str]] = [
        {"latency": name, **{figure: round(value) for figure, value in times.items()}}
        for name, times in report.latency.items()
    ]
    if rows:
        write_rows(rows, LATENCY_COLUMNS, Layout(OutputFormat.TABLE))


# Comparing


def read_old(path: str, test: LoadTest) -> dict[str, Any]:
    """A report that `-o json` printed. Raises Failure if it is none, or of another test or other options."""
    try:
        old = json.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise Failure(ExitCode.NO_INPUT, f"{path}: no such file") from error
    except OSError as error:
        raise Failure(ExitCode.IO, f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise Failure(ExitCode.USAGE, f"{path} is not a result printed by bench -o json: {error}") from error
    if not isinstance(old, dict) or not {"test", "options", "ops_s", "latency"} <= old.keys():
        raise Failure(ExitCode.USAGE, f"{path} is not a result printed by bench -o json")
    if old["test"] != test.name:
        raise Failure(ExitCode.USAGE, f"{path} is a run of {old['test']}, not of {test.name}")
    different = [name for name, value in _options(test).items() if old["options"].get(name, value) != value]
    if different:
        raise Failure(ExitCode.USAGE, f"{path} was run with different options: {', '.join(different)}")
    return old


def compare(old: Mapping[str, Any], report: Report, tolerance: float) -> list[dict[str, int | str]]:
    """A row for each figure of both reports. `worse` is "yes" if it is worse by more than the tolerance."""
    rows: list[dict[str, int | str]] = []
    for figure, before, now, more_is_worse in _pairs(old, asdict(report)):
        ratio = now / before
        is_worse = ratio > 1 + tolerance if more_is_worse else ratio < 1 / (1 + tolerance)
        rows.append(
            {
                "figure": figure,
                "old": f"{before:g}",
                "new": f"{now:g}",
                "ratio": f"{ratio:.2f}",
                "worse": "yes" if is_worse else "",
            }
        )
    return rows


def write_comparison(rows: list[dict[str, int | str]]) -> None:
    write_rows(rows, COMPARISON_COLUMNS, Layout(OutputFormat.TABLE))


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, float, float, bool]]:
    """Yield figure, value before, value now, and True if higher is worse."""
    if old["ops_s"]:
        yield "ops_s", old["ops_s"], new["ops_s"], False
    if old.get("server_cpu_us_op") and new["server_cpu_us_op"]:
        yield "server_cpu_us_op", old["server_cpu_us_op"], new["server_cpu_us_op"], True
    for name, times in new["latency"].items():
        for figure in JUDGED_LATENCIES:
            if before := old["latency"].get(name, {}).get(figure):
                yield f"{name} {figure}", before, times[figure], True
