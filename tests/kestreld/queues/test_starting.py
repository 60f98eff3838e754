"""A start with many queues: what it asks the disk for, and what it says meanwhile."""

import errno
import os
import shutil
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from kestreld.config.config import Config, QueueConfig
from kestreld.errors import JournalFailed
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from tests.support.clock import FakeClock
from tests.support.engine import Engine, QuickFiles

READ_MS = 10
KESTRELS = Path(__file__).parents[2] / "golden" / "journals" / "c_save_xid" / "files" / "c_save_xid"


class SlowFiles(QuickFiles):
    """Counts the calls of a start; each file that is opened takes its time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._clock = clock

    def open_read(self, path: str) -> int:
        self.calls["open_read"] += 1
        self._clock.advance(READ_MS)
        return super().open_read(path)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        self.calls["read_at"] += 1
        return super().read_at(fd, size_bytes, offset)

    def list_dir(self, path: str) -> list[str]:
        self.calls["list_dir"] += 1
        return super().list_dir(path)

    def exists(self, path: str) -> bool:
        self.calls["exists"] += 1
        return super().exists(path)


def recovered(spool: Path, files: SlowFiles, clock: FakeClock) -> list[tuple[int, int]]:
    """Start on a spool; what was said of its progress."""
    said: list[tuple[int, int]] = []
    commit = GroupCommit(clock, files)
    collection = QueueCollection(files, clock, Config(queue_path=str(spool)), commit, said.append)  # type: ignore[arg-type]
    collection.recover(lambda read, found: said.append((read, found)))
    return said


def with_queues(spool: Path, count: int) -> None:
    engine = Engine(spool, QuickFiles())
    for number in range(count):
        engine.put(f"q{number}", b"item")
    engine.end_turn()
    engine.abandon()


def calls_of_a_start(spool: Path, count: int) -> Counter[str]:
    with_queues(spool, count)
    clock = FakeClock()
    files = SlowFiles(clock)
    assert recovered(spool, files, clock) == []
    return files.calls


def test_a_small_journal_is_listed_opened_and_read_once(tmp_path: Path) -> None:
    few, more = calls_of_a_start(tmp_path / "few", 3), calls_of_a_start(tmp_path / "more", 13)
    more.subtract(few)
    assert +more == {"list_dir": 10, "open_read": 10, "read_at": 10}


def test_the_progress_is_told_once_a_second(tmp_path: Path) -> None:
    with_queues(tmp_path, 250)
    clock = FakeClock()
    assert recovered(tmp_path, SlowFiles(clock), clock) == [(100, 250), (200, 250)]


class FailingReads(QuickFiles):
    """One of the calls that look at what is in a spool fails."""

    def __init__(self, fail_at: int = 0, error: int = errno.EIO) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.error = error
        self.calls: list[str] = []  # the paths that they were about
        self._paths: dict[int, str] = {}

    def _look(self, path: str, *, is_named: bool = True) -> None:
        self.calls.append(path)
        if len(self.calls) == self.fail_at:
            raise OSError(self.error, os.strerror(self.error), *([path] if is_named else []))

    def list_dir(self, path: str) -> list[str]:
        self._look(path)
        return super().list_dir(path)

    def open_read(self, path: str) -> int:
        self._look(path)
        fd = super().open_read(path)
        self._paths[fd] = path
        return fd

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        self._look(self._paths.get(fd, "a segment for writing"), is_named=False)
        return super().read_at(fd, size_bytes, offset)

    def rename(self, path: str, new_path: str) -> None:
        self._look(path)
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._look(path)
        super().unlink(path)


def spool_of_all_kinds(folder: Path) -> Path:
    """Queues in several segments, with items that are held back, with a torn tail, repaired, deleted, and Kestrel's."""
    spool = folder / "spool"
    engine = Engine(spool, QuickFiles(), max_journal_size_bytes=200, trash_ms=60_000)
    for queue in ("plain", "held", "torn", "repaired", "gone"):
        for number in range(6):
            assert engine.reader(queue).queue.put_later(b"%050d" % number, 0, 0, None, (queue == "held") * 60_000)
            engine.end_turn()
        engine.drain(queue) if queue == "plain" else None
    engine.collection.delete("gone")
    engine.end_turn()
    engine.abandon()
    with engine.segments("torn")[-1].open("ab") as file:
        file.write(b"\x40\0\0\0half")
    (spool / ".tmp").mkdir(exist_ok=True)
    (spool / "repaired.journal").rename(spool / ".tmp" / "repaired.journal.repaired")
    (spool / ".tmp" / "abandoned").write_bytes(b"x")
    (spool / "kestrels").write_bytes(KESTRELS.read_bytes())
    return spool


@pytest.mark.parametrize("error", [errno.EIO, pytest.param(errno.EACCES, marks=pytest.mark.long)])
def test_a_call_that_fails_during_a_start_stops_no_more_than_the_queue_it_is_about(tmp_path: Path, error: int) -> None:
    source = spool_of_all_kinds(tmp_path)
    for fail_at in count(1):
        spool = tmp_path / str(fail_at)
        shutil.copytree(source, spool)
        files = FailingReads(fail_at, error)
        try:
            engine = Engine(spool, files)
        except OSError:
            assert files.calls[-1] == str(spool)
            continue
        if len(files.calls) < fail_at:
            break
        failed = files.calls[fail_at - 1].removeprefix(f"{spool}/")
        family = failed.removeprefix(".tmp/").partition(".journal")[0]
        for stopped, problem in engine.collection.broken.items():
            assert stopped == family, failed
            assert (family if failed.startswith(".tmp/") else failed) in str(problem)
        sound = {"plain", "held", "torn", "repaired", "kestrels"} - {family}
        if failed == ".tmp" and "repaired" not in engine.collection.readers:
            with pytest.raises(JournalFailed, match="a repaired journal may be in it"):
                engine.put("repaired", b"else it would have two journals")
            sound.remove("repaired")
        assert sound <= set(engine.collection.readers), failed
        files.die()
    assert fail_at > 40


def test_a_long_start_says_that_what_it_found_is_synced(tmp_path: Path) -> None:
    with_queues(tmp_path, 150)
    clock = FakeClock()
    files = SlowFiles(clock)
    config = Config(queue_path=str(tmp_path), defaults=QueueConfig(sync_journal_ms=0))
    collection = QueueCollection(files, clock, config, GroupCommit(clock, files), lambda line: None)
    said: list[int] = []
    collection.recover(lambda read, found: None, said.append)
    assert said == [150]


def test_a_torn_tail_is_cut_off_on_disk_before_anything_is_put_there(tmp_path: Path) -> None:
    """Else a power cut could bring records of it back, behind new ones and with their ids."""

    class Syncing(QuickFiles):
        def __init__(self) -> None:
            super().__init__()
            self.synced: list[int] = []
            self.fails = False

        def sync(self, fd: int) -> None:
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.synced.append(os.fstat(fd).st_size)

    files, clock = Syncing(), FakeClock()
    with_queues(tmp_path, 1)
    (segment,) = tmp_path.glob("*/*.seg")
    whole_bytes = segment.stat().st_size
    for files.fails in (False, True):
        with segment.open("ab") as file:
            file.write(b"\x40\0\0\0half")
        clock.advance(1)
        Engine(tmp_path, files, clock).abandon()
        assert files.synced == [whole_bytes]
        assert segment.stat().st_size == whole_bytes
    assert len(list(tmp_path.glob("*/*.seg"))) == 2, "it goes on in another one"


def test_a_start_reads_each_segment_once_whatever_the_number_of_leases(tmp_path: Path) -> None:
    class CountingFiles(QuickFiles):
        read_bytes = 0

        def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
            found = super().read_at(fd, size_bytes, offset)
            self.read_bytes += len(found)
            return found

    files = CountingFiles()
    engine = Engine(tmp_path, files, max_journal_size_bytes=100_000)
    items = [b"%0200d" % number for number in range(1200)]
    for first in range(0, len(items), 100):
        engine.put("work", *items[first : first + 100])
        engine.end_turn()
    reader = engine.reader("work")
    kept = []
    for number in range(len(items)):
        found = reader.open_read(engine.clock.wall_ms)
        assert found is not None
        if number % 3:
            reader.begin_lease(found[0], 60_000, "")
            kept.append(items[number])
        else:
            reader.close(found[0])
    engine.end_turn()
    journal_bytes = sum(path.stat().st_size for path in engine.segments("work"))
    assert len(engine.segments("work")) == 4, "the last one has the leases"
    engine.collection.close()
    files.read_bytes = 0
    engine.start()
    assert files.read_bytes < 4 * journal_bytes, "the records of leases, and what says that they are leased"
    held = engine.reader("work").held
    assert held is not None
    assert len(held.leases) == len(kept)
    engine.clock.advance(61_000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    while engine.collection.agenda.heap:
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain("work") == kept
