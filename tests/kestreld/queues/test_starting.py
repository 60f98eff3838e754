"""A start with many queues: what it asks the disk for, and what it says meanwhile."""

import errno
import os
from collections import Counter
from pathlib import Path

from kestreld.config.config import Config
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from tests.support.clock import FakeClock
from tests.support.engine import Engine, QuickFiles

READ_MS = 10


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
