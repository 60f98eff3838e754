"""Open reads, retry counts and waits where something else happens to the queue meanwhile, at their exact limits."""

import sys
from pathlib import Path

import pytest

from kestreld.journal.records import FRAME_BYTES, checkpoint_record, item_data, read_checkpoint
from kestreld.queues.agenda import Agenda
from kestreld.queues.waiters import TAKE, Waiter
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.flow import SETTINGS

WORK, AUDIT, SLOW = "work", "work+audit", "work+slow"


def opened(engine: Engine, name: str) -> int:
    """Open the head; its id."""
    found = engine.reader(name).open_read(engine.clock.wall_ms)
    assert found is not None
    return found[0]


def rolled(engine: Engine, name: str) -> None:
    """Take enough through the queue that the segments so far are gone."""
    before = engine.segments(name)
    for _ in range(40):
        engine.put(name, b"." * 60)
        engine.take(name)
        engine.end_turn()
        engine.work(5)
    assert not set(before) & set(engine.segments(name))


# --- a flush


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_what_is_open_during_a_flush_is_there_after_the_next_start(tmp_path: Path, ending: str) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put(WORK, b"a", b"b", b"c", b"d")
    first = opened(engine, WORK)
    opened(engine, WORK), opened(engine, WORK)
    engine.reader(WORK).abort(first, engine.clock.wall_ms)
    engine.end_turn()
    assert engine.collection.flush(WORK) == 2, "a and d wait, on either side of what is open"
    engine.put(WORK, b"e")
    engine.end_turn()
    engine.crash() if ending == "kill" else engine.restart()
    assert engine.drain(WORK) == [b"b", b"c", b"e"]


def test_what_was_open_during_a_flush_and_closed_after_it_does_not_come_back(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put(WORK, b"a", b"b", b"c")
    first, second = opened(engine, WORK), opened(engine, WORK)
    engine.end_turn()
    engine.collection.flush(WORK)
    engine.end_turn()
    engine.reader(WORK).close(first)
    engine.end_turn()
    engine.crash()
    assert engine.drain(WORK) == [b"b"]
    assert second == first + 1


# --- retries


def test_retries_are_counted_over_new_segments_and_kills(tmp_path: Path) -> None:
    """The record of an abort is in a segment that is gone by then: the CHECKPOINT carries the count."""
    engine = Engine(tmp_path, QuickFiles(), max_retries=2, move_failed_to="dead", max_journal_size_bytes=400)
    engine.put(WORK, b"poison")
    for ending in (engine.crash, engine.restart):
        xid = opened(engine, WORK)
        engine.reader(WORK).abort(xid, engine.clock.wall_ms)
        engine.end_turn()
        held = opened(engine, WORK)
        rolled(engine, WORK)
        del held
        ending()
        assert engine.items("dead") == 0
    engine.reader(WORK).abort(opened(engine, WORK), engine.clock.wall_ms)
    engine.end_turn()
    engine.end_turn()
    assert engine.drain(WORK) == []
    assert engine.drain("dead") == [b"poison"]


@pytest.mark.parametrize("retry_delays_ms", [(), (60_000,)])
@pytest.mark.parametrize("rolls", [False, True])
def test_a_start_moves_on_what_a_kill_has_kept_from_it(
    tmp_path: Path, rolls: bool, retry_delays_ms: tuple[int, ...]
) -> None:
    """The count is in the commit that begins the move: nobody gets the item again, and it may be in both queues."""
    engine = Engine(
        tmp_path, QuickFiles(), max_retries=1, move_failed_to="dead", retry_delays_ms=retry_delays_ms, sync_journal_ms=0
    )
    engine.put(WORK, b"poison", b"good")
    engine.end_turn()
    for _ in range(2):
        one = opened(engine, WORK)
        assert one == 1
        engine.reader(WORK).abort(one, engine.clock.wall_ms)
        queue = engine.queue(WORK)
        engine.commit.run()
        if not engine.reader(WORK).gone:
            engine.end_turn()
            engine.clock.advance(60_000)
            engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.reader(WORK).gone, "what says that it has left goes with the next commit"
    assert queue.journal is not None
    if rolls:
        queue.journal.start_segment(queue.checkpoint())
    engine.crash()
    engine.end_turn()
    assert engine.items(WORK) == 1
    engine.end_turn()
    engine.crash()
    assert engine.drain(WORK) == [b"good"]
    assert engine.drain("dead") == [b"poison"] * 2


def test_what_the_dead_letter_queue_refuses_at_a_start_waits_for_its_time(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), retry_delays_ms=(1000,))
    engine.put(WORK, b"1", b"2")
    engine.put("dead", b"0")
    for _ in range(2):
        for one in [opened(engine, WORK), opened(engine, WORK)]:
            engine.reader(WORK).abort(one, engine.clock.wall_ms)
        engine.end_turn()
        engine.end_turn()
        if engine.reader(WORK).retries[1] != 2:
            engine.clock.advance(1000)
            engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    engine.config = engine._config({"dead": {"max_items": 1}}, {"max_retries": 1, "move_failed_to": "dead"})
    engine.crash()
    assert engine.take(WORK) is None
    engine.clock.advance(1000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain(WORK) == [b"1", b"2"]
    assert engine.drain("dead") == [b"0"]


@pytest.mark.parametrize("settings", [{"max_retries": 3}, {"retry_delays_ms": (5,)}])
def test_a_failure_that_was_answered_is_counted_after_a_kill(tmp_path: Path, settings: dict[str, object]) -> None:
    """Also the first of a journal, whose record of the delay waits for a segment that may have one."""
    engine = Engine(tmp_path, QuickFiles(), **settings)
    engine.put(WORK, b"1")
    engine.end_turn()
    engine.reader(WORK).abort(opened(engine, WORK), engine.clock.wall_ms)
    engine.commit.run()
    engine.crash()
    assert engine.reader(WORK).retries == {1: 1}


def test_without_max_retries_and_retry_delays_nothing_is_counted_or_written(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put(WORK, b"1")
    engine.end_turn()
    reader = engine.reader(WORK)
    size = engine.segments(WORK)[0].stat().st_size
    one = opened(engine, WORK)
    reader.begin_lease(one, 1000, "somebody")
    reader.fail(one, engine.clock.wall_ms)
    engine.end_turn()
    assert reader.retries == {}
    assert engine.segments(WORK)[0].stat().st_size == size
    assert opened(engine, WORK) == one


@pytest.mark.parametrize("journal", [True, False])
def test_retries_of_items_that_are_done_are_forgotten(tmp_path: Path, journal: bool) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_retries=5, journal=journal)
    reader = engine.reader(WORK)
    engine.put(WORK, b"kept")
    kept = opened(engine, WORK)
    reader.abort(kept, engine.clock.wall_ms)
    kept = opened(engine, WORK)
    for _ in range(500):
        engine.put(WORK, b"x")
        reader.abort(opened(engine, WORK), engine.clock.wall_ms)
        engine.end_turn()
        engine.take(WORK)
    assert len(reader.retries) < 200
    assert reader.retries[kept] == 1


# --- memory


@pytest.mark.parametrize("restarts", [False, True])
def test_open_reads_leave_the_less_room_in_memory_for_what_waits(tmp_path: Path, restarts: bool) -> None:
    """What is open may come back, so it counts: with all memory held by open reads one item at a time is loaded."""
    engine = Engine(tmp_path, QuickFiles(), max_memory_size_bytes=1000)
    engine.put(WORK, *[b"%02d" % number + b"." * 98 for number in range(30)])
    engine.end_turn()
    if restarts:
        engine.restart()
    reader = engine.reader(WORK)
    for number in range(12):
        opened(engine, WORK)
        reader.peek(engine.clock.wall_ms)
        engine.queue(WORK).flush_counters()
        assert reader.mem_bytes + reader.open_bytes <= 1000 or len(reader.window) == 1, number
        engine.put(WORK, b"new")
        engine.end_turn()
    assert [len(data) for data in engine.drain(WORK)] == [100] * 18 + [3] * 12


# --- compaction


def test_a_reader_behind_with_gaps_finds_what_it_has_not_done_in_a_compacted_segment(tmp_path: Path) -> None:
    """It reads from disk, has done items ahead of its head, and has read past one of them that another still needs."""
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS, max_memory_size_bytes=62)
    engine.reader(SLOW)
    engine.put(WORK, *[b"%02d" % number + b"." * 18 for number in range(4)])
    engine.queue(WORK).put_with(b"04", 0, 0, engine.reader(WORK))  # not the child's
    engine.put(WORK, b"05" + b"." * 38)
    engine.end_turn()
    ids = [opened(engine, SLOW) for _ in range(4)]
    for one in (ids[1], ids[3]):
        engine.reader(SLOW).close(one)
    held = [opened(engine, WORK) for _ in range(6)][3]
    engine.reader(WORK).abort(held, engine.clock.wall_ms)
    engine.restart()
    assert [data[:2] for data in (engine.take(WORK), engine.take(WORK), engine.take(WORK)) if data] == [
        b"00",
        b"01",
        b"02",
    ]
    assert opened(engine, WORK) == held
    assert item_data(engine.reader(SLOW).peek(engine.clock.wall_ms) or b"") == b"00" + b"." * 18
    assert len(engine.reader(SLOW).window) == 2, "00 and 02; then it has passed 03, which is done, and 04"
    while engine.take(WORK):
        pass
    for number in range(60):
        engine.queue(WORK).put_with(
            b"%02d" % number + b"." * 30, 0, 0, engine.reader(WORK)
        )  # the child gets none of it
        engine.take(WORK)
        engine.end_turn()
        engine.work(5)
    journal = engine.queue(WORK).journal
    assert journal is not None
    assert any(segment.compacted for segment in journal.segments)
    assert [data[:2] for data in engine.drain(SLOW)] == [b"00", b"02", b"05"]


# --- a child made in mid-commit


@pytest.mark.parametrize("moment", ["before the write", "before the sync is over"])
@pytest.mark.parametrize("fails", [False, True], ids=["the commit succeeds", "the commit fails"])
def test_a_child_made_in_mid_commit_gets_what_is_put_after_it(tmp_path: Path, moment: str, fails: bool) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.put(WORK, b"first")
    settle(engine, files)
    engine.put(WORK, b"before")
    if moment == "before the sync is over":
        engine.end_turn()
    engine.reader(AUDIT)
    engine.end_turn()
    if fails:
        fail(engine, files)
    settle(engine, files)
    engine.configure(sync_journal_ms=0)
    engine.put(WORK, b"after")
    settle(engine, files)
    assert engine.items(AUDIT) == 1
    engine.crash()
    assert engine.drain(AUDIT) == [b"after"]
    assert engine.drain(WORK) == [b"first", *([] if fails else [b"before"]), b"after"]


def settle(engine: Engine, files: LateFiles) -> None:
    engine.end_turn()
    while files.under_way:
        files.finish_background()
        engine.end_turn()


def fail(engine: Engine, files: LateFiles) -> None:
    """The sync that is under way, or the next one, ends with an error."""
    under_way, files.under_way = files.under_way, []
    assert under_way
    for _, finished in under_way:
        finished(OSError(5, "Input/output error"))


# --- to the millisecond


def test_an_item_expires_a_millisecond_after_its_time_and_not_at_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put(WORK, b"x", b"y", expire_at_ms=engine.clock.wall_ms + 10)
    engine.clock.advance(10)
    assert engine.take(WORK) == b"x"
    engine.clock.advance(1)
    assert engine.take(WORK) is None


def test_max_age_is_over_a_millisecond_after_it_and_not_at_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_age_ms=10)
    engine.put(WORK, b"x", b"y")
    engine.clock.advance(10)
    assert engine.take(WORK) == b"x"
    engine.clock.advance(1)
    assert engine.take(WORK) is None


def test_a_wait_is_over_at_its_deadline_and_not_a_millisecond_before(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    told: list[bytes | None] = []

    class Client:
        def served(self, waiter: Waiter, record: bytes | None) -> None:
            told.append(record)

        def refused(self, waiter: Waiter, reason: str) -> None:
            pytest.fail(reason)

    agenda, reader = Agenda(), engine.reader(WORK)
    waiter = Waiter(Client(), reader, TAKE, 100)
    reader.wait_queue.add(waiter)
    agenda.add(waiter)
    agenda.fall_due(99)
    assert (told, agenda.next_at_ms()) == ([], 100)
    agenda.fall_due(100)
    assert (told, agenda.next_at_ms()) == ([None], None)


# --- out of order on both sides of where reading has come to


def test_what_was_done_before_a_start_stays_done_when_the_item_before_it_leaves_the_middle_of_the_window(
    tmp_path: Path,
) -> None:
    """Both are one range of what is done, in which reading has come as far as the end of the first."""
    engine = Engine(tmp_path, QuickFiles(), max_memory_size_bytes=30, max_journal_size_bytes=200, trash_ms=600_000)
    engine.put(WORK, *(b"%d" % number * 10 for number in range(1, 7)))
    reader = engine.reader(WORK)
    for xid in [opened(engine, WORK) for _ in range(5)][:3]:
        reader.abort(xid, engine.clock.wall_ms)
    for xid in list(reader.open):
        reader.close(xid)
    engine.end_turn()
    engine.crash()
    reader = engine.reader(WORK)
    assert reader.items == 4
    assert engine.take(WORK) == b"1" * 10, "1, 2 and 3 are in memory"
    assert reader.send_on(3, "elsewhere")
    engine.end_turn()
    engine.end_turn()
    assert engine.take(WORK) == b"2" * 10
    engine.end_turn()
    note = engine.collection.trash.note(reader, "flush")
    assert note is not None
    assert note.ranges == [(6, 6)]
    assert reader.state().done == [(4, 5)]
    engine.crash()
    assert engine.drain(WORK) == [b"6" * 10]
    assert engine.log == []


# --- delays


@pytest.mark.parametrize("step_ms", [-3_600_000, -1, 0])
def test_a_clock_that_was_set_back_makes_nothing_wait_longer_than_was_left(tmp_path: Path, step_ms: int) -> None:
    engine = Engine(tmp_path, QuickFiles())
    assert engine.reader(WORK).queue.put_later(b"item", 0, 0, None, 1000)
    engine.end_turn()
    engine.clock.wall_ms += step_ms
    engine.crash()
    engine.clock.advance(999)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take(WORK) is None
    engine.clock.advance(1)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take(WORK) == b"item"


@pytest.mark.parametrize("settings", [{"max_items": 2}, {"max_size_bytes": 8}])
def test_delayed_items_take_up_room(tmp_path: Path, settings: dict[str, object]) -> None:
    engine = Engine(tmp_path, QuickFiles(), **settings)
    queue = engine.reader(WORK).queue
    assert queue.put_later(b"late", 0, 0, None, 1000)
    assert engine.put(WORK, b"soon", b"none") == [True, False]
    assert not queue.put_later(b"none", 0, 0, None, 1000)
    assert engine.take(WORK) == b"soon"
    assert queue.put_later(b"2nd.", 0, 0, None, 1000)
    assert engine.put(WORK, b"none") == [False]


# --- reading on behind a compaction


def test_what_was_done_out_of_order_is_not_met_again_where_a_compaction_takes_reading_back(tmp_path: Path) -> None:
    """Another reader still needs it, and reading had passed it in its search for the next item that fits."""
    engine = Engine(
        tmp_path, QuickFiles(), max_memory_size_bytes=70, max_journal_size_bytes=400, max_journal_overflow=2
    )
    for name in (AUDIT, SLOW):
        engine.reader(name)
    engine.put(WORK, b"1" * 20, b"2" * 20)
    engine.queue(WORK).put_with(b"3" * 20, 0, 0, engine.reader(SLOW))
    engine.put(WORK, b"4" * 20, b"5" * 100)
    engine.end_turn()
    reader = engine.reader(WORK)
    ids = [opened(engine, WORK) for _ in range(4)]
    for one in (ids[1], ids[2]):
        reader.close(one)
    engine.end_turn()
    engine.crash()
    reader = engine.reader(WORK)
    assert item_data(reader.peek(engine.clock.wall_ms) or b"") == b"1" * 20
    journal = engine.queue(WORK).journal
    assert journal is not None
    for _ in range(100):
        if any(segment.compacted for segment in journal.segments):
            break
        engine.queue(WORK).put_with(b"x" * 30, 0, 0, engine.reader(AUDIT))
        engine.drain(AUDIT)
        engine.work(5)
    assert any(segment.compacted for segment in journal.segments)
    assert engine.drain(WORK) == [b"1" * 20, b"5" * 100]


def test_a_checkpoint_takes_no_step_of_python_for_each_lease(tmp_path: Path) -> None:
    """With 100,000 of them those steps held up every queue for a third of a second, a segment each."""
    engine = Engine(tmp_path)
    engine.put("work", *[b"x"] * 2000)
    engine.end_turn()
    reader = engine.reader("work")
    for number in range(2000):
        found = reader.open_read(engine.clock.wall_ms)
        assert found is not None
        reader.begin_lease(found[0], 60_000, "")
        if number % 2:
            reader.close(found[0])
    engine.end_turn()
    steps = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        checkpoint = engine.queue("work").checkpoint()
        record = checkpoint_record(checkpoint)
    finally:
        sys.setprofile(None)
    assert steps < 1000
    assert checkpoint.readers[0].held_items == 1000
    assert read_checkpoint(record[FRAME_BYTES:]) == checkpoint
