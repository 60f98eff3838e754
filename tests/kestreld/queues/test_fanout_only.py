"""`fanout_only`: a queue that feeds its children and keeps nothing itself."""

from pathlib import Path

import pytest

from kestreld.journal.verify import verify_journal
from kestreld.queues import leases
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.repairs import undone

FANOUT = {"events": {"fanout_only": True}}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=1000)
    engine.configure(FANOUT, max_journal_size_bytes=1000)
    return engine


def test_children_get_what_is_put_and_the_parent_nothing(engine: Engine) -> None:
    for name in ("events", "events+a", "events+b"):
        engine.reader(name)
    assert engine.put("events", b"1", b"2") == [True, True]
    assert engine.put("events", b"3", flags=7) == [True]
    assert engine.put("events+a", b"only a") == [True]
    assert engine.take("events") is None, "not in the same turn either"
    engine.end_turn()
    assert [engine.items(name) for name in ("events", "events+a", "events+b")] == [0, 4, 3]
    assert engine.reader("events").total_items == 3
    for start in (engine.crash, engine.restart):
        start()
        assert [engine.items(name) for name in ("events", "events+a", "events+b")] == [0, 4, 3]
        assert not [line for line in engine.log if "dropped" in line]
    assert engine.drain("events+b") == [b"1", b"2", b"3"]
    assert engine.drain("events+a") == [b"1", b"2", b"3", b"only a"]
    assert engine.drain("events") == []


def test_without_children_nothing_is_written(engine: Engine) -> None:
    engine.reader("events")
    engine.end_turn()
    before = [path.read_bytes() for path in engine.segments("events")]
    queue = engine.queue("events")
    assert engine.put("events", b"1") == [True]
    assert queue.put_later(b"2", 0, 0, None, 1000)
    engine.end_turn()
    assert [path.read_bytes() for path in engine.segments("events")] == before
    reader = engine.reader("events")
    assert queue.put_keyed(b"key", reader, b"3", 0, 0, None, 0)
    assert not reader.find_key(b"key"), "there is nothing that it could be the key of"
    assert (engine.items("events"), queue.next_id, reader.total_items) == (0, 1, 3)
    queue.add_stream("audit", queue.next_id)
    engine.put("events", b"for the stream")
    assert queue.next_id == 2


def test_limits_of_the_parent_and_of_children_hold(engine: Engine) -> None:
    engine.configure({"events": {"fanout_only": True, "max_item_size_bytes": 3}, "events+a": {"max_items": 1}})
    assert engine.put("events", b"long") == [False]
    engine.reader("events+a")
    assert engine.put("events", b"1", b"2", b"long") == [True, False, False]


def test_delayed_and_keyed_items_wait_in_the_children_only(engine: Engine) -> None:
    parent, child = engine.reader("events"), engine.reader("events+a")
    assert parent.queue.put_later(b"later", 0, 0, None, 1000)
    assert parent.queue.put_keyed(b"key", parent, b"once", 0, 0, None, 0)
    assert parent.find_key(b"key")
    engine.end_turn()
    engine.crash()
    parent, child = engine.reader("events"), engine.reader("events+a")
    assert parent.find_key(b"key")
    engine.clock.advance(1001)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take("events") is None
    assert sorted(engine.drain("events+a")) == [b"later", b"once"]
    assert child.items == 0


BEGINS = "events: fanout_only begins once the {} items there are taken or flushed"


@pytest.mark.parametrize("how", ["reload", "restart", "crash"])
def test_it_begins_once_nothing_waits_in_the_parent(tmp_path: Path, how: str) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.reader("events+a")
    engine.put("events", b"1", b"2")
    engine.reader("events").queue.put_later(b"later", 0, 0, None, 1000)
    engine.end_turn()
    if how == "reload":
        engine.configure(FANOUT)
    else:
        engine.config = engine._config(FANOUT, {})
        engine.restart() if how == "restart" else engine.crash()
    assert engine.log[-1] == BEGINS.format(3)
    engine.put("events", b"3")
    assert engine.drain("events") == [b"1", b"2", b"3"]
    engine.clock.advance(1001)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain("events") == [b"later"]
    engine.put("events", b"4")
    engine.end_turn()
    assert [engine.items(name) for name in ("events", "events+a")] == [0, 5]
    engine.crash()
    assert engine.items("events") == 0


def test_it_begins_at_once_with_a_flush_and_undo_brings_back_what_waited(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), trash_ms=1_000_000)
    engine.reader("events+a")
    engine.put("events", b"1", b"2")
    engine.end_turn()
    engine.configure(FANOUT, trash_ms=1_000_000)
    assert engine.collection.flush("events") == 2
    engine.put("events", b"3")
    engine.end_turn()
    assert engine.items("events") == 0
    assert undone(engine, "events") == (2, 0)
    engine.put("events", b"4")
    assert engine.drain("events") == [b"1", b"2", b"4"]
    engine.put("events", b"5")
    assert engine.drain("events") == []
    assert engine.drain("events+a") == [b"1", b"2", b"3", b"4", b"5"]


def test_a_torn_commit_leaves_nothing_in_the_parent_and_its_keys_count(engine: Engine) -> None:
    engine.reader("events+a")
    parent = engine.reader("events")
    assert parent.queue.put_keyed(b"key", parent, b"0", 0, 0, None, 0)
    engine.end_turn()
    engine.put("events", b"1")
    engine.end_turn()
    path = engine.segments("events")[-1]
    engine.abandon()
    path.write_bytes(path.read_bytes()[:-1])
    engine.start()
    assert [engine.items(name) for name in ("events", "events+a")] == [0, 2]
    assert engine.log[-1] == "events: dropped 1 waiting items, as it is fanout_only"
    assert engine.reader("events").find_key(b"key")
    engine.end_turn()
    engine.crash()
    assert engine.reader("events").find_key(b"key")
    assert engine.items("events") == 0


def test_segments_go_when_the_children_have_passed_them(engine: Engine) -> None:
    engine.reader("events")
    engine.reader("events+a")
    for number in range(100):
        engine.put("events", b"%090d" % number)
        engine.end_turn()
        assert engine.take("events+a") == b"%090d" % number
        engine.end_turn()
    for _ in range(20):
        engine.work(5)
        engine.end_turn()
    assert len(engine.segments("events")) <= 3
    engine.restart()
    found = verify_journal(engine.files, str(engine.spool / "events.journal"), "events")
    assert [one.reason for one in found] == [None] * len(found)


def test_a_commit_that_fails_is_undone_for_the_children_and_leaves_the_parent_empty(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.config = engine._config(FANOUT, {"sync_journal_ms": 0})
    for _ in engine.collection.configure(engine.config):
        pass
    engine.reader("events")
    engine.reader("events+a")
    engine.end_turn()
    files.finish_background()
    engine.put("events", b"1")
    engine.end_turn()
    assert leases.lease(engine.reader("events+a"), engine.clock.wall_ms, 1000, "") is not None
    engine.queue("events").undo_syncing()
    assert [engine.items(name) for name in ("events", "events+a")] == [0, 0]
    files.under_way.clear()
