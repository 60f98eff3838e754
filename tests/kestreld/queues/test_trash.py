"""What a flush or a delete dropped can be had back for trash_seconds, in order and once, whatever happens meanwhile."""

import errno
import gc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.records import Reason, item_data, item_flags, item_times_ms
from kestreld.queues import repairing
from kestreld.queues.leases import confirm, fail, give_back, lease
from kestreld.queues.reader import Reader
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.mortal_files import Killed, MortalFiles
from tests.support.repairs import step, undone

KEPT_MS = 60_000
HOUR_MS = 3_600_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with_trash = engine_on(tmp_path / "spool")
    yield with_trash
    with_trash.abandon()


def engine_on(spool: Path, files: QuickFiles | None = None, **settings: object) -> Engine:
    return Engine(spool, files or QuickFiles(), **{"trash_ms": KEPT_MS, **settings})


def drop(engine: Engine, how: str, name: str = "work") -> None:
    if how == "flush":
        engine.collection.flush(name)
    else:
        engine.collection.delete(name)
    engine.end_turn()


def trash(engine: Engine) -> list[str]:
    folder = engine.spool / ".trash"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


either = pytest.mark.parametrize("how", ["flush", "delete"])


# What comes back


@either
def test_items_come_back_in_order_with_their_flags_and_expiry(engine: Engine, how: str) -> None:
    later_ms = engine.clock.wall_ms + HOUR_MS
    engine.put("work", b"one")
    engine.put("work", b"two", flags=7)
    engine.end_turn()
    engine.put("work", b"three", expire_at_ms=later_ms)
    drop(engine, how)
    assert engine.items("work") == 0
    assert undone(engine, "work") == (3, 0)
    reader = engine.reader("work")
    records = [reader.take(engine.clock.wall_ms) for _ in range(3)]
    found = [(item_data(record), item_flags(record), item_times_ms(record)[1]) for record in records if record]
    assert found == [(b"one", 0, 0), (b"two", 7, 0), (b"three", 0, later_ms)]


@either
@pytest.mark.parametrize("is_written", [True, False])
def test_items_come_back_with_the_due_times_they_had(engine: Engine, how: str, *, is_written: bool) -> None:
    reader = engine.reader("work")
    queue = reader.queue
    engine.put("work", b"first", b"fails")
    for data, delay_ms in ((b"in an hour", HOUR_MS), (b"cancelled", HOUR_MS), (b"in a minute", 60_000)):
        assert queue.put_later(data, 0, 7, None, delay_ms)
    engine.put("work", b"waits")
    assert engine.take("work") == b"first"
    opened = reader.open_read(engine.clock.wall_ms)
    assert opened is not None
    reader.give_back(opened[0], engine.clock.wall_ms, 2 * HOUR_MS)
    if is_written:
        engine.end_turn()
    reader.withdraw(4, Reason.DISCARDED)
    drop(engine, how)
    engine.clock.advance(1000)
    if is_written:
        engine.crash()
    assert undone(engine, "work") == (4, 0)
    assert [engine.take("work") for _ in range(2)] == [b"waits", None]
    for data, at_ms in ((b"in a minute", 59_000), (b"in an hour", HOUR_MS - 60_000), (b"fails", HOUR_MS)):
        engine.clock.advance(at_ms - 1)
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
        assert engine.take("work") is None
        engine.clock.advance(1)
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
        assert engine.take("work") == data
    assert undone(engine, "work") is None


@either
def test_after_a_clock_was_set_back_items_wait_as_long_as_was_left_when_they_were_dropped(
    engine: Engine, how: str
) -> None:
    assert engine.reader("work").queue.put_later(b"later", 0, 0, None, 100)
    engine.end_turn()
    engine.clock.advance(60)
    drop(engine, how)
    engine.clock.wall_ms -= HOUR_MS
    undone(engine, "work")
    engine.clock.advance(39)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take("work") is None
    engine.clock.advance(1)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take("work") == b"later"


def test_a_delete_brings_back_what_was_leased_as_waiting_and_without_its_key(engine: Engine) -> None:
    reader = engine.reader("work")
    reader.queue.use_version(2)
    assert reader.queue.put_later(b"leased", 0, 0, None, 10)
    reader.remember_key(b"order-17", 1, 10)
    engine.end_turn()
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    leased = lease(reader, engine.clock.wall_ms, HOUR_MS, "127.0.0.1:1")
    assert leased is not None
    engine.end_turn()
    drop(engine, "delete")
    assert undone(engine, "work") == (1, 0)
    reader = engine.reader("work")
    assert not confirm(reader, leased[0])
    assert reader.find_key(b"order-17") == 0
    assert engine.drain("work") == [b"leased"]


@pytest.mark.parametrize("come_back", [give_back, fail])
@either
def test_what_came_back_from_a_lease_is_brought_back(
    engine: Engine, how: str, come_back: Callable[[Reader, int, int], bool]
) -> None:
    engine.configure(trash_ms=KEPT_MS, max_retries=9)
    engine.put("work", b"a", b"b")
    leased = lease(engine.reader("work"), engine.clock.wall_ms, HOUR_MS, "")
    assert leased is not None
    assert come_back(engine.reader("work"), leased[0], engine.clock.wall_ms)
    engine.end_turn()
    drop(engine, how)
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"a", b"b"]


@either
def test_what_was_put_since_stands_before_it(engine: Engine, how: str) -> None:
    engine.put("work", b"1", b"2")
    drop(engine, how)
    engine.put("work", b"3")
    undone(engine, "work")
    assert engine.drain("work") == [b"3", b"1", b"2"]


@either
def test_nothing_is_brought_back_twice(engine: Engine, how: str) -> None:
    engine.put("work", b"1", b"2")
    drop(engine, how)
    assert undone(engine, "work") == (2, 0)
    assert undone(engine, "work") is None
    assert engine.drain("work") == [b"1", b"2"]
    assert trash(engine) == []


def test_each_undo_goes_one_step_further_back(engine: Engine) -> None:
    for item in (b"1", b"2", b"3"):
        engine.put("work", item)
        drop(engine, "delete" if item == b"2" else "flush")
        engine.clock.advance(1)
    assert [undone(engine, "work") for _ in range(4)] == [(1, 0), (1, 0), (1, 0), None]
    assert engine.drain("work") == [b"3", b"2", b"1"]


@either
def test_what_was_taken_does_not_come_back(engine: Engine, how: str) -> None:
    engine.put("work", b"1", b"2", b"3", b"4")
    engine.take("work")
    engine.end_turn()
    engine.take("work")
    drop(engine, how)
    undone(engine, "work")
    assert engine.drain("work") == [b"3", b"4"]


def test_open_reads_stay_open_through_a_flush_and_come_back_after_a_delete(engine: Engine) -> None:
    engine.put("work", b"1", b"2", b"3")
    reader = engine.reader("work")
    first, second = reader.open_read(0), reader.open_read(0)
    assert first is not None
    assert second is not None
    reader.abort(first[0], 0)
    drop(engine, "flush")
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"1", b"3"]
    drop(engine, "delete")
    assert undone(engine, "work") == (1, 0)
    assert engine.drain("work") == [b"2"]


def test_what_is_leased_before_what_is_still_on_disk_does_not_come_back_after_a_flush(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool", max_memory_size_bytes=1000)
    reader = engine.reader("work")
    engine.put("work", *[b"%d" % number * 300 for number in range(1, 9)])
    assert reader.queue.put_later(b"leased", 0, 0, None, 10)
    engine.end_turn()
    engine.clock.advance(10)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert lease(reader, engine.clock.wall_ms, HOUR_MS, "127.0.0.1:1") is not None
    engine.end_turn()
    assert not reader.attached
    drop(engine, "flush")
    assert undone(engine, "work") == (8, 0)
    assert engine.drain("work") == [b"%d" % number * 300 for number in range(1, 9)]
    engine.abandon()


@either
def test_a_family_loses_and_gets_back_what_one_of_it_dropped(engine: Engine, how: str) -> None:
    engine.reader("work+audit")
    engine.put("work", b"1", b"2")
    engine.put("work+audit", b"for the audit")
    engine.end_turn()
    drop(engine, how)
    assert undone(engine, "work") == (2, 0)
    drop(engine, how, "work+audit")
    assert undone(engine, "work+audit") == (3, 0)
    assert engine.drain("work") == [b"1", b"2"]
    assert engine.drain("work+audit") == [b"1", b"2", b"for the audit"]


@either
def test_a_long_queue_comes_back_from_many_segments(tmp_path: Path, how: str) -> None:
    engine = engine_on(tmp_path / "spool", max_journal_size_bytes=4096, max_memory_size_bytes=2000)
    items = [b"%06d" % number + b"x" * 50 for number in range(3000)]
    for at in range(0, 3000, 10):
        engine.put("work", *items[at : at + 10])
        engine.end_turn()
    drop(engine, how)
    for _ in range(5):
        engine.work(1000)  # lets the dead segments go
        engine.end_turn()
    assert len(engine.segments("work")) < 5
    assert undone(engine, "work") == (3000, 0)
    assert engine.drain("work") == items
    engine.abandon()


def test_flush_all_is_undone_queue_by_queue(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.put(name, name.encode())
    for _ in engine.collection.flush_all():
        pass
    engine.end_turn()
    assert [undone(engine, name) for name in ("a", "b", "c")] == [(1, 0), (1, 0), None]
    assert (engine.drain("a"), engine.drain("b")) == ([b"a"], [b"b"])


def test_a_queue_that_was_empty_leaves_nothing(engine: Engine) -> None:
    engine.reader("work")
    drop(engine, "flush")
    drop(engine, "delete")
    assert undone(engine, "work") is None
    assert trash(engine) == []


@either
def test_what_was_done_out_of_order_before_a_restart_does_not_come_back(engine: Engine, how: str) -> None:
    engine.put("work", b"1", b"2", b"3")
    reader = engine.reader("work")
    reader.open_read(0)
    second = reader.open_read(0)
    assert second is not None
    reader.close(second[0])
    engine.end_turn()
    engine.crash()
    drop(engine, how)
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"1", b"3"]


@either
def test_what_a_failed_commit_left_in_the_file_is_not_brought_back(tmp_path: Path, how: str) -> None:
    files = FaultyFiles(errno.EIO, ("sync", "truncate"), stays=True)
    engine = engine_on(tmp_path / "spool", files, sync_journal_ms=0)
    engine.put("work", b"1")
    step(engine)
    step(engine)
    engine.put("work", b"never stored")
    files.fail_from(1)
    engine.end_turn()
    files.finish_background()
    files.mend()
    files.refused.clear()
    engine.configure(trash_ms=KEPT_MS, sync_journal_ms=0)
    engine.put("work", b"2")
    step(engine)
    drop(engine, how)
    step(engine)
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"1", b"2"]
    engine.abandon()


# How long


@either
def test_by_default_nothing_is_kept(tmp_path: Path, how: str) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"1")
    drop(engine, how)
    assert undone(engine, "work") is None
    assert trash(engine) == []
    engine.abandon()


@either
def test_it_is_kept_for_trash_seconds_and_no_longer(engine: Engine, how: str) -> None:
    engine.put("work", b"1")
    drop(engine, how)
    engine.clock.advance(KEPT_MS - 1)
    engine.work(10)
    assert len(trash(engine)) == 1
    engine.clock.advance(1)
    engine.work(10)
    assert trash(engine) == []
    assert undone(engine, "work") is None


def test_it_goes_at_start_too_and_when_trash_seconds_is_turned_off(engine: Engine) -> None:
    engine.put("work", b"1")
    drop(engine, "flush")
    engine.clock.advance(KEPT_MS)
    engine.crash()
    assert trash(engine) == []
    engine.put("work", b"1")
    drop(engine, "flush")
    engine.configure()
    engine.work(10)
    assert trash(engine) == []


def test_a_queue_has_a_time_of_its_own(engine: Engine) -> None:
    engine.configure({"late": {"trash_ms": 2 * KEPT_MS}, "off": {"trash_ms": 0}}, trash_ms=KEPT_MS)
    for name in ("work", "late", "off"):
        engine.put(name, b"1")
        drop(engine, "flush", name)
    engine.clock.advance(KEPT_MS)
    engine.work(10)
    assert [undone(engine, name) for name in ("work", "late", "off")] == [None, (1, 0), None]


@either
@pytest.mark.parametrize("end", [Engine.restart, Engine.crash], ids=["restart", "kill -9"])
def test_it_survives_the_server(engine: Engine, how: str, end: Callable[[Engine], None]) -> None:
    engine.reader("work+audit")
    engine.put("work", b"1", b"2")
    engine.end_turn()
    drop(engine, how, "work+audit")
    drop(engine, how)
    end(engine)
    assert undone(engine, "work") == (2, 0)
    end(engine)
    assert undone(engine, "work+audit") == (2, 0)
    assert engine.drain("work") == [b"1", b"2"]
    assert engine.drain("work+audit") == [b"1", b"2"]


def test_a_full_disk_takes_the_trash_first(tmp_path: Path) -> None:
    class Full(QuickFiles):
        full = False

        def write(self, fd: int, data: bytes) -> int:
            if self.full and any((tmp_path / "spool" / ".trash").glob("*")):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, data)

    files = Full()
    engine = engine_on(tmp_path / "spool", files)
    engine.put("work", b"1")
    drop(engine, "flush")
    files.full = True
    engine.put("work", b"2")
    assert engine.end_turn() == {}
    assert trash(engine) == []
    assert "removed early because the disk is full" in engine.log[-1]
    assert engine.drain("work") == [b"2"]
    engine.abandon()


def test_a_queue_without_a_journal_keeps_nothing(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool", journal=False)
    engine.put("work", b"1")
    drop(engine, "flush")
    assert undone(engine, "work") is None


# When it does not go smoothly


def test_a_queue_with_no_room_takes_what_it_can_and_the_rest_is_kept(engine: Engine) -> None:
    engine.put("work", *[b"%d" % number for number in range(10)])
    drop(engine, "flush")
    engine.configure(trash_ms=KEPT_MS, max_items=4)
    assert undone(engine, "work") == (4, 6)
    assert undone(engine, "work") == (0, 6)
    assert engine.drain("work") == [b"0", b"1", b"2", b"3"]
    engine.crash()
    assert undone(engine, "work") == (4, 2)
    assert engine.drain("work") == [b"4", b"5", b"6", b"7"]
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"8", b"9"]


@pytest.mark.parametrize("torn", [b'\n{"undone_to": 9, "ite', b"\0" * 40, b""], ids=["half a line", "zeros", "none"])
def test_a_line_of_progress_that_is_cut_short_leaves_the_one_before_and_joins_none(engine: Engine, torn: bytes) -> None:
    engine.put("work", *[b"%d" % number for number in range(9)])
    drop(engine, "flush")
    for left in (6, 3, 0):
        engine.configure(trash_ms=KEPT_MS, max_items=3)
        assert undone(engine, "work") == (3, left)
        assert engine.drain("work") == [b"%d" % number for number in range(6 - left, 9 - left)]
        engine.end_turn()
        for progress in engine.spool.glob(".trash/*/progress"):
            progress.write_bytes(progress.read_bytes() + torn)
        engine.crash()


@pytest.mark.parametrize("sync_ms", [None, 0], ids=["unsynced", "synced"])
def test_a_failed_commit_brings_nothing_back_and_leaves_it_for_another_try(tmp_path: Path, sync_ms: int | None) -> None:
    files = FaultyFiles(errno.EIO, ("sync",) if sync_ms == 0 else ("write",), stays=True)
    engine = engine_on(tmp_path / "spool", files, sync_journal_ms=sync_ms)
    engine.put("work", b"1", b"2")
    engine.end_turn()
    files.finish_background()
    drop(engine, "flush")
    files.finish_background()
    engine.end_turn()
    files.fail_from(1 if sync_ms == 0 else 2)  # the first write is the note's
    with pytest.raises(JournalFailed):
        undone(engine, "work")
    files.mend()
    files.refused.clear()
    engine.configure(trash_ms=KEPT_MS, sync_journal_ms=sync_ms)
    assert undone(engine, "work") == (2, 0)
    assert engine.drain("work") == [b"1", b"2"]
    engine.abandon()


def test_clients_go_on_between_the_items_that_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "BATCH_ITEMS", 2)
    engine = engine_on(tmp_path / "spool", LateFiles(), sync_journal_ms=0)
    items = [b"%d" % number for number in range(9)]
    engine.put("work", *items)
    step(engine)
    engine.collection.flush("work")
    step(engine)
    answers: list[object] = []
    repairing.Repairer(engine.collection, engine.maintenance, engine.slices).undo("work", answers.append)
    sent = []
    while not answers:
        sent.append(b"new %d" % len(sent))
        engine.put("work", sent[-1])
        step(engine)
    assert answers == [(9, 0)]
    found = engine.drain("work")
    assert [item for item in found if item in items] == items
    assert [item for item in found if item not in items] == sent
    engine.abandon()


def life(engine: Engine, acknowledged: list[str]) -> None:
    """Items are put, taken, dropped and brought back; what has been answered is noted."""
    engine.reader("work+audit")
    engine.put("work", *[b"%d" % number for number in range(1, 9)])
    assert not engine.end_turn()
    engine.take("work")
    engine.end_turn()
    acknowledged.append("put")
    drop(engine, "flush")
    acknowledged.append("flush")
    undone(engine, "work")
    drop(engine, "delete", "work+audit")
    drop(engine, "delete")
    acknowledged.append("delete")
    undone(engine, "work")
    undone(engine, "work+audit")
    acknowledged.append("undo")


def lives_cut_short(folder: Path) -> Iterator[tuple[Engine, list[str]]]:
    """A server started again after every change to the disk that such a life makes, and what had been answered."""
    for dies_at in count(1):
        files, acknowledged = MortalFiles(dies_at), []
        is_over = False
        try:
            life(Engine(folder / str(dies_at), files, trash_ms=KEPT_MS), acknowledged)
            is_over = True
        except Killed:
            pass
        gc.collect()  # what was going on has come to its end
        files.die()
        if is_over:
            return
        yield engine_on(folder / str(dies_at)), acknowledged


def test_a_kill_at_any_moment_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "BATCH_ITEMS", 3)
    gc.freeze()  # looking for what a life has left is long where others have left much
    lives = 0
    for engine, acknowledged in lives_cut_short(tmp_path):
        lives += 1
        for name, expected in (("work", range(2, 9)), ("work+audit", range(1, 9))):
            if name in engine.collection.readers or acknowledged:
                while undone(engine, name) is not None:
                    pass
                found = sorted(map(int, engine.drain(name)))
                if "put" in acknowledged:
                    assert found == list(expected), f"life {lives}, {name}"
                else:  # nobody was told: some of it may have been written
                    assert found in [list(range(first, end)) for first in (1, 2) for end in range(10)]
        engine.abandon()
    assert lives > 50
