"""Two periods side by side."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark import options
from kestrelspark.__main__ import main
from kestrelspark.jobs import compare
from kestrelspark.jobs.compare import change_in_words, side_by_side
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.report import report, write_tables
from kestrelspark.options import instant_ms
from tests.support.segments import BEGIN_MS, got, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_report_and_a_period_are_put_side_by_side(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An item each second for 100 s; those of the first 50 s are got after 10 ms, half of the others after 40 ms."""
    records = []
    for number in range(1, 101):
        records += puts(number, 1, every_ms=1000)
        if number <= 50 or number % 2:
            records.append(got(number, number, BEGIN_MS + number * 1000 + (10 if number <= 50 else 40)))
    write_segment(tmp_path / "spool" / "work.journal", 1, 1, records)
    spool, middle = str(tmp_path / "spool"), BEGIN_MS + 50_500
    found = report(spark, [spool], Choice(until=str(middle)))
    assert found is not None
    write_tables(found, f"{tmp_path}/first")
    sides = [f"--before={tmp_path}/first", f"--after={middle}..{BEGIN_MS + 200_000}"]
    assert main(["compare", spool, *sides, f"--to={tmp_path}/out"]) == 0
    said = capfd.readouterr().out
    lines = [line.split("\t") for line in said.splitlines()]
    assert ["work", "puts", "50", "50", ""] in lines
    assert ["work", "got", "50", "25", "-50.0 %"] in lines
    assert ["work", "wait_p50_ms", "10", "40", "+300.0 %"] in lines
    assert ["work", "backlog_items", "0", "25", "new"] in lines
    assert ["work+audit", "backlog_items", "50", "100", "+100.0 %"] in lines
    (row,) = spark.read.parquet(f"{tmp_path}/out/compared").where("reader = ''").collect()
    assert (row.got_before, row.got_after, row.got_change, row.wait_max_ms_change) == (50, 25, -25, 30)
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "work+audit" in page
    assert "-50.0 %" in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--before=1..2", "--after=2..3"], 2, "requires paths of journals"),
        (["--before=yesterday", "--after=2..3"], 2, "SINCE..UNTIL or the folder of a report, not yesterday"),
        (["--before=.", "--after=2..3"], 66, "create it with report --to ."),
        (["--before=yesterday..2", "--after=2..3", "."], 2, "since must be a time such as"),
    ],
)
def test_what_cannot_be_compared_is_named(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == code
    assert words in capsys.readouterr().err


def test_one_period_ends_where_the_other_begins_however_late_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, periods = count(BEGIN_MS, 1000), []

    def looked_at(spark: Any, paths: Sequence[str], choice: Choice) -> None:
        periods.append((instant_ms(choice.since, "since"), instant_ms(choice.until, "until")))

    for module in (options, compare):
        monkeypatch.setattr(module, "now_ms", lambda: next(clock), raising=False)
    monkeypatch.setattr(compare, "report", looked_at)
    assert compare.compare(None, ["/srv/archive"], Choice(), "48h..24h", "24h..now") is None
    (before_ms, middle_ms), (middle_too_ms, after_ms) = periods
    assert middle_ms == middle_too_ms
    assert after_ms - middle_ms == middle_ms - before_ms == 24 * 3_600_000


def test_a_queue_of_one_side_only_is_there_with_nothing_on_the_other() -> None:
    old = {"server": "", "queue": "old", "reader": "", "puts": 7, "wait_p50_ms": 3}
    (row,) = side_by_side([old], [])
    assert (row["puts_before"], row["puts_after"], row["puts_change"]) == (7, 0, -7)
    assert (row["wait_p50_ms_before"], row["wait_p50_ms_after"], row["wait_p50_ms_change"]) == (3, None, None)
    assert change_in_words(row, "puts") == "-100.0 %"
