"""The page of the report: what it begins with, and how it shows waits."""

import re
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.page import _table, _totals, by_wait
from kestrelspark.jobs.plots import plot
from kestrelspark.jobs.report import Report, percentile_names


def queue(name: str, wait_ms: int | None, *, most_ms: int | None = None, **figures: Any) -> dict[str, Any]:
    """A row of the report of a queue whose items have all waited as long, or between two times."""
    names = ("puts", "put_bytes", "got", "backlog_items", "backlog_max_items", "expired", "discarded", "moved",
             "flushed", "retried", "busiest_minute_puts", "busiest_minute_ms")  # fmt: skip
    row = {"server": "", "queue": name, "reader": "", **dict.fromkeys(names, 0)}
    most_ms = wait_ms if most_ms is None else most_ms
    for percentile in percentile_names():
        row |= {f"wait_{percentile}_ms": wait_ms, f"longest_wait_{percentile}_ms": most_ms}
    return row | {"wait_max_ms": most_ms} | figures


REPORT = Report(None, None, 60, 0, 10_000)


def test_queues_where_items_wait_and_none_leaves_come_first_then_those_that_wait_longest() -> None:
    quick, slow = queue("quick", 5, puts=900, got=900), queue("slow", 70_000, puts=2, got=2)
    stuck, idle = queue("stuck", None, backlog_items=7), queue("idle", None)
    assert by_wait([quick, idle, slow, stuck]) == [stuck, slow, quick, idle]


def test_the_totals_count_an_item_for_several_children_once() -> None:
    own = queue("work", 5, puts=1000, got=990, backlog_items=10)
    child = queue("work", 5, reader="audit", puts=1000, got=400, backlog_items=600)
    words = _totals([own, child], REPORT)
    assert "1,000 puts (100.0/s), 1,390 gets (139.0/s) and 610 items that wait" in words


def test_the_table_links_to_the_plots_and_leaves_out_what_never_happened() -> None:
    table = _table([queue("<a>", 5), queue("b", 5, retried=3)], REPORT)
    assert '<a href="#q0">&lt;a&gt;</a>' in table
    assert '<a href="#q1">b</a>' in table
    heads = re.findall("<th>(.*?)</th>", table)
    assert {"retried", "backlog", "longest"} <= set(heads)
    assert not {"expired", "discarded", "moved", "flushed"} & set(heads)
    assert table.count("<td>") == 2 * len(heads)


def test_upper_bounds_are_marked_as_such() -> None:
    assert "<td>≤ 2 s</td>" in _table([queue("kestrels", 5, most_ms=2000)], REPORT)
    assert "≤" not in _table([queue("ours", 5)], REPORT)


def test_waits_are_drawn_on_a_logarithmic_axis_with_the_units_of_people() -> None:
    drawn = plot("Wait", {"p50": [(0, 2.0), (1000, 3.0)], "p99": [(0, 90_000.0), (1000, None)]}, are_waits=True)
    marks = re.findall(r'<text x="58" y="([0-9.]+)" text-anchor="end">(.*?)</text>', drawn)
    assert [label for _, label in marks] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min"]
    heights = [float(y) for y, _ in marks]
    assert heights[0] - heights[1] == pytest.approx(heights[2] - heights[3], abs=0.2)
    for value in (0.0, 0.4, 1.0, 10**12):
        assert "polyline" in plot("Wait", {"p50": [(0, value)]}, are_waits=True)
