"""`sync_together`: the journals that are due at the same time are put on disk by one call, and fail together."""

import errno
import os
from pathlib import Path

from kestreld.queues.commit import PendingCommit
from tests.support.engine import Engine, LateFiles

NAMES = ("one", "two", "three")


class CountingFiles(LateFiles):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fails = False
        self.elsewhere = "nowhere"

    def is_covered(self, path: str, fd: int) -> bool:
        return self.elsewhere not in path

    def sync(self, fd: int) -> None:
        self.calls.append("sync")

    def sync_file_system(self, fd: int) -> None:
        self.calls.append("sync_file_system")
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def put(engine: Engine, *names: str) -> list[PendingCommit]:
    """An item for each queue in one turn; what their answers wait for."""
    for name in names:
        engine.put(name, b"item")
    engine.end_turn()
    pending_commits = [
        pending_commit for name in names if (pending_commit := engine.queue(name).pending_commit) is not None
    ]
    assert len(pending_commits) == len(names)
    return pending_commits


def made(tmp_path: Path) -> tuple[Engine, CountingFiles]:
    files = CountingFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.collection.commit.together = True
    for name in NAMES:
        engine.reader(name)
    engine.end_turn()
    files.finish_background()
    files.calls.clear()
    return engine, files


def test_journals_due_in_one_turn_are_synced_by_one_call(tmp_path: Path) -> None:
    engine, files = made(tmp_path)
    pending_commits = put(engine, *NAMES)
    assert all(pending_commit.pending for pending_commit in pending_commits)
    files.finish_background()
    assert files.calls == ["sync_file_system"]
    assert not any(pending_commit.pending or pending_commit.failure for pending_commit in pending_commits)
    assert [engine.take(name) for name in NAMES] == [b"item"] * 3


def test_a_journal_on_another_file_system_is_synced_by_itself(tmp_path: Path) -> None:
    engine, files = made(tmp_path)
    files.elsewhere = "/two.journal/"
    put(engine, *NAMES)
    files.finish_background()
    assert sorted(files.calls) == ["sync", "sync_file_system"]
    assert [engine.take(name) for name in NAMES] == [b"item"] * 3


def test_a_single_journal_is_synced_alone(tmp_path: Path) -> None:
    engine, files = made(tmp_path)
    (pending_commit,) = put(engine, "two")
    files.finish_background()
    assert files.calls == ["sync"]
    assert not pending_commit.pending


def test_a_failure_is_told_to_everybody_who_waited(tmp_path: Path) -> None:
    engine, files = made(tmp_path)
    pending_commits = put(engine, *NAMES)
    files.fails = True
    files.finish_background()
    assert all(pending_commit.failure is not None for pending_commit in pending_commits)
    assert [engine.take(name) for name in NAMES] == [None] * 3
