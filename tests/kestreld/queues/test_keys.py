"""Keys of items: how long they are refused, and what forgets them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.queues.keys import Keys, digest_of
from tests.support.engine import Engine, QuickFiles
from tests.support.faulty_files import FaultyFiles

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    return lambda files=None, **settings: Engine(tmp_path / "spool", files or QuickFiles(), **settings)


def put(engine: Engine, key: bytes, name: str = "work", delay_ms: int = 0) -> bool:
    """Put an item unless its key is known."""
    reader = engine.reader(name)
    queue = reader.queue
    if reader.find_key(key):
        return False
    queue.use_version(2)
    one = queue.next_id
    only = reader if reader.label else None
    stored = queue.put_later(b"x", 0, 0, only, delay_ms) if delay_ms else queue.put_with(b"x", 0, 0, only)
    assert stored
    reader.remember_key(key, one, delay_ms)
    return True


def test_a_key_is_known_for_its_time_whether_its_item_is_done_or_not(make_engine: MakeEngine) -> None:
    engine = make_engine(key_time_ms=100)
    assert put(engine, b"a")
    assert not put(engine, b"a")
    assert put(engine, b"b")
    engine.take("work")
    engine.end_turn()
    engine.clock.advance(99)
    assert not put(engine, b"a")
    engine.clock.advance(1)
    assert put(engine, b"a")


def test_the_key_of_a_delayed_item_is_known_until_its_time_after_that_is_due(make_engine: MakeEngine) -> None:
    engine = make_engine(key_time_ms=100)
    assert put(engine, b"a", delay_ms=50)
    engine.clock.advance(149)
    assert not put(engine, b"a")
    engine.clock.advance(1)
    assert put(engine, b"a")


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_keys_are_known_over_restarts_and_no_longer_than_was_left(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine(key_time_ms=100)
    assert put(engine, b"a")
    engine.end_turn()
    engine.clock.advance(60)
    getattr(engine, end)()
    assert not put(engine, b"a")
    engine.clock.advance(40)
    assert put(engine, b"a")


def test_keys_are_known_after_their_segments_were_compacted_or_dropped(make_engine: MakeEngine) -> None:
    engine = make_engine(key_time_ms=1_000_000, max_journal_size_bytes=300)
    assert put(engine, b"a")
    for _ in range(200):
        engine.put("work", b"y" * 50)
        engine.end_turn()
        engine.take("work")
        engine.end_turn()
        engine.work(20)
        assert not put(engine, b"a")
    journal = engine.queue("work").journal
    assert journal is not None
    assert len(journal.segments) < 20
    engine.crash()
    assert not put(engine, b"a")
    engine.clock.advance(1_000_000)
    assert put(engine, b"a")


@pytest.mark.parametrize("crashes", [True, False])
@pytest.mark.parametrize("has_items", [True, False])
def test_a_flush_forgets_the_keys_of_its_queue_for_good(
    make_engine: MakeEngine, has_items: bool, crashes: bool
) -> None:
    engine = make_engine()
    engine.reader("work+a")
    for name in ("work", "work+a"):
        assert put(engine, b"a", name)
    if not has_items:
        engine.take("work")
    engine.end_turn()
    engine.collection.flush("work")
    engine.end_turn()
    if crashes:
        engine.crash()
    assert not put(engine, b"a", "work+a")
    assert put(engine, b"a", "work")


@pytest.mark.parametrize("crashes", [True, False])
def test_what_is_cancelled_comes_to_no_child_either(make_engine: MakeEngine, crashes: bool) -> None:
    engine = make_engine()
    queue, names = engine.reader("work").queue, ("work", "work+a", "work+b")
    for name in names:
        engine.reader(name)
    assert queue.put_keyed(b"a", engine.reader("work"), b"item", 0, 0, None, 1000)
    engine.end_turn()
    assert engine.reader("work").cancel(b"a")
    engine.end_turn()
    if crashes:
        engine.crash()
    engine.clock.advance(1000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert [engine.take(name) for name in names] == [None] * 3


def test_a_child_has_keys_of_its_own(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.reader("work+a")
    assert put(engine, b"a", "work")
    assert put(engine, b"a", "work+a")


def test_a_put_that_fails_leaves_no_key(make_engine: MakeEngine) -> None:
    files = FaultyFiles(kinds=("write",))
    engine = make_engine(files)
    assert put(engine, b"a")
    engine.end_turn()
    files.fail_from(1)
    assert put(engine, b"b")
    assert engine.end_turn()
    engine.configure(key_time_ms=300_000, max_items=None)
    engine.configure()
    assert put(engine, b"b")
    assert not put(engine, b"a")
    engine.end_turn()
    engine.crash()
    assert not put(engine, b"b")


def test_beyond_the_most_the_oldest_key_is_forgotten_and_counted() -> None:
    keys = Keys()
    for number in range(5):
        keys.remember(digest_of(b"%d" % number), number + 1, 1000 + number, 3)
    assert (len(keys), keys.forgotten) == (3, 2)
    assert [keys.find(digest_of(b"%d" % number), 0) for number in range(5)] == [0, 0, 3, 4, 5]


def test_a_key_that_was_put_anew_counts_from_then_on_though_its_first_time_is_over() -> None:
    keys, digest = Keys(), digest_of(b"a")
    keys.remember(digest, 1, 100, 10)
    keys.forget(digest)  # its item was withdrawn
    keys.remember(digest, 2, 300, 10)
    keys.expire(100)
    assert keys.find(digest, 100) == 2
    keys.expire(300)
    assert (keys.find(digest, 300), len(keys)) == (0, 0)


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_a_clock_set_back_before_a_start_makes_no_key_last_longer_than_its_time(
    make_engine: MakeEngine, end: str
) -> None:
    engine = make_engine(key_time_ms=100)
    assert put(engine, b"a")
    engine.end_turn()
    engine.clock.wall_ms -= 1_000_000
    getattr(engine, end)()
    assert not put(engine, b"a")
    engine.clock.advance(100)
    assert put(engine, b"a")
