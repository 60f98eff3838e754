"""When the head was put, of queues whose head is not in memory."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kestreld.journal.records import item_add_at_ms
from tests.support.engine import Engine, QuickFiles


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    return lambda **settings: Engine(tmp_path / "spool", QuickFiles(), **settings)


def oldest_at_ms(engine: Engine, name: str) -> int:
    """As figures find it out, which load nothing."""
    reader = engine.collection.readers[name]
    in_memory = len(reader.window)
    steps = 0
    while reader.seek_head():
        steps += 1
        assert steps < 10_000
    assert len(reader.window) == in_memory
    return reader.oldest_at_ms()


def head_at_ms(engine: Engine, name: str) -> int:
    """As a client finds it out, by looking at the item."""
    record = engine.collection.readers[name].peek(engine.clock.wall_ms)
    return item_add_at_ms(record) if record is not None else 0


def test_it_is_known_after_a_restart_without_loading_an_item(engine: Callable[..., Engine]) -> None:
    running = engine()
    first_at_ms = running.clock.wall_ms
    for _ in range(3):
        running.put("work", b"x")
        running.clock.advance(1000)
    running.restart()
    assert len(running.reader("work").window) == 0
    assert oldest_at_ms(running, "work") == first_at_ms


def test_an_empty_queue_has_none(engine: Callable[..., Engine]) -> None:
    running = engine()
    running.put("work", b"x")
    running.take("work")
    assert oldest_at_ms(running, "work") == 0
    running.restart()
    assert oldest_at_ms(running, "work") == 0


def test_a_large_item_at_the_head_is_not_read_for_it(engine: Callable[..., Engine]) -> None:
    running = engine(max_memory_size_bytes=1)
    running.put("work", b"x")
    running.clock.advance(1000)
    large_at_ms = running.clock.wall_ms
    running.put("work", b"y" * 5_000_000)
    running.end_turn()
    running.take("work")
    assert oldest_at_ms(running, "work") == large_at_ms


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_time_of_the_item_that_is_delivered_next(engine: Callable[..., Engine], seed: int) -> None:
    """With children, small windows, open reads that are done out of order, several segments and restarts."""
    random = Random(seed)
    running = engine(max_memory_size_bytes=random.choice([1, 300, 10_000]), max_journal_size_bytes=4096)
    names = ["work", "work+audit"]
    running.reader("work+audit")
    opened: list[tuple[str, int]] = []
    on_disk = 0
    for _ in range(300):
        running.clock.advance(random.randint(1, 50))
        name = random.choice(names)
        match random.randint(0, 6):
            case 0 | 1 | 2:
                running.put(random.choice(["work", "work", "work+audit"]), b"x" * random.randint(0, 400))
            case 3:
                running.take(name)
            case 4:
                if (found := running.reader(name).open_read(running.clock.wall_ms)) is not None:
                    opened.append((name, found[0]))
            case 5:
                if opened:
                    name, one = opened.pop(random.randrange(len(opened)))
                    running.reader(name).close(one)
            case 6:
                if random.random() < 0.3:
                    running.restart()
                    opened = []
        if random.random() < 0.7:
            running.end_turn()
        running.queue("work").flush_counters()
        reader = running.reader(name)
        on_disk += not reader.window and reader.items > 0
        assert oldest_at_ms(running, name) == head_at_ms(running, name)
    assert on_disk > 3
