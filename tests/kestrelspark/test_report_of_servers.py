"""The report of a queue that several servers have: one queue, whose figures are those of all of them together."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.journal.records import Kind, ReaderState, put_record
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.page import page
from kestrelspark.jobs.report import report, rows, write_tables
from tests.support.segments import BEGIN_MS, got, puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_queue_of_several_servers_is_one_with_the_percentiles_of_all_waits(spark: Any, tmp_path: Path) -> None:
    """90 items wait for a tenth of a second at one server, 10 for 50 s at the other: means would be in between."""
    quick = [*puts(1, 90), *(got(one, one, BEGIN_MS + one + 100) for one in range(1, 91))]
    slow = [*puts(1, 15), *(got(one, one, BEGIN_MS + one + 50_000) for one in range(1, 11))]
    write_segment(tmp_path / "server=a" / "work.journal", 1, 1, quick)
    write_segment(tmp_path / "server=b" / "work.journal", 1, 1, slow, backlog_items=3)
    write_segment(tmp_path / "server=b" / "alone.journal", 1, 1, puts(1, 5), queue="alone")
    found = report(spark, [str(tmp_path)], Choice(), bucket_s=10)
    assert found is not None
    merged = {(row["queue"], row["reader"]): row for row in rows(found.merged_queues)}
    work = merged["work", ""]
    assert work["servers"] == ["a", "b"]
    assert (work["puts"], work["got"], work["backlog_items"]) == (105, 100, 8)
    assert [work[f"wait_{name}_ms"] for name in ("p50", "p90", "p95", "p99")] == [100, 100, 50_000, 50_000]
    assert work["busiest_minute_puts"] == 105
    audit = merged["work", "audit"]
    assert (audit["puts"], audit["got"], audit["backlog_items"]) == (105, 0, 108)
    assert merged["alone", ""]["servers"] == ["b"]
    own = {row["server"]: row for row in rows(found.queues) if (row["queue"], row["reader"]) == ("work", "")}
    assert (own["a"]["wait_p95_ms"], own["b"]["wait_p50_ms"]) == (100, 50_000)
    backlogs = [
        row["backlog_items"]
        for row in sorted(rows(found.merged_buckets), key=lambda row: int(row["bucket_ms"]))
        if (row["queue"], row["reader"]) == ("work", "")
    ]
    assert backlogs == [18, 8]
    write_tables(found, f"{tmp_path}/tables")
    assert spark.read.parquet(f"{tmp_path}/tables/merged_queues").where("size(servers) = 2").count() == 2
    shown = page(found)
    assert shown.count("<h2>work</h2>") == 1
    section = shown.partition("<h2>work</h2>")[2].partition("</section>")[0]
    assert "<p>On a, b.</p>" in section
    assert section.count("<tr>") == 3
    assert "2 servers, each queue shown as one over all of them: a, b." in shown


def test_the_oldest_item_that_waits_has_its_age_at_the_end(spark: Any, tmp_path: Path) -> None:
    """Items 1 to 5 were put a second apart; 2 waits the longest at server a, and at b one that was put before all."""
    taken = [*puts(1, 5, every_ms=1000), got(1, 1, BEGIN_MS + 6000), got(3, 5, BEGIN_MS + 60_000)]
    write_segment(tmp_path / "server=a" / "work.journal", 1, 1, taken)
    write_segment(tmp_path / "server=b" / "work.journal", 1, 1, puts(1, 5, every_ms=10), backlog_items=1)
    dropped = [*puts(1, 3, every_ms=500), got(1, 3, BEGIN_MS + 60_000)]
    write_segment(tmp_path / "server=a" / "left.journal", 1, 1, dropped, queue="left")
    alone = [ReaderState(1, Kind.QUEUE, "")]
    later = put_record(4, BEGIN_MS + 4, 0, 0, 0, b"x")
    write_segment(tmp_path / "server=a" / "left.journal", 2, 4, [later], queue="left", readers=alone)
    found = report(spark, [str(tmp_path)], Choice())
    assert found is not None
    assert found.end_ms == BEGIN_MS + 60_000
    names = ("oldest_age_ms", "backlog_items", "backlog_without_put")
    own = {
        (row["server"], row["queue"], row["reader"]): tuple(row[name] for name in names) for row in rows(found.queues)
    }
    assert own["a", "work", ""] == (58_000, 1, 0)
    assert own["b", "work", ""] == (59_990, 6, 1)
    assert own["a", "left", ""] == (59_996, 1, 0)
    assert own["a", "left", "audit"] == (None, 0, 0)
    (work,) = [row for row in rows(found.merged_queues) if (row["queue"], row["reader"]) == ("work", "")]
    assert tuple(work[name] for name in names) == (59_990, 7, 1)
    assert work["oldest_ms"] == BEGIN_MS + 10
    earlier = report(spark, [str(tmp_path)], Choice(queues=["work"], until=str(BEGIN_MS + 5500)))
    assert earlier is not None
    ages = {row["server"]: row["oldest_age_ms"] for row in rows(earlier.queues) if row["reader"] == ""}
    assert ages == {"a": 4500, "b": 5490}
