"""The page of the report: what it begins with, and how it shows waits."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.page import MARKS_OF_A_QUEUE, _listed, _table, _totals, by_wait, page_of
from kestrelspark.jobs.plots import Mark, plot
from kestrelspark.jobs.report import Report, percentile_names


def queue(name: str, wait_ms: int | None, *, most_ms: int | None = None, **figures: Any) -> dict[str, Any]:
    """A row of the report of a queue whose items have all waited as long, or between two times."""
    names = ("puts", "put_bytes", "got", "backlog_items", "backlog_max_items", "expired", "discarded", "moved",
             "flushed", "retried", "busiest_minute_puts", "busiest_minute_ms")  # fmt: skip
    row = {"servers": [""], "queue": name, "reader": "", **dict.fromkeys(names, 0)}
    most_ms = wait_ms if most_ms is None else most_ms
    for percentile in percentile_names():
        row |= {f"wait_{percentile}_ms": wait_ms, f"longest_wait_{percentile}_ms": most_ms}
    row["leases"] = None
    row |= {"oldest_ms": None, "oldest_age_ms": None, "backlog_without_put": 0}
    return row | {"wait_max_ms": most_ms} | figures


REPORT = Report(None, None, 60, 0, 10_000)
DAY_MS: Final = 86_400_000
WIDTH: Final = 1280
MEASURE: Final = """<script>addEventListener("load", () => {
const wide = [...document.querySelectorAll("table")].filter(one => one.scrollWidth > one.clientWidth).length;
document.title = `${innerWidth} ${document.documentElement.scrollWidth} ${wide}`; });</script>"""


def wide_page() -> str:
    """A page of every kind of figure, each as wide as it gets: long names, large counts, bounds of waits."""
    big = dict.fromkeys(
        ("puts", "got", "backlog_items", "backlog_max_items", "busiest_minute_puts"), 123_456_789
    ) | {"put_bytes": 987_654_321_000, "busiest_minute_ms": DAY_MS, "oldest_age_ms": 12_345_678,
         "oldest_ms": DAY_MS, "backlog_without_put": 1}  # fmt: skip
    ends = dict.fromkeys(("expired", "discarded", "moved", "flushed", "retried"), 123_456_789)
    name = "orders_of_all_countries_that_are_waiting_for_a_payment_in_the_shop"
    servers = [f"queue-server-{one}.example.net" for one in range(9)]
    big |= {f"work_{name}_ms": 12_345_678 for name in ("p50", "p95", "p99", "max")}
    big |= {f"leases{name}": 123_456_789 for name in ("", "_confirmed", "_returned", "_failed")}
    long = queue(name, 59_900, most_ms=12_345_678, reader="audit", servers=servers, **big, **ends)
    own = [{**long, "server": server} for server in servers]
    found = Report(None, None, 600, 0, DAY_MS, ["A note."])
    points = [
        {**long, "bucket_ms": at * 600_000, "change": 0, "puts": 500_000 if at == 70 else 1000 + at,
         "got": 0 if 30 < at < 60 else 1000, "backlog_items": 123_456_789 if at < 90 else 1_000_000,
         "retried": 0, "moved": 0}
        for at in range(144)
    ]  # fmt: skip
    holders = [{**long, "holder": f"client-{one}.example.net:49152"} for one in range(20)]
    return page_of(found, [long, queue("a", 5, puts=3, got=3)], own, points, holders)


def test_time_in_work_is_there_by_queue_and_holder_where_items_are_leased() -> None:
    work = {"work_p50_ms": 40, "work_p95_ms": 500, "work_p99_ms": 2000, "work_max_ms": 61_000}
    work |= {"leases": 9, "leases_confirmed": 7, "leases_returned": 1, "leases_failed": 0}
    row = queue("work", 5, puts=3, got=3, **work)
    holders = [{**row, "holder": holder} for holder in (None, "10.0.0.1:4001")]
    page = page_of(REPORT, [row, queue("other", 5)], [row], [], holders)
    cells = "<td>9</td><td>7</td><td>1</td><td>0</td><td>40 ms</td><td>500 ms</td><td>2 s</td><td>1.02 min</td>"
    assert f'<tr><td><a href="#q0">work</a></td>{cells}</tr>\n</tbody>' in page
    assert f"<tr><td>10.0.0.1:4001</td>{cells}</tr>\n<tr><td>(others, and unknown)</td>{cells}</tr>" in page
    assert "in work" not in page_of(REPORT, [queue("other", 5)], [], [])


def test_queues_where_items_wait_and_none_leaves_come_first_then_those_that_wait_longest() -> None:
    quick, slow = queue("quick", 5, puts=900, got=900), queue("slow", 70_000, puts=2, got=2)
    stuck, idle = queue("stuck", None, backlog_items=7), queue("idle", None)
    assert by_wait([quick, idle, slow, stuck]) == [stuck, slow, quick, idle]


def test_the_totals_count_an_item_for_several_children_once() -> None:
    own = queue("work", 5, puts=1000, got=990, backlog_items=10)
    child = queue("work", 5, reader="audit", puts=1000, got=400, backlog_items=600)
    words = _totals([own, child], REPORT)
    assert "1,000 puts (100/s), 1,390 gets (139/s) and 610 items that wait" in words


def test_the_table_links_to_the_plots_and_leaves_out_what_never_happened() -> None:
    table = _table([queue("<a>", 5), queue("b", 5, retried=3)], REPORT)
    assert '<a href="#q0">&lt;a&gt;</a>' in table
    assert '<a href="#q1">b</a>' in table
    heads = re.findall("<th>(.*?)</th>", table)
    assert {"also", "backlog", "longest"} <= set(heads)
    assert "busiest minute" not in heads
    assert "<small>3 retried</small>" in table
    assert "expired" not in table
    assert table.count("<td>") == 2 * len(heads)


def test_the_servers_of_a_queue_are_named_below_it_where_there_are_several() -> None:
    assert "<small>" not in _table([queue("work", 5)], REPORT).partition("</a>")[2].partition("</td>")[0]
    table = _table([queue("work", 5, servers=["a", "b"]), queue("all", 5, servers=[*"abcdef"])], REPORT)
    assert ">work</a><small>a, b</small></td>" in table
    assert ">all</a><small>a, b, c, 3 more</small></td>" in table


def test_the_age_of_the_oldest_item_that_waits_is_in_the_totals_and_says_what_is_not_known() -> None:
    young = queue("young", 5, backlog_items=2, oldest_age_ms=5000, oldest_ms=5000)
    old = queue("old", 5, backlog_items=2, oldest_age_ms=7_200_000, oldest_ms=0, backlog_without_put=1)
    rest = [queue("never", 5, backlog_items=1, backlog_without_put=1), queue("later", 5, backlog_items=1)]
    words = _totals([young, old, *rest], REPORT)
    assert 'waits is in <a href="#q1">old</a>: ≥ 2 h, since 1970-01-01 00:00:00.' in words
    assert 'of <a href="#q1">old</a>, <a href="#q2">never</a>: these items may be older' in words
    table = _table([young, old, *rest], REPORT)
    assert all(f"<td>{age}</td>" in table for age in ("5 s", "≥ 2 h", "unknown", "not due yet"))


def test_stalls_and_bursts_are_listed_with_their_queues_and_those_of_children_once() -> None:
    burst, stall = Mark("burst", 0, 1000, "many"), Mark("stall", 5000, 90_000, "none")
    rows = [queue("work", 5), queue("work", 5, reader="audit")]
    words = _listed(rows, [[burst], [burst, stall]])
    assert words.count("<li>") == 2
    assert '<li><a href="#q0">work</a>: burst, many.</li>' in words
    assert '<li><a href="#q1">work+audit</a>: stall, none.</li>' in words
    assert "2 more are marked on the plots" in _listed(rows[:1], [[stall] * MARKS_OF_A_QUEUE + [burst] * 2])
    assert "No stalls and no bursts" in _listed(rows, [[], []])


def test_upper_bounds_are_marked_as_such() -> None:
    table = _table([queue("kestrels", 5, most_ms=2000)], REPORT)
    assert "<td>≥ 5 ms<small>≤ 2 s</small></td>" in table
    assert "<td>≤ 2 s</td>" in table
    assert "≤" not in _table([queue("ours", 5)], REPORT)


def test_waits_are_drawn_on_a_logarithmic_axis_with_the_units_of_people() -> None:
    drawn = plot("Wait", {"p50": [(0, 2.0), (1000, 3.0)], "p99": [(0, 90_000.0), (1000, None)]}, are_waits=True)
    marks = re.findall(r'<text x="58" y="([0-9.]+)" text-anchor="end">(.*?)</text>', drawn)
    assert [label for _, label in marks] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min"]
    heights = [float(y) for y, _ in marks]
    assert "10 h</text>" in (wide := plot("Wait", {"p50": [(0, 2.0), (1, 80_000_000.0)]}, are_waits=True))
    assert "1 d</text>" not in wide  # there is no room for both
    assert heights[0] - heights[1] == pytest.approx(heights[2] - heights[3], abs=0.2)
    for value in (0.0, 0.4, 1.0, 10**12):
        assert "polyline" in plot("Wait", {"p50": [(0, value)]}, are_waits=True)


def test_no_column_is_behind_a_scroll_bar_in_a_window_of_1280_pixels(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium on PATH to measure the page with: apt install chromium")
    path = tmp_path / "page.html"
    path.write_text(wide_page() + MEASURE, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += [f"--window-size={WIDTH},900", "--virtual-time-budget=1000", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    measured = re.search("<title>([0-9]+) ([0-9]+) ([0-9]+)</title>", shown)
    assert measured is not None, shown[:300]
    window, content, tables_too_wide = map(int, measured.groups())
    assert window == WIDTH
    assert content <= WIDTH
    assert tables_too_wide == 0
