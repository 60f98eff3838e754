"""What is written out for speed does what it is a copy of: in records, in the journal, in figures and answers."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.records import Done, Reason, done_record, got_record, item_data, put_record
from kestreld.queues.figures import queue_figures
from kestreld.queues.waiters import TAKE, Waiter
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.parser import CommandCache, MemcacheParser
from kestreld.server.state import ServerState
from kestreld.stats import ServerStats
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
        if self.queue.put_at_once(data):
            self.alone += 1
            self.engine.maintenance.after_turn()
        else:
            super().put(data)

    def take(self, name: str) -> bytes | None:
        record = self.engine.collection.reader(name).take_at_once()
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


@pytest.mark.parametrize("seed", range(5))
def test_a_put_packs_the_record_that_records_py_packs(seed: int) -> None:
    way, chance = InTurns(Path("/spool")), Random(seed)
    clock = way.engine.clock
    for _ in range(100):
        clock.advance(chance.choice([0, 0, 1, 1 << 30]))
        data, added = chance.randbytes(chance.choice([0, 1, 100, 5000])), way.queue.next_id
        assert way.queue.put(data)
        assert way.queue.pending[-1] == put_record(added, clock.wall_ms, 0, 0, 0, data)
        way.engine.end_turn()


def test_a_done_record_of_one_item_is_as_any_other() -> None:
    done = Done(3, Reason.GOT, 1 << 40, 1, 77, [(1 << 50, 1 << 50)])
    assert got_record(3, done.at_ms, done.data_bytes, 1 << 50) == done_record(done)


class ByReader(InTurns):
    """Some items are got in each turn, and now and then one is opened and the last one closed."""

    opened = 0

    def get(self, count: int) -> list[bytes]:
        records = [self.queue.readers[""].take(self.engine.clock.wall_ms) for _ in range(count)]
        self.engine.end_turn()
        return [item_data(record) for record in records if record is not None]

    def close_and_open(self) -> list[bytes]:
        if self.opened:
            self.audit.close(self.opened)
        opened = self.audit.open_read(self.engine.clock.wall_ms)
        self.opened = opened[0] if opened is not None else 0
        self.engine.end_turn()
        return [item_data(opened[1])] if opened is not None else []


class BySession(ByReader):
    """The same by a session's commands."""

    def __init__(self, spool: Path) -> None:
        super().__init__(spool)
        state = ServerState(self.engine.collection, ServerStats(), None)  # type: ignore[arg-type]
        self.parser = MemcacheParser(CommandCache())
        self.taking, self.opening = Handler(state, strict=False), Handler(state, strict=False)

    def _send(self, handler: Handler, lines: bytes) -> list[bytes]:
        assert not handler.execute(iter(self.parser.feed(lines)))
        answers = b"".join(handler.out)
        self.engine.end_turn()
        handler.out.clear()
        handler.sent()
        return re.findall(rb"VALUE .*\r\n(.*)\r\nEND\r\n", answers)

    def get(self, count: int) -> list[bytes]:
        return self._send(self.taking, b"get work\r\n" * count)

    def close_and_open(self) -> list[bytes]:
        return self._send(self.opening, b"get work+audit/close/open\r\n")


@pytest.mark.parametrize("seed", range(5))
def test_what_a_session_gets_and_opens_is_as_if_its_reader_was_asked(seed: int) -> None:
    ways, chance = (ByReader(Path("/spool")), BySession(Path("/spool"))), Random(seed)
    got = 0
    for number in range(300):
        what, ms, count = chance.random(), chance.randint(0, 3), chance.randint(1, 4)
        found = []
        for way in ways:
            way.engine.clock.advance(ms)
            if what < 0.5:
                way.put(b"%d" % number * 10)
            else:
                found.append(way.get(count) if what < 0.75 else way.close_and_open())
        assert found[:1] == found[1:]
        got += sum(map(len, found[:1]))
        figures = [_figures(way) for way in ways]
        assert figures[0] == figures[1]
    assert got > 100
    assert ways[0].queue.checkpoint() == ways[1].queue.checkpoint()
    assert _content(ways[0]) == _content(ways[1])


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
    way.engine.configure(sync_journal_ms=0, **SMALL)


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
    assert not way.queue.put_at_once(b"3")
    assert way.queue.readers[""].take_at_once() is None
    assert (way.queue.next_id, _figures(way), _content(way)) == before


def test_where_somebody_waits_a_put_takes_a_turn() -> None:
    way = Alone(Path("/spool"))
    way.put(b"1")
    _waited_for(way)
    assert not way.queue.put_at_once(b"3")


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
            way.queue.put_at_once(b"3")
        assert any("write failed" in line for line in way.engine.log)
    else:
        assert not way.queue.put_at_once(b"3")
    assert (way.queue.next_id, way.queue.put_items, len(way.audit.window), _content(way)) == before
    faults.heal()
    if is_short:
        way.queue.go_on()
    assert way.queue.readers[""].take_at_once() is not None
    way.put(b"3")
    assert [way.take(WORK), way.take(WORK), way.take(WORK)] == [b"2", b"3", None]
