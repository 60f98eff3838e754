"""Items that an operator sends to another queue: at any failing call, and after a crash, each is in one of the two."""

from pathlib import Path

import pytest

from tests.support.engine import Engine, QuickFiles
from tests.support.faulty_files import FaultyFiles

PUT = [b"1", b"2", b"3"]


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("end", ["", "crash"])
@pytest.mark.parametrize("sync_ms", [None, 0])
def test_no_call_that_fails_loses_an_item(tmp_path: Path, call: int, end: str, sync_ms: int | None) -> None:
    files = FaultyFiles(kinds=("write", "sync"))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=sync_ms)
    engine.put("dead", *PUT)
    settle(engine, files)
    files.fail_from(call)
    assert engine.reader("dead").send_on(2, "work")
    settle(engine, files)
    files.mend()
    if end:
        engine.crash()
    there = {name: engine.drain(name) for name in ("dead", "work")}
    assert set(there["dead"]) | set(there["work"]) >= set(PUT)
    assert {b"1", b"3"} <= set(there["dead"])
    if not files.failed:
        assert there == {"dead": [b"1", b"3"], "work": [b"2"]}


def settle(engine: Engine, files: FaultyFiles) -> None:
    for _ in range(3):
        engine.end_turn()
        files.finish_background()


def test_an_item_that_is_taken_leased_or_delayed_is_not_sent(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("dead", b"taken", b"leased")
    reader = engine.reader("dead")
    assert engine.take("dead") == b"taken"
    reader.lease(engine.clock.wall_ms, 1000, "")
    assert reader.queue.put_later(b"delayed", 0, 0, None, 1000)
    engine.end_turn()
    assert [reader.send_on(one, "work") for one in (1, 2, 3, 4)] == [None] * 4
    engine.end_turn()
    assert engine.drain("work") == []


def test_an_item_that_its_destination_refuses_waits_where_it_was(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.configure({"full": {"max_items": 1}})
    engine.put("full", b"x")
    engine.put("dead", *PUT)
    assert engine.reader("dead").send_on(2, "full") is False
    engine.end_turn()
    assert sorted(engine.drain("dead")) == PUT
