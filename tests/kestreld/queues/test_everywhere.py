"""Long work in slices, and commands on all queues: how they share time, the commits they wait for, those that fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestreld.queues.commit import Tally
from kestreld.queues.everywhere import ON_THE_WAY_MAX, everywhere
from kestreld.queues.slices import OVER, WAITS, Slices, Work
from tests.support.clock import FakeClock
from tests.support.engine import Engine, LateFiles
from tests.support.faulty_files import FaultyFiles

NAMES = [f"q{number}" for number in range(100)]


class Flush:
    """A flush_all under way; `flushed` is what it counted, once it is over."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tally = Tally(lambda: None)
        self.flushed: int | None = None
        engine.slices.take_on(self._run())

    def _run(self) -> Work:
        steps = self.engine.collection.flush_all()
        self.flushed = yield from everywhere(self.engine.commit, self.engine.end_turn, steps, self.tally)


def filled(spool: Path, files: LateFiles, sync_ms: int | None = None) -> Engine:
    engine = Engine(spool, files, sync_journal_ms=sync_ms)
    for name in NAMES:
        engine.put(name, b"item")
    engine.put("q0+child", b"its own")
    while engine.end_turn() or files.under_way:
        files.finish_background()
    return engine


def a_slice(engine: Engine) -> None:
    engine.slices.run(engine.clock.stopwatch_us() + 1_000_000)


def test_a_flush_all_is_over_when_every_commit_is_on_disk(tmp_path: Path) -> None:
    files = LateFiles()
    engine = filled(tmp_path, files, sync_ms=0)
    flush = Flush(engine)
    a_slice(engine)
    syncs = 0
    while flush.tally.pending:
        assert flush.flushed is None
        assert len(files.under_way) == flush.tally.pending < 2 * ON_THE_WAY_MAX, (
            "there is room for other clients' syncs"
        )
        syncs += len(files.under_way)
        files.finish_background()
        a_slice(engine)
    assert (syncs, flush.flushed, flush.tally.failure) == (len(NAMES) + 1, len(NAMES) + 1, None)
    assert not engine.slices.is_busy
    engine.crash()
    assert [engine.items(name) for name in [*NAMES, "q0+child"]] == [0] * (len(NAMES) + 1)


@pytest.mark.parametrize("sync_ms", [None, 0])
def test_a_commit_that_fails_fails_the_command_and_keeps_no_other_queue_from_it(
    tmp_path: Path, sync_ms: int | None
) -> None:
    files = FaultyFiles()
    engine = filled(tmp_path, files, sync_ms)
    files.fail_from(len(NAMES))
    flush = Flush(engine)
    while flush.flushed is None:
        a_slice(engine)
        files.finish_background()
        if files.failed:
            files.mend()
    assert flush.tally.failure is not None
    assert all(engine.items(name) == 0 for name in NAMES[-20:])


def test_what_has_to_wait_takes_no_time_from_the_others() -> None:
    slices = Slices(FakeClock(), lambda: None)
    steps: list[str] = []

    def work(name: str, *gives: int | None) -> Iterator[int | None]:
        for give in gives:
            steps.append(name)
            yield give

    slices.take_on(work("waits", WAITS, WAITS, None))
    slices.take_on(work("works", None, None))
    slices.take_on(work("elsewhere", OVER, None))
    slices.take_on(work("last", None))
    slices.run(1 << 60)
    assert steps == ["waits", "works", "works", "elsewhere"]
    slices.run(1 << 60)
    assert steps[4:] == ["last", "waits", "elsewhere"]
    assert slices.is_busy
    slices.run(1 << 60)
    assert steps[7:] == ["waits"]
    assert not slices.is_busy


def test_a_reload_leaves_queues_alone_whose_settings_are_the_same(tmp_path: Path) -> None:
    engine = filled(tmp_path, LateFiles())
    names = NAMES[1:4]
    for name in names:
        engine.put(name, b"more")
    rooms = [engine.queue(name).put_budget for name in names]
    assert min(rooms) >= 0
    engine.configure()
    assert [engine.queue(name).put_budget for name in names] == rooms
    engine.configure({"q2": {"max_items": 5}, "q3": {"sync_journal_ms": 0}})
    assert [engine.queue(name).put_budget for name in names][:2] == [rooms[0], -1], "-1: looked at before a put"
    assert [engine.queue(name).sync_ms for name in names] == [None, None, 0]
    assert not all(engine.put("q2", *[b"x"] * 5))
