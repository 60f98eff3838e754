"""A queue with a past: a real engine's journal and archive, written while the test's clock went on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.clock import START_WALL_MS, FakeClock
from tests.support.engine import Engine

MINUTE_MS: Final = 60_000
BEGIN_MS: Final = START_WALL_MS


@dataclass(slots=True)
class Past:
    """`waiting` has the items of `work` and of `work+audit` at the end of each minute, as a client would get them."""

    spool: Path
    archive: Path
    waiting: list[tuple[list[bytes], list[bytes]]]

    @property
    def end_ms(self) -> int:
        return BEGIN_MS + len(self.waiting) * MINUTE_MS


def write_past(folder: Path, *, archived: bool = True, minutes: int = 24) -> Past:
    """Each minute two items of 50 and more bytes are put on `work`; in every second minute three are got from it. The
    child `work+audit` begins in minute 4 with an item of its own, and gets one item a minute from minute 8 on.
    """
    clock = FakeClock()
    archive = folder / "archive"
    engine = Engine(folder / "spool", clock=clock, archive=archive if archived else None, max_journal_size_bytes=1000)
    past = Past(folder / "spool", archive, [])
    work: list[bytes] = []
    audit: list[bytes] = []
    for minute in range(minutes):
        if minute == 4:
            engine.put("work+audit", b"for the audit only")
            engine.end_turn()
            audit.append(b"for the audit only")
        for number in range(2):
            data = b"%d.%d " % (minute, number) + b"x" * 50
            engine.put("work", data)
            work.append(data)
            if minute >= 4:
                audit.append(data)
        engine.end_turn()
        for _ in range(3 * (minute % 2)):
            assert engine.take("work") == work.pop(0)
        if minute >= 8:
            assert engine.take("work+audit") == audit.pop(0)
        clock.advance(MINUTE_MS // 2)
        engine.end_turn()
        engine.work(3)
        clock.advance(MINUTE_MS // 2)
        past.waiting.append((list(work), list(audit)))
    engine.collection.close()
    return past
