"""When an item is past use: after its time, not at it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine import Engine, QuickFiles

Put = Callable[[Engine], object]


@pytest.mark.parametrize(
    ("put", "settings"),
    [
        (lambda engine: engine.put("work", b"x", expire_at_ms=engine.clock.wall_ms + 50), {}),
        (lambda engine: engine.put("work", b"x"), {"max_age_ms": 50}),
        (lambda engine: engine.put("work", b"x", expire_at_ms=engine.clock.wall_ms + 50), {"max_age_ms": 900}),
        (lambda engine: engine.put("work", b"x", expire_at_ms=engine.clock.wall_ms + 900), {"max_age_ms": 50}),
    ],
    ids=["expiry", "max_age", "expiry before max_age", "max_age before expiry"],
)
def test_an_item_is_there_to_the_last_millisecond_of_its_time_and_gone_with_the_next(
    tmp_path: Path, put: Put, settings: dict[str, int]
) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles(), **settings)
    put(engine)
    engine.end_turn()
    engine.clock.advance(50)
    assert engine.collection.flush_expired("work") == 0
    assert engine.reader("work").peek(engine.clock.wall_ms) is not None
    engine.clock.advance(1)
    assert engine.reader("work").peek(engine.clock.wall_ms) is None
    assert engine.take("work") is None
