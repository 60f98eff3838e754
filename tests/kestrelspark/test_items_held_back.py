"""The source and the report with journals in which items had a due time, failed, or came from another queue."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.queues.leases import fail, give_back, lease
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.report import report, rows
from tests.support.clock import START_WALL_MS
from tests.support.engine import Engine, QuickFiles

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
READ = ("queue", "event", "id", "due_time", "attempts", "origin", "reason", "failure_reason")


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On work: 1 is got a second after it was due, 2 fails for good, 3 is given back for later, 4 is leased."""
    engine = Engine(tmp_path_factory.mktemp("held") / "spool", QuickFiles())
    engine.configure({"work": {"max_retries": 1, "move_failed_to": "dead", "retry_delays_ms": (1000,)}})
    work = engine.reader("work")
    assert work.queue.put_later(b"later", 0, 0, None, 60_000)
    engine.end_turn()
    engine.put("work", b"fails")
    engine.end_turn()
    for why in ("no route", "no room"):
        leased = lease(work, engine.clock.wall_ms, 30_000, "")
        assert leased is not None
        assert fail(work, leased[0], engine.clock.wall_ms, why)
        engine.end_turn()
        pass_by(engine, 1000)
    engine.put("work", b"given back")
    engine.end_turn()
    pass_by(engine, 1)
    leased = lease(work, engine.clock.wall_ms, 30_000, "")
    assert leased is not None
    assert give_back(work, leased[0], engine.clock.wall_ms, 3_600_000)
    engine.end_turn()
    pass_by(engine, 58_999)
    assert engine.take("work") == b"later"
    engine.end_turn()
    engine.put("work", b"leased")
    engine.end_turn()
    assert lease(work, engine.clock.wall_ms, 30_000, "") is not None
    engine.collection.close()
    return engine.spool


def pass_by(engine: Engine, time_ms: int) -> None:
    engine.clock.advance(time_ms)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    engine.end_turn()


def test_rows_have_due_times_attempts_and_origins(spark: Any, spool: Path) -> None:
    frame = spark.read.format("kestrel").load(str(spool))
    selected = [f"unix_millis({name}) - {START_WALL_MS}" if name == "due_time" else name for name in READ]
    found = sorted((tuple(row) for row in frame.selectExpr(*selected).collect()), key=str)
    assert found == sorted(
        [
            ("work", "put", 1, 60_000, None, None, None, None),
            ("work", "put", 2, None, None, None, None, None),
            ("work", "leased", 2, 30_000, None, None, None, None),  # before the segment that can have the reason
            ("work", "aborted", 2, 1000, 1, None, None, "no route"),
            ("work", "aborted", 2, 1000, 2, None, None, "no room"),  # counted in the commit that begins the move
            ("work", "moved", 2, None, None, None, None, None),
            ("dead", "put", 1, None, 2, "work", "failed", "no room"),
            ("work", "put", 3, None, None, None, None, None),
            ("work", "delayed", 3, 3_602_001, 0, None, None, None),
            ("work", "got", 1, None, None, None, None, None),
            ("work", "put", 4, None, None, None, None, None),
            ("work", "leased", 4, 91_000, None, None, None, None),
        ],
        key=str,
    )


def test_a_wait_counts_from_the_due_time_and_what_is_held_back_is_backlog(spark: Any, spool: Path) -> None:
    made = report(spark, [str(spool)], Choice())
    assert made is not None
    (work,) = [row for row in rows(made.queues) if row["queue"] == "work"]
    assert [work[name] for name in ("puts", "got", "retried", "moved", "backlog_items")] == [4, 1, 2, 1, 2]
    assert work["wait_max_ms"] == 1000
    assert work["oldest_age_ms"] == 59_000
    windows = [(one.from_ms - START_WALL_MS, one.until_ms - START_WALL_MS, one.items) for one in made.held["work", ""]]
    assert sorted(windows) == [(0, 1000, 1), (2001, 3_602_001, 1)]
    (later,) = made.held["work", None]
    assert (later.from_ms - START_WALL_MS, later.until_ms - START_WALL_MS, later.items) == (0, 60_000, 1)
