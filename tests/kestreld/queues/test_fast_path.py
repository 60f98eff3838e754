"""Items put and taken one at a time, without a turn around them: it is as if there had been one."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.records import item_data
from kestreld.queues.fast_path import put_fast, take_fast
from kestreld.queues.figures import queue_figures
from kestreld.queues.waiters import TAKE, Waiter
from tests.kestreld.queues.test_waiters import Someone
from tests.simulation.disk import Disk
from tests.simulation.process_files import ProcessFiles
from tests.support.engine import Engine

WORK, AUDIT = "work", "work+audit"
SMALL = {"max_journal_size_bytes": 4000, "max_memory_size_bytes": 1500}


class InTurns:
    """Each operation is a turn of a server."""

    def __init__(self, spool: Path) -> None:
        self.engine = Engine(spool, ProcessFiles(Disk()), **SMALL)
        self.queue = self.engine.collection.reader(WORK).queue
        self.audit = self.engine.collection.reader(AUDIT)
        self.engine.end_turn()
        self.alone = 0

    def put(self, data: bytes) -> None:
        assert self.queue.put(data)
        self.engine.end_turn()

    def take(self, name: str) -> bytes | None:
        record = self.engine.collection.reader(name).take(self.engine.clock.wall_ms)
        self.engine.end_turn()
        return None if record is None else item_data(record)

    def open_and_close(self) -> None:
        opened = self.audit.open_read(self.engine.clock.wall_ms)
        if opened is not None:
            self.audit.close(opened[0])
            self.engine.end_turn()

    def open(self) -> None:
        """An open read of which nothing is written."""
        self.audit.open_read(self.engine.clock.wall_ms)


class Alone(InTurns):
    def put(self, data: bytes) -> None:
        if put_fast(self.queue, data):
            self.alone += 1
            self.engine.maintenance.after_turn()
        else:
            super().put(data)

    def take(self, name: str) -> bytes | None:
        record = take_fast(self.engine.collection.reader(name))
        if record is None:
            return super().take(name)
        self.alone += 1
        self.engine.maintenance.after_turn()
        return item_data(record)


@pytest.mark.parametrize("seed", range(5))
def test_the_journal_and_the_figures_are_those_of_turns(seed: int) -> None:
    in_turns, alone = InTurns(Path("/spool")), Alone(Path("/spool"))
    chance = Random(seed)
    for number in range(400):
        what, data, ms = chance.random(), b"%d" % number * chance.randint(1, 20), chance.randint(0, 3)
        found = []
        for way in (in_turns, alone):
            way.engine.clock.advance(ms)
            if what < 0.5:
                way.put(data)
            elif what < 0.7:
                found.append(way.take(WORK))
            elif what < 0.9:
                found.append(way.take(AUDIT))
            elif what < 0.98:
                way.open_and_close()
            else:
                way.open()
        assert found[:1] == found[1:]
        figures = [_figures(way) for way in (in_turns, alone)]
        assert figures[0] == figures[1]
    assert alone.alone > 100
    assert in_turns.queue.checkpoint() == alone.queue.checkpoint()
    assert _content(in_turns) == _content(alone)


def _figures(way: InTurns) -> list[object]:
    way.queue.flush_counters()
    now_ms = way.engine.clock.wall_ms
    return [queue_figures(reader, now_ms) for reader in way.queue.readers.values()]


def _content(way: InTurns) -> dict[str, bytes]:
    assert isinstance(way.engine.files, ProcessFiles)
    return way.engine.files.disk.content()


def _dirty(way: InTurns) -> None:
    way.queue.put(b"not written yet")


def _synced(way: InTurns) -> None:
    way.queue.sync_ms = 0


def _waited_for(way: InTurns) -> None:
    reader = way.queue.readers["audit"]
    while way.take(AUDIT) is not None:
        pass
    reader.wait_queue.add(Waiter(Someone(), reader, TAKE, 1 << 60))


@pytest.mark.parametrize("prevent", [_dirty, _synced])
def test_where_it_takes_a_turn_nothing_is_done(prevent: Callable[[InTurns], None]) -> None:
    way = Alone(Path("/spool"))
    way.put(b"1")
    way.put(b"2")
    prevent(way)
    before = (way.queue.next_id, _figures(way), _content(way))
    assert not put_fast(way.queue, b"3")
    assert take_fast(way.queue.readers[""]) is None
    assert (way.queue.next_id, _figures(way), _content(way)) == before


def test_where_somebody_waits_a_put_takes_a_turn() -> None:
    way = Alone(Path("/spool"))
    way.put(b"1")
    _waited_for(way)
    assert not put_fast(way.queue, b"3")


@pytest.mark.parametrize("is_short", [False, True], ids=["at once", "in the middle"])
def test_what_could_not_be_written_was_not_done(is_short: bool) -> None:
    way = Alone(Path("/spool"))
    for data in (b"1", b"2"):
        way.put(data)
    before = (way.queue.next_id, way.queue.put_items, len(way.audit.window), _content(way))
    assert isinstance(way.engine.files, ProcessFiles)
    faults = way.engine.files.faults
    faults.kinds, faults.fails_at, faults.calls, faults.is_short = frozenset({"write"}), 1, 0, is_short
    if is_short:
        with pytest.raises(JournalFailed, match="write failed"):
            put_fast(way.queue, b"3")
        assert any("write failed" in line for line in way.engine.log)
    else:
        assert not put_fast(way.queue, b"3")
    assert (way.queue.next_id, way.queue.put_items, len(way.audit.window), _content(way)) == before
    faults.heal()
    if is_short:
        way.queue.go_on()
    assert take_fast(way.queue.readers[""]) is not None
    way.put(b"3")
    assert [way.take(WORK), way.take(WORK), way.take(WORK)] == [b"2", b"3", None]
