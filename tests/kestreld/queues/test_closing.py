"""The end of a collection: one sync for all journals, a seal for each; and what a late or failing one leaves."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from kestreld.disk_threads import ThreadedFiles
from kestreld.journal.records import sync_record
from kestreld.journal.segment import UNSYNCED_MARK
from tests.support.engine import Engine, LateFiles, QuickFiles

NAMES = ("one", "two", "three")
SEAL_BYTES = len(sync_record(0))
PLENTY_US = 1 << 60


class StoppingFiles(QuickFiles):
    """Counts syncs, and seals as they are written. `clock_us` of the engine goes on with each seal if told so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.error: OSError | None = None
        self.takes_too_long = False
        self.covers: Callable[[str], bool] = lambda path: True
        self.wrote: Callable[[], None] = lambda: None

    def sync(self, fd: int) -> None:
        self.calls.append("sync")

    def sync_file_system(self, fd: int) -> None:
        self.calls.append("sync_file_system")
        if self.error is not None:
            raise self.error

    def is_covered(self, path: str, fd: int) -> bool:
        return self.covers(path)

    def in_time(self, work: Callable[[], None], within_us: int | None) -> bool:
        if self.takes_too_long:
            self.calls.append("too late")
            return False
        return super().in_time(work, within_us)

    def write(self, fd: int, data: bytes) -> int:
        self.wrote()
        return super().write(fd, data)


@pytest.fixture
def files() -> StoppingFiles:
    return StoppingFiles()


@pytest.fixture
def engine(tmp_path: Path, files: StoppingFiles) -> Engine:
    """Queues with an item each, all of them written to since the start."""
    engine = Engine(tmp_path, files)
    put(engine, *NAMES)
    return engine


def put(engine: Engine, *names: str) -> None:
    for name in names:
        engine.put(name, b"item")
    engine.end_turn()
    if isinstance(engine.files, StoppingFiles):
        engine.files.calls.clear()


def close(engine: Engine, until_us: int | None = PLENTY_US) -> int:
    """As a server does: how many journals are left."""
    fd = engine.files.open_read(str(engine.spool))
    try:
        return engine.collection.close(fd, until_us)
    finally:
        engine.files.close(fd)


def sealed(engine: Engine) -> set[str]:
    """The queues whose last record says that all before it is on disk."""
    found = set()
    for folder in engine.spool.glob("*.journal"):
        content = max(folder.glob("*.seg")).read_bytes()
        if content.endswith(sync_record(len(content) - SEAL_BYTES)):
            found.add(folder.name.removesuffix(".journal"))
    return found


def marked(engine: Engine) -> set[str]:
    return {path.parent.name.removesuffix(".journal") for path in engine.spool.glob(f"*.journal/*{UNSYNCED_MARK}")}


def start(engine: Engine) -> Engine:
    return Engine(engine.spool, engine.files)


def test_one_sync_covers_all_journals_and_each_is_sealed(engine: Engine, files: StoppingFiles) -> None:
    assert close(engine) == 0
    assert files.calls == ["sync_file_system"]
    assert sealed(engine) == set(NAMES)
    assert files.open_now == set()


def test_what_nothing_was_written_to_since_the_start_is_not_sealed(engine: Engine, files: StoppingFiles) -> None:
    engine.abandon()
    engine = start(engine)
    put(engine, "two")
    assert close(engine) == 0
    assert files.calls == ["sync_file_system"]
    assert sealed(engine) == {"two"}


def test_a_single_journal_does_not_wait_for_the_file_system(tmp_path: Path, files: StoppingFiles) -> None:
    engine = Engine(tmp_path, files)
    put(engine, "one")
    assert close(engine) == 0
    assert files.calls == ["sync"]
    assert sealed(engine) == {"one"}


def test_an_error_of_the_sync_seals_nothing_and_the_next_start_trusts_no_segment(
    engine: Engine, files: StoppingFiles
) -> None:
    files.error = OSError(errno.EIO, os.strerror(errno.EIO))
    close(engine)
    assert sealed(engine) == set()
    assert marked(engine) == set(NAMES)
    assert [line for line in engine.log if "sync of the file system failed: Input/output error" in line] == engine.log
    again = start(engine)
    for name in NAMES:
        assert len(again.segments(name)) == 2
        assert again.drain(name) == [b"item"]


def test_what_was_on_disk_before_is_marked_too_when_the_sync_of_its_seal_fails(
    engine: Engine, files: StoppingFiles
) -> None:
    journal = engine.queue("one").journal
    assert journal is not None
    journal.sync()
    files.error = OSError(errno.EIO, os.strerror(errno.EIO))
    close(engine)
    assert sealed(engine) == {"one"}, "what it says was on disk is"
    assert marked(engine) == set(NAMES), "but not the record that says it"


def test_without_time_for_the_sync_only_what_was_on_disk_is_sealed(engine: Engine, files: StoppingFiles) -> None:
    journal = engine.queue("two").journal
    assert journal is not None
    journal.sync()
    files.takes_too_long = True
    assert close(engine) == 2
    assert sealed(engine) == {"two"}
    assert marked(engine) == set()
    assert engine.log == [
        "stopping: time limit reached, 2 of 3 journals not synced and sealed; they will be recovered as after a crash"
    ]
    assert [start(engine).drain(name) for name in NAMES] == [[b"item"]] * 3


def test_synced_queues_are_sealed_first_while_there_is_time(tmp_path: Path, files: StoppingFiles) -> None:
    engine = Engine(tmp_path, files)
    engine.configure({"three": {"sync_journal_ms": 60_000}})
    put(engine, *NAMES)
    files.wrote = lambda: engine.clock.advance(1)
    assert close(engine, until_us=engine.clock.stopwatch_us() + 1) == 2
    assert files.calls == ["sync_file_system"]
    assert sealed(engine) == {"three"}
    assert engine.log == [
        "stopping: time limit reached, 2 of 3 journals not synced and sealed; they will be recovered as after a crash"
    ]


def test_a_journal_elsewhere_is_synced_by_itself(engine: Engine, files: StoppingFiles) -> None:
    files.covers = lambda path: "/two.journal/" not in path
    assert close(engine) == 0
    assert files.calls.count("sync_file_system") == 1
    assert files.calls.count("sync") == 1
    assert sealed(engine) == set(NAMES)


def test_the_time_ends_for_those_synced_by_themselves_too(engine: Engine, files: StoppingFiles) -> None:
    files.covers = lambda path: False
    files.wrote = lambda: engine.clock.advance(1)
    assert close(engine, until_us=engine.clock.stopwatch_us() + 1) == 2
    assert files.calls == ["sync"]
    assert len(sealed(engine)) == 1


def filled_during_a_sync(tmp_path: Path, files: LateFiles) -> Engine:
    """A queue whose first segment is on its way to the disk in the background, and whose second one is full too."""
    engine = Engine(tmp_path, files, max_journal_size_bytes=100)
    put(engine, "one")
    for _ in range(2):
        engine.put("one", b"." * 100)
        engine.end_turn()
    assert len(engine.segments("one")) == 3
    return engine


def test_a_sync_that_the_stop_has_cut_short_is_made_up_for_by_that_of_the_file_system(tmp_path: Path) -> None:
    """No thread may have begun it, so short is the time between a roll and the stop."""

    class Listening(LateFiles):
        synced: list[str] = []

        def sync_file_system(self, fd: int) -> None:
            self.synced.append("the file system")

    files = Listening()
    engine = filled_during_a_sync(tmp_path, files)
    assert close(engine) == 0
    assert files.synced == ["the file system"]
    assert sealed(engine) == {"one"}
    assert [path.name[:10] for path in engine.spool.glob("one.journal/*.live")] == ["0000000003"]


def test_a_journal_elsewhere_is_not_sealed_while_a_sync_of_its_full_segments_is_not_over(tmp_path: Path) -> None:
    class Elsewhere(LateFiles):
        def is_covered(self, path: str, fd: int) -> bool:
            return False

    engine = filled_during_a_sync(tmp_path, Elsewhere())
    assert close(engine) == 1
    assert sealed(engine) == set()


def test_what_was_filled_during_the_last_sync_in_the_background_is_synced_at_the_stop(tmp_path: Path) -> None:
    synced: list[int] = []

    class Listening(LateFiles):
        def sync(self, fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)

    files = Listening()
    engine = filled_during_a_sync(tmp_path, files)
    files.takes_calls = False
    files.finish_background()
    synced.clear()
    assert close(engine) == 0
    assert sealed(engine) == {"one"}
    assert {path.stat().st_ino for path in engine.segments("one")[1:]} == set(synced)


# Threads


def test_a_call_that_is_not_over_in_time_goes_on_unheard() -> None:
    files, may_end = ThreadedFiles(lambda deliver: None), Event()
    assert not files.in_time(lambda: may_end.wait() and None, 1000)
    may_end.set()
    assert files.in_time(lambda: None, None)
    with pytest.raises(FileNotFoundError):
        files.in_time(lambda: files.unlink("/nowhere/at/all"), 10_000_000)


def test_a_failure_that_nobody_was_told_of_is_told_at_the_stop() -> None:
    """The loop has ended: a sync that fails behind it must not pass for one that worked."""
    heard: list[OSError | None] = []
    files = ThreadedFiles(lambda deliver: None)
    files.in_background(lambda: files.unlink("/nowhere/at/all"), heard.append)
    files.stop()
    assert [type(error) for error in heard] == [FileNotFoundError]


def test_a_stop_with_a_limit_waits_for_no_call_that_hangs_and_begins_nothing() -> None:
    files, may_end, begun = ThreadedFiles(lambda deliver: None), Event(), Event()
    done: list[int] = []

    def hang() -> None:
        begun.set()
        may_end.wait()

    for _ in range(8):  # as many as there are threads
        files.in_background(hang, lambda error: None)
    begun.wait()
    files.in_background(lambda: done.append(1), lambda error: None)
    files.stop(1000)
    may_end.set()
    files.stop()
    assert done == []
