"""Leases on a disk that refuses: they go on in memory, and are in the journal once it takes them again."""

import errno
from pathlib import Path
from typing import Final

import pytest

from kestreld.queues import leases
from tests.simulation import planted
from tests.support.compiled import interpreted_only
from tests.support.engine import Engine, QuickFiles
from tests.support.faulty_files import FaultyFiles

LEASE_MS: Final = 60_000


def lease(engine: Engine, holder: str = "worker-7") -> int:
    leased = leases.lease(engine.reader("work"), engine.clock.wall_ms, LEASE_MS, holder)
    assert leased is not None
    return leased[0]


def end_turn(engine: Engine, files: FaultyFiles) -> bool:
    """Commit and sync; whether that went well."""
    failed = bool(engine.end_turn())
    while files.under_way:
        files.finish_background()
        failed = bool(engine.end_turn()) or failed
    return not failed


def refuse(files: FaultyFiles) -> None:
    files.stays = True
    files.fail_from(1)


def goes_on(engine: Engine, files: FaultyFiles, error: int) -> None:
    """The disk is back: a full one is tried again, another after a reload."""
    files.mend()
    if error == errno.ENOSPC:
        engine.clock.advance(10_000)
        engine.work(5)
    else:
        engine.configure(sync_journal_ms=engine.config.defaults.sync_journal_ms)
    end_turn(engine, files)
    queue = engine.queue("work")
    assert queue.journal is not None
    assert queue.journal.failed is None


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["broken", "full"])
@pytest.mark.parametrize("had_leases", [False, True], ids=["first lease", "more leases"])
def test_leases_and_extensions_go_on_in_memory_and_are_written_when_the_disk_is_back(
    tmp_path: Path, error: int, *, had_leases: bool
) -> None:
    files = FaultyFiles(error, kinds=("make_dir", "create", "write"))
    engine = Engine(tmp_path / "spool", files)
    engine.put("work", b"one", b"two", b"three")
    assert end_turn(engine, files)
    tokens = []
    if had_leases:
        tokens.append(lease(engine))
        assert end_turn(engine, files)
    refuse(files)
    tokens.append(lease(engine))
    assert end_turn(engine, files), "no reply waits for a lease"
    assert files.failed
    engine.clock.advance(LEASE_MS // 2)
    tokens.append(lease(engine))
    assert all(leases.extend(engine.reader("work"), token, LEASE_MS) for token in tokens)
    assert end_turn(engine, files)
    work = engine.reader("work")
    assert all(work.is_leased(leases.item_of(token)) for token in tokens)
    assert any("leases are in memory until the disk takes them" in line for line in engine.log)
    ends_at_ms = {one: held.ends_at_ms for one, held in work.held_items().leases.items()}
    goes_on(engine, files, error)
    engine.crash()
    work = engine.reader("work")
    assert {one: held.ends_at_ms for one, held in work.held_items().leases.items()} == ends_at_ms
    assert {held.holder for held in work.held_items().leases.values()} == {"worker-7"}
    assert all(leases.confirm(work, token) for token in tokens)
    assert end_turn(engine, files)
    engine.crash()
    assert engine.items("work") == 3 - len(tokens)


def test_a_kill_before_the_disk_is_back_ends_the_leases_that_it_refused_and_no_others(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("make_dir", "create", "write"))
    engine = Engine(tmp_path / "spool", files)
    engine.put("work", b"one", b"two")
    assert end_turn(engine, files)
    written = lease(engine)
    assert end_turn(engine, files)
    refuse(files)
    lease(engine)
    assert end_turn(engine, files)
    files.mend()
    engine.crash()
    assert list(engine.reader("work").held_items().leases) == [leases.item_of(written)]
    assert engine.drain("work") == [b"two"]


def test_what_is_confirmed_while_the_disk_refuses_is_not_leased_again_when_it_is_back(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("make_dir", "create", "write"))
    engine = Engine(tmp_path / "spool", files)
    engine.put("work", b"one", b"two")
    assert end_turn(engine, files)
    before = lease(engine)
    assert end_turn(engine, files)
    refuse(files)
    during = lease(engine)
    end_turn(engine, files)
    for token in (before, during):
        assert leases.confirm(engine.reader("work"), token)
        end_turn(engine, files)
    goes_on(engine, files, errno.EIO)
    engine.crash()
    assert not engine.reader("work").held_items().leases
    assert engine.items("work") == 0


@pytest.mark.parametrize("end", ["confirmed", "refused", "given back", "given back and confirmed", "failed", "opened"])
def test_a_lease_in_front_of_what_a_failed_sync_cut_off_is_over_once_that_is_written(tmp_path: Path, end: str) -> None:
    """Its record stays where it is, perhaps on disk. It counted for nothing, and what had ended was leased again."""
    a_lease_ends_while_syncs_fail(tmp_path, end)


@interpreted_only
def test_a_planted_bug_is_seen_that_takes_undone_leases_for_gone(tmp_path: Path) -> None:
    with planted.BUGS["undone-lease-believed"](), pytest.raises(AssertionError):
        a_lease_ends_while_syncs_fail(tmp_path, "confirmed")


def a_lease_ends_while_syncs_fail(folder: Path, end: str) -> None:
    files = FaultyFiles(kinds=("sync",))
    engine = Engine(folder / "spool", files, sync_journal_ms=0)
    engine.reader("work+audit")  # where an item is held, so that records about others are read
    engine.put("work", b"one", b"two", b"three")
    assert leases.lease(engine.reader("work+audit"), engine.clock.wall_ms, 100 * LEASE_MS, "") is not None
    assert end_turn(engine, files)
    token = lease(engine)
    assert end_turn(engine, files), "no reply waits for a lease, which is written and not synced"
    work = engine.reader("work")
    if end == "refused":
        assert leases.confirm(work, token)
    engine.put("work", b"is refused")
    files.fail_from(1)
    end_turn(engine, files)
    assert files.failed
    if end.startswith("given back"):
        assert leases.give_back(work, token, engine.clock.wall_ms)
        end_turn(engine, files)
    if end == "failed":
        assert leases.fail(work, token, engine.clock.wall_ms)
        end_turn(engine, files)
    if end == "opened":
        assert leases.give_back(work, token, engine.clock.wall_ms)
        assert work.open_read(engine.clock.wall_ms) is not None
    elif "confirmed" in end:
        assert leases.confirm(work, token)
        end_turn(engine, files)
    goes_on(engine, files, errno.EIO)
    end_turn(engine, files)
    engine.crash()
    work = engine.reader("work")
    assert not work.held_items().leases
    done = b"one" if "confirmed" in end else b""
    assert engine.drain("work") == [one for one in (b"one", b"two", b"three") if one != done]
    assert not [line for line in engine.log if "corrected" in line]


@pytest.mark.parametrize("extended", [False, True], ids=["granted", "extended"])
def test_leases_that_a_failed_sync_cut_off_are_in_the_next_segment(tmp_path: Path, *, extended: bool) -> None:
    files = FaultyFiles(kinds=("sync",))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    engine.put("work", b"one", b"two")
    assert end_turn(engine, files)
    token = lease(engine)
    assert end_turn(engine, files)
    if extended:
        engine.clock.advance(LEASE_MS // 2)
        assert leases.extend(engine.reader("work"), token, LEASE_MS)
    else:
        token = lease(engine)
    engine.put("work", b"is lost")
    files.fail_from(1)
    end_turn(engine, files)
    assert files.failed
    journal = engine.queue("work").journal
    assert journal is not None
    files.mend()
    ends_at_ms = {one: held.ends_at_ms for one, held in engine.reader("work").held_items().leases.items()}
    number = journal.live.number
    engine.configure(sync_journal_ms=0)
    end_turn(engine, files)
    assert journal.live.number > number
    engine.crash()
    work = engine.reader("work")
    assert {one: held.ends_at_ms for one, held in work.held_items().leases.items()} == ends_at_ms
    assert leases.confirm(work, token)


@pytest.mark.parametrize("is_refused", [True, False], ids=["not written", "not synced"])
def test_heartbeats_add_up_to_nothing(tmp_path: Path, *, is_refused: bool) -> None:
    """What no write or sync has taken yet is remembered once for each lease."""
    files = FaultyFiles(errno.EIO, kinds=("make_dir", "create", "write"))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    engine.put("work", b"one", b"two")
    assert end_turn(engine, files)
    tokens = [lease(engine), lease(engine)]
    end_turn(engine, files)
    if is_refused:
        refuse(files)
        engine.put("work", b"refused")
        assert not end_turn(engine, files)
    held = engine.reader("work").held_items()
    for _ in range(1000):
        assert all(leases.extend(engine.reader("work"), token, LEASE_MS) for token in tokens)
        engine.end_turn()
        assert len(held.unwritten_leases) + len(held.written_leases) < 250


def test_a_queue_that_is_stopped_by_damage_to_a_leased_item_begins_no_segment(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles(), sync_journal_ms=0, max_journal_size_bytes=100)
    engine.put("work", b"leased", b"damaged")
    engine.end_turn()
    for _ in range(2):
        lease(engine)
        engine.end_turn()
    engine.configure(sync_journal_ms=0, max_journal_size_bytes=1 << 20)
    engine.put("work", *[b"fills"] * 20)
    engine.end_turn()
    engine.configure(sync_journal_ms=0, max_journal_size_bytes=100)
    engine.abandon()
    damaged = engine.segments("work")[0]
    damaged.write_bytes(damaged.read_bytes().replace(b"damaged", b"Damaged"))
    engine.clock.advance(LEASE_MS - 1)
    engine.start()
    for _ in range(3):
        engine.end_turn()
    assert engine.queue("work").stopped is not None
    assert len(engine.segments("work")) > 1
    assert any("checksum does not match" in line for line in engine.log)
