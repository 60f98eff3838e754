"""max_memory: what all queues together hold in memory."""

from pathlib import Path

from tests.support.engine import Engine, QuickFiles

LIMIT_BYTES = 50_000
ITEM_BYTES = 1000
NAMES = [f"queue-{number}" for number in range(5)]


def numbered(count: int) -> list[bytes]:
    return [(b"%d " % number).ljust(ITEM_BYTES, b"x") for number in range(count)]


def held_bytes(engine: Engine) -> int:
    for queue in engine.collection.families.values():
        queue.flush_counters()
    return sum(queue.held_bytes() for queue in engine.collection.families.values())


def fill(engine: Engine, items: list[bytes]) -> None:
    for item in items:
        for name in NAMES:
            assert engine.put(name, item)
        engine.end_turn()


def test_items_that_would_not_fit_stay_on_disk_and_come_in_their_order(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    items = numbered(100)
    fill(engine, items)
    assert LIMIT_BYTES * 3 // 4 < held_bytes(engine) < LIMIT_BYTES + len(NAMES) * 2 * ITEM_BYTES
    for name in NAMES:
        assert engine.drain(name) == items


def test_without_a_limit_all_is_held(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    fill(engine, numbered(100))
    assert held_bytes(engine) > 100 * ITEM_BYTES * len(NAMES)


def test_what_is_taken_leaves_its_room_to_others(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    fill(engine, numbered(100))
    for name in NAMES:
        engine.drain(name)
    engine.end_turn()
    engine.work(len(NAMES))
    engine.put("late", *numbered(40))
    assert len(engine.queue("late").readers[""].window) == 40


def test_a_deleted_queue_leaves_its_room_to_others(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    fill(engine, numbered(100))
    for name in NAMES:
        engine.collection.delete(name)
    engine.put("late", *numbered(40))
    assert len(engine.queue("late").readers[""].window) == 40


def test_a_reload_can_lift_the_limit(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    fill(engine, numbered(100))
    engine.max_memory_bytes = None
    engine.configure()
    engine.put("late", *numbered(100))
    assert len(engine.queue("late").readers[""].window) == 100


def test_many_small_items_count_with_what_they_take_beside_their_data(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    engine.put("small", b"")
    for _ in range(20):
        engine.put("small", *[b""] * 100)
        engine.end_turn()
        engine.work(2)
    engine.put("small", *[b""] * 1000)
    assert held_bytes(engine) < LIMIT_BYTES + 101 * 101
    assert len(engine.drain("small")) == 3001


def test_a_queue_without_a_journal_takes_no_more_or_drops_its_oldest(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES, journal=False)
    latest = {"latest": {"discard_old_when_full": True}}
    engine.configure(latest, journal=False)
    items = numbered(100)
    engine.put("latest", *items)
    dropped = 100 - len(engine.queue("latest").readers[""].window)
    assert 50 < dropped < 70
    assert not any(engine.put("plain", *items))
    assert held_bytes(engine) < LIMIT_BYTES + 2 * ITEM_BYTES
    assert engine.drain("latest") == items[dropped:]


def test_it_is_said_once_a_minute(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), max_memory_bytes=LIMIT_BYTES)
    fill(engine, numbered(100))
    for _ in range(3):
        engine.work(10)
    (line,) = engine.log
    assert line.startswith("max_memory reached")
