"""`journal_leases` off: journals go back to a version that has no leases, which earlier kestrelds read."""

from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.journal.records import Type, item_id
from kestreld.journal.segment import decode_header
from kestreld.queues import leases
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.kept_journals import types_in

LEASE_MS: Final = 60_000
SETTINGS: Final[list[dict[str, Any]]] = [{}, {"sync_journal_ms": 0}]


def lease(engine: Engine, name: str = "work") -> int:
    leased = leases.lease(engine.reader(name), engine.clock.wall_ms, LEASE_MS, "worker-7")
    assert leased is not None
    return leased[0]


def end_turn(engine: Engine) -> None:
    """Until all is on disk."""
    assert not engine.end_turn()
    while isinstance(engine.files, LateFiles) and engine.files.under_way:
        engine.files.finish_background()
        assert not engine.end_turn()


def versions(engine: Engine, family: str = "work") -> set[int]:
    return {decode_header(path.read_bytes(), str(path))[0].version for path in engine.segments(family)}


def look_after(engine: Engine) -> None:
    for _ in range(30):
        engine.work(5)
        end_turn(engine)


def must_be_back(engine: Engine, version: int = 2) -> None:
    look_after(engine)
    assert versions(engine) == {version}
    assert not types_in(engine.segments("work")) & {Type.LEASE, Type.HOLDER}


@pytest.mark.parametrize("settings", SETTINGS, ids=["written", "synced"])
def test_a_reload_brings_a_journal_back_with_all_that_is_in_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    engine = Engine(tmp_path / "spool", LateFiles(), retry_delays_ms=(1000,), **settings)
    work = engine.reader("work")
    engine.put("work", b"leased", b"fails", b"waits")
    end_turn(engine)
    token = lease(engine)
    assert leases.fail(work, lease(engine), engine.clock.wall_ms)
    assert work.queue.put_later(b"later", 0, 0, None, 2000)
    end_turn(engine)
    assert 4 in versions(engine)
    look_after(engine)
    assert 4 in versions(engine), "as long as leases are written"
    engine.configure(journal_leases=False, retry_delays_ms=(1000,), **settings)
    must_be_back(engine)
    assert engine.log == ["journal_leases is off: no journal has leases any more, and an older kestreld reads them all"]
    assert work.is_leased(leases.item_of(token))
    engine.put("work", b"put behind")
    end_turn(engine)
    engine.restart()
    assert leases.extend(engine.reader("work"), token, LEASE_MS)
    assert leases.confirm(engine.reader("work"), token)
    assert engine.drain("work") == [b"waits", b"put behind"]
    engine.clock.advance(2000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain("work") == [b"fails", b"later"]
    assert versions(engine) == {2}


def test_a_start_without_it_brings_a_journal_back(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"leased", b"waits")
    engine.end_turn()
    token = lease(engine)
    engine.end_turn()
    engine.config = engine._config({}, {"journal_leases": False})
    engine.crash()
    must_be_back(engine)
    assert leases.confirm(engine.reader("work"), token)
    engine.end_turn()
    engine.crash()
    assert engine.drain("work") == [b"waits"]


def test_an_empty_queue_comes_back(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"leased")
    engine.end_turn()
    assert leases.confirm(engine.reader("work"), lease(engine))
    engine.end_turn()
    engine.put("work", b"leased")
    assert leases.confirm(engine.reader("work"), lease(engine)), "in the turn of its put"
    engine.end_turn()
    lease_less = engine.segments("work")
    engine.put("work", b"leased")
    engine.end_turn()
    token = lease(engine)
    engine.end_turn()
    assert leases.confirm(engine.reader("work"), token)
    engine.end_turn()
    assert engine.segments("work") != lease_less
    engine.configure(journal_leases=False)
    must_be_back(engine)
    engine.crash()
    assert engine.items("work") == 0


def test_with_reasons_of_failures_it_comes_back_to_version_3(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles(), max_retries=5)
    engine.put("work", b"fails")
    engine.end_turn()
    token = lease(engine)
    engine.end_turn()
    assert leases.fail(engine.reader("work"), token, engine.clock.wall_ms, "no room")
    engine.end_turn()
    engine.configure(journal_leases=False, max_retries=5)
    must_be_back(engine, version=3)
    engine.crash()
    work = engine.reader("work")
    assert work.queue.failure_of(work.number, leases.item_of(token)) == "no room"


def test_it_stays_as_long_as_one_reader_of_the_family_has_its_leases_written(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.reader("work+audit")
    engine.put("work", b"leased")
    engine.end_turn()
    token = lease(engine, "work+audit")
    engine.end_turn()
    engine.configure({"work": {"journal_leases": False}, "work+audit": {"journal_leases": True}})
    look_after(engine)
    assert 4 in versions(engine)
    assert engine.log == []
    engine.crash()
    assert leases.confirm(engine.reader("work+audit"), token)


def test_switched_on_again_running_leases_outlive_a_kill(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"first", b"second")
    engine.end_turn()
    lease(engine)
    engine.end_turn()
    engine.configure(journal_leases=False)
    must_be_back(engine)
    lease(engine)
    engine.end_turn()
    engine.configure(journal_leases=True)
    engine.end_turn()
    engine.crash()
    assert sorted(engine.reader("work").held_items().leases) == [1, 2]


def test_an_item_that_was_leased_when_it_was_switched_off_is_not_lost(tmp_path: Path) -> None:
    """Its lease stands in an earlier segment, as do those of items that are done by now."""
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"leased", b"flows")
    engine.end_turn()
    token = lease(engine)
    engine.end_turn()
    engine.configure(journal_leases=False)
    engine.end_turn()
    assert engine.drain("work") == [b"flows"]
    for _ in range(2):
        engine.queue("work").go_on()
        engine.end_turn()
    engine.crash()
    assert engine.log == []
    assert item_id(engine.reader("work").open[1]) == leases.item_of(token)
    assert leases.confirm(engine.reader("work"), token)


def test_leases_that_a_failed_sync_cut_off_are_not_written_once_it_is_switched_off(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    engine.put("work", b"leased", b"flows")
    end_turn(engine)
    lease(engine)
    end_turn(engine)
    lease(engine)
    engine.put("work", b"more")
    engine.end_turn()
    engine.configure(journal_leases=False, sync_journal_ms=0)
    engine.reader("work").held_items().undo_written_leases()  # as that sync does when it fails
    end_turn(engine)
    must_be_back(engine)


@pytest.mark.parametrize("steps", range(24))
def test_a_kill_on_the_way_loses_nothing_and_the_next_start_goes_on(tmp_path: Path, steps: int) -> None:
    engine = Engine(tmp_path / "spool", LateFiles())
    engine.put("work", b"leased", b"done", b"waits")
    end_turn(engine)
    token = lease(engine)
    end_turn(engine)
    assert engine.take("work") == b"done"
    end_turn(engine)
    engine.configure(journal_leases=False)
    engine.work(0)
    for step in range(steps):
        if step % 2:
            engine.slices.run(engine.clock.stopwatch_us())
        else:
            assert isinstance(engine.files, LateFiles)
            engine.files.finish_background()
        assert not engine.end_turn()
    engine.crash()
    must_be_back(engine)
    assert engine.reader("work").is_leased(leases.item_of(token))
    engine.restart()
    assert leases.confirm(engine.reader("work"), token)
    assert engine.drain("work") == [b"waits"]
