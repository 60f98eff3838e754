"""Repair while the server runs: a stopped queue is open again at once, with what can be read and what is open."""

import errno
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt, JournalFailed, KestrelError, NotImported
from kestreld.journal.records import Type, item_id
from kestreld.journal.repair import RepairReport
from kestreld.queues.leases import confirm, extend, lease
from kestreld.queues.reader import Reader
from kestreld.queues.repairing import Repairer
from tests.support.clock import FakeClock
from tests.support.damage import FAMILY, SPOOL, WEEK_MS, Sample, of_each_byte, some_of
from tests.support.engine import Engine, LateFiles, QuickFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.memory_files import MemoryFiles
from tests.support.mortal_files import Killed, MortalFiles
from tests.support.repairs import repaired, step

ITEMS = [b"item %02d" % number for number in range(40)]
SEGMENT_BYTES = 512  # some ten items
MEMORY_BYTES = 70  # nine items: a reader soon has to read from the journal
SETTINGS = {
    "max_journal_size_bytes": SEGMENT_BYTES,
    "max_memory_size_bytes": MEMORY_BYTES,
    "max_journal_overflow": 1000,
}


def filled(files: MemoryFiles | QuickFiles | None = None, spool: Path = SPOOL, **settings: object) -> Engine:
    """A server with forty items in `work` and its child, an item in `idle`, and a stream at the beginning."""
    engine = Engine(spool, files or MemoryFiles(), **{**SETTINGS, **settings})
    engine.put("idle", b"sound")
    engine.reader("work+audit")
    engine.reader("work")
    engine.queue("work").add_stream("spark", 1)
    for item in ITEMS:
        engine.put("work", item)
        engine.end_turn()
    return engine


def flip(engine: Engine, data: bytes) -> None:
    """Damage the first place where `data` stands in the journal of `work`."""
    assert isinstance(engine.files, MemoryFiles)
    for path, content in sorted(engine.files.files.items()):
        if path.startswith(f"{SPOOL}/work.journal/") and data in content:
            content[content.index(data)] ^= 1
            return
    raise AssertionError(f"{data!r} is not there")


def flip_on_disk(engine: Engine) -> None:
    """Damage item 20, in a segment that is not written to any more."""
    path = next(path for path in engine.segments("work")[:-1] if ITEMS[20] in path.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(ITEMS[20])] ^= 1
    path.write_bytes(content)


def take_until_stopped(engine: Engine, name: str = "work") -> list[bytes]:
    taken = []
    while not engine.queue("work").stopped:
        try:
            item = engine.take(name)
        except JournalCorrupt:
            break
        assert item is not None
        taken.append(item)
    engine.end_turn()
    return taken


def opened(engine: Engine, name: str = "work") -> tuple[Reader, int]:
    reader = engine.reader(name)
    found = reader.open_read(engine.clock.wall_ms)
    assert found is not None
    return reader, found[0]


# At once


def test_a_queue_that_was_stopped_at_start_is_open_at_once() -> None:
    sample = Sample(1000)
    synced = max(
        place.end for place in sample.places if place.path == sample.segments[-1] and place.record_type == Type.SYNC
    )
    last = max(one for one, put in sample.puts.items() if put.path == sample.segments[-1] and put.end < synced)
    put = sample.puts[last]
    engine = Engine(SPOOL, sample.disk({put.path: sample.flipped(put.path, put.end * 8 - 1)}), FakeClock())
    with pytest.raises(JournalCorrupt):
        engine.put(FAMILY, b"x")
    report = repaired(engine, FAMILY)
    assert report is not None
    assert [str(damage) for damage in report.damages] == [
        f"{put.path}: byte {put.start}: PUT: the checksum does not match; lost: item {last}"
    ]
    engine.put(FAMILY, b"new")
    reader = engine.reader(FAMILY)
    ids = [item_id(record) for record in iter(lambda: reader.take(0), None)]
    left = {one for name in sample.undone if name != "idle" for one in sample.undone[name]} - {last}
    assert ids[:-1] == [one for one in sample.undone[FAMILY] if one in left and one not in sample.held_back[FAMILY]]
    assert engine.collection.broken == {}
    assert any(path.startswith(f"{SPOOL}/.damaged/work.") for path in engine.files.files)
    assert (
        f"repaired and reopened: items={len(left)} lost=1; the damaged journal is kept in {report.kept_at}"
        in engine.log[-1]
    )


def test_a_queue_that_stopped_in_use_is_open_at_once_and_loses_only_what_is_bad() -> None:
    engine = filled()
    flip(engine, ITEMS[20])
    before = take_until_stopped(engine)
    assert before == ITEMS[: len(before)]
    report = repaired(engine, "work")
    assert report is not None
    assert report.lost == 1
    engine.put("work", b"new")
    assert before + engine.drain("work") == [*ITEMS[:20], *ITEMS[21:], b"new"]
    assert engine.drain("work+audit") == [*ITEMS[:20], *ITEMS[21:], b"new"]
    assert engine.drain("idle") == [b"sound"]
    engine.crash()
    assert (engine.drain("work"), engine.drain("work+audit")) == ([], [])
    assert engine.queue("work").streams["spark"].head == 1


def test_who_has_a_lease_has_it_after_the_repair_and_after_a_kill() -> None:
    engine = filled()
    reader = engine.reader("work")
    leased = [lease(reader, engine.clock.wall_ms, 60_000, f"10.0.0.{number}:1") for number in (1, 2)]
    engine.end_turn()
    engine.clock.advance(5000)
    assert all(extend(reader, token, 60_000) for token, _ in filter(None, leased))
    engine.end_turn()
    engine.crash()  # the journal is all that is known
    flip(engine, ITEMS[30])
    assert repaired(engine, "work") is not None
    reader = engine.reader("work")
    assert all(extend(reader, token, 90_000) for token, _ in filter(None, leased))
    engine.end_turn()
    engine.crash()
    held = engine.reader("work").held_items()
    assert {engine.clock.monotonic_ms - found.since_ms for found in held.leases.values()} == {5000}
    assert {one: found.holder for one, found in held.leases.items()} == {1: "10.0.0.1:1", 2: "10.0.0.2:1"}
    assert {found.ends_at_ms - engine.clock.monotonic_ms for found in held.leases.values()} == {90_000}
    assert all(confirm(engine.reader("work"), token) for token, _ in filter(None, leased))


def test_a_child_can_be_named_for_its_family() -> None:
    engine = filled()
    flip(engine, ITEMS[20])
    take_until_stopped(engine)
    assert repaired(engine, "work+audit") is not None
    assert engine.queue("work").stopped is None


def test_damage_that_no_reader_has_met_is_found_and_repaired() -> None:
    engine = filled()
    flip(engine, ITEMS[30])
    report = repaired(engine, "work")
    assert report is not None
    assert report.lost == 1
    assert engine.drain("work") == [*ITEMS[:30], *ITEMS[31:]]


def test_a_sound_queue_is_left_as_it_is_and_never_stops() -> None:
    engine = filled()
    before = {path: bytes(content) for path, content in engine.files.files.items()}
    answers: list[object] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).repair("work", answers.append)
    while not answers:
        assert engine.reader("work").peek(0)
        step(engine)
    assert answers == [RepairReport("work")]
    assert {path: bytes(content) for path, content in engine.files.files.items()} == before


def test_a_queue_stopped_for_a_passing_trouble_is_open_again() -> None:
    class Short(MemoryFiles):
        is_short = False

        def open_read(self, path: str) -> int:
            if self.is_short and path.endswith(".seg"):
                raise OSError(errno.EMFILE, "Too many open files", path)
            return super().open_read(path)

    disk = Short()
    engine = filled(disk)
    disk.is_short = True
    before = take_until_stopped(engine)
    with pytest.raises(JournalFailed):
        repaired(engine, "work")
    disk.is_short = False
    assert repaired(engine, "work") == RepairReport("work")
    assert before + engine.drain("work") == ITEMS


def test_there_is_nothing_to_repair_of_what_is_not_there_or_has_no_journal(tmp_path: Path) -> None:
    engine = Engine(SPOOL, MemoryFiles(), journal=False)
    engine.put("work", b"1")
    assert repaired(engine, "nope") is None
    assert repaired(engine, "work") == RepairReport("work")


def test_files_of_kestrels_that_stop_a_queue_are_no_case_for_repair(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put("work", b"1")
    engine.end_turn()
    (tmp_path / "work").write_bytes(b"\1")
    engine.crash()
    assert isinstance(engine.collection.broken["work"], NotImported)
    with pytest.raises(NotImported):
        repaired(engine, "work")
    assert "work" in engine.collection.broken
    engine.abandon()


def test_a_cut_under_a_running_server_loses_what_was_behind_it_and_no_id_is_used_again() -> None:
    engine = filled()
    last = engine.queue("work").next_id
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    path = max(path for path in disk.files if path.startswith(f"{SPOOL}/work.journal/"))
    del disk.files[path][-100:]
    report = repaired(engine, "work")
    assert report is not None
    assert report.lost in range(1, 4)
    assert engine.drain("work") == ITEMS[: 40 - report.lost]
    assert engine.queue("work").next_id >= last


def test_readers_keep_their_names_whatever_was_damaged() -> None:
    sample = Sample()
    readers = [place for place in sample.places if place.record_type in (Type.READER, Type.CHECKPOINT)]
    assert len(readers) > 4
    engine = filled()
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    for path, content in disk.files.items():
        if path.startswith(f"{SPOOL}/work.journal/"):
            content[60:400] = b"\x55" * 340  # CHECKPOINTs and whatever stands behind them
    report = repaired(engine, "work")
    assert report is not None
    assert report.damages
    assert set(engine.collection.readers) == {"idle", "work", "work+audit"}
    left = engine.drain("work")
    assert left == [item for item in ITEMS if item in left]
    assert engine.drain("work+audit") == left
    assert list(engine.queue("work").streams) == ["spark"]


# Everything that can happen to a byte of a server that was stopped

STOPPED = Sample(stopped=True)


def assert_a_server_delivers_all_that_is_whole(path: str, content: bytes, lost: set[int], where: str) -> bool:
    """Start it, repair what is stopped whenever it is, and take everything; whether there was anything to repair."""
    engine = Engine(SPOOL, STOPPED.disk({path: content}))
    assert engine.drain("idle") == [b"sound"], where
    was_stopped = FAMILY in engine.collection.broken and repaired(engine, FAMILY) is not None
    found: dict[str, list[bytes]] = {FAMILY: [], f"{FAMILY}+audit": []}
    waiting: dict[str, list[int]] = {}
    for _ in range(2):  # what waits, and what is held back
        for name, records in found.items():
            while True:
                try:
                    record = engine.reader(name).take(engine.clock.wall_ms)
                except JournalCorrupt:
                    engine.end_turn()
                    was_stopped = repaired(engine, FAMILY) is not None
                    continue
                if record is None:
                    break
                records.append(record)
            engine.end_turn()
            waiting.setdefault(name, list(map(item_id, records)))
        engine.clock.advance(WEEK_MS)
        while engine.collection.agenda.next_at_ms() is not None:
            engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    for name, records in found.items():
        ids = list(map(item_id, records))
        assert len(ids) == len(set(ids)), f"{where}: {name} twice"
        assert waiting[name] == sorted(waiting[name]), f"{where}: {name} out of order"
        assert [STOPPED.puts[one].record for one in ids] == records, f"{where}: {name} altered"
        assert set(STOPPED.undone[name]) - lost <= set(ids), f"{where}: {name} lost more than {lost}"
    return was_stopped


def assert_a_flip_costs_one_item_at_most(path: str, bit: int) -> bool:
    place = STOPPED.place_at(path, bit // 8)
    lost = {item_id(place.record)} if place is not None and place.record_type == Type.PUT else set()
    return assert_a_server_delivers_all_that_is_whole(path, STOPPED.flipped(path, bit), lost, f"{path} bit {bit}")


def assert_a_cut_costs_what_was_cut_off(path: str, size_bytes: int) -> bool:
    lost = {found for found, put in STOPPED.puts.items() if put.path == path and put.end > size_bytes}
    content = STOPPED.files[path][:size_bytes]
    return assert_a_server_delivers_all_that_is_whole(path, content, lost, f"{path} cut at {size_bytes}")


@pytest.mark.long
def test_bits_flipped_here_and_there() -> None:
    sample = random.Random(6).sample(STOPPED.bits, 1000)
    assert sum(assert_a_flip_costs_one_item_at_most(path, bit) for path, bit in sample) > 500


def test_segments_cut_here_and_there() -> None:
    sample = random.Random(6).sample(STOPPED.cuts, 60)
    assert sum(assert_a_cut_costs_what_was_cut_off(path, size_bytes) for path, size_bytes in sample) > 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_bits_flipped_all_over() -> None:
    for path, bit in some_of(of_each_byte(STOPPED.bits)):
        assert_a_flip_costs_one_item_at_most(path, bit)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_cuts_all_over() -> None:
    for path, size_bytes in some_of(STOPPED.cuts):
        assert_a_cut_costs_what_was_cut_off(path, size_bytes)


# What is open goes on


def test_open_reads_are_confirmed_or_given_back_after_the_repair() -> None:
    engine = filled()
    closed, aborted = opened(engine), opened(engine)
    held = opened(engine, "work+audit")
    flip(engine, ITEMS[20])
    before = take_until_stopped(engine)
    assert repaired(engine, "work") is not None
    closed[0].close(closed[1])
    aborted[0].abort(aborted[1], engine.clock.wall_ms)
    engine.end_turn()
    assert engine.drain("work") == [ITEMS[1], *[item for item in ITEMS[2:] if item not in before and item != ITEMS[20]]]
    assert engine.drain("work+audit") == [*ITEMS[1:20], *ITEMS[21:]]
    engine.crash()  # which takes the open read with it
    assert held[0].open
    assert (engine.drain("work"), engine.drain("work+audit")) == ([], [ITEMS[0]])


def test_open_reads_are_confirmed_or_given_back_during_the_repair() -> None:
    engine = filled()
    closed, aborted, later = opened(engine), opened(engine), opened(engine)
    flip(engine, ITEMS[20])
    before = take_until_stopped(engine)
    answers: list[object] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).repair("work", answers.append)
    step(engine)
    step(engine)
    closed[0].close(closed[1])
    step(engine)
    aborted[0].abort(aborted[1], engine.clock.wall_ms)
    while not answers:
        step(engine)
    later[0].close(later[1])
    engine.end_turn()
    rest = [item for item in ITEMS[3:] if item not in before and item != ITEMS[20]]
    assert engine.drain("work") == [ITEMS[1], *rest]
    engine.crash()
    assert engine.drain("work") == []


def test_what_is_confirmed_while_the_new_journal_goes_to_the_disk_stays_confirmed(tmp_path: Path) -> None:
    files = LateFiles()
    engine = filled(files, tmp_path / "spool")
    first, second = opened(engine), opened(engine)
    flip_on_disk(engine)
    before = take_until_stopped(engine)
    answers: list[object] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).repair("work", answers.append)
    reads = [first, second]
    while not answers:
        engine.slices.run(engine.clock.stopwatch_us())
        if files.under_way and reads:
            reader, number = reads.pop()
            reader.close(number)
        else:
            files.finish_background()
        engine.end_turn()
    assert reads == []
    engine.crash()
    assert engine.drain("work") == [item for item in ITEMS[2:] if item not in before and item != ITEMS[20]]
    engine.abandon()


def test_an_open_item_that_was_lost_on_disk_is_delivered_from_memory_when_it_comes_back() -> None:
    engine = filled()
    reader, number = opened(engine)
    flip(engine, ITEMS[0])
    report = repaired(engine, "work")
    assert report is not None
    assert report.lost == 1
    reader.abort(number, engine.clock.wall_ms)
    assert engine.drain("work") == ITEMS
    assert engine.drain("work+audit") == ITEMS[1:]


def test_a_checkpoint_after_the_repair_still_knows_what_is_open() -> None:
    engine = filled()
    opened(engine)
    second = opened(engine)
    opened(engine)
    flip(engine, ITEMS[20])
    before = take_until_stopped(engine)
    assert repaired(engine, "work") is not None
    second[0].close(second[1])
    engine.configure(**{**SETTINGS, "max_journal_size_bytes": 1})
    engine.end_turn()  # which begins a new segment before anything has been read
    engine.crash()
    rest = [item for item in ITEMS[3:] if item not in before and item != ITEMS[20]]
    assert engine.drain("work") == [ITEMS[0], ITEMS[2], *rest]


# Meanwhile


def test_other_queues_go_on_during_a_repair_and_this_one_says_why_it_does_not() -> None:
    engine = filled()
    flip(engine, ITEMS[20])
    take_until_stopped(engine)
    answers: list[object] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).repair("work", answers.append)
    steps = 0
    while not answers:
        steps += 1
        engine.put("idle", b"%d" % steps)
        with pytest.raises(JournalCorrupt):
            engine.put("work", b"no")
        step(engine)
    assert steps > 5
    assert engine.drain("idle") == [b"sound", *[b"%d" % number for number in range(1, steps + 1)]]


def test_a_queue_deleted_during_its_repair_is_gone() -> None:
    engine = filled()
    flip(engine, ITEMS[20])
    take_until_stopped(engine)
    answers: list[RepairReport | KestrelError | None] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).repair("work", answers.append)
    for _ in range(4):
        step(engine)
    engine.collection.delete("work")
    engine.collection.delete("work+audit")
    while not answers:
        step(engine)
    assert answers[0] is None or isinstance(answers[0], JournalFailed)
    assert "work" not in engine.collection.families
    engine.put("work", b"new")
    engine.end_turn()
    engine.crash()
    assert engine.drain("work") == [b"new"]


def test_two_who_ask_for_the_same_repair_are_both_answered() -> None:
    engine = filled()
    flip(engine, ITEMS[20])
    take_until_stopped(engine)
    answers: list[object] = []
    repairer = Repairer(engine.collection, engine.maintenance, engine.slices)
    repairer.repair("work", answers.append)
    repairer.repair("work+audit", answers.append)
    while len(answers) < 2:
        step(engine)
    assert isinstance(answers[0], RepairReport)
    assert answers[0].lost == 1
    assert answers[1] == RepairReport("work")


# Killed, or refused by the disk


def on_a_real_disk(spool: Path, files: QuickFiles) -> tuple[Engine, list[bytes]]:
    """A server that has stopped `work` for its item 20; what was taken before."""
    engine = filled(files, spool)
    flip_on_disk(engine)
    return engine, take_until_stopped(engine)


def repairs_killed(folder: Path) -> Iterator[tuple[Path, list[bytes]]]:
    for dies_at in count(1):
        files = MortalFiles(10**9)
        engine, before = on_a_real_disk(folder / str(dies_at), files)
        files.dies_at_change = files.changes + dies_at
        try:
            repaired(engine, "work")
        except Killed:
            engine.abandon()
            yield folder / str(dies_at), before
        else:
            engine.abandon()
            return


def test_a_server_killed_during_a_repair_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    outcomes = set()
    for spool, before in repairs_killed(tmp_path):
        engine = Engine(spool, QuickFiles(), **SETTINGS)
        report = repaired(engine, "work")
        assert report is not None
        outcomes.add(report.lost)  # 0 where the killed server had done it
        assert before + engine.drain("work") == [*ITEMS[:20], *ITEMS[21:]]
        assert engine.drain("work+audit") == [*ITEMS[:20], *ITEMS[21:]]
        assert len(list((spool / ".damaged").iterdir())) == 1
        engine.abandon()
    assert outcomes == {0, 1}


def test_a_disk_that_refuses_at_any_step_leaves_it_for_another_try(tmp_path: Path) -> None:
    for fail_at in count(1):
        files = FaultyFiles(errno.EIO)
        engine, before = on_a_real_disk(tmp_path / str(fail_at), files)
        files.fail_from(fail_at)
        try:
            first = repaired(engine, "work")
        except JournalFailed:
            first = None
        files.mend()
        if not files.failed:
            break
        if first is None:
            repaired(engine, "work")
        assert before + engine.drain("work") == [*ITEMS[:20], *ITEMS[21:]], f"call {fail_at}"
        engine.abandon()
    assert fail_at > 10


def test_a_new_journal_that_cannot_take_its_place_leaves_the_old_one_where_it_was(tmp_path: Path) -> None:
    class OneWay(QuickFiles):
        is_stuck = True

        def rename(self, path: str, new_path: str) -> None:
            if self.is_stuck and path.endswith(".repaired"):
                raise OSError(errno.EIO, "Input/output error", path)
            super().rename(path, new_path)

    files = OneWay()
    engine = filled(files, tmp_path / "spool")
    reader, number = opened(engine)
    flip_on_disk(engine)
    before = take_until_stopped(engine)
    with pytest.raises(JournalFailed):
        repaired(engine, "work")
    files.is_stuck = False
    reader.close(number)
    engine.end_turn()
    repaired(engine, "work")
    engine.crash()
    assert [*before, *engine.drain("work")] == [*ITEMS[1:20], *ITEMS[21:]]
    engine.abandon()
