"""Where a dead letter comes from: known for as long as it waits, over restarts, compaction and another move."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.journal.records import Origin, Reason, item_id
from kestreld.queues.leases import fail, lease
from tests.support.engine import Engine, QuickFiles

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    def make(**settings: object) -> Engine:
        engine = Engine(tmp_path / "spool", QuickFiles(), **settings)
        engine.configure({"work": {"max_retries": 1, "move_failed_to": "dead"}, "dead": dict(settings)}, **settings)
        return engine

    return make


def fail_for_good(engine: Engine, name: str = "work") -> None:
    for _ in range(2):
        leased = lease(engine.reader(name), engine.clock.wall_ms, 1000, "")
        assert leased is not None
        assert fail(engine.reader(name), leased[0], engine.clock.wall_ms)
    engine.end_turn()
    engine.end_turn()


def head(engine: Engine, name: str = "dead") -> tuple[bytes, Origin | None]:
    record = engine.reader(name).peek(engine.clock.wall_ms)
    assert record is not None
    return record[41:], engine.queue(name).origins.get(item_id(record))


@pytest.mark.parametrize("end", ["", "restart", "crash"])
def test_a_dead_letter_knows_its_queue_its_attempts_and_when_it_was_put(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine()
    put_at_ms = engine.clock.wall_ms
    engine.put("work", b"x")
    engine.clock.advance(500)
    fail_for_good(engine)
    if end:
        getattr(engine, end)()
    assert head(engine) == (b"x", Origin(1, Reason.MOVED, 2, put_at_ms, "work"))


def test_what_expired_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.configure({"work": {"max_age_ms": 10, "move_expired_to": "late"}})
    put_at_ms = engine.clock.wall_ms
    engine.put("work", b"x")
    engine.clock.advance(11)
    engine.collection.flush_expired("work")
    engine.end_turn()
    assert head(engine, "late") == (b"x", Origin(1, Reason.EXPIRED, 0, put_at_ms, "work"))


@pytest.mark.parametrize("end", ["", "restart", "crash"])
def test_what_is_moved_again_still_knows_when_it_was_put_first(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine()
    once, twice = {"max_retries": 1, "move_failed_to": "dead"}, {"max_retries": 1, "move_failed_to": "grave"}
    engine.configure({"work": once, "dead": twice})
    put_at_ms = engine.clock.wall_ms
    engine.put("work", b"x")
    engine.clock.advance(500)
    fail_for_good(engine)
    if end:
        getattr(engine, end)()
        engine.configure({"work": once, "dead": twice})
    engine.clock.advance(500)
    fail_for_good(engine, "dead")
    assert head(engine, "grave") == (b"x", Origin(1, Reason.MOVED, 2, put_at_ms, "dead"))


def test_an_origin_outlives_the_segment_it_was_written_in(make_engine: MakeEngine) -> None:
    engine = make_engine(max_journal_size_bytes=300)
    engine.put("work", b"x")
    fail_for_good(engine)
    wanted = head(engine)
    found = engine.reader("dead").open_read(engine.clock.wall_ms)
    assert found is not None
    for _ in range(200):
        engine.put("dead", b"y" * 50)
        engine.end_turn()
        engine.take("dead")
        engine.end_turn()
        engine.work(20)
    assert engine.queue("dead").first_id() == 1
    assert len(engine.queue("dead").journal.segments) < 20
    engine.crash()
    assert head(engine) == wanted


def test_origins_of_what_is_done_are_forgotten(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(3000):
        engine.put("work", b"x")
        fail_for_good(engine)
        engine.take("dead")
        engine.end_turn()
    assert len(engine.queue("dead").origins) < 2100
    engine.restart()
    assert engine.queue("dead").origins == {}


def test_many_that_are_done_at_once_are_forgotten_without_making_others_wait(make_engine: MakeEngine) -> None:
    items = 30_000
    engine = make_engine()
    engine.configure({"work": {"max_age_ms": 10, "move_expired_to": "late"}})
    for _ in range(items):
        engine.put("work", b"x")
    engine.clock.advance(11)
    while engine.reader("work").items:
        engine.collection.flush_expired("work")
        engine.end_turn()
    for _ in range(items):
        engine.take("late")
    engine.end_turn()
    assert len(engine.queue("late").origins) == items
    begin_s = time.process_time()
    assert engine.queue("late").lowest_origin() == 0
    assert time.process_time() - begin_s < 0.05  # one by one: 0.7 s
    assert engine.queue("late").origins == {}
