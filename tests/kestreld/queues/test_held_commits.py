"""Delays, keys and leases on a disk that refuses: whoever was told of something has it, and nothing else is left."""

from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.repair import RepairReport
from kestreld.queues.leases import confirm, fail, lease
from kestreld.queues.rebuild import renew
from tests.support.engine import Engine, LateFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.repairs import repaired

SETTINGS: list[dict[str, object]] = [{}, {"sync_journal_ms": 0}]


def end_turn(engine: Engine, files: FaultyFiles) -> bool:
    """Commit and sync; whether that went well."""
    failed = bool(engine.end_turn())
    queue = engine.queue("work")
    pending_commit = queue.pending_commit
    while files.under_way:
        files.finish_background()
    return not failed and (pending_commit is None or pending_commit.failure is None)


def survivors(engine: Engine) -> list[bytes]:
    engine.clock.advance(10_000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    return engine.drain("work")


@pytest.mark.parametrize("settings", SETTINGS, ids=["written", "synced"])
@pytest.mark.parametrize("call", range(1, 12))
def test_the_first_delay_of_a_journal_takes_nobodys_item_along_in_silence(
    tmp_path: Path, call: int, settings: dict[str, object]
) -> None:
    """It begins a segment in the middle of the turn, after which another client's put has to be told of a failure."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, **settings)
    engine.put("work", b"old")
    assert end_turn(engine, files)
    files.fail_from(call)
    reader = engine.reader("work")
    assert engine.put("work", b"other") == [True]
    is_put = True
    try:
        assert reader.queue.put_later(b"later", 0, 0, None, 50)
    except JournalFailed:
        is_put = False
    is_well = end_turn(engine, files)
    files.mend()
    engine.crash()
    left = survivors(engine)
    assert b"old" in left
    if is_well:
        assert b"other" in left, "it was acknowledged"
        assert (b"later" in left) == is_put
    assert set(left) <= {b"old", b"other", b"later"}


@pytest.mark.parametrize("settings", SETTINGS, ids=["written", "synced"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_commit_that_fails_leaves_neither_the_delayed_item_nor_its_key(
    tmp_path: Path, call: int, settings: dict[str, object]
) -> None:
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, **settings)
    reader = engine.reader("work")
    queue = reader.queue
    assert queue.put_later(b"first", 0, 0, None, 1)
    assert end_turn(engine, files)
    files.fail_from(call)
    one = queue.next_id
    assert queue.put_later(b"later", 0, 0, None, 50)
    reader.remember_key(b"k", one, 50)
    is_well = end_turn(engine, files)
    assert reader.find_key(b"k") == (one if is_well else 0)
    assert reader.held is not None
    assert (one in reader.held.later) == is_well
    files.mend()
    if not is_well:
        engine.crash()
        assert not engine.reader("work").find_key(b"k")
        assert survivors(engine) == [b"first"]


def test_a_lease_of_an_item_whose_put_fails_is_over(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("write",))
    engine = Engine(tmp_path / "spool", files)
    engine.put("work", b"old")
    assert end_turn(engine, files)
    assert engine.drain("work") == [b"old"]
    files.fail_from(1)
    engine.put("work", b"new")
    reader = engine.reader("work")
    leased = lease(reader, engine.clock.wall_ms, 1000, "127.0.0.1:1")
    assert leased is not None
    assert not end_turn(engine, files)
    assert not confirm(reader, leased[0])
    assert reader.held is not None
    assert reader.held.is_empty


def test_a_delayed_put_during_a_sync_that_is_to_roll_the_journal_survives_a_kill(tmp_path: Path) -> None:
    """The delay begins a segment at once; the sync must not begin another with what was known before the put."""
    files = LateFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0, max_journal_size_bytes=1)
    engine.put("work", b"old")
    engine.end_turn()
    assert engine.queue("work").put_later(b"later", 0, 0, None, 50)
    engine.end_turn()
    while files.under_way:
        files.finish_background()
    engine.crash()
    assert engine.log == []
    assert survivors(engine) == [b"later", b"old"]


def test_what_is_done_while_the_disk_refuses_is_done_behind_the_segment_that_it_left_out(tmp_path: Path) -> None:
    """A CHECKPOINT says nothing of what is held back, and counts it: what waits beside would be taken for it."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files)
    reader = engine.reader("work")
    queue = reader.queue
    for delay_ms in (5, 5, 5, 1000):
        assert queue.put_later(b"%d" % delay_ms, 0, 0, None, delay_ms)
    engine.put("work", b"one", b"two")
    assert end_turn(engine, files)
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    files.fail_from(1)
    for _ in range(4):  # the first of them finds out
        reader.take(engine.clock.wall_ms)
        end_turn(engine, files)
    files.mend()
    queue.go_on()
    left = reader.items
    said = len(engine.log)
    engine.crash()
    assert engine.log[said:] == []
    assert (left, survivors(engine)) == (2, [b"1000", b"one", b"two"])


def test_what_was_done_while_the_disk_refused_and_went_with_its_segments_is_not_missed(tmp_path: Path) -> None:
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, max_journal_size_bytes=1)
    reader = engine.reader("work")
    for delay_ms in (5, 6):
        assert reader.queue.put_later(b"later", 0, 0, None, delay_ms)
        assert end_turn(engine, files)
    engine.put("work", b"one")
    assert end_turn(engine, files)
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    files.fail_from(1)
    for _ in range(4):
        reader.take(engine.clock.wall_ms)
        end_turn(engine, files)
    files.mend()
    for _ in range(20):
        engine.work()
        end_turn(engine, files)
    engine.crash()
    assert not [line for line in engine.log if "stopped" in line]
    assert engine.put("work", b"two") == [True]
    assert survivors(engine)[-1:] == [b"two"]


def test_what_has_failed_and_was_done_while_the_disk_refused_is_not_looked_for_in_segments_that_have_gone(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, max_journal_size_bytes=500, retry_delays_ms=(5,))
    reader = engine.reader("work")
    engine.put("work", b"one" * 200)
    assert end_turn(engine, files)
    for _ in range(3):  # the last time, the journal says so in a segment after that of the item
        opened = reader.open_read(engine.clock.wall_ms)
        assert opened is not None
        reader.abort(opened[0], engine.clock.wall_ms)
        assert end_turn(engine, files)
        engine.clock.advance(10)
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    files.fail_from(1)
    for _ in range(3):
        reader.take(engine.clock.wall_ms)
        end_turn(engine, files)
    files.mend()
    for _ in range(20):
        engine.work()
        end_turn(engine, files)
    engine.crash()
    assert engine.put("work", b"two") == [True]
    assert survivors(engine) == [b"two"]


def test_a_token_of_before_is_not_that_of_a_new_lease_where_its_confirmation_was_undone(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("sync",))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    reader = engine.reader("work")
    engine.put("work", b"one")
    assert end_turn(engine, files)
    first = lease(reader, engine.clock.monotonic_ms, 1000, "")
    assert first is not None
    assert confirm(reader, first[0])
    files.fail_from(1)
    assert not end_turn(engine, files)
    files.mend()
    second = lease(reader, engine.clock.monotonic_ms, 1000, "")
    assert second is not None
    assert second[0] != first[0]
    assert not confirm(reader, first[0])


def test_a_token_of_before_is_not_that_of_a_new_lease_where_a_repair_has_brought_its_item_back(tmp_path: Path) -> None:
    """It was confirmed while the disk refused, which the journal does not say."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files)
    reader = engine.reader("work")
    engine.put("work", b"one")
    assert end_turn(engine, files)
    first = lease(reader, engine.clock.monotonic_ms, 1000, "")
    assert first is not None
    files.fail_from(1)
    engine.put("work", b"refused")
    assert not end_turn(engine, files)
    assert confirm(reader, first[0])
    assert end_turn(engine, files)
    files.mend()
    reader.queue.stop(JournalCorrupt("", 0, "cannot be read: Input/output error"))
    assert repaired(engine, "work") == RepairReport("work")
    second = lease(reader, engine.clock.monotonic_ms, 1000, "")
    assert second is not None
    assert second[1] == first[1]
    assert second[0] != first[0]
    assert not confirm(reader, first[0])
    assert confirm(reader, second[0])


def test_a_stop_takes_back_nothing_that_was_on_disk_where_no_segment_could_be_begun(tmp_path: Path) -> None:
    files = FaultyFiles(kinds=("create",))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0, max_journal_size_bytes=200)
    reader = engine.reader("work")
    assert reader.queue.put_later(b"held back", 0, 0, None, 50_000)
    engine.put("work", b"leased", b"taken")
    assert end_turn(engine, files)
    assert lease(reader, engine.clock.monotonic_ms, 100_000, "") is not None
    files.fail_from(1)
    files.stays = True
    engine.put("work", b"acknowledged" * 20)
    assert end_turn(engine, files)
    assert engine.take("work") == b"taken"
    engine.collection.close()
    files.mend()
    engine.crash()
    assert b"acknowledged" * 20 in survivors(engine)


def test_what_was_done_while_the_disk_refused_is_held_again_once_a_repair_has_read_the_journal(tmp_path: Path) -> None:
    """Nothing is said any more of it being done: a start would miss it among what is held."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, max_journal_size_bytes=400)
    reader = engine.reader("work")
    for delay_ms in (5, 6):
        assert reader.queue.put_later(b"later", 0, 0, None, delay_ms)
    engine.put("work", b"one")
    assert end_turn(engine, files)
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    files.fail_from(1)
    for _ in range(3):
        reader.take(engine.clock.wall_ms)
        end_turn(engine, files)
    files.mend()
    reader.queue.stop(JournalCorrupt("", 0, "cannot be read: Input/output error"))
    assert repaired(engine, "work") == RepairReport("work")
    for item in (b"two", b"three"):
        engine.put("work", item * 100)
        assert end_turn(engine, files)
        engine.work()  # a segment is begun
    engine.crash()
    assert engine.collection.broken == {}
    assert survivors(engine)[-1:] == [b"three" * 100]


def test_a_delay_is_written_though_the_queue_stops_before_the_end_of_the_turn(tmp_path: Path) -> None:
    """Its put is written then, and somebody is told so."""
    engine = Engine(tmp_path / "spool")
    queue = engine.reader("work").queue
    engine.put("work", b"now")
    engine.end_turn()
    assert queue.put_later(b"later", 0, 0, None, 5000)
    queue.stop(JournalCorrupt("", 0, "cannot be read: Input/output error"))
    assert not engine.end_turn()
    engine.crash()
    assert engine.drain("work") == [b"now"]
    assert survivors(engine) == [b"later"]


def test_what_is_confirmed_late_while_the_disk_refuses_is_not_held_after_a_start(tmp_path: Path) -> None:
    """It was ready again, and had gone to the window's front, from which the confirmation takes it."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files)
    reader = engine.reader("work")
    for item in (b"first", b"second"):
        assert reader.queue.put_later(item, 0, 0, None, 5)
    engine.put("work", b"third")
    assert end_turn(engine, files)
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    leased = lease(reader, engine.clock.monotonic_ms, 5, "")
    assert leased is not None
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert reader.peek(engine.clock.wall_ms) is not None
    files.fail_from(1)
    engine.put("work", b"refused")
    assert not end_turn(engine, files)
    assert confirm(reader, leased[0])
    assert end_turn(engine, files)
    files.mend()
    reader.queue.go_on()
    engine.crash()
    assert survivors(engine) == [b"second", b"third"]


def test_puts_that_gather_behind_a_sync_fail_with_the_segment_that_a_key_needs(tmp_path: Path) -> None:
    """Nothing else may have changed in their turn: its end has to tell whoever put them all the same."""
    files = FaultyFiles(kinds=("write",))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    reader = engine.reader("work")
    engine.put("work", b"first", b"second")
    engine.end_turn()
    files.finish_background()
    engine.put("work", b"third")
    engine.end_turn()  # its sync is under way
    assert engine.take("work") == b"first"
    engine.end_turn()  # and this waits for that
    assert engine.put("work", b"lost") == [True]
    files.fail_from(1)
    with pytest.raises(JournalFailed):
        reader.queue.put_keyed(b"k", reader, b"refused", 0, 0, None, 0)
    assert engine.commit.dirty == [reader.queue]
    assert engine.end_turn() == {reader.queue: reader.queue.journal.failed}  # type: ignore[union-attr]
    files.mend()
    engine.crash()
    assert b"lost" not in survivors(engine)


@pytest.mark.parametrize("is_reviewed", [True, False])
def test_what_was_confirmed_while_no_segment_could_be_begun_does_not_come_back_with_a_put_that_fails(
    tmp_path: Path, *, is_reviewed: bool
) -> None:
    files = FaultyFiles(kinds=("create",))
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    reader = engine.reader("work")
    engine.put("work", b"one", b"two", b"three")
    assert end_turn(engine, files)
    leased = [lease(reader, engine.clock.monotonic_ms, 1000, "") for _ in range(2)]
    files.fail_from(1)
    files.stays = True
    with pytest.raises(JournalFailed):
        reader.queue.put_later(b"refused", 0, 0, None, 50)  # the first delay of a journal begins a segment
    assert end_turn(engine, files)
    for one in leased:
        assert one is not None
        assert confirm(reader, one[0])
    assert end_turn(engine, files)
    if is_reviewed:
        with pytest.raises(JournalFailed):
            engine.put("work", b"refused")
        assert end_turn(engine, files)
    else:
        reader.queue.put_budget = 1 << 20  # as if the disk had failed only after the put
        assert engine.put("work", b"refused") == [True]
        assert not end_turn(engine, files)
    assert engine.drain("work") == [b"three"]


def test_a_marker_that_is_written_after_a_queue_has_stopped_does_not_say_that_what_it_held_is_done(
    tmp_path: Path,
) -> None:
    files = LateFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0, max_journal_size_bytes=200)
    queue = engine.reader("work").queue
    assert queue.put_later(b"later", 0, 0, None, 5000)
    assert end_turn(engine, files)
    for _ in range(5):
        engine.put("work", b"done" * 50)
        assert end_turn(engine, files)
        engine.take("work")
        assert end_turn(engine, files)
    engine.put("work", b"full" * 50)
    assert end_turn(engine, files)
    engine.put("work", b"last")
    assert not engine.end_turn()
    queue.stop(JournalCorrupt("", 0, "cannot be read: Input/output error"))
    while files.under_way:
        files.finish_background()
    engine.crash()
    assert sorted(survivors(engine)) == [b"full" * 50, b"last", b"later"]


def test_a_put_with_a_key_to_a_queue_that_has_stopped_does_not_say_that_what_waits_is_done(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool")
    reader = engine.reader("work")
    engine.put("work", b"waits")
    engine.end_turn()
    reader.queue.stop(JournalCorrupt("", 0, "cannot be read: Input/output error"))
    with pytest.raises(JournalCorrupt):
        reader.queue.put_keyed(b"k", reader, b"refused", 0, 0, None, 0)
    engine.end_turn()
    engine.crash()
    assert survivors(engine) == [b"waits"]


def taken_by(engine: Engine, holder: str) -> int:
    leased = lease(engine.reader("work"), engine.clock.wall_ms, 1000, holder)
    assert leased is not None
    return leased[0]


def about_to_move(engine: Engine, files: FaultyFiles) -> int:
    """The token of who has an item that moves to `dead` if it fails once more."""
    engine.put("work", b"poison")
    engine.reader("dead")
    assert end_turn(engine, files)
    assert fail(engine.reader("work"), taken_by(engine, "127.0.0.1:1"), engine.clock.wall_ms)
    assert end_turn(engine, files)
    return taken_by(engine, "127.0.0.1:1")


@pytest.mark.parametrize("settings", [*SETTINGS, {"journal": False}], ids=["written", "synced", "in memory"])
def test_who_failed_with_an_item_that_could_not_move_has_no_part_in_the_next_lease(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """The queue for dead letters took it, and its commit failed: the item waits, and then somebody else has it."""
    files = FaultyFiles(stays=True)
    engine = Engine(tmp_path / "spool", files, max_retries=1, move_failed_to="dead", **settings)
    engine.configure({"dead": {"journal": True}}, max_retries=1, move_failed_to="dead", **settings)
    old, reader = about_to_move(engine, files), engine.reader("work")
    assert fail(reader, old, engine.clock.wall_ms)
    assert reader.moving
    files.fail_from(1)
    end_turn(engine, files)
    end_turn(engine, files)
    files.mend()
    assert engine.items("work") == 1
    assert fail(reader, old, engine.clock.wall_ms), "it waits: that is known already"
    assert engine.items("work") == 1
    token = taken_by(engine, "127.0.0.1:2")
    assert not fail(reader, old, engine.clock.wall_ms)
    assert confirm(reader, token)
    assert not fail(reader, old, engine.clock.wall_ms)


@pytest.mark.parametrize("has_journal", [True, False])
def test_who_failed_with_an_item_that_an_interrupted_turn_kept_has_no_part_in_the_next_lease(
    tmp_path: Path, has_journal: bool
) -> None:
    """It has moved, and nothing says so where it was."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, max_retries=1, move_failed_to="dead", journal=has_journal)
    old, reader = about_to_move(engine, files), engine.reader("work")
    assert fail(reader, old, engine.clock.wall_ms)
    if has_journal:
        engine.commit.run()
        assert engine.items("dead") == 1
    assert fail(reader, old, engine.clock.wall_ms), "said again, as the answer was lost"
    renew(engine.collection, reader.queue, lambda reader: reader.open)
    token = taken_by(engine, "127.0.0.1:2")
    assert not fail(reader, old, engine.clock.wall_ms)
    assert confirm(reader, token)


def test_a_segment_that_could_not_be_cut_back_is_followed_by_the_next_number(tmp_path: Path) -> None:
    """How much of it counts says the CHECKPOINT behind it, which a number left free for a compaction must not part."""
    files = FaultyFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    reader = engine.reader("work")
    assert reader.queue.put_later(b"later", 0, 0, None, 50)
    assert end_turn(engine, files)
    files.kinds, files.stays = ("sync", "truncate"), True
    files.fail_from(1)
    engine.put("work", b"refused")
    assert not end_turn(engine, files)
    files.mend()
    reader.queue.want_segment(wanted=True)
    reader.queue.go_on()
    assert engine.put("work", b"more") == [True]
    engine.restart()
    assert engine.collection.broken == {}
    assert survivors(engine) == [b"later", b"more"]
