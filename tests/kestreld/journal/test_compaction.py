"""One segment in the place of many: what it holds, what it stands in for, and a disk that refuses it."""

import errno
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from kestreld.journal import compaction
from kestreld.journal.records import Type, item_id, whole_records
from kestreld.journal.segment import decode_header
from kestreld.journal.verify import verify_journal
from kestreld.queues import compactor
from tests.support.engine import Engine, LateFiles, QuickFiles, read_range

WORK, AUDIT = "work", "work+audit"
SEGMENT_BYTES: Final = 500
SETTINGS: Final[dict[str, object]] = {"max_journal_size_bytes": SEGMENT_BYTES, "max_journal_overflow": 4}


def let_flow(engine: Engine, turns: int) -> None:
    """Items that are put and taken in the same turn."""
    for _ in range(turns):
        engine.put(WORK, b"flows" * 10)
        for name in (WORK, AUDIT):
            if name in engine.collection.readers:
                while engine.reader(name).items:
                    engine.take(name)
        engine.end_turn()
        engine.work(5)


def hold(engine: Engine, name: str, times: int) -> list[int]:
    """Open so many items and keep them."""
    held = [engine.reader(name).open_read(engine.clock.wall_ms) for _ in range(times)]
    return [one[0] for one in held if one is not None]


def compacted_segment(engine: Engine) -> Path:
    """The one that a compaction has made."""
    (path,) = [path for path in engine.segments(WORK) if decode_header(path.read_bytes(), str(path))[0].replaced]
    return path


def puts(path: Path) -> list[bytes]:
    """The PUT records of a segment."""
    content = path.read_bytes()
    _, start = decode_header(content, str(path))
    return [content[at:end] for kind, at, end in whole_records(content, start, str(path)) if kind == Type.PUT]


def test_it_holds_the_items_somebody_needs_just_as_they_were_put(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    engine.reader(AUDIT)
    engine.put(WORK, b"for both")
    engine.put(WORK, b"with flags", flags=7)
    engine.put(WORK, b"with expiry", expire_at_ms=1 << 42)
    engine.put(AUDIT, b"for one")
    engine.end_turn()
    before = puts(engine.segments(WORK)[0])
    hold(engine, WORK, 3)
    for _ in range(3):
        engine.take(AUDIT)
    hold(engine, AUDIT, 1)
    while 1 in [decode_header(path.read_bytes(), str(path))[0].segment for path in engine.segments(WORK)]:
        let_flow(engine, 1)
    path = compacted_segment(engine)
    assert puts(path) == before
    header, _ = decode_header(path.read_bytes(), str(path))
    assert header.replaced[0] == 1
    assert header.first_id == 1
    assert (header.queue, header.journal_id) == (WORK, engine.queue(WORK).journal.journal_id)  # type: ignore[union-attr]
    engine.crash()
    assert engine.drain(WORK) == [b"for both", b"with flags", b"with expiry"]
    assert engine.drain(AUDIT) == [b"for one"]


def test_an_item_done_by_one_reader_is_kept_for_the_other_and_not_delivered_to_the_first(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    engine.reader(AUDIT)
    engine.put(WORK, b"1", b"2", b"3")
    assert [engine.take(WORK), engine.take(WORK)] == [b"1", b"2"]
    hold(engine, WORK, 1)
    assert engine.take(AUDIT) == b"1"
    hold(engine, AUDIT, 2)
    let_flow(engine, 40)
    assert [item_id(record) for record in puts(compacted_segment(engine))] == [2, 3]
    for _ in range(2):
        engine.crash()
    assert (engine.drain(WORK), engine.drain(AUDIT)) == ([b"3"], [b"2", b"3"])


def test_a_stream_keeps_all_from_its_place_on(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **{**SETTINGS, "max_journal_size_bytes": 1500})
    engine.put(WORK, b"old")
    engine.end_turn()
    hold(engine, WORK, 1)
    let_flow(engine, 60)
    queue = engine.queue(WORK)
    queue.add_stream("spark", queue.next_id)
    first = queue.next_id
    while not queue.journal.segments[0].compacted or queue.journal.segments[0].first_id > 1:  # type: ignore[union-attr]
        let_flow(engine, 1)
    for _ in range(20):
        let_flow(engine, 1)
        read = [item_id(record) for record in read_range(queue, first, 1000)]
        assert read == list(range(first, queue.next_id))
        queue.advance_stream("spark", queue.next_id - 5)
        first = queue.streams["spark"].head


def test_those_it_stands_in_for_are_dead_on_sight_wherever_a_crash_left_them(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles(), **SETTINGS)
    engine.put(WORK, b"held")
    engine.end_turn()
    hold(engine, WORK, 1)
    kept = tmp_path / "kept"
    kept.mkdir()
    while decode_header((path := engine.segments(WORK)[0]).read_bytes(), str(path))[0].segment == 1:
        for path in engine.segments(WORK):
            shutil.copy(path, kept)
        let_flow(engine, 1)
    replaced = decode_header((path := compacted_segment(engine)).read_bytes(), str(path))[0].replaced
    engine.abandon()
    for path in kept.iterdir():
        if int(path.name[:10]) in replaced:
            shutil.copy(path, tmp_path / "spool" / "work.journal")

    class Stubborn(QuickFiles):
        def unlink(self, path: str) -> None:
            if path.endswith(".seg"):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            super().unlink(path)

    engine = Engine(tmp_path / "spool", Stubborn(), **SETTINGS)
    assert len(engine.segments(WORK)) > len(replaced)
    assert not {segment.number for segment in engine.queue(WORK).journal.segments} & set(replaced)
    hold(engine, WORK, 1)
    let_flow(engine, 20)
    assert len(engine.log) == 1, "they cannot be removed"
    newest = max(engine.segments(WORK), key=lambda path: len(decode_header(path.read_bytes(), "")[0].replaced))
    assert set(replaced) < set(decode_header(newest.read_bytes(), "")[0].replaced), "and are named again"
    engine.abandon()
    for path in kept.iterdir():
        if int(path.name[:10]) in replaced:
            shutil.copy(path, tmp_path / "spool" / "work.journal")
    done: list[str] = []

    class Watched(QuickFiles):
        def sync_dir(self, path: str) -> None:
            done.append(path.rpartition("/")[2])

        def unlink(self, path: str) -> None:
            done.append(path.rpartition(".")[2])
            super().unlink(path)

    engine = Engine(tmp_path / "spool", Watched(), **SETTINGS)
    engine.work(60)
    assert [path.name for path in engine.segments(WORK) if int(path.name[:10]) in replaced] == []
    assert "work.journal" in done[: done.index("seg")], "the name of the one that stands for them may not be on disk"
    assert engine.drain(WORK) == [b"held"]
    assert engine.log == []


def test_items_that_end_while_it_is_made_are_not_delivered_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), **SETTINGS)
    engine.put(WORK, *[b"%d" % number for number in range(6)])
    engine.end_turn()
    held = hold(engine, WORK, 6)
    for number in count():
        engine.put(WORK, b"flows" * 10)
        engine.take(WORK)
        engine.end_turn()
        engine.work(1)  # a step of a compaction for each turn
        if number > 20 and held and (tmp_path / "work.journal" / "compacting.seg.new").exists():
            engine.reader(WORK).close(held.pop(0))
        if number > 200:
            break
    engine.end_turn()
    left = len(held)
    engine.crash()
    assert engine.drain(WORK) == [b"%d" % number for number in range(6 - left, 6)]


class Recording(LateFiles):
    """What is synced and what gets the name of a compacted segment, in order; by segment number."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[int, str] = {}
        self.done: list[tuple[str, int]] = []

    def create(self, path: str) -> int:
        fd = super().create(path)
        self.paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:
        name = self.paths[fd].rpartition("/")[2]
        self.done.append(("sync", int(name[:10]) if name[0].isdecimal() else 0))

    def rename(self, path: str, new_path: str) -> None:
        if path.endswith("compacting.seg.new"):
            self.done.append(("name", int(new_path.rpartition("/")[2][:10])))
        super().rename(path, new_path)


def test_it_gets_its_name_only_when_it_and_the_checkpoint_behind_it_are_on_disk(tmp_path: Path) -> None:
    files = Recording()
    engine = Engine(tmp_path, files, **SETTINGS)
    engine.put(WORK, b"held")
    engine.end_turn()
    hold(engine, WORK, 1)
    for number in range(200):
        let_flow(engine, 1)
        if number % 3 == 0 and files.under_way:
            files.under_way.append(files.under_way.pop(0))  # a compacted segment's sync may be over first
            late, files.under_way = files.under_way[1:], files.under_way[:1]
            files.finish_background()
            files.under_way += late
    named = [at for at, (what, _) in enumerate(files.done) if what == "name"]
    assert len(named) > 5
    for at in named:
        before = files.done[:at]
        assert ("sync", files.done[at][1] + 1) in before
        assert ("sync", 0) in before


def test_items_taken_but_not_yet_written_are_among_those_kept(tmp_path: Path) -> None:
    """Of a busy queue that syncs before every answer: it rolls while a commit gathers."""
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0, **SETTINGS)
    engine.put(WORK, b"held", *[b"%d" % number for number in range(100)])
    engine.end_turn()
    files.finish_background()
    hold(engine, WORK, 1)
    taken: list[bytes] = []
    while not any(decode_header(path.read_bytes(), "")[0].replaced for path in engine.segments(WORK)):
        engine.end_turn()  # goes to the disk, with what was taken in the turn before
        lost = len(taken)
        data = engine.take(WORK)
        assert data is not None
        taken.append(data)
        engine.work(2)
        files.finish_background()  # rolls, and the next commit is not written yet
        engine.maintenance.sync(engine.queue(WORK))  # as a round does that comes just then
        for _ in range(8):
            engine.slices.run(0)
            files.finish_background()
    engine.crash()
    assert engine.drain(WORK) == [b"held", *[b"%d" % number for number in range(lost, 100)]]


CALLS: Final = 6  # that make a small one: create, two writes, sync, rename, and the sync of its folder


def test_many_live_items_go_to_the_disk_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they would keep the disk from everybody else for as long."""
    monkeypatch.setattr(compaction, "WRITE_BYTES", 100)
    monkeypatch.setattr(compactor, "SYNC_BYTES", 300)
    files = Recording()
    engine = Engine(tmp_path, files, **SETTINGS)
    held = [b"held %d" % number for number in range(20)]
    for item in held:
        assert engine.reader(WORK).queue.put_later(item, 0, 0, None, 50_000)
    while not any(what == "name" for what, _ in files.done):
        let_flow(engine, 1)
        while files.under_way:
            files.finish_background()
    named_at = next(at for at, (what, _) in enumerate(files.done) if what == "name")
    assert files.done[:named_at].count(("sync", 0)) > 4
    engine.crash()
    engine.clock.advance(60_000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain(WORK) == held


class Refusing(QuickFiles):
    """A disk on which the n-th call for a compacted segment fails."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.calls = 0
        self.fds: set[int] = set()
        self.naming = False

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: str) -> int:
        if not path.endswith("compacting.seg.new"):
            return super().create(path)
        self._call()
        fd = super().create(path)
        self.fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.fds.discard(fd)
        super().close(fd)

    def write(self, fd: int, data: bytes) -> int:
        if fd in self.fds:
            self._call()
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        if fd in self.fds:
            self._call()

    def rename(self, path: str, new_path: str) -> None:
        self.naming = path.endswith("compacting.seg.new")
        if self.naming:
            self._call()
        super().rename(path, new_path)

    def sync_dir(self, path: str) -> None:
        if self.naming:
            self.naming = False
            self._call()


def test_a_disk_that_refuses_it_at_any_step_has_no_trace_of_it_and_the_next_one_succeeds(tmp_path: Path) -> None:
    for fail_at in count(1):
        spool = tmp_path / str(fail_at)
        files = Refusing(fail_at)
        engine = Engine(spool, files, **SETTINGS)
        engine.put(WORK, b"held", b"too")
        engine.end_turn()
        hold(engine, WORK, 2)
        while not engine.log and files.calls < CALLS:
            let_flow(engine, 1)
        if not engine.log:
            break
        assert list((spool / "work.journal").glob("*.new")) == []
        headers = [decode_header(path.read_bytes(), str(path))[0] for path in engine.segments(WORK)]
        assert [header.segment for header in headers if header.replaced] == []
        assert all(report.bad_offset is None for report in verify_journal(files, str(spool / "work.journal"), WORK))
        let_flow(engine, 20)
        engine.clock.advance(60_000)
        let_flow(engine, 20)
        assert puts(compacted_segment(engine)) != []
        assert len(engine.log) == 1
        engine.crash()
        assert engine.drain(WORK) == [b"held", b"too"]
        engine.abandon()
    assert fail_at == CALLS + 1
