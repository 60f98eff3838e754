"""Pages of what a queue holds back: in the order of due times, found in steps."""

from pathlib import Path

import pytest

from kestreld.queues.reader import Reader
from kestreld.queues.states import STEP_ITEMS, Place, State, held_places
from tests.support.engine import Engine, QuickFiles

ITEMS = 2000


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    engine = Engine(tmp_path / "spool", QuickFiles())
    reader = engine.reader("work")
    for number in range(ITEMS):
        reader.queue.put_later(b"x", 0, 0, None, 1000 + number * 7919 % 500)
    engine.end_turn()
    return reader


def page(reader: Reader, after: Place, limit: int) -> tuple[list[Place], int]:
    """And in how many steps it was found."""
    steps, search = 0, held_places(reader, State.DELAYED, after, limit)
    while True:
        try:
            next(search)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@pytest.mark.parametrize("limit", [1, 7, 300, ITEMS + 1])
def test_pages_have_every_item_once_in_the_order_of_due_times(reader: Reader, limit: int) -> None:
    found: list[Place] = []
    pages = 0
    while (places := page(reader, found[-1] if found else (0, 0), limit)[0]) and pages < 20:
        found += places
        pages += 1
    assert found == sorted(found)
    assert len(set(found)) == len(found) == min(ITEMS, 20 * limit)
    assert found[0][0] - reader.queue.clock.monotonic_ms == 1000


def test_a_search_gives_way_every_few_items(reader: Reader) -> None:
    assert page(reader, (0, 0), 10)[1] >= ITEMS / STEP_ITEMS
