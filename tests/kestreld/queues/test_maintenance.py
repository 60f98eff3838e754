"""Journals stay short: full segments are rolled, dead ones deleted or archived, what an old item pins is compacted."""

import errno
import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from kestreld.journal.records import Type, whole_records
from kestreld.journal.segment import decode_header
from kestreld.journal.verify import verify_journal
from kestreld.queues.dead_segments import SEEK_POINTS_AT_ONCE
from kestreld.server.memcache.commands import CommandCache
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.parser import MemcacheParser
from kestreld.server.state import ServerState
from kestreld.stats import ServerStats
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.flow import (
    MOST_BYTES,
    ON_DISK,
    OVERFLOW,
    SEGMENT_BYTES,
    SETTINGS,
    SLOW,
    TURN_BYTES,
    WORK,
    Flow,
    put_ids,
    used_bytes,
)
from tests.support.mortal_files import Killed, MortalFiles
from tests.support.other_disk import OtherMortalDisk, OtherQuickDisk

HOUR_MS = 3_600_000

# --- rolling and dead segments


def test_a_full_segment_is_followed_by_a_new_one_and_a_turn_is_never_split(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=SEGMENT_BYTES)
    for number in range(30):
        engine.put(WORK, *[b"%02d%d" % (number, part) + b"." * 30 for part in range(3)])
        engine.end_turn()
    segments = engine.segments(WORK)
    assert len(segments) > 8
    for path in segments:
        content = path.read_bytes()
        _, start = decode_header(content, str(path))
        kinds = [kind for kind, _, _ in whole_records(content, start, str(path))]
        assert kinds[0] == Type.CHECKPOINT
        assert kinds.count(Type.PUT) % 3 == 0


def test_segments_that_every_reader_has_passed_are_gone_and_no_others(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=SEGMENT_BYTES, max_journal_overflow=100)
    engine.reader(SLOW)
    for number in range(40):
        engine.put(WORK, b"%02d" % number + b"." * 30)
        engine.take(WORK)
        engine.end_turn()
        engine.work(3)
    assert put_ids(tmp_path / "work.journal") == list(range(1, 41)), "the child needs them all"
    for _ in range(20):
        engine.take(SLOW)
    engine.end_turn()
    engine.work(20)
    kept = put_ids(tmp_path / "work.journal")
    assert 11 < kept[0] <= 21
    assert kept == list(range(kept[0], 41))
    assert engine.drain(SLOW) == [b"%02d" % number + b"." * 30 for number in range(20, 40)]
    engine.work(20)
    assert len(engine.segments(WORK)) == 1


def test_nothing_goes_before_a_checkpoint_behind_it_is_on_disk(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, max_journal_size_bytes=SEGMENT_BYTES)
    for number in range(20):
        engine.put(WORK, b"%02d" % number + b"." * 60)
        engine.take(WORK)
        engine.end_turn()
        engine.work(3)
    assert len(put_ids(tmp_path / "work.journal")) == 20
    while files.under_way:
        files.finish_background()
        engine.work(20)
    assert len(engine.segments(WORK)) == 1


def test_segments_go_though_the_next_is_full_before_a_sync_is_over(tmp_path: Path) -> None:
    """A disk on which a sync takes as long as to fill two segments."""
    files = LateFiles()
    engine = Engine(tmp_path, files, max_journal_size_bytes=SEGMENT_BYTES)
    most = 0
    for number in range(120):
        engine.put(WORK, b"%03d" % number + b"." * 60)
        engine.take(WORK)
        engine.end_turn()
        engine.work(3)
        if number % 8 == 0:
            assert len(files.under_way) < 3, "one at a time, and the folder with the marker"
            files.finish_background()
        most = max(most, len(engine.segments(WORK)))
        synced = engine.queue(WORK).journal.synced_number
        assert not synced or synced in [int(path.name[:10]) for path in engine.segments(WORK)], "a power cut needs it"
        engine.maintenance.retirement.drop_dead(engine.queue(WORK))
    assert most < 10


def test_a_segment_that_somebody_has_removed_by_hand_is_no_trouble(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), archive=tmp_path / "archive", max_journal_size_bytes=SEGMENT_BYTES)
    engine.reader(SLOW)
    flow = Flow(engine)
    flow.turns(12)
    engine.segments(WORK)[0].unlink()
    while engine.take(SLOW):
        pass
    engine.end_turn()
    engine.work(40)
    assert len(engine.segments(WORK)) == 1
    assert engine.log == []


# --- compaction


@pytest.mark.parametrize("child", [False, True], ids=["one item held open", "a slow child holds one open"])
def test_what_flows_past_an_old_item_does_not_stay(tmp_path: Path, child: bool) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    flow = Flow(engine, child=child)
    flow.begin()
    most = 0
    for _ in range(150):
        flow.turns(1)
        most = max(most, used_bytes(engine))
    assert most < MOST_BYTES
    name, opened = next(iter(flow.held.items()))
    engine.reader(name).abort(opened, engine.clock.wall_ms)
    assert {name: engine.drain(name) for name in flow.before} == flow.before


def test_a_slow_child_that_lags_a_little_pins_only_what_it_needs(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    engine.reader(SLOW)
    lag, most, expected = 4, 0, []
    for number in range(200):
        data = b"%05d" % number + b"." * 15
        engine.put(WORK, data)
        expected.append(data)
        assert engine.take(WORK) == data
        if number == 0:
            held = engine.reader(SLOW).open_read(engine.clock.wall_ms)
        elif number > lag:
            assert engine.take(SLOW) == expected.pop(1)
        engine.end_turn()
        engine.work(2)
        most = max(most, used_bytes(engine))
    assert most < MOST_BYTES
    assert held is not None
    engine.crash()
    assert engine.drain(SLOW) == expected


def test_a_queue_that_holds_more_than_a_segment_is_not_compacted(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    engine.put(WORK, *[b"." * 100 for _ in range(5)])
    for _ in range(40):
        engine.put(WORK, b"." * 100)
        assert engine.take(WORK) == b"." * 100
        engine.end_turn()
        engine.work(3)
    assert len(put_ids(tmp_path / "work.journal")) < 15, "only what is behind every reader has gone"
    assert not engine.queue(WORK).journal.segments[0].compacted


def test_a_busy_queue_that_syncs_before_every_answer_is_compacted_too(tmp_path: Path) -> None:
    """Its commits follow one another without a pause: it is never seen idle."""
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0, **SETTINGS)
    flow = Flow(engine)
    flow.begin()
    files.finish_background()
    queue, most = engine.queue(WORK), 0
    for _ in range(300):
        flow.turns(1)
        late, files.under_way = files.under_way, []
        flow.turns(1)  # gathers while the commit before it is on its way
        assert queue.dirty
        files.under_way = late
        files.finish_background()
        engine.work(1)
        most = max(most, used_bytes(engine))
    assert most < SEGMENT_BYTES * OVERFLOW + SEGMENT_BYTES + 6 * TURN_BYTES
    files.finish_background()
    engine.end_turn()
    files.finish_background()
    engine.crash()
    flow.found_in(engine)


def test_who_fills_a_journal_faster_than_it_is_compacted_waits_and_the_others_do_not(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, **SETTINGS)
    state = ServerState(engine.collection, ServerStats(), None)  # type: ignore[arg-type]  # nobody stops it
    told: list[str] = []
    filler, other = Handler(state, strict=False), Handler(state, strict=False)
    filler.ready, other.ready = partial(told.append, "filler"), partial(told.append, "other")

    def send(handler: Handler, lines: bytes) -> None:
        assert not handler.execute(iter(MemcacheParser(CommandCache()).feed(lines)))
        engine.end_turn()
        handler.out.clear()
        handler.sent()

    send(filler, b"set work 0 0 4\r\nheld\r\n")
    assert engine.reader(WORK).open_read(engine.clock.wall_ms) is not None
    while not filler.held:
        send(filler, b"set work 0 0 40\r\n%b\r\nget work\r\n" % (b"." * 40))
        engine.slices.run(0)
    assert SEGMENT_BYTES * (OVERFLOW - 1) < used_bytes(engine) < MOST_BYTES
    send(other, b"set other 0 0 1\r\nx\r\n")
    send(other, b"get work\r\n")
    assert not other.held
    assert told == []
    while not told:
        files.finish_background()
        engine.slices.run(0)
    assert told == ["filler"]
    assert not filler.held
    assert not engine.queue(WORK).journal.leftover, "what the compaction had replaced has been unlinked as well"
    for _ in range(5):
        files.finish_background()
        engine.work(20)
    assert used_bytes(engine) < SEGMENT_BYTES * 2


class InterruptedOnce(QuickFiles):
    """A signal handler raises as a file is unlinked."""

    interrupt = False

    def unlink(self, path: str) -> None:
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        super().unlink(path)


def test_segments_go_though_a_signal_cut_their_removal_short(tmp_path: Path) -> None:
    files = InterruptedOnce()
    engine = Engine(tmp_path, files, max_journal_size_bytes=SEGMENT_BYTES)
    flow = Flow(engine)
    files.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        flow.turns(20)
    assert not engine.queue(WORK).journal.retiring
    engine.work(20)
    assert len(engine.segments(WORK)) == 1


def test_a_queue_that_is_deleted_while_it_is_compacted_keeps_nobody_waiting(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, **SETTINGS)
    flow = Flow(engine)
    flow.begin()
    queue = engine.queue(WORK)
    while not engine.maintenance.is_compacting(queue):
        flow.turns(1, slices=1)
    engine.collection.delete(WORK)
    for _ in range(5):
        files.finish_background()
        engine.work(20)
    assert not engine.maintenance.is_compacting(queue)
    assert not engine.collection.crowded


@pytest.mark.parametrize("steps", range(8))
def test_a_queue_with_delayed_items_that_is_deleted_in_the_middle_of_a_compaction_ends_it(
    tmp_path: Path, steps: int
) -> None:
    """The journal has gone, also for the second stretch of it that is read: behind a compacted segment."""
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=1 << 14, max_journal_overflow=2)
    queue = engine.reader(WORK).queue
    for _ in range(150):  # more than are copied without a pause
        queue.put_later(b"d" * 10, 0, 0, None, HOUR_MS)
    for times in (1, 2):
        while not engine.maintenance.is_compacting(queue):
            engine.put(WORK, b"e" * 2000)
            engine.take(WORK)
            engine.end_turn()
            engine.maintenance.start_round()
        if times == 1:
            engine.work(50)
            assert queue.journal is not None
            assert queue.journal.segments[0].compacted
    for _ in range(steps):
        engine.slices.run(0)
    engine.collection.delete(WORK)
    engine.work(50)
    assert not engine.maintenance.is_compacting(queue)
    assert engine.log == []


def test_a_queue_that_is_deleted_as_its_compaction_takes_its_place_is_not_spoken_of(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, **SETTINGS)
    flow = Flow(engine)
    flow.begin()
    while not any(getattr(work, "__name__", "") == "put_in_place" for work, _ in files.under_way):
        files.finish_background()
        flow.turns(1, slices=1)
    engine.collection.delete(WORK)
    for _ in range(5):
        files.finish_background()
        engine.work(20)
    assert engine.log == []


def test_a_compaction_that_finds_no_descriptor_is_given_up(tmp_path: Path) -> None:
    class NoDescriptor(LateFiles):
        out = False

        def open_append(self, path: str) -> int:
            if self.out:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return super().open_append(path)

    files = NoDescriptor()
    engine = Engine(tmp_path, files, **SETTINGS)
    flow = Flow(engine)
    flow.begin()
    queue = engine.queue(WORK)
    while not engine.maintenance.is_compacting(queue):
        flow.turns(1, slices=0)
    files.finish_background()
    queue.journal.unsynced = True
    queue.journal.close()
    files.out = True
    engine.work(20)
    assert not engine.maintenance.is_compacting(queue)


def test_a_compaction_that_the_disk_refuses_is_given_up_and_tried_again_in_a_minute(tmp_path: Path) -> None:
    class NoRoom(LateFiles):
        def create(self, path: str) -> int:
            if path.endswith("compacting.seg.new") and not mended:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(path)

    mended: list[bool] = []
    files = NoRoom()
    engine = Engine(tmp_path, files, **SETTINGS)
    flow = Flow(engine)
    flow.begin()

    def pass_by(turns: int) -> None:
        for _ in range(turns):
            flow.turns(1, slices=10)
            files.finish_background()

    pass_by(60)
    assert [line for line in engine.log if "compaction aborted" in line] == [
        f"work: compaction aborted: cannot create: {os.strerror(errno.ENOSPC)}; will be retried in a minute"
    ]
    mended.append(True)
    pass_by(10)
    assert used_bytes(engine) > 8 * SEGMENT_BYTES
    engine.clock.advance(60_000)
    pass_by(60)
    assert used_bytes(engine) < MOST_BYTES + 2 * TURN_BYTES
    assert len(engine.log) == 1
    engine.crash()
    flow.found_in(engine)


def test_a_compaction_that_meets_damage_stops_the_queue_and_is_not_begun_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_size_bytes=30, **SETTINGS)
    engine.put("other", b"x")
    engine.put(WORK, *[b"item %d, on disk but for the first" % number for number in range(4)])
    engine.end_turn()
    (first,) = engine.segments(WORK)
    content = first.read_bytes()
    first.write_bytes(content.replace(b"item 2", b"item 7"))
    while engine.queue(WORK).stopped is None:
        engine.put(SLOW, b"flows past them" * 2)
        engine.take(SLOW)
        engine.end_turn()
        engine.work(3)
    assert len(engine.segments(WORK)) < 20
    segments = engine.segments(WORK)
    for _ in range(3):
        engine.work(20)
    assert engine.segments(WORK) == segments
    (line,) = engine.log
    assert line.startswith(f"work: stopped: {first}: byte ")
    assert line.endswith("the checksum does not match; run: kestrelctl repair work")
    assert engine.drain("other") == [b"x"]


# --- crashes


def lives(
    folder: Path, files: type[MortalFiles], child: bool, archive: bool, backlog: int
) -> Iterator[tuple[Path, Flow]]:
    """A spool for each change to the disk in the life of a server, which was killed there; the last lived on."""
    for dies_at in count(1):
        spool = folder / f"{dies_at}"
        disk = files(dies_at)
        flow = None
        try:
            engine = Engine(spool, disk, archive=folder / "archive" / f"{dies_at}" if archive else None, **ON_DISK)
            flow = Flow(engine, child=child, backlog=backlog)
            flow.begin()
            for number in range(12):
                flow.turns(1, slices=2)
                if isinstance(disk, LateFiles) and number % 3 == 0:
                    disk.finish_background()
        except Killed:
            disk.die()
            if flow is not None:
                yield spool, flow
            continue
        disk.die()
        assert flow is not None
        yield spool, flow
        return


class LateMortalFiles(MortalFiles, LateFiles):
    """And its disk thread is slow."""


@pytest.mark.exhaustive("archived", "a slow disk thread")
@pytest.mark.parametrize(
    ("files", "child", "archive", "backlog"),
    [
        (MortalFiles, False, False, 0),
        (MortalFiles, False, False, 7),
        (MortalFiles, True, False, 0),
        (LateMortalFiles, False, False, 7),
        (MortalFiles, False, True, 0),
        (OtherMortalDisk, False, True, 0),
    ],
    ids=["held open", "held open, with a backlog", "a slow child", "a slow disk thread", "archived", "on another disk"],
)
def test_killed_at_any_change_to_the_disk_nothing_is_lost_repeated_or_turned_around(
    tmp_path: Path, files: type[MortalFiles], child: bool, archive: bool, backlog: int
) -> None:
    """Rolls, compactions, archiving: the next server finds what was acknowledged and goes on, and so does the next."""
    deaths = compacted = 0
    for spool, flow in lives(tmp_path, files, child, archive, backlog):
        deaths += 1
        there = {name: list(items) for name, items in flow.before.items()}
        folder = tmp_path / "archive" / spool.name if archive else None
        disk = OtherQuickDisk() if files is OtherMortalDisk else QuickFiles()
        engine = Engine(spool, disk, archive=folder, **ON_DISK)
        assert engine.collection.broken == {}
        engine.work(30)
        compacted += any(
            segment.compacted
            for queue in engine.collection.families.values()
            for segment in (queue.journal.segments if queue.journal else [])
        )
        if WORK in engine.collection.readers:
            if folder is not None:
                held = put_ids(*(folder.glob("work/*")), spool / "work.journal")
                assert held == list(range(1, engine.queue(WORK).next_id))
            flow.found_in(engine)
            engine.work(40)
            assert list(spool.rglob("*.new")) == []
            if folder is not None:
                assert list(folder.rglob("*.new")) == []
                for journal in folder.glob("work/*"):
                    assert all(report.bad_offset is None for report in verify_journal(disk, str(journal), WORK))
            assert len(engine.segments(WORK)) <= 2
            again = Flow(engine)
            again.turns(8)
            engine.crash()
            again.found_in(engine)
        else:
            assert all(not items for items in there.values())
        assert [line for line in engine.log if "torn tail" not in line and "cut short" not in line] == []
        disk.die()
    assert deaths > 45
    assert compacted > 3


@pytest.mark.parametrize("is_archived", [False, True], ids=["deleted", "copied to the archive"])
def test_what_is_known_of_a_large_segment_is_freed_in_small_steps(tmp_path: Path, is_archived: bool) -> None:
    archive = tmp_path / "archive" if is_archived else None
    engine = Engine(tmp_path / "spool", OtherQuickDisk(), archive=archive, max_journal_size_bytes=16 << 20)
    for _ in range(40):
        engine.put("work", b"x" * (256 << 10))
        engine.end_turn()
    journal = engine.queue("work").journal
    assert journal is not None
    segment = journal.segments[0]
    engine.queue("work").want_segment(wanted=True)
    while engine.take("work") is not None:
        engine.end_turn()
    left, known = len(segment.seek_points), []
    for _ in range(20):
        engine.end_turn()
        engine.work()
        known.append(left - len(segment.seek_points))
        left = len(segment.seek_points)
    assert segment not in journal.segments
    assert (left, max(known)) == (0, SEEK_POINTS_AT_ONCE)
