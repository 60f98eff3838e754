"""A journal with leases: granted, extended, given back, failed, confirmed, and running when the server was killed."""

from pathlib import Path
from typing import Final

from kestreld.journal.segment import decode_header
from kestreld.queues import leases
from tests.support.clock import START_WALL_MS
from tests.support.engine import Engine, QuickFiles

ANN: Final = "10.0.0.1:4001"
BOB: Final = "10.0.0.2:4002"
LEASE_MS: Final = 60_000
# In the order of the journal: event, item, ms since START_WALL_MS, holder ("" = none), end of the lease or due time.
STORY: Final = (
    ("leased", 1, 0, ANN, 60_000),
    ("leased", 2, 0, BOB, 60_000),
    ("extended", 1, 5000, ANN, 65_000),
    ("returned", 2, 8000, "", 8000),
    ("confirmed", 1, 10_000, "", None),
    ("leased", 2, 11_000, ANN, 71_000),
    ("confirmed", 2, 13_000, "", None),
    ("leased", 3, 13_000, BOB, 73_000),
    ("failed", 3, 14_000, "", 15_000),
    ("leased", 3, 16_000, BOB, 76_000),
    ("confirmed", 3, 20_000, "", None),
    ("leased", 4, 20_000, ANN, 80_000),
    ("returned later", 4, 21_000, "", 81_000),
    ("leased", 5, 30_000, BOB, 90_000),
    ("extended", 5, 40_000, BOB, 100_000),
)


def write_leases(spool: Path, **settings: object) -> Engine:
    """Item 4 is delayed, item 5 leased when the process dies, at 45,000 ms."""
    engine = Engine(spool, QuickFiles(), retry_delays_ms=(1000,), **settings)
    for number in range(1, 7):
        engine.put("work", b"item %d" % number)
    engine.end_turn()
    tokens: dict[int, int] = {}
    for event, item, at_ms, holder, _ in STORY:
        pass_by(engine, START_WALL_MS + at_ms - engine.clock.wall_ms)
        reader, now_ms = engine.reader("work"), engine.clock.wall_ms
        if event == "leased":
            leased = leases.lease(reader, now_ms, LEASE_MS, holder)
            assert leased is not None
            tokens[item] = leased[0]
        elif event == "extended":
            assert leases.extend(reader, tokens[item], LEASE_MS)
        elif event == "confirmed":
            assert leases.confirm(reader, tokens[item])
        elif event == "failed":
            assert leases.fail(reader, tokens[item], now_ms, "no room")
        else:
            assert leases.give_back(reader, tokens[item], now_ms, 60_000 if event == "returned later" else 0)
        engine.end_turn()
    pass_by(engine, 5000)
    engine.abandon()
    return engine


def late_confirm(spool: Path) -> Engine:
    """An item whose lease ran out after 30 s, which its holder took up again, and confirmed after 40 s."""
    engine = Engine(spool, QuickFiles(), max_retries=9)
    engine.put("work", b"item 1")
    engine.end_turn()
    leased = leases.lease(engine.reader("work"), engine.clock.wall_ms, 30_000, BOB)
    assert leased is not None
    engine.end_turn()
    pass_by(engine, 30_000)
    pass_by(engine, 5000)
    assert leases.extend(engine.reader("work"), leased[0], LEASE_MS)
    engine.end_turn()
    pass_by(engine, 5000)
    assert leases.confirm(engine.reader("work"), leased[0])
    engine.end_turn()
    engine.collection.close()
    return engine


def pass_by(engine: Engine, time_ms: int) -> None:
    engine.clock.advance(time_ms)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    engine.end_turn()


def write_compacted(spool: Path, archive: Path) -> Engine:
    """Item 1 is leased by Ann to `work` and delayed for `work+audit`, in a compacted segment; the originals are
    archived.
    """
    engine = Engine(spool, QuickFiles(), archive=archive, max_journal_size_bytes=500, max_journal_overflow=4)
    engine.reader("work+audit")
    assert engine.reader("work").queue.put_later(b"item 1", 0, 0, None, 60_000)
    engine.end_turn()
    engine.reader("work").run_now(1, engine.clock.wall_ms)
    engine.end_turn()
    assert leases.lease(engine.reader("work"), engine.clock.wall_ms, 10 * LEASE_MS, ANN) is not None
    engine.end_turn()
    for number in range(2, 200):
        engine.put("work", b"item %d" % number)
        engine.end_turn()
        for name in ("work", "work+audit"):
            engine.take(name)
        engine.end_turn()
        engine.work(2)
        pass_by(engine, 10)
        if any(decode_header(path.read_bytes(), str(path))[0].replaced for path in engine.segments("work")):
            break
    engine.abandon()
    return engine
