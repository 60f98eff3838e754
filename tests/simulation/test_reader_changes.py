"""Readers that come and go on a journal, with a crash at any change to the disk: no item is lost, and none doubled."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from kestreld.journal.records import item_data
from kestreld.journal.verify import verify_journal
from kestreld.queues.reader import Reader
from kestreld.queues.reader_lifecycle import ReaderLifecycle
from tests.simulation.disk import Disk
from tests.simulation.exploring import SYNCED, left_by_a_crash
from tests.simulation.history import KILLED
from tests.simulation.plan import SPOOL
from tests.simulation.process_files import ProcessFiles
from tests.support.engine import Engine
from tests.support.mortal_files import Killed

WORK = "work"
State = dict[str, list[bytes]]  # by reader, what it has yet to finish
AT_FIRST: State = {"": []}


def laid_out() -> Disk:
    """A disk with an empty spool."""
    disk = Disk()
    ProcessFiles(disk).make_dir(SPOOL)
    disk.sync_all_names()
    return disk


@dataclass
class Life:
    """A process that puts, reads, and changes its readers; `wanted` are the states it has come through."""

    disk: Disk
    sync_ms: int | None
    wanted: list[State] = field(default_factory=lambda: [AT_FIRST])

    def __post_init__(self) -> None:
        self.files = ProcessFiles(self.disk)
        self.engine = Engine(Path(SPOOL), self.files, max_journal_size_bytes=4000, sync_journal_ms=self.sync_ms)
        self.lifecycle = ReaderLifecycle(self.engine.collection, self.engine.maintenance)

    def reader(self, label: str) -> Reader:
        return self.lifecycle.reader(self.lifecycle.family(WORK), label)

    def turn(self, do: Callable[[], object], after: State) -> None:
        """Do it and commit it: from then on it is as `after` says."""
        self.wanted.append(after)
        do()
        assert self.engine.end_turn() == {}
        del self.wanted[:-1]

    def put(self, data: bytes) -> None:
        assert self.lifecycle.family(WORK).put(data)

    def drop(self, label: str) -> None:
        assert self.lifecycle.drop(self.lifecycle.family(WORK), label)

    def play(self, dies_at: int) -> None:
        """All that may happen to readers; killed at that change to the disk, once the queue is there."""
        self.turn(lambda: self.lifecycle.family(WORK), AT_FIRST)
        self.files.dies_in = dies_at
        with suppress(Killed):
            self._play()

    def _play(self) -> None:
        now_ms = self.engine.clock.wall_ms
        for number in (1, 2, 3):
            self.turn(lambda data=b"%d" % number: self.put(data), {"": [b"1", b"2", b"3"][:number]})
        default = self.reader("")
        self.turn(lambda: default.take(now_ms), {"": [b"2", b"3"]})
        first, second = default.open_read(now_ms), default.open_read(now_ms)
        assert first is not None
        assert second is not None
        self.turn(lambda: default.close(second[0]), {"": [b"2"]})
        self.turn(lambda: self.put(b"4"), {"": [b"2", b"4"]})
        self.turn(lambda: self.reader("a"), {"a": [b"2", b"4"]})
        self.turn(lambda: self.put(b"5"), {"a": [b"2", b"4", b"5"]})
        self.turn(lambda: default.close(first[0]), {"a": [b"4", b"5"]})
        self.turn(lambda: self.reader("b"), {"a": [b"4", b"5"], "b": []})
        self.turn(lambda: self.put(b"6"), {"a": [b"4", b"5", b"6"], "b": [b"6"]})
        self.turn(lambda: self.drop("a"), {"b": [b"6"]})
        self.turn(lambda: self.drop("b"), {"": []})
        self.turn(lambda: self.put(b"7"), {"": [b"7"]})
        self.turn(lambda: self.reader("c"), {"c": [b"7"]})


def state_on(disk: Disk) -> State:
    """What the next process finds."""
    engine = Engine(Path(SPOOL), ProcessFiles(disk))
    assert engine.collection.broken == {}
    queue = engine.collection.families.get(WORK)
    if queue is None:
        return AT_FIRST  # it is made anew, with nothing in it
    reports = verify_journal(engine.files, queue.journal.folder, WORK) if queue.journal is not None else []
    assert [report.reason for report in reports if report.bad_offset is not None and not report.torn] == []
    return {label: drained(reader) for label, reader in queue.readers.items()}


def drained(reader: Reader) -> list[bytes]:
    found = []
    while (opened := reader.open_read(0)) is not None:
        found.append(item_data(opened[1]))
    return found


@pytest.mark.parametrize("sync_ms", [SYNCED, None], ids=["synced", "not synced"])
def test_readers_take_over_come_and_go_and_no_crash_loses_or_doubles_an_item(sync_ms: int | None) -> None:
    tried = 0
    for dies_at in count(1):
        life = Life(laid_out(), sync_ms)
        life.play(dies_at)
        for how, disk in left_by_a_crash(life.disk):
            if how == KILLED or sync_ms == SYNCED:
                tried += 1
                assert state_on(disk) in life.wanted, f"{how} at change {dies_at}"
        if not life.files.dead:
            break
    print(f"\n{tried} states")
    assert tried > (100 if sync_ms == SYNCED else 25)


def test_a_takeover_that_a_crash_has_undone_is_done_by_asking_again() -> None:
    for dies_at in count(1):
        life = Life(laid_out(), SYNCED)
        for data in (b"1", b"2"):
            life.put(data)
        life.engine.end_turn()
        life.files.dies_in = dies_at
        with suppress(Killed):
            life.reader("a")
            life.engine.end_turn()
        for _, disk in left_by_a_crash(life.disk):
            again = Life(disk, SYNCED)
            assert drained(again.reader("a")) == [b"1", b"2"]
            assert list(again.lifecycle.family(WORK).readers) == ["a"]
        if not life.files.dead:
            return
