"""Very many ids of the clients' own that are remembered: in steps, none of which holds up a turn."""

from collections.abc import Iterator
from pathlib import Path

from kestreld.jobs.keys import BLOCK_KEYS_MAX, KEY_TIME_MS, ClientKeys, key_in
from tests.support.job_engine import JobEngine
from tests.support.step_times import timed_steps

KEYS = 80 * BLOCK_KEYS_MAX
STEP_MS_MAX = 5


def engine_with_keys(spool: Path) -> JobEngine:
    engine = JobEngine(spool)
    until_ms = engine.jobs.now_ms + KEY_TIME_MS
    for number in range(KEYS):
        engine.jobs.keys.remember(b"key %d" % number, b"D-%038d" % number, until_ms)
    return engine


def rewritten(engine: JobEngine) -> Iterator[None]:
    """The slices of a rewrite, each with the turn behind it, which is not theirs."""
    assert engine.storage.rewrite()
    while engine.maintenance.is_rewriting or engine.maintenance.is_rewrite_wanted:
        engine.slices.run(engine.clock.stopwatch_us())
        yield
        engine.work()
        yield


def test_no_step_of_a_rewrite_takes_long_and_every_key_that_counts_is_in_the_new_log(tmp_path: Path) -> None:
    engine = engine_with_keys(tmp_path / "spool")
    assert timed_steps(lambda: rewritten(engine))[1] < STEP_MS_MAX
    assert not engine.maintenance.last_rewrite_failed
    engine.crash()
    now_ms = engine.jobs.now_ms
    for number in range(KEYS):
        assert engine.jobs.keys.find(b"key %d" % number, now_ms) == b"D-%038d" % number


def test_a_key_whose_job_ends_during_a_rewrite_counts_in_the_new_log_as_long_as_it_was_to(tmp_path: Path) -> None:
    engine = engine_with_keys(tmp_path / "spool")
    one = engine.add(key=b"late")
    engine.end_turn()
    engine.pass_time(KEY_TIME_MS - 1000)
    engine.storage.rewrite()
    engine.work(5)
    assert engine.maintenance.is_rewriting
    engine.ack(one)
    engine.end_turn()
    engine.work_until(lambda: not engine.maintenance.is_rewriting)
    engine.pass_time(2000)
    engine.maintenance.writer.roll()
    engine.add()
    engine.end_turn()
    engine.settle()
    engine.crash()
    assert engine.jobs.keys.find(key_in(b"q", b"late"), engine.jobs.now_ms) == one


def test_a_rewrite_that_all_jobs_go_from_writes_no_key_of_theirs(tmp_path: Path) -> None:
    engine = engine_with_keys(tmp_path / "spool")
    engine.storage.rewrite()
    engine.work(5)
    assert engine.maintenance.is_rewriting
    for _ in engine.jobs.clear():
        pass
    engine.settle()
    engine.crash()
    assert list(engine.jobs.keys.remembered()) == []


def test_no_step_of_forgetting_all_jobs_takes_long(tmp_path: Path) -> None:
    engine = engine_with_keys(tmp_path / "spool")

    def cleared() -> Iterator[None]:
        for number in range(KEYS):
            engine.jobs.keys.remember(b"key %d" % number, b"D-%038d" % number, engine.jobs.now_ms + KEY_TIME_MS)
        return engine.jobs.clear()

    assert timed_steps(cleared)[1] < STEP_MS_MAX


def test_keys_that_are_walked_while_others_are_forgotten_and_added_are_each_there_once() -> None:
    keys = ClientKeys()
    count = 5 * BLOCK_KEYS_MAX
    for number in range(count):
        keys.remember(b"%d" % number, b"id", number)
    seen = []
    for step, block in enumerate(keys.remembered(), 1):
        seen += [int(key) for _, key, _ in block]
        keys.find(b"", step * 2 * 100)  # each time the first hundred are forgotten
        keys.remember(b"%d" % (count + step), b"id", count + step)
    assert len(seen) == len(set(seen))
    assert set(seen) >= set(range(6 * 100, count))
    assert keys.find(b"0", 0) is None
